"""The contexts of which the tuner keeps an account: a bounded number, whatever names requests bring."""

from dataclasses import replace

from policies.stats import CycleStats
from policies.types import OTHER_ROUTE, UNDETERMINED, Context

Key = tuple[str, str]
"""(route, language)."""

MOST_CONTEXTS = 512
REST: Key = (OTHER_ROUTE, UNDETERMINED)
"""Where the others are counted once there are that many."""


class KnownContexts:
    """Any thread may ask. Readers that come at the same time may admit a context or two more than the most."""

    def __init__(self) -> None:
        self._keys: dict[Key, Key] = {REST: REST}
        self._asked = False

    def key(self, route: str, language: str) -> Key:
        """The context that stands for (`route`, `language`); it is admitted if there is room."""
        key = (route, language)
        found = self._keys.get(key)
        if found is None:
            found = key if len(self._keys) < MOST_CONTEXTS else REST
            if found is key:
                self._keys[key] = key
        if found is REST:
            self._asked = True
        return found

    @property
    def keys(self) -> list[Key]:
        """Those admitted, in order; the rest's is among them once it was asked for."""
        return [key for key in tuple(self._keys) if key is not REST or self._asked]

    def known(self, stats: CycleStats) -> CycleStats:
        """`stats` with the contexts that stand for those of its sequences and shadows."""
        keys = self._keys
        if all((one.context.route, one.context.language) in keys for one in stats.sequences) and all(
            (one.context.route, one.context.language) in keys for one in stats.shadows
        ):
            return stats
        return replace(
            stats,
            sequences=tuple(replace(one, context=self._standing_for(one.context)) for one in stats.sequences),
            shadows=tuple(replace(one, context=self._standing_for(one.context)) for one in stats.shadows),
        )

    def _standing_for(self, context: Context) -> Context:
        return Context(context.model, *self.key(context.route, context.language))
