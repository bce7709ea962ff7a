"""The engine's one meeting place: admit, prefill, cycle, deliver. It owns a process (see engine/process.py)."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from engine.blocks import Blocks
from engine.cycle import CycleResult, Emission, Target, next_block, run_cycle
from engine.drafter import Drafter
from engine.drafter_files import DrafterError
from engine.faults import FAULT, NO_CHOICE, log_fault
from engine.grammar import GrammarError, Grammars
from engine.messages import (
    AskStatus,
    Cancel,
    CycleDone,
    DraftersAre,
    FromEngine,
    LoadDrafter,
    Redirect,
    SequenceFailed,
    SetCyclePolicy,
    Shutdown,
    StatusIs,
    Submit,
    ToEngine,
    Tokens,
    UnloadDrafter,
)
from engine.planning import plan_cycle
from engine.request import RunningSequence
from engine.rows import Rows
from engine.scheduler import Scheduler
from engine.shadowing import due_shadows
from kernels.sampling import Block, Chosen
from policies.cycle_policy import INITIAL_CYCLE_POLICY, CyclePolicy
from policies.ledger import CostTrust
from policies.plan import NO_PRICES
from policies.shadow_room import ShadowRoom
from policies.stats import CycleStats, DraftTiming, EngineStatus
from policies.types import MAX_BLOCK_LENGTH, PLAIN, Decision

GRAMMAR_WAIT_SECONDS = 0.02
"""How long a step waits for a grammar's matcher where there is nothing else to do."""


class PrefillTarget(Target, Protocol):
    """What the loop needs of the target beyond a cycle."""

    def prefill(self, part: Rows, block: Block | None) -> Chosen | None:
        """Compute a chunk of a text; with `block`, choose the token after its last row."""
        ...


class LoadedDrafters(Protocol):
    """Who adds to the loop's drafters, and takes from them, while the engine serves."""

    versions: dict[str, str]
    """A fingerprint of each."""

    def load(self, source: str) -> None:
        """Raises DrafterError."""
        ...

    def unload(self, name: str) -> None:
        """Raises DrafterError."""
        ...

    def time(self, names: Iterable[str]) -> tuple[DraftTiming, ...]:
        """What calls of drafters take of which no request knows yet."""
        ...


