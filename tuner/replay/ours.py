"""Our own controller in a replay: `tuner.controller.Controller` itself, with what stands around it in an engine.

Decisions come from `decide`, block lengths from `policies.plan`, what is verified from `policies.allocate` under the
ledger; cycles and requests are folded as telemetry, and `tick` is called on the replay's clock, less often than by a
server. It is told what an engine is told: a calibration with its errors, and what cycles were measured to take.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from policies.allocate import Candidate, allocate
from policies.copying import CopyingChoice
from policies.cycle_policy import INITIAL_CYCLE_POLICY, CyclePolicy, Outlook, Survival, Window
from policies.ledger import (
    NOTHING,
    CostTrust,
    Ledger,
    Own,
    Turn,
    cycle_spare,
    drafting_seconds,
    lifts,
    settle,
    spare_if_asked,
)
from policies.plan import NO_PRICES, Prospect, plan
from policies.shadow_room import ShadowRoom
from policies.stats import (
    BlockEnd,
    CycleStats,
    DraftTiming,
    EngineInfo,
    FinishReason,
    RequestStats,
    SequenceStats,
    ShadowStats,
)
from policies.types import PLAIN, Context, Decision, Policy, RequestFeatures, SamplingClass
from tuner.controller import Controller, ControllerOptions
from tuner.replay.player import Running, Shadowed, Told, World
from tuner.replay.trace import Costs

MODEL = "replayed"
TICK_SECONDS = 0.1
_NO_BOUND = 1_000.0
_MAX_TOKENS = 512
"""What clients of a replay ask for; how long their outputs become, nobody knows before."""
_NO_OUTLOOK = Outlook((), ())
_NO_SURVIVAL = Survival(())
_CALIBRATED_ROWS = (1, 2, 3, 4, 5, 7, 9, 13, 17)
_CALIBRATED_CONTEXTS = (96, 480)
_CALIBRATED_DRAFTS = (1, 4, 8)


@dataclass(slots=True)
class _Own:
    """What is kept for one running sequence."""

    decision: Decision
    features: RequestFeatures
    ledger: Ledger
    outlook: Outlook = _NO_OUTLOOK
    """Of what is drafted in this cycle."""
    copied: int = 0
    """The block length that was asked of a copier whose proposal is taken; 0 where none is."""
    watched: set[str] = field(default_factory=set)
    """Drafters with a shadow that is not decided yet."""
    cycles: int = 0


@dataclass(frozen=True, slots=True)
class _Memory:
    state: dict[str, Any]
    policies: tuple[Policy, ...]


class Ours:
    """The tuner as it serves; made anew for each run."""

    name = "paceline"

    def __init__(self, options: ControllerOptions | None = None) -> None:
        """`options` but for the seed, which is the replay's; those of a server without a configuration if None."""
        self._options = options or ControllerOptions()
        self._now = 0.0
        self._ledgers: dict[int, Ledger] = {}
        """Of all that run, by request: they are the engine's, which outlives a tuner."""

    def start(self, world: World, memory: Any) -> None:
        """A new controller, which goes on from `memory` if there is any. The clock goes on."""
        options = replace(self._options, seed=world.seed)
        self._policy = INITIAL_CYCLE_POLICY
        self._told = Told({}, 0.0, 0.0, ())
        self._window = -1
        self._cycle = 0
        self._rate = 0.0
        self._prices = NO_PRICES
        self._trust = CostTrust()
        self._granted = 0.0
        self._left: Sequence[tuple[str, int]] = ()
        self._next_tick = self._now + TICK_SECONDS
        self._controller = Controller(engine_info(world), options, self._take, lambda: self._now, lambda: self._now)
        if isinstance(memory, _Memory):
            self._controller.restore(memory.state, memory.policies)

    def save(self) -> Any:
        """What the store keeps."""
        return _Memory(self._controller.state(), tuple(self._controller.snapshot.policies.values()))

    def admit(self, one: Running, load: int) -> None:
        request = one.request
        features = RequestFeatures(SamplingClass.GREEDY, request.structured, request.prompt_tokens, _MAX_TOKENS)
        decision = self._controller.decide(Context(MODEL, request.route, request.language), features)
        one.drafter, one.cap, one.shadows = decision.drafter, decision.cap, decision.shadows
        one.notes = _Own(decision, features, self._ledgers.setdefault(one.index, Ledger()))

    def ask(self, running: list[Running]) -> None:
        policy, load = self._policy, len(running)
        asks = policy.cost is not None and not (policy.window.plain or policy.kill or policy.hold)
        for one in running:
            one.copier, one.notes.copied = "", 0
            decision = one.notes.decision
            if asks and decision.cap > 0 and not decision.forced:
                copier = policy.copiers.get((decision.context.route, decision.context.language))
                if copier is not None and copier.drafter != decision.drafter and load <= copier.most_load:
                    one.copier = copier.drafter

    def plan(self, running: list[Running]) -> None:
        policy = self._policy
        self._rate = self._granted = 0.0
        self._left = []
        if policy.window.plain or policy.kill:
            for one in running:
                one.requested = 0
                one.shadows = ()
            return
        prospects = []
        load, kv_tokens = len(running), sum([one.kv_tokens for one in running])
        choice = None
        for one in running:
            own: _Own = one.notes
            decision = own.decision
            context = decision.context
            one.shadows = () if policy.hold else decision.shadows
            cap = min(decision.cap, _MAX_TOKENS - one.position - 1)
            if policy.hold and not decision.forced:
                cap = 0
            outlook = policy.outlooks.get((decision.drafter, context.route, context.language))
            if outlook is None:
                outlook = policy.default_outlooks.get(decision.drafter, _NO_OUTLOOK)
            price = policy.draft_costs.get(decision.drafter)
            one.drafter = decision.drafter
            if one.copied and policy.cost is not None:
                if choice is None:
                    choice = CopyingChoice(policy.cost, load, kv_tokens)
                copied = policy.copiers[context.route, context.language].of(one.copied_confidence)
                offered = min(one.copied, cap)
                if choice.takes(copied, offered, outlook, cap, price):
                    one.drafter, own.copied = one.copier, cap
                    outlook, cap = copied, offered
            own.outlook = outlook
            limit = policy.tpot_limits.get(context.route)
            prospects.append(Prospect(one.drafter, outlook, cap, decision.forced, limit))
        self._left = [(one.copier, one.copied) for one in running if one.copier and not one.notes.copied]
        untaken = drafting_seconds(self._left, policy.draft_costs)

        waiting = [(one.notes.ledger, one.drafter) for one in running]
        spare = spare_if_asked(waiting, policy, kv_tokens, self._trust.at(load))

        def spare_of(asked: Sequence[int]) -> float:
            return spare(asked) - untaken

        planned = plan(prospects, policy.cost, policy.draft_costs, kv_tokens, policy.margin, spare_of, self._prices)
        self._rate, self._prices = planned.rate, planned.prices
        room = ShadowRoom(policy, planned.spare_seconds)
        for one, requested in zip(running, planned.requested, strict=True):
            # A copied proposal is at hand: the allocation cuts it.
            one.requested = one.notes.copied or requested
            if not one.shadows:
                continue
            watched = one.notes.watched
            due = [name for name in one.shadows if name not in watched and not (one.requested and name == one.drafter)]
            lengths = {name: room.length(name) for name in due}
            one.shadows = tuple([name for name, length in lengths.items() if length])
            if one.shadows:
                one.shadow_length = min([lengths[name] for name in one.shadows])
                watched.update(one.shadows)
        # What shadows take is told when the cycle has ended; until then they take what was granted.
        self._granted = room.granted_seconds

    def verify(self, running: list[Running]) -> None:
        policy = self._policy
        if not any([one.proposed for one in running]):
            return
        cost = policy.cost
        if cost is None:
            return
        candidates = []
        waiting = []
        kv_tokens = sum([one.kv_tokens for one in running])
        trust = self._trust.at(len(running))
        lifted = lifts([one.notes.ledger for one in running], policy, kv_tokens, trust)
        for one, lift in zip(running, lifted, strict=True):
            own: _Own = one.notes
            decision = own.decision
            context = decision.context
            curve: tuple[float, ...] = ()
            asked_own = Own(one.drafter, one.proposed, one.proposed) if one.requested else NOTHING
            waiting.append((own.ledger, asked_own))
            if own.copied:
                curve = own.outlook.survival
            elif one.proposed:
                survival = policy.survivals.get((decision.drafter, context.route, context.language))
                if survival is None:
                    survival = policy.default_survivals.get(decision.drafter, _NO_SURVIVAL)
                curve = survival.of(one.confidence)
            limit = policy.tpot_limits.get(context.route)
            candidates.append(Candidate(one.proposed, curve, decision.forced, limit).lifted(lift))
        asked = [(one.drafter, one.proposed) for one in running if one.requested]
        lengths = allocate(
            candidates,
            policy.cost,
            kv_tokens,
            policy.margin,
            self._spare(waiting, kv_tokens),
            rate=self._rate,
            draft_seconds=drafting_seconds([*asked, *self._left], policy.draft_costs) + self._granted,
        )
        for one, length in zip(running, lengths, strict=True):
            one.verified = length

    def watch(self, told: Told) -> None:
        self._told = told
        for shadow in told.shadows:
            shadow.one.notes.watched.discard(shadow.drafter)

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        policy, load, told = self._policy, len(running), self._told
        sequences = []
        turns = []
        rows, kv_tokens = load, 0
        for one in running:
            own: _Own = one.notes
            decision = own.decision
            verified, accepted = one.verified, one.accepted
            rows += verified
            kv_tokens += one.kv_tokens - one.emitted
            own.cycles += 1
            turns.append(
                Turn(
                    own.ledger,
                    one.emitted,
                    verified,
                    one.drafter if one.requested else "",
                    one.proposed,
                    decision.forced,
                )
            )
            end = BlockEnd.PLAIN if not verified else BlockEnd.FULL if accepted == verified else BlockEnd.REJECTED
            sequences.append(
                SequenceStats(
                    one.index,
                    decision.context,
                    one.drafter if own.copied else decision.drafter,
                    one.requested,
                    one.proposed,
                    verified,
                    accepted,
                    one.emitted,
                    one.confidence,
                    end,
                    decision.forced,
                )
            )
        if policy.cost is not None:
            predicted = settle(turns, policy.cost, policy.draft_costs, kv_tokens, self._left, told.shadow_seconds)
            late = self._trust.count(load, rows - load, seconds, predicted)
            for turn in turns:
                turn.ledger.taken += late
        window = policy.window
        self._now = now
        self._cycle += 1
        self._controller.fold_cycle(
            CycleStats(
                cycle=self._cycle,
                policy_version=policy.version,
                window=window,
                first_after_switch=window.window_id != self._window,
                killed=policy.kill,
                load=load,
                tokens=rows,
                kv_tokens=kv_tokens,
                draft_seconds=told.draft_seconds,
                verify_seconds=seconds - sum(told.draft_seconds.values()) - told.shadow_seconds - told.copying_seconds,
                cycle_seconds=seconds,
                prefill_tokens=0,
                prefill_seconds=0.0,
                waiting=0,
                sequences=tuple(sequences),
                shadows=tuple([_shadow_stats(shadow) for shadow in told.shadows]),
                shadow_seconds=told.shadow_seconds,
                copying_seconds=told.copying_seconds,
                ended_at=now,
            )
        )
        self._window = window.window_id
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            self._controller.tick()

    def finish(self, one: Running) -> None:
        own: _Own = one.notes
        del self._ledgers[one.index]
        self._controller.fold_request(
            RequestStats(
                request_key=one.index,
                decision=own.decision,
                features=own.features,
                finish=FinishReason.STOP,
                output_tokens=one.output_tokens,
                queue_seconds=0.0,
                ttft_seconds=0.0,
                decode_seconds=0.0,
                cycles=own.cycles,
                proposed=0,
                verified=0,
                accepted=0,
                rejected_at=(),
                draft_seconds=0.0,
                verify_seconds=0.0,
                looped=False,
            )
        )

    def _take(self, policy: CyclePolicy) -> None:
        self._policy = policy

    def _spare(self, waiting: Sequence[tuple[Ledger, Own]], kv_tokens: int) -> float:
        """What everybody who runs may wait in the next cycle beyond a plain one."""
        return cycle_spare(waiting, self._policy, kv_tokens, self._trust.at(len(waiting)))


