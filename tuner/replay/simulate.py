"""Runs a controller over a trace, in a closed loop: so many sequences run together as the trace says, whoever decides.

The loop is kept flat, since a comparison runs it a hundred million times: what a sequence did in a cycle is one number,
and `tuner.replay.played` makes accounts of it afterwards.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from policies.cycle_policy import DraftCost
from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.replay.played import Ints, Outcome, Played, account, pass_seconds
from tuner.replay.player import CopyingPlayer, Player, Running, Shadowed, Told, VerifyingPlayer, WatchingPlayer, World
from tuner.replay.trace import Costs, DraftTrace, Trace

_VERIFIED, _PROPOSED, _DRAFTER = 1 << 5, 1 << 10, 1 << 15
"""What each part of a row's number is multiplied by; emitted comes first."""
_WHOLE = _VERIFIED + _PROPOSED
"""Of a proposal that is verified whole."""
_NOISE_CHUNK = 4096


class _Machine(NamedTuple):
    table: list[float]
    sequence_seconds: float
    kv_token_seconds: float
    drafters: Mapping[str, DraftCost]


class _Pending(NamedTuple):
    """A shadow that waits for the text to reach `end`."""

    start: int
    end: int
    requested: int
    proposed: int
    matched: int
    confidence: int


def simulate(trace: Trace, player: Player, seed: int) -> Outcome:
    """What `player` needs for `trace`; `seed` is that of the measured noise, and the player's own."""
    return account(trace, play(trace, player, seed))


