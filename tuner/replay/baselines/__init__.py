"""Controllers that others published, each from its source, and what hindsight would have chosen.

Plain and the fixed arms are not among them: `tuner.replay.run` plays those with `tuner.replay.fixed_play`.
"""

from collections.abc import Callable

from tuner.replay.oracle import Truth
from tuner.replay.player import Player


def controllers() -> dict[str, Callable[[Truth], Player]]:
    """What makes each baseline, by its name. Only those in hindsight look at the truth."""
    return {}