class Unbound(Ours):
    """Ours without its promise to neighbours: what that costs, as `max_neighbour_slowdown` of a server would show."""

    name = "paceline-unbound"

    def __init__(self) -> None:
        super().__init__(ControllerOptions(max_neighbour_slowdown=_NO_BOUND))


def engine_info(world: World) -> EngineInfo:
    """What an engine with these costs says of itself after its calibration."""
    costs = world.calibrated
    return EngineInfo(
        model=MODEL,
        drafters=(PLAIN, *world.drafters),
        dtype="float32",
        device="replay",
        threads=1,
        slots=world.slots,
        blocks=1 << 16,
        context_limit=1 << 16,
        vocabulary=1 << 16,
        linear_seconds=costs.target.seconds(1, 1, 0),
        calibration=_calibration(costs, world.slots),
        draft_calibration=_draft_calibration(costs, world.slots),
        versions={"target": "1", "tokenizer": "1", "engine": "1", **dict.fromkeys(world.drafters, "1")},
    )


def _calibration(costs: Costs, slots: int) -> tuple[CycleStats, ...]:
    """Cycles as an engine times them at its start, by the costs that its calibration found."""
    cycles = []
    for load in _calibrated_loads(slots):
        for each in _CALIBRATED_ROWS:
            for context in _CALIBRATED_CONTEXTS:
                tokens, kv_tokens = load * each, load * context
                seconds = costs.target.seconds(tokens, load, kv_tokens)
                cycles.append(
                    CycleStats(
                        cycle=0,
                        policy_version=0,
                        window=Window(0, plain=False),
                        first_after_switch=False,
                        killed=False,
                        load=load,
                        tokens=tokens,
                        kv_tokens=kv_tokens,
                        draft_seconds={},
                        verify_seconds=seconds,
                        cycle_seconds=seconds,
                        prefill_tokens=0,
                        prefill_seconds=0.0,
                        waiting=0,
                        sequences=(),
                        shadows=(),
                    )
                )
    return tuple(cycles)


def _draft_calibration(costs: Costs, slots: int) -> tuple[DraftTiming, ...]:
    return tuple(
        DraftTiming(name, sequences, steps, sequences * steps, price.seconds(sequences, steps, sequences * steps))
        for name, price in costs.drafters.items()
        for sequences in _calibrated_loads(slots)
        for steps in _CALIBRATED_DRAFTS
    )


def _calibrated_loads(slots: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*(1 << exponent for exponent in range(slots.bit_length())), slots)))


def _shadow_stats(shadow: Shadowed) -> ShadowStats:
    own: _Own = shadow.one.notes
    return ShadowStats(
        request_key=shadow.one.index,
        context=own.decision.context,
        drafter=shadow.drafter,
        requested=shadow.requested,
        proposed=shadow.proposed,
        matched=shadow.matched,
        confidence=shadow.confidence,
        censored=shadow.censored,
        emitted=shadow.emitted,
    )
