"""What a step of vLLM drafts and verifies, by the functions that steer our own engine; knows nothing of vLLM.

A step of vLLM verifies the drafts that the step before made, and then drafts for the next one: as many for every
request, the step's block length. So a step is steered in two moments. Before it is scheduled, the drafts at hand are
allocated (`policies.allocate`) and those too many are cut off; and what the next step is to find is planned
(`policies.plan`): its longest block is the step's. A kill switch, a window or a hold that came meanwhile cuts the
drafts at hand too, so that it is in force in the step that sees it first.

What is cut off is chosen by the past and by how many there are, never by the drafts' own values, so that it is sound
under rejection sampling too.
"""

from collections.abc import Container, Mapping, Sequence

from policies.allocate import allocate
from policies.cycle_policy import INITIAL_CYCLE_POLICY
from policies.ledger import (
    NOTHING,
    CostTrust,
    Own,
    Turn,
    cycle_spare,
    drafting_seconds,
    lifts,
    settle,
    spare_if_asked,
)
from policies.plan import NO_PRICES, Prospect, plan
from policies.stats import BlockEnd, ShadowStats
from tuner.fleet.vllm.plugin.cycle_report import CycleReport, Row
from tuner.fleet.vllm.plugin.following import InForce
from tuner.fleet.vllm.plugin.launch import Launch
from tuner.fleet.vllm.plugin.seat import SILENT, Seat, Shadow
from tuner.fleet.vllm.plugin.step import Entry, Place, Running, Step
from tuner.fleet.vllm.plugin.terms import Terms

_PLAN_EVERY = 8
"""Steps."""


