"""Thompson sampling for each context by itself: what a good bandit does without pooling.

Not published for speculation as it is; it is the research notes' "ours, no pooling" (5.12) with textbook parts
(Thompson 1933; Russo et al. 2018): for each route, language and drafter a Beta(1, 1) for the hazard of every position.
When a request begins, hazards are drawn once for each drafter, and it keeps the drafter and block length with the most
drawn tokens per second at the load, at the calibrated costs, if all that runs did the same. The draw is weighed again
when the load changes. Silent and short proposals count as rejected at their next position, and cost by how many drafts
a block has proposed in the context so far.
"""

from typing import Any

import numpy as np

from policies.types import PLAIN
from tuner.replay.player import Running, World
from tuner.replay.reblock import LENGTHS, Floats
from tuner.replay.trace import Costs

MOST_LENGTH = 12


class _Posterior:
    """One context: D drafters, 12 positions."""

    __slots__ = ("kept", "lost", "offered", "requested")

    def __init__(self, drafters: int) -> None:
        self.kept: Floats = np.ones((drafters, MOST_LENGTH))
        self.lost: Floats = np.ones((drafters, MOST_LENGTH))
        self.offered: Floats = np.ones((drafters, MOST_LENGTH))
        self.requested: Floats = np.ones((drafters, MOST_LENGTH))


class Thompson:
    """Draws at admission."""

    name = "thompson"

    def __init__(self) -> None:
        self._load = 0

    def start(self, world: World, memory: Any) -> None:
        """Forget everything, unless it was saved."""
        self._drafters = world.drafters
        self._places = {drafter: place for place, drafter in enumerate(world.drafters)}
        self._random = np.random.default_rng(world.seed)
        self._costs = _CostTables(world.calibrated, world.drafters, world.slots)
        self._contexts: dict[tuple[str, str], _Posterior] = memory if memory is not None else {}

    def save(self) -> Any:
        """The posteriors."""
        return self._contexts

    def admit(self, one: Running, load: int) -> None:
        """A draw for this request, that is weighed with the next plan."""
        context = one.request.route, one.request.language
        posterior = self._contexts.get(context)
        if posterior is None:
            posterior = self._contexts[context] = _Posterior(len(self._drafters))
        survival = self._random.beta(posterior.kept, posterior.lost).cumprod(axis=1)
        proposed = (posterior.offered / posterior.requested).cumsum(axis=1)
        one.notes = posterior, 1.0 + survival.cumsum(axis=1), proposed
        self._load = 0

    def plan(self, running: list[Running]) -> None:
        """The best of each draw at this load."""
        load = len(running)
        if load != self._load:
            self._load = load
            for one in running:
                _, emitted, proposed = one.notes
                kv_tokens = one.kv_tokens
                rates = emitted / self._costs.seconds(load, kv_tokens, proposed)
                place, length = divmod(int(rates.argmax()), MOST_LENGTH)
                plain = 1.0 / self._costs.plain_seconds(load, kv_tokens)
                speculates = rates[place, length] > plain
                one.drafter = self._drafters[place] if speculates else PLAIN
                one.cap = length + 1 if speculates else 0
        for one in running:
            one.requested = one.cap

    def verify(self, running: list[Running]) -> None:
        """All that was drafted."""

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """Kept and lost by position."""
        for one in running:
            if one.requested:
                posterior: _Posterior = one.notes[0]
                place = self._places[one.drafter]
                if one.accepted:
                    posterior.kept[place, : one.accepted] += 1.0
                if one.accepted < one.requested:
                    posterior.lost[place, one.accepted] += 1.0
                posterior.requested[place, : one.requested] += 1.0
                if one.proposed:
                    posterior.offered[place, : one.proposed] += 1.0

    def finish(self, one: Running) -> None:
        """The load changes, which the next plan sees."""


class _CostTables:
    """Seconds of a cycle in which all sequences do the same."""

    def __init__(self, costs: Costs, drafters: tuple[str, ...], slots: int) -> None:
        self._target = costs.target
        self._pass = np.array([costs.target.seconds(tokens, 0, 0) for tokens in range(slots * LENGTHS + 2)])
        self._rows = np.arange(len(self._pass))
        priced = [costs.drafters[drafter] for drafter in drafters]
        self._call = np.array([[cost.call_seconds] for cost in priced])
        self._sequence = np.array([[cost.sequence_seconds] for cost in priced])
        self._step = np.array([[cost.step_seconds] for cost in priced])
        self._row = np.array([[cost.row_seconds] for cost in priced])
        self._steps = np.arange(1, MOST_LENGTH + 1)

    def plain_seconds(self, load: int, kv_tokens: int) -> float:
        """Of a plain cycle."""
        return self._target.seconds(load, load, load * kv_tokens)

    def seconds(self, load: int, kv_tokens: int, proposed: Floats) -> Floats:
        """(D, 12): by drafter and block length, for so many drafts a block as are `proposed`, (D, 12)."""
        fixed = load * (self._target.sequence_seconds + kv_tokens * self._target.kv_token_seconds)
        steps = proposed if load == 1 else self._steps
        found: Floats = (
            np.interp(load * (1.0 + proposed), self._rows, self._pass)
            + fixed
            + self._call
            + load * self._sequence
            + self._step * steps
            + load * self._row * proposed
        )
        return found
