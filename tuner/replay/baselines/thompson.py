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
    """One context: for each of D drafters, how many blocks had 0..12 drafts requested, proposed, accepted, or lost
    right behind so many."""

    __slots__ = ("accepted", "lost", "proposed", "requested")

    def __init__(self, drafters: int) -> None:
        self.requested, self.proposed, self.accepted, self.lost = (
            [[0] * (MOST_LENGTH + 1) for _ in range(drafters)] for _ in range(4)
        )

    def drawn(self, random: np.random.Generator) -> tuple[Floats, Floats]:
        """Tokens emitted, by a draw, and drafts proposed in the mean, for each drafter and block length: (D, 12)."""
        counts = np.array((self.requested, self.proposed, self.accepted))
        requested, proposed, kept = 1.0 + counts[:, :, :0:-1].cumsum(axis=2)[:, :, ::-1]
        survival = random.beta(kept, 1.0 + np.array(self.lost)[:, :-1]).cumprod(axis=1)
        return 1.0 + survival.cumsum(axis=1), (proposed / requested).cumsum(axis=1)


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
        one.notes = posterior, *posterior.drawn(self._random)
        self._load = 0

    def plan(self, running: list[Running]) -> None:
        """The best of each draw at this load."""
        load = len(running)
        if load != self._load:
            self._load = load
            emitted, proposed = np.array([one.notes[1:] for one in running]).swapaxes(0, 1)
            seconds = self._costs.seconds(load, [one.kv_tokens for one in running], proposed)
            rates = (emitted / seconds).reshape(load, -1)
            for one, rate, option in zip(
                running, rates.max(axis=1).tolist(), rates.argmax(axis=1).tolist(), strict=True
            ):
                place, length = divmod(option, MOST_LENGTH)
                speculates = rate > 1.0 / self._costs.plain_seconds(load, one.kv_tokens)
                one.drafter = self._drafters[place] if speculates else PLAIN
                one.cap = length + 1 if speculates else 0
        for one in running:
            one.requested = one.cap

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """Kept and lost by position."""
        for one in running:
            if one.requested:
                posterior: _Posterior = one.notes[0]
                place = self._places[one.drafter]
                posterior.requested[place][one.requested] += 1
                posterior.proposed[place][one.proposed] += 1
                posterior.accepted[place][one.accepted] += 1
                if one.accepted < one.requested:
                    posterior.lost[place][one.accepted] += 1

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

    def seconds(self, load: int, kv_tokens: list[int], proposed: Floats) -> Floats:
        """(load, D, 12): by sequence, drafter and block length, were all like it, with its context and so many drafts
        a block as are `proposed`, (load, D, 12)."""
        kv = np.array(kv_tokens)[:, None, None]
        fixed = load * (self._target.sequence_seconds + kv * self._target.kv_token_seconds)
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
