"""Reads orders one after the other. Most of what they hold is as it was, and making it anew would keep vLLM waiting:
with a hundred contexts 20 ms, a few times a second, in which its scheduler has to share the interpreter."""

from dataclasses import fields, replace
from typing import Any

from policies.cycle_policy import CyclePolicy, Outlook, Survival
from policies.wire import WireError, from_value, kind_of
from tuner.fleet.vllm.plugin.messages import ORDERS, Orders

_KINDS: tuple[tuple[str, type[Survival | Outlook]], ...] = (("survivals", Survival), ("outlooks", Outlook))
_PLACES = {field.name: place for place, field in enumerate(field for field in fields(CyclePolicy) if field.init)}


class OrdersReader:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, dict[tuple[str, ...], tuple[Any, Any]]] = {name: {} for name, _ in _KINDS}
        """By field and key: as it came, and what was made of it."""

    def read(self, text: str) -> Orders:
        """What `text` says.

        Raises:
            WireError: it is no orders.
        """
        kind, value = kind_of(text)
        if kind != ORDERS:
            raise WireError(f"the message is of kind {kind!r}: expected {ORDERS}")
        try:
            parts = value[0]
            taken = {name: parts[_PLACES[name]] for name, _ in _KINDS}
            for name, _ in _KINDS:
                parts[_PLACES[name]] = []
        except (TypeError, LookupError):
            taken = {}
        orders = from_value(Orders, value)
        made = {name: self._made(name, each, taken[name]) for name, each in _KINDS}
        self._known = made
        by_key: Any = {name: {key: one for key, (_, one) in pairs.items()} for name, pairs in made.items()}
        return replace(orders, policy=replace(orders.policy, **by_key))

    def _made(self, name: str, kind: type[Survival | Outlook], pairs: Any) -> dict[tuple[str, ...], tuple[Any, Any]]:
        known = self._known[name]
        made: dict[tuple[str, ...], tuple[Any, Any]] = {}
        try:
            for parts, value in pairs:
                drafter, route, language = parts
                if not (isinstance(drafter, str) and isinstance(route, str) and isinstance(language, str)):
                    raise TypeError(f"{parts!r} names no drafter, route and language")
                key = drafter, route, language
                found = known.get(key)
                made[key] = found if found is not None and found[0] == value else (value, from_value(kind, value))
        except (TypeError, WireError, ValueError) as error:
            raise WireError(f"the message's {name} cannot be read: {error}") from None
        return made
