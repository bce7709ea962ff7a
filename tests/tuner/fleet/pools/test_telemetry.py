"""An exchange as a sample of speed, and as a finished request."""

from dataclasses import replace

import pytest

from policies.stats import FinishReason
from policies.types import Context, Decision, Reason, SamplingClass
from tuner.fleet.pools.counts import Part
from tuner.fleet.pools.telemetry import features_of, request_stats, sample_of
from tuner.fleet.types import DraftCounts, End, Exchange

DECISION = Decision("id", Context("m", "chat", "en"), "ngram", 5, False, Reason.LEARNED, 3, propensity=0.8)
EXCHANGE = Exchange(
    request_key=7,
    upstream="a",
    lane="a",
    decision=DECISION,
    path="/v1/chat/completions",
    status=200,
    end=End.DONE,
    streamed=True,
    arrived_at=1e6,
    first_byte_seconds=0.25,
    decode_seconds=2.0,
    output_tokens=101,
    prompt_tokens=50,
    cached_tokens=20,
    load=2.5,
    drafts=DraftCounts(drafted=80, accepted=60, cycles=40),
    overhead_seconds=0.0002,
)


def test_a_whole_answer_that_tells_its_tokens_is_evidence() -> None:
    sample = sample_of(EXCHANGE, "a@1", "chat", "en")
    assert sample is not None
    assert (sample.lane, sample.tokens, sample.seconds, sample.load) == ("a@1", 100, 2.0, 2.5)
    assert (sample.part, sample.propensity, sample.fresh, sample.wait_seconds) == (Part.LEARNED, 0.8, 30, 0.25)


@pytest.mark.parametrize(
    "nothing",
    [
        replace(EXCHANGE, output_tokens=None),
        replace(EXCHANGE, output_tokens=1),
        replace(EXCHANGE, decode_seconds=0.0),
        replace(EXCHANGE, decision=None),
        *(replace(EXCHANGE, end=end) for end in End if end is not End.DONE),
    ],
)
def test_without_tokens_time_or_a_whole_answer_there_is_no_evidence(nothing: Exchange) -> None:
    assert sample_of(nothing, "a", "chat", "en") is None


@pytest.mark.parametrize("reason", list(Reason))
def test_only_requests_like_the_others_are_compared(reason: Reason) -> None:
    sample = sample_of(replace(EXCHANGE, decision=replace(DECISION, reason=reason)), "a", "chat", "en")
    assert sample is not None
    special = reason in (
        Reason.KILL_SWITCH,
        Reason.CLIENT_OPT_OUT,
        Reason.FEATURE_UNSUPPORTED,
        Reason.FREEZE,
        Reason.SHORT_OUTPUT,
        Reason.TELEMETRY_MISSING,
        Reason.STALE_POLICY,
        Reason.STORE_UNAVAILABLE,
        Reason.ERROR,
    ) or reason.value.startswith("GUARDRAIL")
    assert (sample.part is Part.OTHER) == special


def test_an_exchange_is_a_finished_request() -> None:
    stats = request_stats(EXCHANGE, features_of(EXCHANGE))
    assert stats is not None
    assert (stats.request_key, stats.decision, stats.finish) == (7, DECISION, FinishReason.STOP)
    assert (stats.output_tokens, stats.ttft_seconds, stats.tpot_seconds) == (101, 0.25, 0.02)
    assert (stats.cycles, stats.proposed, stats.verified, stats.accepted) == (40, 80, 80, 60)
    assert stats.features.sampling is SamplingClass.HIGH
    assert stats.features.prompt_tokens == 50


@pytest.mark.parametrize(
    ("end", "finish"),
    [
        (End.CANCELLED, FinishReason.CANCELLED),
        (End.UPSTREAM_ERROR, FinishReason.ERROR),
        (End.BROKEN, FinishReason.ERROR),
        (End.TIMED_OUT, FinishReason.ERROR),
    ],
)
def test_ends_are_told_apart(end: End, finish: FinishReason) -> None:
    stats = request_stats(replace(EXCHANGE, end=end), features_of(EXCHANGE))
    assert stats is not None
    assert stats.finish is finish


def test_a_request_that_the_client_got_wrong_says_nothing_of_the_upstream() -> None:
    assert request_stats(replace(EXCHANGE, end=End.CLIENT_ERROR), features_of(EXCHANGE)) is None
    assert request_stats(replace(EXCHANGE, decision=None), features_of(EXCHANGE)) is None


def test_of_an_answer_in_one_piece_no_time_is_made_that_nobody_measured() -> None:
    whole = replace(EXCHANGE, streamed=False, decode_seconds=0.0, first_byte_seconds=2.25)
    stats = request_stats(whole, features_of(whole))
    assert stats is not None
    assert stats.output_tokens == 0
    assert stats.tpot_seconds is None
    told = replace(EXCHANGE, streamed=False, first_byte_seconds=2.25)
    stats = request_stats(told, features_of(told))
    assert stats is not None
    assert (stats.ttft_seconds, stats.tpot_seconds) == (0.25, 0.02)


def test_drafts_that_an_engine_does_not_count_are_not_made_up() -> None:
    reckoned = replace(EXCHANGE, drafts=DraftCounts(drafted=None, accepted=60))
    stats = request_stats(reckoned, features_of(reckoned))
    assert stats is not None
    assert (stats.cycles, stats.proposed, stats.accepted) == (0, 0, 0)
