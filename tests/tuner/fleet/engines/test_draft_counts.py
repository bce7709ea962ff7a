"""What answers of real engines say of their drafting."""

from typing import Any

import pytest

from tests.tuner.fleet.engines.recordings import answer
from tuner.fleet.engines.draft_counts import MOST_TOKENS, draft_counts
from tuner.fleet.types import DraftCounts


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("vllm_completion", DraftCounts(15, 15, 3)),
        ("llama_cpp_completion", DraftCounts(20, 20, None)),
        ("sglang_generate", DraftCounts(None, 9, 6)),
        ("sglang_chat", DraftCounts(None, 9, 6)),
    ],
)
def test_an_answer_tells_its_drafts(name: str, counts: DraftCounts) -> None:
    assert draft_counts(answer(name)) == counts


@pytest.mark.parametrize("name", ["vllm_plain_completion", "vllm_two_choices", "llama_cpp_story"])
def test_an_answer_that_tells_nothing_is_none_and_not_full_acceptance(name: str) -> None:
    assert draft_counts(answer(name)) is None


def test_report_49_sglangs_proposed_drafts_are_its_setting_and_no_count() -> None:
    assert answer("sglang_generate")["meta_info"]["spec_num_proposed_drafts"] == 6 * 3
    told = draft_counts(answer("sglang_generate"))
    assert told is not None
    assert told.drafted is None


@pytest.mark.parametrize("count", [-1, MOST_TOKENS + 1, 10**400, float("inf"), True, "4"])
def test_a_count_that_cannot_be_is_none(count: object) -> None:
    assert draft_counts({"timings": {"draft_n": count, "draft_n_accepted": 0}}) is None
    assert draft_counts({"meta_info": {"spec_verify_ct": 4, "spec_num_correct_drafts": count}}) is None


def test_the_older_name_of_sglang_is_read_too() -> None:
    assert draft_counts({"meta_info": {"spec_verify_ct": 4, "spec_accepted_drafts": 5}}) == DraftCounts(None, 5, 4)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"timings": None},
        {"timings": {"draft_n": 4}},
        {"timings": {"draft_n": "4", "draft_n_accepted": "2"}},
        {"timings": {"draft_n": True, "draft_n_accepted": True}},
        {"metrics": {"speculative_decoding": [1]}},
        {"metrics": {"speculative_decoding": {"num_draft_tokens": -1, "num_accepted_draft_tokens": -2}}},
        {"meta_info": {"spec_verify_ct": 4}},
        {"sglext": {"spec_tokens_details": None}},
    ],
)
def test_what_is_malformed_tells_nothing(body: dict[str, Any]) -> None:
    assert draft_counts(body) is None


def test_report_46_more_accepted_than_drafted_tells_nothing() -> None:
    assert draft_counts({"timings": {"draft_n": 4, "draft_n_accepted": 5}}) is None
