"""What the controller knows: acceptance and cost of every drafter, what they come to, and whether they changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from policies.cycle_policy import Copier, DraftCost, PassCost
from policies.ladder import ANY
from policies.stats import CycleStats, EngineInfo
from policies.types import PLAIN
from tuner.acceptance import Acceptance, Curve
from tuner.choice import Menu, Worth, charted_loads, menus
from tuner.copiers import Copiers, copying
from tuner.cost import CostModel
from tuner.known_contexts import MOST_CONTEXTS, Key
from tuner.survivals import Published, same_cost, same_drafting
from tuner.together import Penalties, Together, less

ANYWHERE: Key = ("*", "*")
"""Stands for contexts of which nothing is known: the curve over everything."""
ENGINE_VERSIONS = ("target", "tokenizer", "engine")
"""Versions on which all acceptance rests; a drafter's own counts rest on its version as well."""
_KV_CYCLES = 300.0
"""Cycles over which the mean context of a sequence is averaged."""
_KV_AT_START = 256
_KNOWN_BLOCKS = 30.0
"""Of a drafter, before it is weighed against those that it would run beside: until then it is tried as itself."""
_TRAFFIC_EVERY = 8
"""Cycles of which one is looked at for whose sequences run."""
_TRAFFIC_KEPT = 0.95
"""What is left of it at each `learn`; below `_TRAFFIC_LEAST` a context is none of the traffic."""
_TRAFFIC_LEAST = 0.5
_COST_MATTERS = 0.01
"""Share by which predicted times must differ to be taken over,"""
_MENU_MATTERS = 0.03
"""and to be worth making all menus again."""


class ChangeKind(StrEnum):
    """What was found to have changed."""

    ACCEPTANCE = "acceptance"
    COST = "cost"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class FoundChange:
    """Something is not as it was: what was learned before it counts no more."""

    kind: ChangeKind
    drafter: str
    """Empty where no drafter is meant."""
    route: str
    language: str
    note: str