class Steering:
    """For vLLM's scheduling thread."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._trust = CostTrust()
        self._prices = NO_PRICES
        self._rate = 0.0
        self._until_plan = 0
        self._window = INITIAL_CYCLE_POLICY.window.window_id
        self._cycle = 0
        self._last_block_length = launch.block_length
        self._finished_at: float | None = None
        """When the step before ended, if the one after it has begun at once."""

    def open(
        self, running: Sequence[Running], seats: Mapping[str, Seat], in_force: InForce, now: float
    ) -> tuple[Step, int | None]:
        """Cut the drafts at hand, and say how many the step is to make: None, as many as vLLM was launched with."""
        policy = in_force.policy
        decoding = []
        entries = []
        for request in running:
            seat = seats.get(request.request_id)
            if seat is None or request.is_prefill_chunk:
                continue
            terms = seat.terms
            if terms is None or terms.in_force is not in_force:
                terms = seat.terms = Terms(seat.decision, seat.most, self.launch, in_force)
            entry = Entry(seat, request.request_id, terms, request.num_computed_tokens + 1)
            cap = terms.cap
            if cap:
                # A block of K emits up to K + 1 tokens.
                remaining = request.max_tokens - request.num_output_tokens - 1
                entry.cap = cap = cap if cap <= remaining else max(0, remaining)
                requested = seat.requested
                entry.requested = requested = min(self._last_block_length if requested is None else requested, cap)
                drafts = len(request.spec_token_ids)
                if drafts and requested:
                    entry.proposed = drafts if drafts < requested else requested
                    entry.confidence = seat.confidence
            decoding.append(request)
            entries.append(entry)
        step = Step(policy, entries, now)
        step.first_after_switch = policy.window.window_id != self._window
        self._window = policy.window.window_id
        trust = self._trust.at(len(entries))
        for request, entry, length in zip(decoding, entries, self._allocate(step, trust), strict=True):
            entry.verified = length
            if length == 0 and self.launch.shows_drafts:
                self._watch(entry, request)
            if len(request.spec_token_ids) > length:
                request.spec_token_ids = request.spec_token_ids[:length]
        return step, self._plan(step, trust, in_force)

    def enter(
        self,
        step: Step,
        scheduled: Mapping[str, int],
        drafts: Mapping[str, Sequence[int]],
        seats: Mapping[str, Seat],
        block_length: int,
        waiting: int,
        at: float,
    ) -> None:
        """The step as vLLM scheduled it, which may have left requests or drafts out for want of room.

        Args:
            scheduled: tokens of each request in the pass.
            drafts: those that are verified.
            seats: of all requests.
            block_length: what the step drafts.
            waiting: requests that wait.
            at: Unix seconds.
        """
        step.entries = [entry for entry in step.entries if entry.request_id in scheduled]
        for entry in step.entries:
            entry.verified = len(drafts.get(entry.request_id, ()))
            step.rows += scheduled[entry.request_id]
        step.kv_tokens = sum([entry.kv_tokens for entry in step.entries])
        step.prefill_tokens = sum(scheduled.values()) - step.rows
        step.block_length, step.drafting, step.waiting = block_length, len(scheduled), waiting
        self._last_block_length = block_length
        if len(scheduled) == len(step.entries):
            return
        decoding = {entry.request_id for entry in step.entries}
        for request_id in scheduled:
            seat = seats.get(request_id)
            if seat is not None and request_id not in decoding:
                seat.requested, seat.watched, seat.shadow = None, 0, None
                seat.scheduled_at = seat.scheduled_at or at
                step.prefilling.append(Place(seat, request_id))

    def pause(self) -> None:
        """vLLM had nothing to do in a step."""
        self._finished_at = None

    def _watch(self, entry: Entry, request: Running) -> None:
        """Keep what was to be had and is not verified: what comes tells whether it would have been accepted."""
        seat = entry.seat
        requested = entry.requested or min(seat.watched, entry.terms.watched)
        if seat.shadow is None and requested and self._last_block_length:
            drafts = request.spec_token_ids[:requested]
            if drafts or not entry.requested:
                seat.shadow = Shadow(drafts, requested, seat.confidence if drafts else SILENT)

    def _allocate(self, step: Step, trust: float) -> Sequence[int]:
        """How many of the drafts at hand each request has verified."""
        policy, entries = step.policy, step.entries
        if not any(entry.proposed for entry in entries):
            return (0,) * len(entries)
        if all(entry.terms.forced or not entry.proposed for entry in entries):
            return [entry.proposed for entry in entries]
        drafter = self.launch.drafter
        ledgers = []
        waiting = []
        for entry in entries:
            ledger = entry.seat.ledger
            ledgers.append(ledger)
            weighed = entry.requested and not entry.terms.forced
            waiting.append((ledger, Own(drafter, entry.proposed, entry.proposed) if weighed else NOTHING))
        candidates = [
            entry.terms.candidate(entry.proposed, entry.confidence).lifted(lift)
            for entry, lift in zip(entries, lifts(ledgers, policy, step.kv_tokens, trust), strict=True)
        ]
        spent = 0.0
        if drafter in policy.draft_costs:
            drafted = [(drafter, entry.proposed) for entry in entries if entry.requested]
            forced = [(drafter, entry.proposed) for entry in entries if entry.requested and entry.terms.forced]
            spent = drafting_seconds(drafted, policy.draft_costs) - drafting_seconds(forced, policy.draft_costs)
        spare = cycle_spare(waiting, policy, step.kv_tokens, trust)
        return allocate(
            candidates, policy.cost, step.kv_tokens, policy.margin, spare, rate=self._rate, draft_seconds=spent
        )

    def _plan(self, step: Step, trust: float, in_force: InForce) -> int | None:
        """How many drafts the step makes for each request; what each of them may have of it is noted."""
        entries, launch = step.entries, self.launch
        if not entries:
            # Nothing but prompts is read: who begins is drafted for as far as may be.
            if in_force.policy.kill or in_force.policy.window.plain:
                return 0
            return launch.block_lengths[-1] if in_force.steered else None
        wanted: Sequence[int] = [entry.cap for entry in entries]
        if any(entry.cap and not entry.terms.forced for entry in entries):
            wanted = self._planned(step, trust)
        else:
            self._rate = 0.0
        longest = 0
        for entry, length in zip(entries, wanted, strict=True):
            seat = entry.seat
            seat.requested = length
            seat.watched = entry.terms.watched
            longest = max(longest, length, seat.watched)
        if longest == launch.block_length and not in_force.steered:
            return None
        return launch.level(longest)

    def _planned(self, step: Step, trust: float) -> Sequence[int]:
        policy, drafter, entries = step.policy, self.launch.drafter, step.entries
        caps = [entry.cap for entry in entries]
        if policy.cost is not None and drafter not in policy.draft_costs:
            # What costs nothing is asked up to the caps whatever the plan: that is then for the rate alone, which is a
            # mean over many steps.
            self._until_plan -= 1
            if self._until_plan > 0:
                return caps
            self._until_plan = _PLAN_EVERY
        prospects = [
            Prospect(drafter, entry.terms.outlook, cap, entry.terms.forced, entry.terms.tpot_limit)
            for entry, cap in zip(entries, caps, strict=True)
        ]
        waiting = [(entry.seat.ledger, "" if entry.terms.forced else drafter) for entry in entries]
        spare_of = spare_if_asked(waiting, policy, step.kv_tokens, trust)
        planned = plan(
            prospects, policy.cost, policy.draft_costs, step.kv_tokens, policy.margin, spare_of, self._prices
        )
        self._prices, self._rate = planned.prices, planned.rate
        return planned.requested

    def close(self, step: Step, ended: Container[str], busy: bool, now: float, at: float) -> CycleReport:
        """The step's tokens have left vLLM's core at `now` (`time.monotonic`), which is `at` in Unix seconds.

        Args:
            ended: the requests that ended with it.
            busy: whether another step begins at once.
        """
        seconds = now - (self._finished_at if self._finished_at is not None else step.started)
        self._finished_at = now if busy else None
        self._cycle += 1
        policy, drafter = step.policy, self.launch.drafter
        counted = [entry for entry in step.entries if entry.chosen]
        load = len(counted)
        # What a step that also reads prompts takes for its decoding nobody can tell.
        mixed = step.prefill_tokens > 0
        draft_seconds = 0.0 if mixed else self._draft_seconds(step)
        cycle_seconds = 0.0 if mixed or not load else seconds
        shares = (draft_seconds / load, max(0.0, cycle_seconds - draft_seconds) / load) if load else (0.0, 0.0)
        shadows: list[ShadowStats] = []
        rows = []
        turns = []
        for entry in counted:
            seat, emitted, verified, forced = entry.seat, len(entry.tokens), entry.verified, entry.terms.forced
            accepted = entry.chosen - 1
            end = _block_end(verified, accepted, emitted, entry.chosen)
            accepted = min(accepted, emitted)
            if seat.shadow is not None:
                told = seat.shadow.advance(seat, drafter, entry.tokens, entry.request_id in ended)
                if told is not None:
                    seat.shadow = None
                    shadows.append(told)
            seat.tell(emitted, at)
            seat.count_block(entry.proposed, verified, accepted, end, *shares)
            requested, proposed = entry.requested, entry.proposed
            rows.append(
                Row(
                    seat.key,
                    seat.decision,
                    forced,
                    requested,
                    proposed,
                    verified,
                    accepted,
                    emitted,
                    entry.confidence,
                    end,
                )
            )
            turns.append(Turn(seat.ledger, emitted, verified, drafter if requested else "", proposed, forced))
        for place in step.prefilling:
            if place.chosen:
                place.seat.tell(len(place.tokens), at)
        predicted = 0.0
        if policy.cost is not None and load:
            predicted = settle(turns, policy.cost, policy.draft_costs, step.kv_tokens)
            if not mixed and load == len(step.entries):
                late = self._trust.count(load, step.rows - load, seconds, predicted)
                if late:
                    for entry in counted:
                        entry.seat.ledger.taken += late
        return CycleReport(
            cycle=self._cycle,
            step=step,
            rows=tuple(rows),
            kv_tokens=sum([entry.kv_tokens for entry in counted]),
            shadows=tuple(shadows),
            draft_seconds={drafter: draft_seconds} if draft_seconds else {},
            cycle_seconds=cycle_seconds,
            prefill_seconds=max(0.0, seconds - predicted) if mixed else 0.0,
            ended_at=now,
        )

    def _draft_seconds(self, step: Step) -> float:
        """What drafting is known to take: vLLM does it in one go with the pass, so that it is not measured apart."""
        price = step.policy.draft_costs.get(self.launch.drafter)
        if price is None or not step.block_length:
            return 0.0
        return price.seconds(step.drafting, step.block_length, step.drafting * step.block_length)


def _block_end(verified: int, accepted: int, emitted: int, chosen: int) -> BlockEnd:
    if verified == 0:
        return BlockEnd.PLAIN
    if emitted < chosen:
        return BlockEnd.CENSORED
    return BlockEnd.FULL if accepted == verified else BlockEnd.REJECTED
