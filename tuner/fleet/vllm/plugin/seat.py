"""A request in vLLM, as the plug-in sees it."""

from collections.abc import Sequence

from policies.ledger import Ledger
from policies.stats import BlockEnd, FinishReason, RequestStats, ShadowStats
from policies.types import Decision, RequestFeatures
from tuner.fleet.vllm.plugin.terms import Terms

SILENT, REFUSED, PARTLY, WHOLE = range(4)
"""The confidence buckets: it proposed nothing; the request's block before was rejected at its first position, or there
was none; a part of it was kept; all of it. vLLM tells nothing of how sure its drafters are, and what a proposal meets
is much like what the one before met: a text that copies goes on copying."""
_LOOP = 8
_LOOPS = 3
"""See `policies.stats.RequestStats.looped`; looked for at the end of the text."""


class Seat:
    """What is kept of one request while it lives; for vLLM's scheduling thread."""

    __slots__ = (
        "accepted",
        "arrived_at",
        "confidence",
        "cycles",
        "decision",
        "draft_seconds",
        "emitted",
        "features",
        "first_token_at",
        "key",
        "last_token_at",
        "ledger",
        "most",
        "proposed",
        "rejected_at",
        "requested",
        "scheduled_at",
        "shadow",
        "terms",
        "verified",
        "verify_seconds",
        "watched",
    )

    def __init__(self, key: int, decision: Decision, most: int, features: RequestFeatures, arrived_at: float) -> None:
        """`most` is the largest block length, whoever steers; `arrived_at` is in Unix seconds, as vLLM tells it."""
        self.key = key
        self.decision = decision
        self.most = most
        self.features = features
        self.ledger = Ledger()
        self.confidence = REFUSED
        """Of its next proposal, if there is one."""
        self.requested: int | None = None
        """Of the drafts that are at hand, or come next; None where nobody has planned for it yet."""
        self.watched = 0
        """The same of drafts of which none is to be verified."""
        self.shadow: Shadow | None = None
        self.terms: Terms | None = None
        self.arrived_at = arrived_at
        self.scheduled_at = self.first_token_at = self.last_token_at = 0.0
        self.emitted = self.cycles = self.proposed = self.verified = self.accepted = 0
        self.rejected_at: list[int] = []
        self.draft_seconds = self.verify_seconds = 0.0

    def tell(self, tokens: int, now: float) -> None:
        """`tokens` left vLLM's core at `now`."""
        if not self.emitted:
            self.first_token_at = now
        self.last_token_at = now
        self.emitted += tokens

    def count_block(
        self, proposed: int, verified: int, accepted: int, end: BlockEnd, draft_seconds: float, verify_seconds: float
    ) -> None:
        """One step in which it decoded; the seconds are its share."""
        self.cycles += 1
        self.draft_seconds += draft_seconds
        self.verify_seconds += verify_seconds
        self.proposed += proposed
        self.verified += verified
        self.accepted += accepted
        if verified:
            self.confidence = confidence_after(verified, accepted)
        if end is BlockEnd.REJECTED:
            while len(self.rejected_at) <= accepted:
                self.rejected_at.append(0)
            self.rejected_at[accepted] += 1

    def finished(self, reason: FinishReason, output: Sequence[int]) -> RequestStats:
        """Its totals; `output` are its tokens, of which only whether they repeat is kept."""
        return RequestStats(
            request_key=self.key,
            decision=self.decision,
            features=self.features,
            finish=reason,
            output_tokens=self.emitted,
            queue_seconds=max(0.0, self.scheduled_at - self.arrived_at) if self.scheduled_at else 0.0,
            ttft_seconds=max(0.0, self.first_token_at - self.arrived_at) if self.emitted else 0.0,
            decode_seconds=max(0.0, self.last_token_at - self.first_token_at),
            cycles=self.cycles,
            proposed=self.proposed,
            verified=self.verified,
            accepted=self.accepted,
            rejected_at=tuple(self.rejected_at),
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            looped=_loops(output),
        )


class Shadow:
    """A proposal that is not verified."""

    __slots__ = ("confidence", "emitted", "matched", "requested", "tokens")

    def __init__(self, tokens: Sequence[int], requested: int, confidence: int) -> None:
        self.tokens = tokens
        self.requested = requested
        self.confidence = confidence
        self.matched = self.emitted = 0

    def advance(self, seat: Seat, drafter: str, emitted: Sequence[int], ended: bool) -> ShadowStats | None:
        """Compare it with what came; its end, if it is decided or can be no more, see `policies.stats.ShadowStats`."""
        self.emitted += len(emitted)
        decided = False
        for token in emitted:
            if self.matched == len(self.tokens) or token != self.tokens[self.matched]:
                decided = True
                break
            self.matched += 1
        if not (decided or ended):
            return None
        if decided and self.tokens:
            seat.confidence = confidence_after(len(self.tokens), self.matched)
        return ShadowStats(
            request_key=seat.key,
            context=seat.decision.context,
            drafter=drafter,
            requested=self.requested,
            proposed=len(self.tokens),
            matched=self.matched,
            confidence=self.confidence,
            censored=not decided,
            emitted=self.emitted,
        )


def confidence_after(length: int, kept: int) -> int:
    """The bucket of the proposal after one of `length` drafts of which `kept` were the target's own."""
    if kept == 0:
        return REFUSED
    return PARTLY if kept < length else WHOLE


def _loops(output: Sequence[int]) -> bool:
    tail = list(output[-_LOOP * _LOOPS :])
    return len(tail) == _LOOP * _LOOPS and tail[:-_LOOP] == tail[_LOOP:]
