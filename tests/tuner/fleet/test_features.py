"""Requests that a speculating engine should not be asked."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.fleet.feature_rows import ROWS
from tuner.fleet.features import Feature, Trouble, features, needs_plain, said_of
from tuner.fleet.types import EngineKind
from tuner.fleet.versions import version_key

VLLM, SGLANG, LLAMA = EngineKind.VLLM, EngineKind.SGLANG, EngineKind.LLAMA_CPP
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 64, "stream": True}
READ = {VLLM: "0.32.0+cpu", SGLANG: "0.6.1", LLAMA: "b10573-3f545be"}


def found(engine: EngineKind, fields: Mapping[str, Any], version: str | None = None, risks: bool = False) -> str | None:
    feature = needs_plain(engine, READ[engine] if version is None else version, {**CHAT, **fields}, risks=risks)
    return None if feature is None else f"{feature.field} {feature.trouble}"


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.05},
        {"min_p": 1},
        {"logit_bias": {"42": -100}},
        {"min_p": 0.05, "logit_bias": {"42": 1}},
        {"min_p": 0.05, "tools": [{"type": "function"}]},
    ],
)
@pytest.mark.parametrize("risks", [False, True])
def test_report_22_vllm_42744_and_unsloth_10573_what_vllm_answers_with_400_goes_to_the_plain_pool(
    fields: dict[str, Any], risks: bool
) -> None:
    feature = needs_plain(VLLM, "0.32.0", {**CHAT, **fields}, risks=risks)
    assert feature is not None
    assert feature.trouble is Trouble.REFUSED
    assert not feature.plugin, "the frontend refuses it before the scheduler sees it, whatever the block length"
    assert "42744" in feature.source


@pytest.mark.parametrize("fields", [{}, {"min_p": 0}, {"min_p": 0.0}, {"min_p": None}, {"logit_bias": {}}])
def test_report_22_a_field_that_asks_for_nothing_is_speculated_on(fields: dict[str, Any]) -> None:
    assert needs_plain(VLLM, "0.32.0", {**CHAT, **fields}) is None


@pytest.mark.parametrize(
    ("engine", "fields", "expected"),
    [
        (VLLM, {"use_beam_search": True}, "use_beam_search refused"),
        (VLLM, {"best_of": 4}, "best_of refused"),
        (VLLM, {"best_of": 1}, None),
        (VLLM, {"prompt_embeds": "AAAA"}, "prompt_embeds refused"),
        (VLLM, {"frequency_penalty": 1.0}, None),
        (VLLM, {"logprobs": True}, "logprobs risky"),
        (VLLM, {"logprobs": 0}, "logprobs risky"),
        (VLLM, {"logprobs": False}, None),
        (VLLM, {"response_format": {"type": "json_object"}}, "response_format risky"),
        (VLLM, {"response_format": {"type": "text"}}, None),
        (VLLM, {"tools": []}, None),
        (SGLANG, {"frequency_penalty": -0.5}, "frequency_penalty wrong"),
        (SGLANG, {"presence_penalty": 0}, None),
        (SGLANG, {"repetition_penalty": 1.1}, "repetition_penalty wrong"),
        (SGLANG, {"repetition_penalty": 1.0}, None),
        (SGLANG, {"min_p": 0.1}, "min_p wrong"),
        (SGLANG, {"custom_logit_processor": "x"}, "custom_logit_processor wrong"),
        (SGLANG, {"return_sampling_mask": True}, "return_sampling_mask refused"),
        (SGLANG, {"temperature": 0.7}, None),
        (LLAMA, {"logprobs": True}, "logprobs wrong"),
        (LLAMA, {"n_probs": 5}, "n_probs wrong"),
        (LLAMA, {"n_probs": 0}, None),
        (LLAMA, {"logit_bias": {"1": 2}, "min_p": 0.1, "repeat_penalty": 1.3}, None),
        (LLAMA, {"grammar": "root ::= [0-9]+", "tools": [{}]}, None),
    ],
)
def test_each_engine_has_its_own_troubles(engine: EngineKind, fields: dict[str, Any], expected: str | None) -> None:
    assert found(engine, fields) == expected


def test_a_route_whose_validity_is_measured_takes_the_risks_and_nothing_else() -> None:
    for engine, fields, other in (
        (VLLM, {"tools": [{}], "logprobs": True}, {"min_p": 0.1}),
        (SGLANG, {"tools": [{}], "regex": "a"}, {"repetition_penalty": 1.2}),
    ):
        assert (found(engine, fields) or "").endswith(Trouble.RISKY)
        assert found(engine, fields, risks=True) is None
        assert found(engine, {**fields, **other}, risks=True) == found(engine, other)


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("0.9.0", True),
        ("0.31.9", True),
        ("0.32.0rc1", True),
        ("0.32.0+cpu", False),
        ("0.33.1", False),
        ("dev", True),
        ("", True),
    ],
)
def test_a_penalty_is_affected_up_to_the_version_that_was_read_and_where_none_can_be_read(
    version: str, affected: bool
) -> None:
    assert (found(VLLM, {"frequency_penalty": 0.5}, version) is not None) is affected


def test_a_version_that_cannot_be_read_is_told_with_the_trouble() -> None:
    feature = needs_plain(VLLM, "nightly", {"presence_penalty": 1.0})
    assert feature is not None
    assert 'its version "nightly" cannot be read, so it counts as affected' in said_of(feature, "nightly")
    assert "it tells no version, so it counts as affected" in said_of(feature, "")
    assert "counts as affected" not in said_of(feature, "0.9.0")
    assert said_of(feature, "0.9.0").startswith("presence_penalty is wrong by vllm while it speculates: ignored")


@pytest.mark.parametrize("version", ["0.6.1+cpu", "0.6.1+rocm6.4", "0.6.1+HIP"])
@pytest.mark.parametrize(
    ("fields", "affected"), [({}, True), ({"temperature": 0.7}, True), ({"temperature": 0}, False)]
)
def test_a_temperature_is_lost_on_builds_that_verify_greedily_also_where_it_is_the_default(
    version: str, fields: dict[str, Any], affected: bool
) -> None:
    assert (found(SGLANG, fields, version) == "temperature wrong") is affected


def test_an_unknown_engine_may_have_any_engines_trouble() -> None:
    for row in ROWS:
        if not row.builds:
            assert row in features(EngineKind.UNKNOWN, "")
    assert needs_plain(EngineKind.UNKNOWN, "", CHAT) is None


@given(
    st.sampled_from(list(EngineKind)),
    st.text(max_size=12),
    st.dictionaries(
        st.sampled_from([row.field for row in ROWS]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
            max_leaves=4,
        ),
    ),
)
def test_no_body_and_no_version_makes_it_raise(engine: EngineKind, version: str, body: dict[str, Any]) -> None:
    feature = needs_plain(engine, version, body)
    assert feature is None or said_of(feature, version).endswith(".")


def test_every_row_says_what_where_and_which_and_names_a_version_that_can_be_compared() -> None:
    for row in ROWS:
        assert row.field
        assert len(row.sentence) > 10
        assert row.source
        assert row.engine is not EngineKind.UNKNOWN
        assert not row.plugin or row.engine is VLLM
        assert not row.right_from or version_key(row.right_from) is not None
    keys = [(row.engine, row.field) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_rows_stand_in_the_order_in_which_they_decide() -> None:
    order = list(Trouble)
    for engine in EngineKind:
        ranks = [order.index(one.trouble) for one in features(engine, "")]
        assert ranks == sorted(ranks)


def test_a_row_can_be_made_without_its_options() -> None:
    row = Feature(LLAMA, "x", Trouble.WRONG, bool, "a sentence", "a source")
    assert row.affects("b1234")
    assert row.affects("")
