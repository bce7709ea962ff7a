"""The engine's one meeting place: admit, prefill, cycle, deliver. It owns a process (see engine/process.py)."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from engine.blocks import Blocks
from engine.cycle import CycleResult, Emission, Target, run_cycle
from engine.drafter import Drafter
from engine.messages import (
    AskStatus,
    Cancel,
    CycleDone,
    FromEngine,
    Redirect,
    SequenceFailed,
    SetCyclePolicy,
    Shutdown,
    StatusIs,
    Submit,
    ToEngine,
    Tokens,
)
from engine.request import RunningSequence
from engine.scheduler import Scheduler
from kernels.sampling import Block
from policies.types import INITIAL_CYCLE_POLICY, PLAIN, CyclePolicy, CycleStats, EngineStatus


class PrefillTarget(Target, Protocol):
    """What the loop needs of the target beyond a cycle."""

    def prefill(self, token_ids: list[int], slot: int, start: int, block: Block | None) -> int | None: ...


class EngineLoop:
    """All state of the engine: the scheduler with its sequences, the blocks, and the cycle policy in force."""

    def __init__(
        self,
        target: PrefillTarget,
        drafters: Mapping[str, Drafter],
        blocks: Blocks,
        context_limit: int,
        prefill_chunk: int,
        token_bytes: Callable[[], list[bytes]],
        deliver: Callable[[FromEngine], None],
    ) -> None:
        self._target = target
        self._drafters = drafters
        self.scheduler = Scheduler(blocks)
        self._context_limit = context_limit
        self._prefill_chunk = prefill_chunk
        self._load_token_bytes = token_bytes
        self._token_bytes: list[bytes] = []
        self._deliver = deliver
        self._policy: CyclePolicy = INITIAL_CYCLE_POLICY
        self._switched = False
        self._cycle = 0
        self.stopping = False

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return self.scheduler.idle

    def step(self, messages: Iterable[ToEngine]) -> None:
        """Take what arrived, admit, prefill one chunk, run one cycle, deliver."""
        for message in messages:
            self._take(message)
        self.scheduler.admit(time.monotonic())
        prefill_tokens, prefill_seconds, first_tokens = self._prefill()
        result = self._run_cycle()
        self._send(result, first_tokens, prefill_tokens, prefill_seconds)

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Cancel(request_key):
                sequence = self.scheduler.find(request_key)
                if sequence is not None:
                    self._forget(sequence)
            case Redirect(request_key, decision):
                sequence = self.scheduler.find(request_key)
                if sequence is not None and decision.drafter in (PLAIN, *self._drafters):
                    sequence.decision = decision
            case SetCyclePolicy(policy):
                self._switched = self._switched or policy.window != self._policy.window
                self._policy = policy
            case AskStatus(serial):
                self._deliver(StatusIs(serial, self.status()))
            case Shutdown():
                self.stopping = True

    def _submit(self, submit: Submit) -> None:
        problem = self._problem(submit)
        if problem is not None:
            self._deliver(SequenceFailed(submit.request_key, problem))
            return
        if submit.stops and not self._token_bytes:
            self._token_bytes = self._load_token_bytes()
        stops = tuple(stop.encode() for stop in submit.stops)
        self.scheduler.add(RunningSequence(submit, stops, self._context_limit))

    def _problem(self, submit: Submit) -> str | None:
        """Why a sequence cannot run, in one sentence."""
        length = len(submit.prompt)
        if not submit.prompt:
            return "The prompt has no tokens; give at least one."
        if length >= self._context_limit:
            return f"The prompt has {length} tokens; the context limit is {self._context_limit} with room for one more."
        if submit.max_tokens < 1:
            return f"max_tokens is {submit.max_tokens}; give at least 1."
        for stop in submit.stops:
            if not stop or any("\ud800" <= character <= "\udfff" for character in stop):
                return f"The stop string {stop!a} is empty or not valid Unicode; give text that can be written."
        if submit.decision.drafter not in (PLAIN, *self._drafters):
            known = ", ".join((PLAIN, *self._drafters))
            return f"The decision names the drafter {submit.decision.drafter!r}; this engine has {known}."
        needed = min(length + submit.max_tokens, self._context_limit)
        if not self.scheduler.blocks.fits_ever(needed):
            return f"The sequence may need {needed} tokens of context, more than the KV cache holds in all."
        return None

    def _prefill(self) -> tuple[int, float, list[Emission]]:
        """Up to one chunk of prompt tokens, over as many sequences as it covers, first come first served."""
        budget, done, spent = self._prefill_chunk, 0, 0.0
        first_tokens: list[Emission] = []
        for sequence in list(self.scheduler.prefilling):
            if budget <= 0:
                break
            start = sequence.prefilled
            end = min(sequence.prompt_length, start + budget)
            last = end == sequence.prompt_length
            block = Block(0, (), sequence.sampling, 0, sequence.prompt_tokens, sequence.output_counts) if last else None
            started = time.perf_counter()
            token = self._target.prefill(sequence.tokens[start:end], sequence.slot, start, block)
            seconds = time.perf_counter() - started
            sequence.prefilled = end
            sequence.prefill_seconds += seconds
            budget -= end - start
            done += end - start
            spent += seconds
            if token is not None:
                self.scheduler.start_decoding(sequence)
                _, finish = sequence.append([token], self._token_bytes)
                first_tokens.append(Emission(sequence, (token,), finish))
                if finish is not None:
                    self._forget(sequence)
        return done, spent, first_tokens

    def _run_cycle(self) -> CycleResult | None:
        sequences = tuple(self.scheduler.decoding)
        if not sequences:
            return None
        self._cycle += 1
        result = run_cycle(self._target, self._drafters, sequences, self._policy, self._token_bytes)
        for emission in result.emissions:
            if emission.finish is not None:
                self._forget(emission.sequence)
        return result

    def _forget(self, sequence: RunningSequence) -> None:
        self.scheduler.remove(sequence)
        for drafter in self._drafters.values():
            drafter.release(sequence.key)

    def _send(
        self, result: CycleResult | None, first_tokens: list[Emission], prefill_tokens: int, prefill_seconds: float
    ) -> None:
        emissions = (*first_tokens, *(result.emissions if result else ()))
        if not emissions and not prefill_tokens:
            return
        stats = CycleStats(
            cycle=self._cycle,
            policy_version=self._policy.version,
            window=self._policy.window,
            first_after_switch=self._switched and result is not None,
            killed=self._policy.kill,
            load=len(result.sequences) if result else 0,
            tokens=result.tokens if result else 0,
            kv_tokens=result.kv_tokens if result else 0,
            draft_seconds=result.draft_seconds if result else {},
            verify_seconds=result.verify_seconds if result else 0.0,
            cycle_seconds=result.cycle_seconds if result else 0.0,
            prefill_tokens=prefill_tokens,
            prefill_seconds=prefill_seconds,
            waiting=len(self.scheduler.waiting),
            sequences=result.sequences if result else (),
            shadows=result.shadows if result else (),
        )
        if result is not None:
            self._switched = False
        tokens = tuple(
            Tokens(
                emission.sequence.key,
                emission.token_ids,
                emission.sequence.finished(emission.finish) if emission.finish is not None else None,
            )
            for emission in emissions
        )
        self._deliver(CycleDone(tokens, stats))

    def status(self) -> EngineStatus:
        """A reading for people and tests."""
        blocks = self.scheduler.blocks
        return EngineStatus(
            cycle=self._cycle,
            running=len(self.scheduler.prefilling) + len(self.scheduler.decoding),
            waiting=len(self.scheduler.waiting),
            free_slots=blocks.free_slots,
            free_blocks=blocks.free_blocks,
            policy_version=self._policy.version,
        )