def play(trace: Trace, player: Player, seed: int) -> Played:
    """Run it. Raises ValueError where the player verifies what was not proposed, or names a drafter that is not there.

    A restart forgets what the player kept for running sequences: they are admitted to it again.
    """
    watching = player if isinstance(player, WatchingPlayer) else None
    copying = player if isinstance(player, CopyingPlayer) else None
    verifying = player if isinstance(player, VerifyingPlayer) else None
    # Then a block is settled as soon as it is asked for.
    at_once = watching is None and copying is None and verifying is None
    world = World(
        drafters=trace.drafters,
        slots=trace.slots,
        calibrated=trace.calibrated or trace.costs,
        confidence_buckets=trace.confidence_buckets,
        seed=seed,
    )
    places = {name: place * _DRAFTER for place, name in enumerate(trace.drafters, start=1)}
    later = dict(trace.later_costs)
    restarts = frozenset(trace.restarts)
    requests, loads = trace.requests, trace.loads
    rows: list[list[int]] = [[] for _ in requests]
    first_cycle = [0] * len(requests)
    shadow_seconds: list[float] = []
    noise = _noise(trace, seed)
    table, sequence_seconds, kv_token_seconds, prices = _machine(trace.costs, trace.slots)
    pending: dict[int, dict[str, _Pending]] = {}
    running: list[Running] = []
    admitted, cycle, now = 0, 0, 0.0
    player.start(world, None)
    while True:
        while admitted < len(requests) and len(running) < loads[admitted]:
            if admitted in restarts:
                memory = player.save() if trace.keeps_memory else None
                player.start(world, memory)
                pending.clear()
                for one in running:
                    one.drafter, one.cap, one.shadows, one.notes = PLAIN, 0, (), None
                    player.admit(one, len(running))
            if admitted in later:
                table, sequence_seconds, kv_token_seconds, prices = _machine(later[admitted], trace.slots)
            one = Running(admitted, requests[admitted])
            first_cycle[admitted] = cycle
            running.append(one)
            player.admit(one, len(running))
            admitted += 1
        if not running:
            break
        load = len(running)
        if copying is not None:
            copying.ask(running)
            _copy(running)
        player.plan(running)
        kv_tokens, tokens, row = 0, load, 0
        ended = False
        drafting: dict[str, list[int]] = {}
        for one in running:
            kv_tokens += one.kv_tokens
            position = one.position
            requested = one.output_tokens - position - 1
            if one.requested < requested:
                requested = one.requested
            if requested > 0 and one.drafter != PLAIN:
                if requested > MAX_BLOCK_LENGTH:
                    requested = MAX_BLOCK_LENGTH
                draft = one.request.drafts.get(one.drafter)
                if draft is None:
                    raise ValueError(f"{player.name} asks {one.drafter!r}, which is none of {', '.join(places)}")
                one.requested = requested
                one.confidence = draft.confidence[position]
                proposed = draft.offered[position]
                if proposed > requested:
                    proposed = requested
                one.proposed = one.verified = proposed
                work = drafting.get(one.drafter)
                if work is None:
                    drafting[one.drafter] = [1, proposed, proposed]
                else:
                    work[0] += 1
                    work[2] += proposed
                    if proposed > work[1]:
                        work[1] = proposed
                if at_once:
                    row = proposed * _WHOLE + places[one.drafter]
                    tokens += proposed
                    if proposed:
                        accepted = draft.kept[position]
                        one.accepted = accepted if accepted < proposed else proposed
                    else:
                        one.accepted = 0
            else:
                one.requested = one.proposed = one.verified = one.confidence = one.accepted = row = 0
            if at_once:
                one.emitted = emitted = one.accepted + 1
                rows[one.index].append(row + emitted)
                one.kv_tokens += emitted
                one.position = position = position + emitted
                if position >= one.output_tokens:
                    ended = True
        untaken = _leave_copied(running, pending, drafting, prices) if copying is not None else 0.0
        shadowing = _start_shadows(running, pending, prices) if watching is not None else 0.0
        if verifying is not None:
            verifying.verify(running)
        if not at_once:
            for one in running:
                position = one.position
                verified = one.verified
                if not 0 <= verified <= one.proposed:
                    raise ValueError(f"{player.name} verifies {verified} drafts of {one.proposed} that were proposed")
                tokens += verified
                row = 0
                emitted = 1
                if one.requested:
                    row = verified * _VERIFIED + one.proposed * _PROPOSED + places[one.drafter]
                    draft = one.request.drafts[one.drafter]
                    if verified:
                        accepted = draft.kept[position]
                        if accepted > verified:
                            accepted = verified
                        one.accepted = accepted
                        emitted = accepted + 1
                    else:
                        one.accepted = 0
                        if watching is not None and one.proposed:
                            _keep_unverified(one, pending)
                else:
                    one.accepted = 0
                one.emitted = emitted
                rows[one.index].append(row + emitted)
                one.kv_tokens += emitted
                one.position = position = position + emitted
                if position >= one.output_tokens:
                    ended = True
        seconds = table[tokens] + sequence_seconds * load + kv_token_seconds * kv_tokens
        for name, work in drafting.items():
            seconds += prices[name].seconds(*work)
        seconds += shadowing + untaken
        shadow_seconds.append(shadowing + untaken)

        factor = next(noise)
        now += seconds * factor
        if watching is not None:
            watching.watch(
                Told(
                    {name: prices[name].seconds(*work) * factor for name, work in drafting.items()},
                    shadowing * factor,
                    untaken * factor,
                    _decided(running, pending) if pending else (),
                )
            )
        player.observe(running, seconds * factor, now)
        if ended:
            for one in running:
                if one.position >= one.output_tokens:
                    player.finish(one)
                    pending.pop(one.index, None)
            running = [one for one in running if one.position < one.output_tokens]
        cycle += 1
    numbers: Ints = np.array([row for own in rows for row in own], dtype=np.int64)
    return Played(
        first_cycle=np.array(first_cycle, dtype=np.int64),
        cycle_count=np.array([len(own) for own in rows], dtype=np.int64),
        drafter=numbers // _DRAFTER,
        proposed=numbers // _PROPOSED % 32,
        verified=numbers // _VERIFIED % 32,
        emitted=numbers % 32,
        shadow_seconds=np.array(shadow_seconds),
    )


def _machine(costs: Costs, slots: int) -> _Machine:
    target = costs.target
    return _Machine(
        pass_seconds(target, slots).tolist(), target.sequence_seconds, target.kv_token_seconds, costs.drafters
    )


def _noise(trace: Trace, seed: int) -> Iterator[float]:
    """What a cycle's seconds are multiplied by where they are measured: lognormal with mean 1, and stalls."""
    generator = np.random.default_rng([seed, 1])
    spread = trace.seconds_sd
    while True:
        factors = np.exp(spread * generator.standard_normal(_NOISE_CHUNK) - 0.5 * spread**2)
        factors[generator.random(_NOISE_CHUNK) < trace.stall_share] *= trace.stall_factor
        yield from factors.tolist()


