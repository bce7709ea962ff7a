"""An engine whose truth is known: acceptance by context and confidence, and the cost of a pass.

It obeys decisions and cycle policies as `engine.cycle` does, allocates with `policies.allocate`, moves a fake clock by
the seconds that a cycle takes, and hands `CycleStats` and `RequestStats` to a controller.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from policies.allocate import Candidate, allocate
from policies.cycle_policy import INITIAL_CYCLE_POLICY, CyclePolicy, PassCost, Window
from policies.ledger import Ledger, Turn, settle, spare_seconds
from policies.stats import BlockEnd, CycleStats, EngineInfo, FinishReason, RequestStats, SequenceStats, ShadowStats
from policies.testing import FakeClock
from policies.types import Context, Decision, Policy, RequestFeatures, SamplingClass
from tuner.controller import Controller, ControllerOptions

MODEL = "simulated"
TRUE_COST = PassCost((1, 8, 272), (0.0135, 0.0170, 0.1850), 0.0005, 2e-7)
"""A block of 8 costs 1.2x at load 1 and more than 3x at load 16."""
FEATURES = RequestFeatures(SamplingClass.GREEDY, structured=False, prompt_tokens=100, max_tokens=48)


@dataclass(frozen=True)
class Truth:
    """Share of each confidence bucket (0 is silence), and the constant hazard in each."""

    shares: tuple[float, ...]
    hazards: tuple[float, ...]


SERVED = Window(1, plain=False)

GOOD = Truth(shares=(0.1, 0.2, 0.7), hazards=(0.0, 0.7, 0.95))
BAD = Truth(shares=(0.1, 0.8, 0.1), hazards=(0.0, 0.03, 0.1))


@dataclass
class _Running:
    key: int
    context: Context
    decision: Decision
    kv_tokens: int
    remaining: int
    output_tokens: int = 0
    cycles: int = 0
    looped: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    bucket: int | None = None
    """Of the stretch of text at hand; None where nobody has looked ahead."""
    run: int = 0
    """Drafts that are right from here on, as far as anybody looked,"""
    stopped: bool = False
    """and whether the one behind them is known to be wrong."""
    shadow: ShadowStats | None = None
    """Not decided yet."""

    def go_on(self, emitted: int) -> None:
        """The text has grown: what was looked at ahead is nearer, or behind."""
        if emitted > self.run:
            self.bucket, self.run, self.stopped = None, 0, False
        else:
            self.run -= emitted

    def told(self, emitted: int) -> list[ShadowStats]:
        """The shadow, once the text has decided it or has ended."""
        if self.shadow is None:
            return []
        came = self.shadow.emitted + emitted
        self.shadow = replace(self.shadow, emitted=came)
        decided = came > self.shadow.matched
        if not decided and self.remaining > 0:
            return []
        shadow, self.shadow = self.shadow, None
        return [shadow if decided else replace(shadow, matched=came, censored=True)]


def calibration(cost: PassCost = TRUE_COST) -> tuple[CycleStats, ...]:
    """Cycles as the engine runs them at start, without noise."""
    return tuple(
        cycle(
            load=load,
            tokens=load * rows,
            kv_tokens=load * context,
            seconds=cost.seconds(load * rows, load, load * context),
        )
        for load in (1, 2, 4, 8, 16)
        for rows in (1, 2, 3, 5, 9, 17)
        for context in (96, 480)
        if load * rows <= max(80, load)
    )


def cycle(
    *,
    load: int,
    tokens: int,
    kv_tokens: int,
    seconds: float,
    number: int = 0,
    window: Window = SERVED,
    first_after_switch: bool = False,
    killed: bool = False,
    sequences: Sequence[SequenceStats] = (),
    shadows: Sequence[ShadowStats] = (),
    draft_seconds: Mapping[str, float] | None = None,
) -> CycleStats:
    """A `CycleStats` of which only what a test is about need be given."""
    return CycleStats(
        cycle=number,
        policy_version=0,
        window=window,
        first_after_switch=first_after_switch,
        killed=killed,
        load=load,
        tokens=tokens,
        kv_tokens=kv_tokens,
        draft_seconds=draft_seconds or {},
        verify_seconds=seconds,
        cycle_seconds=seconds,
        prefill_tokens=0,
        prefill_seconds=0.0,
        waiting=0,
        sequences=tuple(sequences),
        shadows=tuple(shadows),
    )


def sequence(
    context: Context,
    *,
    key: int = 1,
    requested: int = 8,
    proposed: int = 8,
    verified: int = 8,
    accepted: int = 0,
    emitted: int | None = None,
    confidence: int = 1,
    end: BlockEnd | None = None,
    drafter: str = "ngram",
) -> SequenceStats:
    """A `SequenceStats` whose end follows from its counts unless it is given."""
    if end is None:
        end = BlockEnd.PLAIN if verified == 0 else BlockEnd.FULL if accepted == verified else BlockEnd.REJECTED
    return SequenceStats(
        request_key=key,
        context=context,
        drafter=drafter,
        requested=requested,
        proposed=proposed,
        verified=verified,
        accepted=accepted,
        emitted=accepted + 1 if emitted is None else emitted,
        confidence=confidence,
        end=end,
    )


def finished_request(key: int, decision: Decision, output_tokens: int, cycles: int, looped: bool) -> RequestStats:
    """The `RequestStats` of a request, with the times that nothing here reads left at 0."""
    return RequestStats(
        request_key=key,
        decision=decision,
        features=FEATURES,
        finish=FinishReason.LENGTH,
        output_tokens=output_tokens,
        queue_seconds=0.0,
        ttft_seconds=0.0,
        decode_seconds=0.0,
        cycles=cycles,
        proposed=0,
        verified=0,
        accepted=0,
        rejected_at=(),
        draft_seconds=0.0,
        verify_seconds=0.0,
        looped=looped,
    )


@dataclass
class SimulatedEngine:
    """Serves `truth` with a controller at the wheel."""

    truth: dict[tuple[str, str], Truth]
    options: ControllerOptions = field(default_factory=ControllerOptions)
    cost: PassCost = TRUE_COST
    noise: float = 0.03
    """Standard deviation of a cycle's seconds, relative."""
    stall_share: float = 0.01
    """Share of cycles that take five times as long."""
    seed: int = 1
    slots: int = 16
    policy: CyclePolicy = INITIAL_CYCLE_POLICY
    published: int = 0
    cycles: list[CycleStats] = field(default_factory=list)
    changes: list[Policy] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = FakeClock(1000.0)
        self.info = EngineInfo(
            model=MODEL,
            drafters=("none", "ngram"),
            dtype="float32",
            device="cpu",
            threads=1,
            slots=self.slots,
            blocks=1000,
            context_limit=2048,
            vocabulary=100,
            linear_seconds=0.01,
            calibration=calibration(self.cost),
        )
        self.random = random.Random(self.seed)
        self.controller = Controller(self.info, self.options, self._set_policy, self.clock, self.clock)
        self._window_id = -1
        self._key = 0
        self._next_tick = self.clock.now

    def _set_policy(self, policy: CyclePolicy) -> None:
        self.policy = policy
        self.published += 1

    def serve(
        self, traffic: Sequence[tuple[str, str]], load: int, requests: int, looped: bool = False, tokens: int = 48
    ) -> None:
        """Serve `requests` requests, `load` at a time, their (route, language) in turn from `traffic`."""
        running: list[_Running] = []
        started = 0
        while started < requests or running:
            while started < requests and len(running) < load:
                running.append(self._admit(traffic[started % len(traffic)], tokens, looped))
                started += 1
            running = self._cycle(running)
            if self.clock.now >= self._next_tick:
                self._next_tick = self.clock.now + 0.25
                self.changes.extend(self.controller.tick())

    def _admit(self, key: tuple[str, str], tokens: int, looped: bool) -> _Running:
        self._key += 1
        context = Context(MODEL, *key)
        decision = self.controller.decide(context, FEATURES)
        return _Running(self._key, context, decision, 100 + self.random.randrange(100), tokens, looped=looped)

    def _cycle(self, running: list[_Running]) -> list[_Running]:
        policy = self.policy
        offers = [self._offer(sequence, policy) for sequence in running]
        kv_tokens = sum(sequence.kv_tokens for sequence in running)
        candidates = []
        for one, (_, proposed, bucket, _) in zip(running, offers, strict=True):
            key = ("ngram", one.context.route, one.context.language)
            survival = policy.survivals.get(key) or policy.default_survivals["ngram"]
            candidates.append(Candidate(proposed, survival.of(bucket), one.decision.forced))
        spare = 0.0
        if policy.cost is not None:
            plain_seconds = policy.cost.seconds(len(running), len(running), kv_tokens)
            ledgers = [(one.ledger, 0.0) for one in running]
            spare = spare_seconds(ledgers, plain_seconds, policy.max_neighbour_slowdown)
        lengths = allocate(candidates, policy.cost, kv_tokens, policy.margin, spare)

        sequences, shadows = [], []
        for one, (requested, proposed, bucket, run), verified in zip(running, offers, lengths, strict=True):
            accepted = min(run, verified)
            emitted = min(accepted + 1, one.remaining)
            sequences.append(
                sequence(
                    one.context,
                    key=one.key,
                    requested=requested,
                    proposed=proposed,
                    verified=verified,
                    accepted=accepted,
                    emitted=emitted,
                    confidence=bucket,
                    drafter=one.decision.drafter,
                )
            )
            if proposed and not verified and one.shadow is None:
                one.shadow = ShadowStats(one.key, one.context, "ngram", requested, proposed, run, bucket, False, 0)
            one.remaining -= emitted
            one.go_on(emitted)
            shadows += one.told(emitted)
            one.kv_tokens += emitted
            one.output_tokens += emitted
            one.cycles += 1
        tokens = len(running) + sum(lengths)
        if policy.cost is not None:
            turns = [
                Turn(one.ledger, stats.emitted, stats.verified, stats.drafter, stats.proposed, one.decision.forced)
                for one, stats in zip(running, sequences, strict=True)
            ]
            settle(turns, policy.cost, policy.draft_costs, kv_tokens)
        seconds = self.cost.seconds(tokens, len(running), kv_tokens) * self.random.lognormvariate(0.0, self.noise)
        if self.random.random() < self.stall_share:
            seconds *= 5.0
        done = cycle(
            number=len(self.cycles),
            load=len(running),
            tokens=tokens,
            kv_tokens=kv_tokens,
            seconds=seconds,
            window=policy.window,
            first_after_switch=policy.window.window_id != self._window_id,
            killed=policy.kill,
            sequences=sequences,
            shadows=shadows,
        )
        self._window_id = policy.window.window_id
        self.clock.advance(seconds)
        self.cycles.append(done)
        self.controller.fold_cycle(done)
        for one in running:
            if one.remaining <= 0:
                self.controller.fold_request(
                    finished_request(one.key, one.decision, one.output_tokens, one.cycles, one.looped)
                )
        return [one for one in running if one.remaining > 0]

    def _offer(self, one: _Running, policy: CyclePolicy) -> tuple[int, int, int, int]:
        """(requested, proposed, confidence, drafts that the target would keep)."""
        decision = one.decision
        barred = policy.kill or policy.window.plain or one.context.route in policy.killed_routes
        if barred or decision.drafter == "none":
            return 0, 0, 0, 0
        requested = max(0, min(decision.cap, one.remaining - 1))
        if requested == 0:
            return 0, 0, 0, 0
        truth = self.truth[one.context.route, one.context.language]
        if one.bucket is None:
            one.bucket = self.random.choices(range(len(truth.shares)), truth.shares)[0]
            one.stopped = one.bucket == 0
        if one.bucket == 0:
            return requested, 0, 0, 0
        while not one.stopped and one.run < requested:
            if self.random.random() < truth.hazards[one.bucket]:
                one.run += 1
            else:
                one.stopped = True
        return requested, requested, one.bucket, min(one.run, requested)

    def policy_of(self, route: str, language: str) -> Policy:
        return self.controller.snapshot.policies[route, language]
