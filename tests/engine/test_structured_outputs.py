"""Outputs that must follow a grammar: whole, valid, and the same with drafts, under every verifier."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.grammar import choice_grammar, json_schema_grammar, regex_grammar
from engine.messages import Cancel, SequenceFailed
from kernels.sampling import Verifier
from tests.engine.logit_target import (
    ENDS,
    PERSON,
    VOCABULARY,
    LogitRig,
    RecallingDrafter,
    ask,
    assert_same,
    outputs,
)
from tests.engine.scripted import decision
from tests.engine.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocabulary=VOCABULARY)


@pytest.mark.parametrize("verifier", list(Verifier))
@pytest.mark.parametrize("right", [0, 5, 10])
def test_report_27_28_json_under_every_verifier_and_drafter_is_whole_and_valid(
    folder: Path, verifier: Verifier, right: int
) -> None:
    submits = [
        replace(ask(key, grammar=json_schema_grammar(PERSON), verifier=verifier), max_tokens=150) for key in range(1, 5)
    ]
    found = outputs(folder, submits, drafter="recall", block_length=5, right=right)
    rig = LogitRig(folder)
    ended = 0
    for output in found.values():
        assert len(output.logprobs) == len(output.tokens)
        if output.finish == "stop":
            ended += 1
            text = b"".join(rig.token_bytes[token] for token in output.tokens).decode()
            assert valid(json.loads(text), PERSON), text
    assert ended >= 3
    if right == 5:
        assert sum(output.rejected for output in found.values()) > 0


def test_a_sequence_that_is_preempted_goes_on_in_its_grammar(folder: Path) -> None:
    submits = [replace(ask(key, grammar=json_schema_grammar(PERSON)), max_tokens=120) for key in range(1, 5)]
    plain = outputs(folder, submits, drafter="none", block_length=0)
    texts = {key: list(output.tokens) for key, output in plain.items()}
    rig = LogitRig(folder, drafters=[RecallingDrafter(texts, 6)], kv_blocks=12)
    rig.run(*(replace(submit, decision=decision("recall", 5)) for submit in submits))
    assert rig.loop.status().preemptions > 0
    for key, output in plain.items():
        assert_same(rig.output(key), output)


def test_a_grammar_that_cannot_be_used_fails_its_own_sequence(folder: Path) -> None:
    rig = LogitRig(folder)
    rig.run(ask(1, grammar="start: nothing"), ask(2, grammar=regex_grammar("a{3}")))
    assert "cannot be used" in rig.delivered.failures[1]
    assert [failed.of_grammar for failed in rig.delivered.messages if isinstance(failed, SequenceFailed)] == [True]
    assert rig.text(2) == "aaa"


def test_a_sequence_whose_grammar_leaves_no_token_fails_for_its_grammar_and_another_does_not(folder: Path) -> None:
    rig = LogitRig(folder)
    rig.run(ask(1, grammar=regex_grammar("a{3}"), allowed_tokens=(0,)), replace(ask(2), max_tokens=0))
    failed = {one.request_key: one.of_grammar for one in rig.delivered.messages if isinstance(one, SequenceFailed)}
    assert failed == {1: True, 2: False}


def test_a_sequence_that_is_cancelled_while_its_grammar_is_made_leaves_nothing(folder: Path) -> None:
    rig = LogitRig(folder)
    rig.run(ask(1, grammar=json_schema_grammar(PERSON)), Cancel(1))
    assert rig.loop.idle
    rig.run(ask(2, grammar=regex_grammar("ab")))
    assert rig.text(2) == "ab"
    assert 1 not in rig.delivered.tokens
    assert rig.loop.status().free_blocks == rig.loop.scheduler.blocks.blocks


def test_structured_text_ends_where_its_form_does(folder: Path) -> None:
    rig = LogitRig(folder)
    rig.run(ask(1, grammar=regex_grammar("([a-z]{1,6} ){8}end")), ask(2, grammar=choice_grammar(["yes", "no"])))
    assert re.fullmatch("([a-z]{1,6} ){8}end", rig.text(1))
    assert rig.text(2) in ("yes", "no")
    assert rig.output(1).tokens[-1] in ENDS


def valid(value: object, schema: dict[str, Any]) -> bool:
    """Whether `value` validates, for the keywords of the schemas that are made here."""
    if "enum" in schema:
        return any(type(value) is type(one) and value == one for one in schema["enum"])
    match schema["type"]:
        case "object":
            return (
                isinstance(value, dict)
                and set(schema["required"]) <= set(value) <= set(schema["properties"])
                and all(valid(inner, schema["properties"][name]) for name, inner in value.items())
            )
        case "array":
            return (
                isinstance(value, list)
                and schema.get("minItems", 0) <= len(value) <= schema["maxItems"]
                and all(valid(inner, schema["items"]) for inner in value)
            )
        case "integer":
            return (
                isinstance(value, int)
                and not isinstance(value, bool)
                and schema.get("minimum", -1 << 80) <= value <= schema.get("maximum", 1 << 80)
            )
        case "string":
            return isinstance(value, str) and schema.get("minLength", 0) <= len(value) <= schema["maxLength"]
        case "boolean":
            return isinstance(value, bool)
        case _:
            return value is None


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-50, 50),
        st.integers(0, 300),
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 4)),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.one_of(st.text('abc é"\n', max_size=4), st.booleans()), min_size=1, max_size=3),
    ),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 2)),
        st.builds(
            lambda properties, some: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[: some % (len(properties) + 1)],
                "additionalProperties": False,
            },
            st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3),
            st.integers(0, 3),
        ),
    ),
    max_leaves=4,
)


def test_any_schema_gives_json_that_validates_and_is_the_same_with_drafts(folder: Path) -> None:
    ended = 0

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(SCHEMAS, st.integers(0, 5))
    def run(schema: dict[str, Any], seed: int) -> None:
        nonlocal ended
        submit = ask(grammar=json_schema_grammar(schema), temperature=1.0)
        plain = outputs(folder, [submit], drafter="none", block_length=0, seed=seed)[1]
        assert_same(outputs(folder, [submit], drafter="recall", block_length=5, seed=seed)[1], plain)
        if plain.finish == "stop":
            ended += 1
            text = b"".join(LogitRig(folder).token_bytes[token] for token in plain.tokens).decode()
            assert valid(json.loads(text), schema), (text, schema)

    run()
    assert ended > 15
