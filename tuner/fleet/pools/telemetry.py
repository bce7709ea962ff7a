"""An exchange as the learners read it, and as the recorder and the metrics do."""

from collections.abc import Mapping

from policies.stats import FinishReason, RequestStats
from policies.types import Reason, RequestFeatures, SamplingClass
from tuner.fleet.pools.counts import Part, Sample
from tuner.fleet.types import End, Exchange

_PARTS: Mapping[Reason, Part] = {
    Reason.SWITCHBACK: Part.HELD,
    Reason.LEARNED: Part.LEARNED,
    Reason.CANARY: Part.LEARNED,
    Reason.EXPLORE: Part.LEARNED,
    Reason.ROUTE_DEFAULT: Part.DEFAULT,
    Reason.ENGINE_DEFAULT: Part.DEFAULT,
    Reason.PINNED: Part.PINNED,
}
_FINISHES: Mapping[End, FinishReason] = {
    End.DONE: FinishReason.STOP,
    End.CANCELLED: FinishReason.CANCELLED,
    End.UPSTREAM_ERROR: FinishReason.ERROR,
    End.BROKEN: FinishReason.ERROR,
    End.TIMED_OUT: FinishReason.ERROR,
}


def sample_of(exchange: Exchange, lane: str, route: str, language: str) -> Sample | None:
    """What an exchange tells of the speed of `lane`; None where that is nothing.

    Only a whole answer that tells its tokens and took time to decode is evidence. An error is not speed, and of an
    answer in one piece nobody knows when its first token was there, unless its engine says so.
    """
    decision = exchange.decision
    if decision is None or exchange.end is not End.DONE or exchange.output_tokens is None:
        return None
    if exchange.output_tokens < 2 or exchange.decode_seconds <= 0.0:
        return None
    fresh = None if exchange.prompt_tokens is None else exchange.prompt_tokens - (exchange.cached_tokens or 0)
    return Sample(
        lane=lane,
        model=decision.context.model,
        route=route,
        language=language,
        part=_PARTS.get(decision.reason, Part.OTHER),
        at=exchange.arrived_at,
        load=max(1.0, exchange.load),
        tokens=exchange.output_tokens - 1,
        seconds=exchange.decode_seconds,
        propensity=decision.propensity,
        fresh=None if fresh is None else max(0, fresh),
        wait_seconds=_first_token_seconds(exchange),
    )


def features_of(exchange: Exchange) -> RequestFeatures:
    """What is known of a request of which only counts were kept; the sampling is the protocol's default."""
    return RequestFeatures(
        sampling=SamplingClass.HIGH,
        structured=exchange.valid is not None,
        prompt_tokens=exchange.prompt_tokens or 0,
        max_tokens=0,
        opt_out=exchange.decision is not None and exchange.decision.reason is Reason.CLIENT_OPT_OUT,
    )


def request_stats(exchange: Exchange, features: RequestFeatures) -> RequestStats | None:
    """An exchange as a finished request; None where it has no decision, or the client was at fault.

    An answer of which nobody knows when its tokens came has none here, so that no time is made of it: one in one piece
    whose engine does not tell, or one that does not tell its tokens.
    """
    finish = _FINISHES.get(exchange.end)
    if exchange.decision is None or finish is None:
        return None
    drafts = exchange.drafts
    drafted = 0 if drafts is None or drafts.drafted is None else drafts.drafted
    timed = exchange.output_tokens is not None and exchange.decode_seconds > 0.0
    return RequestStats(
        request_key=exchange.request_key,
        decision=exchange.decision,
        features=features,
        finish=finish,
        output_tokens=exchange.output_tokens or 0 if timed else 0,
        queue_seconds=0.0,
        ttft_seconds=_first_token_seconds(exchange),
        decode_seconds=exchange.decode_seconds,
        cycles=(drafts.cycles or 0) if drafts is not None else 0,
        proposed=drafted,
        verified=drafted,
        accepted=min(drafts.accepted, drafted) if drafts is not None else 0,
        rejected_at=(),
        draft_seconds=0.0,
        verify_seconds=0.0,
        looped=False,
        valid=exchange.valid,
    )


def _first_token_seconds(exchange: Exchange) -> float:
    """An answer in one piece begins when its last token is there."""
    decoding = 0.0 if exchange.streamed else exchange.decode_seconds
    return max(0.0, exchange.first_byte_seconds - decoding)