class EngineLoop:
    """All state of the engine: the scheduler with its sequences, the blocks, and the cycle policy in force.

    Attributes:
        drafters: what decisions may name.
    """

    def __init__(
        self,
        target: PrefillTarget,
        drafters: Mapping[str, Drafter],
        blocks: Blocks,
        context_limit: int,
        prefill_chunk: int,
        token_bytes: Callable[[], list[bytes]],
        deliver: Callable[[FromEngine], None],
        grammars: Grammars | None = None,
        loaded: LoadedDrafters | None = None,
    ) -> None:
        self._target = target
        self.drafters: Mapping[str, Drafter] = drafters
        self._loaded = loaded
        self._unloaded: set[str] = set()
        """Drafters that decisions made before may still name."""
        self.scheduler = Scheduler(blocks)
        self._context_limit = context_limit
        self._prefill_chunk = prefill_chunk
        self._load_token_bytes = token_bytes
        self._token_bytes: list[bytes] = []
        self._deliver = deliver
        self._grammars = grammars
        self._starting: dict[int, RunningSequence] = {}
        """Sequences that wait for their grammar's matcher."""
        self._policy: CyclePolicy = INITIAL_CYCLE_POLICY
        self._switched = False
        self._cycle = 0
        self._prices = NO_PRICES
        self._trust = CostTrust()
        self._told_preemptions = 0
        self._told_reused_tokens = 0
        self.stopping = False

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return self.scheduler.idle and not self._starting

    def step(self, messages: Iterable[ToEngine]) -> None:
        """Take what arrived, admit, prefill one chunk, run one cycle, deliver."""
        for message in messages:
            self._take(message)
        self._add_started()
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
                self._starting.pop(request_key, None)
            case Redirect(request_key, decision):
                sequence = self.scheduler.find(request_key) or self._starting.get(request_key)
                if sequence is not None and decision.drafter in (PLAIN, *self.drafters):
                    sequence.decision = decision
            case SetCyclePolicy(policy):
                self._switched = self._switched or policy.window != self._policy.window
                self._policy = policy
            case AskStatus(serial):
                self._deliver(StatusIs(serial, self.status()))
            case LoadDrafter(serial, source):
                self._change_drafters(serial, lambda loaded: loaded.load(source))
            case UnloadDrafter(serial, name):
                self._change_drafters(serial, lambda loaded: loaded.unload(name))
            case Shutdown():
                self.stopping = True

    def _change_drafters(self, serial: int, change: Callable[[LoadedDrafters], None]) -> None:
        """Load or unload, let go of what cannot be drafted any more, and answer."""
        before = set(self.drafters)
        problem = None if self._loaded is not None else "This engine's drafters are fixed."
        timings: tuple[DraftTiming, ...] = ()
        if self._loaded is not None:
            try:
                change(self._loaded)
                timings = self._loaded.time(set(self.drafters) - before)
            except DrafterError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - logged, and told to whoever asked; serving goes on
                log_fault("a change of the drafters", error)
                problem = f"The drafter could not be loaded or unloaded ({type(error).__name__}); the log says where."
        self._unloaded = (self._unloaded | before) - set(self.drafters)
        for sequence in (*self.scheduler.sequences, *self._starting.values()):
            sequence.decision = self._possible(sequence.decision)
            sequence.shadows = {name: shadow for name, shadow in sequence.shadows.items() if name in self.drafters}
        resident_bytes = {name: drafter.memory_bytes for name, drafter in self.drafters.items()}
        self._deliver(
            DraftersAre(
                serial,
                drafters=(PLAIN, *self.drafters),
                memory_bytes=sum(resident_bytes.values()),
                problem=problem,
                versions=dict(self._loaded.versions) if self._loaded is not None else {},
                resident_bytes=resident_bytes,
                draft_calibration=timings,
            )
        )

    def _possible(self, decision: Decision) -> Decision:
        """Plain in place of a drafter that was unloaded."""
        return replace(decision, drafter=PLAIN, cap=0) if decision.drafter in self._unloaded else decision

    def _submit(self, submit: Submit) -> None:
        submit = replace(submit, decision=self._possible(submit.decision))
        problem = self._problem(submit)
        if problem is not None:
            self._deliver(SequenceFailed(submit.request_key, problem))
            return
        if submit.stops and not self._token_bytes:
            self._token_bytes = self._load_token_bytes()
        sequence = RunningSequence(submit, self._context_limit)
        if submit.grammar is None:
            self.scheduler.add(sequence)
        elif self._grammars is None:
            message = "This engine's tokenizer cannot be used with a grammar."
            self._deliver(SequenceFailed(submit.request_key, message, of_grammar=True))
        else:
            self._starting[submit.request_key] = sequence
            self._grammars.start(submit.request_key, submit.grammar, submit.stop_token_ids)

    def _add_started(self) -> None:
        """Hand sequences to the scheduler whose matcher is made."""
        if self._grammars is None or not self._grammars.pending:
            return
        wait = GRAMMAR_WAIT_SECONDS if self.scheduler.idle and self._starting else 0.0
        for request_key, made in self._grammars.take(wait):
            sequence = self._starting.pop(request_key, None)
            if sequence is None:
                continue  # cancelled
            if isinstance(made, GrammarError):
                self._deliver(SequenceFailed(request_key, str(made), of_grammar=True))
            else:
                sequence.matcher = made
                self.scheduler.add(sequence)

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
        if submit.decision.drafter not in (PLAIN, *self.drafters):
            known = ", ".join((PLAIN, *self.drafters))
            return f"The decision names the drafter {submit.decision.drafter!r}; this engine has {known}."
        needed = min(length + submit.max_tokens, self._context_limit)
        if not self.scheduler.blocks.fits_ever(needed):
            return f"The sequence may need {needed} tokens of context, more than the KV cache holds in all."
        return None

    def _prefill(self) -> tuple[int, float, list[Emission]]:
        """Up to one chunk of text, over as many sequences as it covers, first come first served."""
        budget, done, spent = self._chunk(), 0, 0.0
        first_tokens: list[Emission] = []
        for sequence in list(self.scheduler.prefilling):
            if budget <= 0:
                break
            # Those before it may just have computed what its own text begins with.
            start = max(sequence.prefilled, self.scheduler.blocks.reuse(sequence.key, sequence.tokens))
            # One that was preempted has its last token already; a new one is to choose its first after the prompt.
            new = sequence.output_length == 0
            if new:
                before = sequence.reused_tokens if sequence.prefilled else 0
                sequence.reused_tokens = before + start - sequence.prefilled
            needed = len(sequence.tokens) if new else len(sequence.tokens) - 1
            end = min(needed, start + budget)
            chosen: Chosen | None = None
            if start < end:
                started = time.perf_counter()
                chosen = self._compute(sequence, start, end, choose=new and end == needed)
                seconds = time.perf_counter() - started
                sequence.prefill_seconds += seconds
                budget -= end - start
                done += end - start
                spent += seconds
                if sequence.failure is not None:
                    self._fail(sequence)
                    continue
                self.scheduler.blocks.fill(sequence.key, sequence.tokens, end)
            sequence.prefilled = end
            if end == needed:
                self.scheduler.start_decoding(sequence)
            if chosen is not None:
                first_tokens.append(self._commit_first(sequence, chosen))
        return done, spent, first_tokens

    def _chunk(self) -> int:
        """Tokens of prompt in this step: the knob's, within the rows that memory was planned for."""
        wished = self._policy.knobs_of("*").prefill_chunk
        if wished is None:
            return self._prefill_chunk
        decode_rows = self.scheduler.blocks.slots * (MAX_BLOCK_LENGTH + 1)
        return max(1, min(wished, max(self._prefill_chunk, decode_rows)))

    def _compute(self, sequence: RunningSequence, start: int, end: int, *, choose: bool) -> Chosen | None:
        """Positions `start` to `end` of a sequence's text; `failure` tells when that cannot be done."""
        part = Rows(sequence.tokens[start:end], start, sequence.blocks, logit_count=int(choose))
        try:
            chosen = self._target.prefill(part, next_block(sequence) if choose else None)
        except Exception as error:  # noqa: BLE001 - logged; the client of this sequence is told
            log_fault(f"the prefill of sequence {sequence.key}", error)
            sequence.failure = FAULT
            return None
        if chosen is not None and not chosen.tokens:
            sequence.failure = sequence.failure or chosen.failure or NO_CHOICE
        return chosen

    def _commit_first(self, sequence: RunningSequence, chosen: Chosen) -> Emission:
        _, finish = sequence.append(chosen.tokens, self._token_bytes)
        for drafter in self.drafters.values():
            drafter.observe(sequence, chosen.tokens)
        if finish is not None:
            self._forget(sequence)
        return Emission(sequence, chosen.tokens, chosen.logprobs, finish)

    def _run_cycle(self) -> CycleResult | None:
        scheduler = self.scheduler
        trust = self._trust.at(len(scheduler.decoding))
        planned = plan_cycle(self.drafters, scheduler.decoding, self._policy, self._prices, trust)
        self._prices = planned.prices
        lengths, preempted = scheduler.make_room(planned.requested)
        for sequence in preempted:
            self._release_drafts(sequence)
        if not scheduler.decoding:
            return None
        self._cycle += 1
        sequences = tuple(scheduler.decoding)
        room = ShadowRoom(self._policy, planned.spare_seconds)
        due = [
            due_shadows(sequence, planned.asked(sequence, length), self.drafters, self._policy, room)
            for sequence, length in zip(sequences, lengths, strict=True)
        ]
        for sequence, names in zip(sequences, due, strict=True):
            if names:
                scheduler.stretch(sequence, MAX_BLOCK_LENGTH)
        result = run_cycle(
            self._target, self.drafters, sequences, lengths, self._policy, self._token_bytes, due, planned
        )
        # What a drafter takes to read a prompt is not predicted, and a pass that failed is run again.
        if result.predicted_seconds and not result.startup_tokens and not result.failed:
            load = len(sequences)
            late = self._trust.count(load, result.tokens - load, result.cycle_seconds, result.predicted_seconds)
            for sequence in sequences:
                sequence.ledger.taken += late
        for emission in result.emissions:
            sequence = emission.sequence
            scheduler.blocks.fill(sequence.key, sequence.tokens, len(sequence.tokens) - 1)
            if emission.finish is not None:
                self._forget(sequence)
        for sequence in result.failed:
            self._fail(sequence)
        return result

    def _fail(self, sequence: RunningSequence) -> None:
        self.scheduler.discard(sequence)
        self._release_drafts(sequence)
        failure = sequence.failure or FAULT
        of_grammar = sequence.matcher is not None and not failure.fault
        self._deliver(SequenceFailed(sequence.key, failure.message, failure.fault, of_grammar))

    def _forget(self, sequence: RunningSequence) -> None:
        self.scheduler.remove(sequence)
        self._release_drafts(sequence)

    def _release_drafts(self, sequence: RunningSequence) -> None:
        for drafter in self.drafters.values():
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
            shadow_seconds=result.shadow_seconds if result else 0.0,
            copying_seconds=result.copying_seconds if result else 0.0,
            startup_tokens=result.startup_tokens if result else {},
            preemptions=self.scheduler.preemptions - self._told_preemptions,
            reused_tokens=self.scheduler.blocks.reused_tokens - self._told_reused_tokens,
            ended_at=time.monotonic(),
        )
        self._told_preemptions = self.scheduler.preemptions
        self._told_reused_tokens = self.scheduler.blocks.reused_tokens
        if result is not None:
            self._switched = False
        tokens = tuple(
            Tokens(
                emission.sequence.key,
                emission.token_ids,
                emission.sequence.finished(emission.finish) if emission.finish is not None else None,
                emission.logprobs,
                emission.sequence.reused_tokens,
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
            kept_blocks=blocks.kept_blocks,
            preemptions=self.scheduler.preemptions,
            reused_tokens=blocks.reused_tokens,
        )
