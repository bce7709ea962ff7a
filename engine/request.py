"""The state of one sequence inside the engine: the only place where it is kept, and no tensors."""

import codecs
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engine.grammar import Matcher
from engine.messages import Finished, Submit
from kernels.sampling import Failure
from policies.cycle_policy import NO_KNOBS, Knobs
from policies.ledger import Ledger
from policies.stats import BlockEnd, FinishReason
from policies.types import MAX_BLOCK_LENGTH, PLAIN, Decision

LOOP_TOKENS = 8
LOOP_REPEATS = 3


@dataclass(slots=True)
class Shadow:
    """A proposal that was not verified, compared with the tokens that come."""

    tokens: tuple[int, ...]
    """Empty where the drafter had nothing to offer."""
    requested: int
    confidence: int
    matched: int = 0
    emitted: int = 0
    """Tokens that came since."""


class RunningSequence:
    """A sequence from admission to its end. `engine.cycle` and `engine.scheduler` are the only writers."""

    def __init__(self, submit: Submit, context_limit: int) -> None:
        self.key = submit.request_key
        self.sampling = submit.sampling
        self.decision: Decision = submit.decision
        self.knobs: Knobs = NO_KNOBS
        """Of its route, as the cycle's policy has them; drafters read them."""
        self.prompt_length = len(submit.prompt)
        self.tokens: list[int] = list(submit.prompt)
        """Prompt and output; the last one is not in the KV cache yet."""
        self.output_limit = min(submit.max_tokens, context_limit - self.prompt_length)
        self.stop_token_ids = frozenset(submit.stop_token_ids)
        self.stops = submit.stops
        self.submitted_at = submit.submitted_at
        self.prompt_tokens = frozenset(submit.prompt) if submit.sampling.penalised else frozenset()
        self.output_counts: Counter[int] | None = Counter() if submit.sampling.penalised else None
        self.top_logprobs = submit.top_logprobs
        self.admitted_at: float | None = None
        """When it was admitted first."""
        self.blocks: list[int] = []
        """Its block table, empty while it waits; `engine.blocks` alone changes it."""
        self.prefilled = 0
        """Positions in the KV cache, kept up to date while it is prefilled."""
        self.reused_tokens = 0
        """Prompt tokens that were in the KV cache already, from earlier sequences."""
        self.failure: Failure | None = None
        """Why it cannot go on; set by whoever finds out, and the loop then ends it."""
        self.matcher: Matcher | None = None
        """Where it stands in its grammar, if it has one."""
        self.shadows: dict[str, Shadow] = {}
        """By drafter; see `engine.shadowing`."""
        self.ledger = Ledger()
        """How long it has waited for others."""
        self.looped = False
        self.cycles = 0
        self.proposed = 0
        self.verified = 0
        self.accepted = 0
        self.rejected_at: list[int] = []
        self.prefill_seconds = 0.0
        self.draft_seconds = 0.0
        self.verify_seconds = 0.0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tail = ""
        """The end of the text in which stops are looked for: too short to hold one."""
        self._tail_limit = max((len(stop) for stop in submit.stops), default=1) - 1

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.output_limit - self.output_length

    @property
    def block_length(self) -> int:
        """The largest block length that its decision lets it have."""
        return 0 if self.decision.drafter == PLAIN else max(0, min(self.decision.cap, MAX_BLOCK_LENGTH))

    @property
    def context_tokens(self) -> int:
        """The most tokens of context that this sequence can come to hold."""
        return self.prompt_length + self.output_limit

    def append(self, token_ids: Sequence[int], token_bytes: list[bytes]) -> tuple[int, FinishReason | None]:
        """Append emitted tokens up to the earliest end: EOS, a stop string, or the limit.

        Returns how many were appended and the reason if the sequence has ended. `token_bytes` is read only for
        sequences with stop strings.
        """
        for count, token in enumerate(token_ids, start=1):
            self.tokens.append(token)
            if self.output_counts is not None:
                self.output_counts[token] += 1
            if not self.looped:
                self.looped = self._loops()
            if token in self.stop_token_ids or (self.stops and self._stops(token_bytes[token])):
                return count, FinishReason.STOP
            if self.remaining <= 0:
                return count, FinishReason.LENGTH
        if self.matcher is not None:
            self.matcher.accept(token_ids)
        return len(token_ids), None

    def count_block(self, verified: int, accepted: int, end: BlockEnd) -> None:
        """Add one block to the sequence's own totals."""
        self.cycles += 1
        self.verified += verified
        self.accepted += accepted
        if end is BlockEnd.REJECTED:
            while len(self.rejected_at) <= accepted:
                self.rejected_at.append(0)
            self.rejected_at[accepted] += 1

    def finished(self, reason: FinishReason) -> Finished:
        """The sequence's totals, for the message that ends it."""
        return Finished(
            reason=reason,
            queue_seconds=max(0.0, (self.admitted_at or 0.0) - self.submitted_at),
            prefill_seconds=self.prefill_seconds,
            cycles=self.cycles,
            proposed=self.proposed,
            verified=self.verified,
            accepted=self.accepted,
            rejected_at=tuple(self.rejected_at),
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            looped=self.looped,
        )

    def _stops(self, piece: bytes) -> bool:
        """Whether a stop string is complete with `piece`: in the text as clients read it, see
        `engine.server.detokenize`. Matched on bytes, half a character would be no U+FFFD, and a character that begins
        before `min_tokens` none that is looked at."""
        text = self._decoder.decode(piece)
        if self.output_length < self.sampling.min_tokens:
            return False  # and its text is not looked at later either
        text = self._tail + text
        self._tail = text[max(0, len(text) - self._tail_limit) :]
        return any(stop in text for stop in self.stops)

    def _loops(self) -> bool:
        span = LOOP_TOKENS * LOOP_REPEATS
        if self.output_length < span:
            return False
        tail = self.tokens[-span:]
        return tail[:LOOP_TOKENS] == tail[LOOP_TOKENS : 2 * LOOP_TOKENS] == tail[2 * LOOP_TOKENS :]
