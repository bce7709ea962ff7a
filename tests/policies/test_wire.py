"""`policies.wire`: what comes back is what was sent, and what is no message is refused in a sentence."""

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cycle_policy import (
    INITIAL_CYCLE_POLICY,
    Copier,
    CyclePolicy,
    DraftCost,
    Knobs,
    Outlook,
    PassCost,
    Survival,
    Window,
)
from policies.stats import BlockEnd, CycleStats, RequestStats, SequenceStats, ShadowStats
from policies.types import Context, Decision
from policies.wire import FORMAT, WireError, from_wire, to_wire

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(max_size=8)
COUNTS = st.integers(0, 1 << 62)
CONTEXTS = st.builds(Context, NAMES, NAMES, NAMES)
WINDOWS = st.builds(Window, COUNTS, st.booleans(), COUNTS)
SHARES = st.floats(0.0, 1.0)


@st.composite
def outlooks(draw: st.DrawFn) -> Outlook:
    length = draw(st.integers(0, 6))
    shares = st.lists(SHARES, min_size=length, max_size=length).map(tuple)
    return Outlook(draw(shares), draw(shares))


SURVIVALS = st.builds(Survival, st.lists(st.lists(SHARES, max_size=5).map(tuple), max_size=4).map(tuple))
POLICIES = st.builds(
    CyclePolicy,
    version=COUNTS,
    kill=st.booleans(),
    window=WINDOWS,
    survivals=st.dictionaries(st.tuples(NAMES, NAMES, NAMES), SURVIVALS, max_size=3),
    default_survivals=st.dictionaries(NAMES, SURVIVALS, max_size=2),
    cost=st.none()
    | st.builds(PassCost, st.just((1, 4, 9)), st.tuples(FLOATS, FLOATS, FLOATS), sequence_seconds=FLOATS),
    draft_costs=st.dictionaries(NAMES, st.builds(DraftCost, FLOATS, FLOATS, FLOATS, FLOATS), max_size=2),
    margin=FLOATS,
    max_neighbour_slowdown=FLOATS,
    killed_routes=st.frozensets(NAMES, max_size=3),
    outlooks=st.dictionaries(st.tuples(NAMES, NAMES, NAMES), outlooks(), max_size=3),
    default_outlooks=st.dictionaries(NAMES, outlooks(), max_size=2),
    tpot_limits=st.dictionaries(NAMES, FLOATS, max_size=2),
    knobs=st.dictionaries(NAMES, st.builds(Knobs, st.none() | COUNTS, draft_stop=st.none() | FLOATS), max_size=2),
    copiers=st.dictionaries(
        st.tuples(NAMES, NAMES),
        st.builds(Copier, NAMES, COUNTS, st.lists(outlooks(), max_size=2).map(tuple)),
        max_size=2,
    ),
    hold=st.booleans(),
)
SEQUENCES = st.builds(
    SequenceStats,
    request_key=COUNTS,
    context=CONTEXTS,
    drafter=NAMES,
    end=st.sampled_from(BlockEnd),
    forced=st.booleans(),
)
CYCLES = st.builds(
    CycleStats,
    window=WINDOWS,
    draft_seconds=st.dictionaries(NAMES, FLOATS, max_size=2),
    verify_seconds=FLOATS,
    cycle_seconds=FLOATS,
    prefill_seconds=FLOATS,
    sequences=st.lists(SEQUENCES, max_size=4).map(tuple),
    shadows=st.lists(st.builds(ShadowStats, context=CONTEXTS, drafter=NAMES), max_size=3).map(tuple),
    shadow_seconds=FLOATS,
    copying_seconds=FLOATS,
    startup_tokens=st.dictionaries(NAMES, COUNTS, max_size=2),
    ended_at=FLOATS,
)
DECISIONS = st.builds(Decision, context=CONTEXTS, propensity=FLOATS)
REQUESTS = st.builds(
    RequestStats,
    decision=DECISIONS,
    queue_seconds=FLOATS,
    ttft_seconds=FLOATS,
    decode_seconds=FLOATS,
    draft_seconds=FLOATS,
    verify_seconds=FLOATS,
)
POLICY = to_wire("policy", INITIAL_CYCLE_POLICY)


@settings(max_examples=60)
@given(POLICIES)
def test_a_policy_comes_back_as_it_was(policy: CyclePolicy) -> None:
    line = to_wire("policy", policy)
    assert b"\n" not in line
    assert from_wire("policy", CyclePolicy, line) == policy


@settings(max_examples=60)
@given(CYCLES)
def test_a_cycle_comes_back_as_it_was(cycle: CycleStats) -> None:
    assert from_wire("cycle", CycleStats, to_wire("cycle", cycle)) == cycle


@settings(max_examples=60)
@given(REQUESTS)
def test_a_request_comes_back_as_it_was(request: RequestStats) -> None:
    assert from_wire("request", RequestStats, to_wire("request", request)) == request


def test_a_policy_is_the_same_line_whatever_order_its_mappings_were_made_in() -> None:
    limits = {"b": 1.0, "a": 2.0}
    backwards = dict(reversed(limits.items()))
    lines = {
        to_wire("policy", CyclePolicy(1, False, Window(0, False), {}, {}, None, {}, 0.0, 1.1, tpot_limits=each))
        for each in (limits, backwards)
    }
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "is not JSON"),
        (b"[1, 2", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "expected an object with format, kind and value"),
        (b'{"format": 1, "kind": "policy"}', "expected an object with format, kind and value"),
        (b'{"format": 2, "kind": "policy", "value": []}', "has format 2, and this end reads 1"),
        (b'{"format": 1, "kind": "cycle", "value": []}', 'is of kind "cycle": expected policy'),
        (b'{"format": 1, "kind": "policy", "value": []}', "CyclePolicy is []: expected a list of 16"),
        (POLICY.replace(b"0.02", b'"x"'), 'CyclePolicy.margin is "x": expected float'),
        (POLICY.replace(b"0.02", b"true"), "CyclePolicy.margin is true: expected float"),
        (POLICY.replace(b"[0,false,", b'["0",false,', 1), 'CyclePolicy.version is "0": expected int'),
    ],
)
def test_what_is_no_policy_is_refused_in_a_sentence_that_says_what_it_is(line: bytes, says: str) -> None:
    with pytest.raises(WireError) as refused:
        from_wire("policy", CyclePolicy, line)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_values_that_a_class_refuses_are_refused_in_a_sentence() -> None:
    outlook = to_wire("outlook", Outlook((0.5,), (0.5,))).replace(b"[[0.5],", b"[[0.5,0.5],")
    with pytest.raises(WireError, match="Outlook is refused: 2 survivals, and shares offered of 1 positions"):
        from_wire("outlook", Outlook, outlook)


@settings(max_examples=100)
@given(st.recursive(st.none() | st.booleans() | FLOATS | NAMES, lambda each: st.lists(each, max_size=4), max_leaves=20))
def test_nothing_but_a_wire_error_comes_of_any_value(value: Any) -> None:
    line = json.dumps({"format": FORMAT, "kind": "cycle", "value": value})
    with pytest.raises(WireError):
        from_wire("cycle", CycleStats, line)


def test_the_format_grows_with_the_fields() -> None:
    """Two ends of different fields must not read each other: raise `FORMAT` with every change of these."""
    sent = (CyclePolicy, CycleStats, SequenceStats, ShadowStats, RequestStats, Decision, Survival, Outlook, PassCost)
    counts = [sum(field.init for field in fields(kind)) for kind in sent]
    assert (FORMAT, counts) == (1, [16, 22, 11, 9, 17, 9, 1, 2, 4])