class Learning:
    """Not thread-safe; what it hands out is never edited."""

    def __init__(self, info: EngineInfo, cap: int, max_neighbour_slowdown: float) -> None:
        self.info = info
        self.acceptance = self._nothing_known()
        self.cost_model = CostModel(info)
        self.load = 1
        """Sequences of the last cycle."""
        self._idle = False
        """No cycle has come since curves were made."""
        self.kv_each = float(_KV_AT_START)
        """Mean context of a sequence, in tokens."""
        self.cost: PassCost | None = self.cost_model.cost
        self.draft_costs: dict[str, DraftCost] = {}
        """By drafter; those without an entry are free. Kept, as `cost` is, until they changed by enough to matter."""
        self.menus: dict[Key, Menu] = {}
        """What each drafter is worth beside those that are in use."""
        self._alike: dict[Key, Menu] = {}
        """What each would be worth if all that runs were alike."""
        self._together = Together(max_neighbour_slowdown)
        self._penalties: Penalties = {}
        self._traffic: dict[Key, float] = {}
        """Sequences of late by context."""
        self.curves: dict[str, dict[Key, Curve]] = {}
        """By drafter; `ANYWHERE` is among the keys."""
        self.copiers: dict[Key, Copier] = {}
        """Of the contexts in which a copied proposal is worth looking at before anything is drafted."""
        self._cap, self._loads = cap, charted_loads(info.slots)
        self.published = Published()
        """What cycles read of the curves."""
        self._copiers = Copiers(self.published)
        self._worth: Worth | None = None
        """What menus and copiers follow from."""
        self.learn(())

    @property
    def drafters(self) -> tuple[str, ...]:
        """Every one that may serve, without plain."""
        return tuple(name for name in self.info.drafters if name != PLAIN)

    def _nothing_known(self) -> Acceptance:
        nothing = Acceptance(limit=MOST_CONTEXTS * max(1, len(self.drafters)))
        for name in self.drafters:
            nothing.reset(name, self.info.versions.get(name, ""))
        return nothing

    def fold(self, stats: CycleStats) -> None:
        """Learn from a cycle; what it changes shows after the next `learn`."""
        self.load = stats.load
        self._idle = False
        if stats.cycle % _TRAFFIC_EVERY == 0:
            for one in stats.sequences:
                key = one.context.route, one.context.language
                self._traffic[key] = self._traffic.get(key, 0.0) + 1.0
        self.kv_each += (stats.kv_tokens / stats.load - self.kv_each) / _KV_CYCLES
        self.cost_model.fold(stats)
        if not stats.window.trial:  # what is tried says nothing of what serves
            self.acceptance.fold(stats)

    def learn(self, keys: Sequence[Key]) -> None:
        """Recompute the curves of `keys` and what follows from them, as far as they changed."""
        last = self.curves
        self.curves = {
            drafter: {**by_key, ANYWHERE: pooled}
            for drafter, (pooled, by_key) in self.acceptance.curves_of(self.drafters, keys, idle=self._idle).items()
        }
        self._idle = True
        self.cost_model.refit()
        self._reprice()
        if self.cost is None:
            return
        worth = self._worth
        if worth is None or self._is_moved(worth, self.cost):
            worth = self._worth = Worth(self._cap, self._loads, self.cost, self.draft_costs, self.kv_each)
            due = [*keys, ANYWHERE]
        else:
            due = [
                key
                for key in (*keys, ANYWHERE)
                if key not in self.menus
                or any(last.get(name, {}).get(key) is not curves[key] for name, curves in self.curves.items())
            ]
        for key in due:
            curves = {name: by_key[key] for name, by_key in self.curves.items()}
            copier = self._copiers.of(key, curves, worth)
            if copier is None:
                self.copiers.pop(key, None)
            else:
                self.copiers[key] = copier
        copied = {key: self.curves[self.copiers[key].drafter][key] for key in due if key in self.copiers}
        before = copying(self.curves, worth.cost, worth.draft_costs)
        self._alike |= menus(due, self.curves, worth, copied, before)
        stepping = [
            name for name in self.drafters if name not in before and self.curves[name][ANYWHERE].blocks >= _KNOWN_BLOCKS
        ]
        penalties = self._together.penalties(self._alike, self._traffic, worth, stepping)
        if penalties is not self._penalties:
            self._penalties, due = penalties, list(self._alike)
        self.menus |= {key: less(self._alike[key], penalties) for key in due}
        self._traffic = {
            key: _TRAFFIC_KEPT * weight for key, weight in self._traffic.items() if weight > _TRAFFIC_LEAST
        }

    def _reprice(self) -> None:
        """Take over costs that differ by enough to matter."""
        cost, draft_costs = self.cost_model.cost, self.cost_model.draft_costs
        if cost is None:
            return
        if self.cost is None or not same_cost(self.cost, cost, _COST_MATTERS):
            self.cost = cost
        if not _same_drafts(self.draft_costs, draft_costs, cost, _COST_MATTERS):
            self.draft_costs = dict(draft_costs)

    def _is_moved(self, worth: Worth, cost: PassCost) -> bool:
        """Whether prices, or the context, are others than those of `worth`, by enough for all menus to be made again.

        What is compared costs more or less together, so less than by enough for a cycle.
        """
        load = self.load
        longer = cost.kv_token_seconds * load * abs(self.kv_each - worth.kv_each)
        return (
            longer > _MENU_MATTERS * cost.seconds(load, load, round(load * worth.kv_each))
            or not same_cost(worth.cost, cost, _MENU_MATTERS)
            or not _same_drafts(worth.draft_costs, self.draft_costs, cost, _MENU_MATTERS)
        )

    def menu(self, key: Key) -> Menu | None:
        """That of a context, or of everything where it is new; None without a cost."""
        return self.menus.get(key) or self.menus.get(ANYWHERE)

    def changes(self) -> list[FoundChange]:
        """What statistics found to have changed since the last call."""
        found = []
        if self.cost_model.changed():
            note = f"cycles take {self.cost_model.speed:.2f} times what was calibrated, and it was another share before"
            found.append(FoundChange(ChangeKind.COST, "", "", "", note))
        return found + [
            FoundChange(
                ChangeKind.ACCEPTANCE,
                "" if alarm.drafter == ANY else alarm.drafter,
                alarm.route,
                alarm.language,
                f"the first draft is kept {alarm.after:.0%} of the time, and was {alarm.before:.0%}"
                + (": all is as it was once before, and what was known then holds again" if alarm.returned else ""),
            )
            for alarm in self.acceptance.alarms()
        ]

    def set_engine(self, info: EngineInfo) -> list[FoundChange]:
        """The engine has other drafters now; one whose version is new starts from nothing."""
        if info.drafters != self.info.drafters:
            # What was worked out among others names drafters that are gone, and none that are new.
            self._worth, self._penalties = None, {}
            self.menus, self._alike, self.copiers = {}, {}, {}
        known, self.info = self.info.versions, info
        self.cost_model.set_drafters(
            info, [name for name in self.drafters if known.get(name) != info.versions.get(name)]
        )
        found = []
        for name in self.drafters:
            version, before = info.versions.get(name, ""), self.acceptance.version(name)
            if before != version:
                self.acceptance.reset(name, version)
            if before not in (None, version):
                found.append(FoundChange(ChangeKind.VERSION, name, "", "", "another version of it was loaded"))
        return found

    def state(self) -> dict[str, Any]:
        """What a restart needs, JSON-able. Costs are not in it: they belong to one process."""
        info = self.info
        return {
            "keys": {"model": info.model, "dtype": info.dtype, "device": info.device},
            "versions": dict(info.versions),
            "drafters": list(self.drafters),
            "acceptance": self.acceptance.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """Go on from `state()` of an earlier run; the drafters of which what was learned still holds.

        Raises:
            KeyError, TypeError, ValueError: it is damaged; nothing was taken over.
        """
        info = self.info
        then: Mapping[str, str] = state["versions"]
        same = state["keys"] == {"model": info.model, "dtype": info.dtype, "device": info.device}
        if not same or any(then.get(name) != info.versions.get(name) for name in ENGINE_VERSIONS):
            return ()
        restored = self._nothing_known()
        restored.restore(state["acceptance"])
        self.acceptance = restored
        kept = []
        for name in map(str, state["drafters"]):
            if name in self.drafters and then.get(name) == info.versions.get(name):
                kept.append(name)
            else:
                self.acceptance.reset(name, info.versions.get(name, ""))
        return tuple(kept)


def _same_drafts(left: Mapping[str, DraftCost], right: Mapping[str, DraftCost], cost: PassCost, share: float) -> bool:
    plain_seconds = cost.seconds(1, 1, _KV_AT_START)
    return left.keys() == right.keys() and all(
        same_drafting(left[name], price, plain_seconds, share) for name, price in right.items()
    )
