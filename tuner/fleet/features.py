"""Which requests a server that speculates should not be asked.

Such a request goes to the plain pool; or, where `Feature.plugin` says so, it may stay and be marked for the plug-in,
which serves it with a block length of 0. The rows are data: `tuner.fleet.feature_rows`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from policies.quoting import shown
from tuner.fleet.feature_rows import ROWS, Feature, Trouble
from tuner.fleet.types import EngineKind
from tuner.fleet.versions import version_key

__all__ = ["Feature", "Trouble", "features", "needs_plain", "said_of"]


def needs_plain(engine: EngineKind, version: str, body: Mapping[str, Any], *, risks: bool = False) -> Feature | None:
    """The first feature of `body` that a server of this engine and version should not be asked while it speculates.

    Refusals come first, then wrong answers, then risks. With `risks` the route takes the last ones, since the validity
    of its outputs is measured; nobody may take the others. None where nothing is in the way. Costs a few microseconds.
    """
    for feature in _asked_of(engine, version, risks):
        value = body.get(feature.field)
        if feature.by_default if value is None else feature.applies(value):
            return feature
    return None


@lru_cache(maxsize=64)
def _asked_of(engine: EngineKind, version: str, risks: bool) -> tuple[Feature, ...]:
    return tuple(one for one in features(engine, version) if not risks or one.trouble is not Trouble.RISKY)


def features(engine: EngineKind, version: str) -> tuple[Feature, ...]:
    """What goes wrong on a server, refusals first. One whose engine is unknown has what goes wrong on any."""
    found = [
        row
        for row in ROWS
        if (row.engine is engine and row.affects(version)) or (engine is EngineKind.UNKNOWN and not row.builds)
    ]
    return tuple(sorted(found, key=lambda row: list(Trouble).index(row.trouble)))


def said_of(feature: Feature, version: str) -> str:
    """One sentence about `feature` on a server that tells `version`."""
    sentence = f"{feature.field} is {feature.trouble} by {feature.engine} while it speculates: {feature.sentence}."
    if feature.right_from and version_key(version) is None:
        told = f"its version {shown(version)} cannot be read" if version else "it tells no version"
        sentence += f" Right from {feature.right_from} on; {told}, so it counts as affected."
    return sentence
