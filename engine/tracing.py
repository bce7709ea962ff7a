"""An engine without a server, and a recorder of what each drafter would have offered at every output position.

The requests decode plain. At each position every drafter is asked for the longest block that there is, and what it
offers is compared, once the request has ended, with what was emitted. That is exact for every block length, since a
shorter proposal is the beginning of a longer one, and the text does not depend on what is drafted. Of text and tokens
nothing is left then but how many there were.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.build import build_engine
from engine.drafter import SILENT, Drafter, Proposal, proposals_of
from engine.drafter_plan import CATCH_UP_TOKENS
from engine.messages import CycleDone, EngineOptions, FromEngine, Progress, SequenceFailed, Submit
from engine.request import RunningSequence
from policies.stats import CycleStats
from policies.types import MAX_BLOCK_LENGTH, Decision

RECORDER = "recorder"
"""What the decision of a recorded request names."""


@dataclass(frozen=True, slots=True)
class RecordedDrafts:
    """One drafter over one request, one byte for each output position; as `tuner.replay.trace.DraftTrace`."""

    offered: bytes
    kept: bytes
    confidence: bytes


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What became of a request, and what drafters would have made of it."""

    request_key: int
    prompt_tokens: int
    output_tokens: int
    """Without the first one, which the prompt's pass gives."""
    drafts: Mapping[str, RecordedDrafts]


class RefusedError(Exception):
    """A request cannot run; one sentence for people."""


class TracingEngine:
    """An engine in this process, stepped until the requests that it is given have ended.

    Attributes:
        info: what it says of itself.
    """

    def __init__(self, options: EngineOptions, progress: Callable[[str], None]) -> None:
        """Build it; a whole prompt is computed in one step. Raises `engine.build.EngineBuildError`."""
        self._progress = progress
        self._cycles: list[CycleStats] = []
        self._ended: list[int] = []
        options = replace(options, prefill_chunk=options.context_limit)
        self._loop, self.info = build_engine(options, self._deliver)

    def serve(self, submits: Sequence[Submit], load: int) -> list[CycleStats]:
        """Let `load` of the requests run at a time, in their order, and return the cycles that decoded.

        Raises RefusedError where one cannot run.
        """
        self._cycles = []
        waiting = deque(submits)
        running = 0
        while waiting or running:
            admitted = [waiting.popleft() for _ in range(min(load - running, len(waiting)))]
            self._ended = []
            self._loop.step(admitted)
            running += len(admitted) - len(self._ended)
        return self._cycles

    def record(self, submits: Sequence[Submit]) -> list[RecordedRequest]:
        """Decode the requests plain, as many together as there are slots, and record all drafters at every position.

        What their decisions say is passed over. A request that ends with its first token is left out. Raises
        RefusedError where one cannot run.
        """
        drafters = self._loop.drafters
        recorder = Recorder(drafters)
        self._loop.drafters = {**drafters, RECORDER: recorder}
        try:
            self.serve([replace(submit, decision=_recorded(submit.decision)) for submit in submits], self.info.slots)
        finally:
            self._loop.drafters = drafters
        found = [recorder.take(submit.request_key) for submit in submits]
        return [one for one in found if one is not None]

    def _deliver(self, message: FromEngine) -> None:
        match message:
            case Progress(text):
                self._progress(text)
            case CycleDone(tokens, stats):
                self._ended += [item.request_key for item in tokens if item.finished is not None]
                if stats.load:
                    self._cycles.append(stats)
            case SequenceFailed(_, text):
                raise RefusedError(text)


def _recorded(decision: Decision) -> Decision:
    return replace(decision, drafter=RECORDER, cap=MAX_BLOCK_LENGTH, forced=True, shadows=())


class Recorder:
    """`engine.drafter.Drafter` that asks all others at every position, keeps what they offer, and offers nothing."""

    name = RECORDER
    memory_bytes = 0
    context_limit: int | None = None

    def __init__(self, drafters: Mapping[str, Drafter]) -> None:
        self._drafters = dict(drafters)
        self._offers: dict[int, dict[str, dict[int, Proposal]]] = {}
        """By request key, drafter and position."""
        self._sequences: dict[int, RunningSequence] = {}

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        for name, drafter in self._drafters.items():
            for sequence, proposal in zip(sequences, _all_ready(drafter, sequences, lengths), strict=True):
                offers = self._offers.setdefault(sequence.key, {}).setdefault(name, {})
                offers[sequence.output_length - 1] = proposal
        return [SILENT] * len(sequences)

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        """The others are told by the loop."""
        self._sequences[sequence.key] = sequence

    def release(self, request_key: int) -> None:
        """What was offered is needed until the request is taken."""

    def take(self, request_key: int) -> RecordedRequest | None:
        """What became of a request that has ended, and forget it; None for one that ended with its first token."""
        sequence = self._sequences.pop(request_key)
        offers = self._offers.pop(request_key, {})
        text = sequence.tokens[sequence.prompt_length + 1 :]
        if not text:
            return None
        return RecordedRequest(
            request_key=request_key,
            prompt_tokens=sequence.prompt_length,
            output_tokens=len(text),
            drafts={name: _compared(offers.get(name, {}), text) for name in self._drafters},
        )


def _all_ready(drafter: Drafter, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
    """What a drafter offers once it has read all texts, some tokens a call; silence where it cannot look at one."""
    proposals = proposals_of(drafter, sequences, lengths)
    unread = sum(len(one.tokens) for one, proposal in zip(sequences, proposals, strict=True) if not proposal.ready)
    for _ in range(-(-unread // CATCH_UP_TOKENS)):
        waiting = [place for place, proposal in enumerate(proposals) if not proposal.ready]
        if not waiting:
            break
        again = proposals_of(drafter, [sequences[place] for place in waiting], [lengths[place] for place in waiting])
        for place, proposal in zip(waiting, again, strict=True):
            proposals[place] = proposal
    return proposals


def _compared(offers: Mapping[int, Proposal], text: Sequence[int]) -> RecordedDrafts:
    """What the text, which begins at position 0, keeps of what was offered at each of its positions."""
    offered, kept, confidence = bytearray(len(text)), bytearray(len(text)), bytearray(len(text))
    for position, proposal in offers.items():
        if position >= len(text):
            continue
        same = 0
        for drafted, emitted in zip(proposal.tokens, text[position:], strict=False):
            if drafted != emitted:
                break
            same += 1
        offered[position], kept[position] = len(proposal.tokens), same
        confidence[position] = proposal.confidence
    return RecordedDrafts(bytes(offered), bytes(kept), bytes(confidence))