def _copy(running: list[Running]) -> None:
    """What the copiers offer, of as much as the request has left."""
    for one in running:
        one.copied = one.copied_confidence = 0
        if one.copier:
            position = one.position
            draft = _draft(one, one.copier)
            one.copied_confidence = draft.confidence[position]
            one.copied = min(draft.offered[position], MAX_BLOCK_LENGTH, one.output_tokens - position - 1)


def _leave_copied(
    running: list[Running],
    pending: dict[int, dict[str, _Pending]],
    drafting: Mapping[str, Sequence[int]],
    prices: Mapping[str, DraftCost],
) -> float:
    """Copied proposals that were not taken become shadows; returns the seconds that they took."""
    work: dict[str, list[int]] = {}
    for one in running:
        name = one.copier
        if not name or (one.requested and one.drafter == name):
            continue
        length = min(MAX_BLOCK_LENGTH, one.output_tokens - one.position - 1)
        if length > 0 and name not in pending.get(one.index, ()):
            _cast(one, name, length, pending)
        count, steps, drafts = work.get(name, (0, 0, 0))
        work[name] = [count + 1, max(steps, one.copied), drafts + one.copied]
    seconds = 0.0
    for name, (count, steps, drafts) in work.items():
        price = prices[name]
        taken, longest, rows = drafting.get(name, (0, 0, 0))
        seconds += price.seconds(taken + count, max(longest, steps), rows + drafts)
        seconds -= price.seconds(taken, longest, rows)
    return seconds


def _start_shadows(
    running: list[Running], pending: dict[int, dict[str, _Pending]], prices: Mapping[str, DraftCost]
) -> float:
    """Let the drafters that are due propose; returns the seconds that it takes."""
    work: dict[str, list[int]] = {}
    for one in running:
        for name in one.shadows:
            waiting = pending.get(one.index)
            if (waiting is not None and name in waiting) or (one.requested and name == one.drafter):
                continue
            length = min(one.shadow_length, MAX_BLOCK_LENGTH, one.output_tokens - one.position - 1)
            if length <= 0:
                continue
            proposed = _cast(one, name, length, pending)
            count, steps, drafts = work.get(name, (0, 0, 0))
            work[name] = [count + 1, max(steps, proposed), drafts + proposed]
    return sum(prices[name].seconds(*done) for name, done in work.items())


def _keep_unverified(one: Running, pending: dict[int, dict[str, _Pending]]) -> None:
    """A proposal of which nothing was verified tells nevertheless what would have been kept, unless one waits."""
    if one.drafter not in pending.get(one.index, ()):
        _cast(one, one.drafter, one.requested, pending)


def _cast(one: Running, name: str, length: int, pending: dict[int, dict[str, _Pending]]) -> int:
    draft = _draft(one, name)
    proposed = min(draft.offered[one.position], length)
    matched = min(draft.kept[one.position], proposed)
    # It is decided by the first token that differs, or by the bonus token behind the last draft.
    end = one.position + matched + 1
    confidence = draft.confidence[one.position]
    pending.setdefault(one.index, {})[name] = _Pending(one.position, end, length, proposed, matched, confidence)
    return proposed


def _draft(one: Running, name: str) -> DraftTrace:
    draft = one.request.drafts.get(name)
    if draft is None:
        raise ValueError(f"{name!r} is to propose beside a request, which is none of {', '.join(one.request.drafts)}")
    return draft


def _decided(running: list[Running], pending: dict[int, dict[str, _Pending]]) -> list[Shadowed]:
    """The shadows that the text has reached, which are then gone."""
    told = []
    for one in running:
        waiting = pending.get(one.index)
        if not waiting:
            continue
        for name, shadow in list(waiting.items()):
            if shadow.end <= one.position:
                del waiting[name]
                came = one.position - shadow.start
                told.append(
                    Shadowed(
                        one, name, shadow.requested, shadow.proposed, shadow.matched, shadow.confidence, False, came
                    )
                )
    return told
