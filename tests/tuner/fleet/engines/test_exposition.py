"""The parser of Prometheus' text, against pages of real engines and lines that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from tests.tuner.fleet.engines.recordings import page
from tuner.fleet.engines.exposition import read_exposition


def one(line: str) -> dict[tuple[tuple[str, str], ...], float]:
    return dict(read_exposition(line, {"x"}).of("x"))


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("x 3", {}, 3.0),
        ("x\t3\r", {}, 3.0),
        ("x{} 3 1796048154000", {}, 3.0),
        ('x{b="2",a="1",} 1e3', {"a": "1", "b": "2"}, 1000.0),
        ('x{a="with \\"quotes\\", = } and \\\\"} 3', {"a": 'with "quotes", = } and \\'}, 3.0),
        ('x{a="one\\ntwo"} 3', {"a": "one\ntwo"}, 3.0),
        ('x{a="a\u2028b"} 3', {"a": "a\u2028b"}, 3.0),
        ('x{le="+Inf"} 3 # {trace_id="a b"} 0.5 1796048154', {"le": "+Inf"}, 3.0),
        ('x 3 # {trace_id="a"} 0.5', {}, 3.0),
    ],
)
def test_a_sample_is_read_with_its_labels(line: str, labels: dict[str, str], value: float) -> None:
    assert one(line) == {tuple(sorted(labels.items())): value}


@pytest.mark.parametrize("line", ['x{a="b" 3', "x{ 3", "x", "x three", 'x{a="1",a="2"} 3', "x 1_0", "x " + "9" * 400])
def test_a_line_that_is_none_costs_no_other(line: str) -> None:
    found = read_exposition(f'x{{a="1"}} 1\n{line}\nx{{a="2"}} 2\n', {"x"})
    assert sorted(found.of("x").values()) == [1.0, 2.0]
    assert found.malformed == 1


def test_a_series_that_is_told_twice_counts_once() -> None:
    found = read_exposition('x{a="1"} 1\nx{a="1"} 2\n', {"x"})
    assert list(found.of("x").values()) == [1.0]
    assert found.malformed == 1


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_not_finite_is_no_data(value: str) -> None:
    found = read_exposition(f"x {value}\n", {"x"})
    assert (found.of("x"), found.malformed) == ({}, 0)


def test_a_metric_that_is_absent_is_no_data_and_not_zero() -> None:
    assert (
        read_exposition(page("vllm_plain"), {"vllm:spec_decode_num_drafts_total"}).of(
            "vllm:spec_decode_num_drafts_total"
        )
        == {}
    )


def test_report_47_vllm_41916_created_is_never_taken_for_the_count_that_it_dates() -> None:
    text = page("vllm_ngram")
    assert "vllm:spec_decode_num_drafts_created{" in text
    found = read_exposition(text, {"vllm:spec_decode_num_drafts_total"})
    assert list(found.samples) == ["vllm:spec_decode_num_drafts_total"]
    assert list(found.of("vllm:spec_decode_num_drafts_total").values()) == [21.0]


@given(st.text(alphabet='x{}",=\\ 3#\t\n_aé', max_size=30))
def test_no_text_makes_the_parser_raise(tail: str) -> None:
    found = read_exposition("x" + tail, {"x"})
    assert found.malformed >= 0


@given(
    st.lists(
        st.tuples(st.text(max_size=12), st.floats(min_value=0, max_value=1e12, allow_nan=False)),
        max_size=6,
        unique_by=lambda pair: pair[0],
    )
)
def test_what_the_prometheus_client_writes_is_read_back(counted: list[tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    counter = Counter("x", "help", ["name"], registry=registry)
    Histogram("y", "help", registry=registry).observe(0.3)
    for name, value in counted:
        counter.labels(name).inc(value)
    found = read_exposition(generate_latest(registry).decode(), {"x_total", "y_count"})
    assert {dict(labels)["name"]: value for labels, value in found.of("x_total").items()} == dict(counted)
    assert found.of("y_count") == {(): 1.0}
    assert found.malformed == 0
