"""Arms by name."""

from collections.abc import Sequence

from policies import Arm
from policies.types import PLAIN, PLAIN_ARM
from tuner.settings import SettingsError

TUNED = "tuned"
PLAIN_ARM_NAME = "plain"


def parse_arms(names: Sequence[str], drafters: Sequence[str], limit: int) -> dict[str, Arm | None]:
    """Arms by name: ``plain``, ``DRAFTER:K``, or ``tuned`` (None). Raises SettingsError with one sentence."""
    arms: dict[str, Arm | None] = {}
    proposing = [drafter for drafter in drafters if drafter != PLAIN]
    for name in names:
        if name == TUNED:
            arms[name] = None
        elif name == PLAIN_ARM_NAME:
            arms[name] = PLAIN_ARM
        else:
            drafter, _, length = name.rpartition(":")
            if drafter not in proposing or not length.isdecimal() or not 1 <= int(length) <= limit:
                known = ", ".join(f"{drafter}:K" for drafter in proposing)
                raise SettingsError(
                    f"--arms names {name!r}; give plain, tuned, or {known} with K from 1 to {limit}; engine.drafters "
                    "says which are loaded."
                )
            arms[name] = Arm.fixed(drafter, int(length))
    return arms
