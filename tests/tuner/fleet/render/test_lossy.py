"""Settings under which speculation changes what a model says."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.fleet.render import lossy

LOSSY: Sequence[tuple[str, Mapping[str, Any] | Sequence[str]]] = [
    ("threshold-single", ["--speculative-accept-threshold-single", "0.9"]),
    ("threshold-acc", ["--speculative-accept-threshold-acc=0.5", "--port", "1"]),
    ("threshold_acc", {"internal_states": [{"speculative_accept_threshold_acc": 0.99}]}),
    ("rejection_sample_method", ["--speculative-config", '{"rejection_sample_method": "synthetic"}']),
    ("rejection_sample_method", ["-sc.rejection_sample_method", "synthetic"]),
    ("synthetic_acceptance_rates", {"speculative_config": {"synthetic_acceptance_rates": [0.9, 0.5]}}),
    ("synthetic_acceptance_length", {"speculative_config": '{"synthetic_acceptance_length": 2.5}'}),
    ("fly", {"speculative_config": {"verification_method": "fly"}}),
    ("fly_window", {"speculative_config": {"fly_window": 6}}),
    ("typical_acceptance_sampler", {"spec_decoding_acceptance_method": "typical_acceptance_sampler"}),
    ("posterior-threshold", ["--typical-acceptance-sampler-posterior-threshold", "0.09"]),
    ("posterior_threshold", {"speculative_config": {"posterior_threshold": 0.09}}),
    ("relaxed", {"speculative_config": {"use_relaxed_acceptance_for_thinking": True, "relaxed_topk": 10}}),
    ("relaxed_delta", {"speculative_config": {"relaxed_delta": 0.6}}),
    ("spec-synth-len", ["--spec-synth-len", "2.5"]),
    ("spec-synth-rates", ["--spec-synth-rates", "0.9,0.5"]),
    ("SIMULATE", {"SGLANG_SIMULATE_ACC_LEN": "3"}),
]
LOSSLESS: Sequence[Mapping[str, Any] | Sequence[str]] = [
    [],
    {},
    ["--speculative-accept-threshold-single", "1.0", "--speculative-accept-threshold-acc=1"],
    ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5, "rejection_sample_method": "block"}'],
    {"speculative_config": {"rejection_sample_method": "standard", "synthetic_acceptance_rates": None}},
    {"speculative_config": {"use_relaxed_acceptance_for_thinking": False, "posterior_threshold": 0.0}},
    ["--spec-type", "ngram-simple", "--spec-draft-n-max", "8", "--temp", "-1"],
    {"spec_synth_len": -1, "spec_synth_rates": [], "SGLANG_SIMULATE_ACC_LEN": ""},
    ["--speculative-config", "{not json"],
    {"model": "org/fly-7b", "served_model_name": "fly", "flywheel": 3},
]


@pytest.mark.parametrize(("named", "settings"), LOSSY)
def test_a_lossy_setting_is_named_with_its_value_and_the_remedy(
    named: str, settings: Mapping[str, Any] | Sequence[str]
) -> None:
    found = lossy(settings)
    assert found
    assert any(named.lower() in sentence.lower() for sentence in found)
    for sentence in found:
        assert " is " in sentence
        assert sentence.endswith(".")
        assert sentence.partition(": ")[2]


@pytest.mark.parametrize("settings", LOSSLESS)
def test_what_changes_nothing_is_not_named(settings: Mapping[str, Any] | Sequence[str]) -> None:
    assert lossy(settings) == []


def test_each_setting_is_named_once_however_often_a_server_tells_it() -> None:
    rank = {"speculative_accept_threshold_single": 0.5}
    assert len(lossy({"internal_states": [rank, rank], "server_args": rank})) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
        max_leaves=10,
    )
)
def test_whatever_a_server_tells_it_never_raises(told: Any) -> None:
    assert isinstance(lossy({"server": told, "speculative_accept_threshold_acc": told}), list)


@given(st.lists(st.text(max_size=12), max_size=6))
def test_whatever_stands_in_a_command_line_it_never_raises(words: list[str]) -> None:
    assert isinstance(lossy(words), list)
