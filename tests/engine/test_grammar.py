"""engine.grammar: what is refused, and a matcher that only emitted tokens advance."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.grammar import (
    MAX_GRAMMAR_CHARACTERS,
    GrammarError,
    Grammars,
    Mask,
    Matcher,
    choice_grammar,
    context_free_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
    tool_call_grammar,
    tool_text_grammar,
)
from tests.engine.logit_target import VOCABULARY
from tests.engine.tiny_model import END_OF_TEXT, IM_END, make_tiny_model

ENDS = frozenset({IM_END, END_OF_TEXT})
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocabulary=VOCABULARY)


@pytest.fixture(scope="module")
def grammars(folder: Path) -> Grammars:
    return Grammars(folder, VOCABULARY)


@pytest.fixture(scope="module")
def encode(folder: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def tokens_of(mask: Mask | None) -> set[int]:
    assert mask is not None
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[VOCABULARY:].any()
    return set(np.flatnonzero(bits).tolist())


def accepts(matcher: Matcher, tokens: Sequence[int]) -> bool:
    """Whether all of `tokens` and then the end may come."""
    for token in tokens:
        if token not in tokens_of(matcher.masks(())[0]):
            return False
        matcher.accept([token])
    return tokens_of(matcher.masks(())[0]) >= ENDS


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (json_schema_grammar(POINT), '{"x": 1, "y": -20}', '{"x": 1}'),
        (json_object_grammar(), '{"a": [1, "b"]}', "[1]"),
        (regex_grammar("[a-c]{2,3}"), "abc", "abcc"),
        (choice_grammar(["yes", 'n"o\n', "é"]), 'n"o\n', "ye"),
        (context_free_grammar('root ::= "a" root "b" | "c"'), "aacbb", "aacb"),
        (context_free_grammar('start: "(" start ")" | /[0-9]+/'), "((42))", "((42)"),
        (
            tool_call_grammar([("go", POINT), ("stop", {"type": "object"})], "<<", ">>", several=True),
            '<<{"name": "stop", "arguments": {}}>>\n<<{"name": "go", "arguments": {"x": 1, "y": 2}}>>',
            '<<{"name": "go", "arguments": {}}>>',
        ),
        (
            tool_text_grammar([("go", POINT)], "<<", "<<", ">>"),
            'Well: <<{"name": "go", "arguments": {"x": 1, "y": 2}}>> and on',
            'Well: <<{"name": "go", "arguments": {"x": true}}>>',
        ),
    ],
)
def test_a_grammar_lets_through_what_it_describes_and_nothing_else(
    grammars: Grammars, encode: Callable[[str], list[int]], grammar: str, right: str, wrong: str
) -> None:
    assert accepts(grammars.matcher(grammar, ENDS), encode(right))
    assert not accepts(grammars.matcher(grammar, ENDS), encode(wrong))


def test_references_of_a_functions_schema_point_into_that_schema(
    grammars: Grammars, encode: Callable[[str], list[int]]
) -> None:
    schema = {"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {"x": {"$ref": "#/$defs/n"}}}
    grammar = tool_call_grammar([("go", schema)], "", "", several=False)
    assert accepts(grammars.matcher(grammar, ENDS), encode('{"name": "go", "arguments": {"x": 7}}'))
    assert not accepts(grammars.matcher(grammar, ENDS), encode('{"name": "go", "arguments": {"x": "7"}}'))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: json_schema_grammar({"type": "strin"}), "strin"),
        (lambda: json_schema_grammar({"not": {"type": "string"}}), "not"),
        (lambda: json_schema_grammar({"not": {}, "x-guidance": {"lenient": True}}), "not"),
        (lambda: json_schema_grammar({"$ref": "https://example.com/schema.json"}), "retrieve"),
        (lambda: json_schema_grammar(False), "false"),
        (lambda: json_schema_grammar({"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
        (lambda: regex_grammar("(a"), "unclosed"),
        (lambda: context_free_grammar("root ::= nothing"), "nothing"),
        (lambda: context_free_grammar("what is this?"), ""),
        (lambda: regex_grammar("a" * MAX_GRAMMAR_CHARACTERS), str(MAX_GRAMMAR_CHARACTERS)),
    ],
)
def test_what_cannot_be_honoured_in_whole_is_refused_in_one_line(make: Callable[[], str], told: str) -> None:
    with pytest.raises(GrammarError) as caught:
        make()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_28_vllm_44006_masks_of_drafts_leave_the_matcher_where_it_was(
    grammars: Grammars, encode: Callable[[str], list[int]]
) -> None:
    text = encode('{"x": 12, "y": 3}')
    matcher = grammars.matcher(json_schema_grammar(POINT), ENDS)
    for done, token in enumerate(text):
        before = matcher.masks(())[0]
        for drafts in (text[done:], text[done:][:3], [text[done], 300, 301], [300] * 4):
            masks = matcher.masks(drafts)
            assert len(masks) == len(drafts) + 1
            assert tokens_of(masks[0]) == tokens_of(before)
            assert tokens_of(matcher.masks(())[0]) == tokens_of(before)
        matcher.accept([token])


def test_the_mask_of_each_row_counts_the_drafts_before_it(
    grammars: Grammars, encode: Callable[[str], list[int]]
) -> None:
    text = encode('{"x": 12, "y": 3}')
    whole = grammars.matcher(json_schema_grammar(POINT), ENDS).masks(text)
    stepped = grammars.matcher(json_schema_grammar(POINT), ENDS)
    for token, mask in zip((*text, None), whole, strict=True):
        assert tokens_of(mask) == tokens_of(stepped.masks(())[0])
        if token is not None:
            stepped.accept([token])


def test_rows_after_a_forbidden_draft_or_an_end_have_no_mask(
    grammars: Grammars, encode: Callable[[str], list[int]]
) -> None:
    text = encode('{"x": 12, "y": 3}')
    forbidden = encode("}")[0]
    matcher = grammars.matcher(json_schema_grammar(POINT), ENDS)
    masks = matcher.masks([text[0], forbidden, text[1]])
    assert [mask is None for mask in masks] == [False, False, True, True]
    assert matcher.permitted([text[0], forbidden, text[1]]) == 1
    assert matcher.permitted([*text, IM_END, text[0]]) == len(text) + 1
    assert [mask is None for mask in matcher.masks([*text, IM_END, text[0]])[len(text) :]] == [False, True, True]


def test_when_the_grammar_has_ended_only_the_ends_may_come(
    grammars: Grammars, encode: Callable[[str], list[int]]
) -> None:
    matcher = grammars.matcher(json_schema_grammar(POINT), ENDS)
    matcher.accept(encode('{"x": 1, "y": 2}'))
    assert tokens_of(matcher.masks(())[0]) == ENDS
    assert matcher.permitted(encode("x")) == 0
    matcher.accept([END_OF_TEXT])
    assert matcher.permitted([IM_END]) == 0


def test_a_special_token_is_no_end_unless_the_sequence_says_so(grammars: Grammars) -> None:
    matcher = grammars.matcher(regex_grammar("a*"), frozenset({IM_END}))
    assert tokens_of(matcher.masks(())[0]) & ENDS == {IM_END}


def test_a_matcher_after_a_wrong_token_raises_and_does_not_guess(
    grammars: Grammars, encode: Callable[[str], list[int]]
) -> None:
    matcher = grammars.matcher(json_schema_grammar(POINT), ENDS)
    matcher.accept(encode("]"))
    with pytest.raises(GrammarError, match="cannot be followed"):
        matcher.masks(())


def test_matchers_are_made_in_a_thread_and_handed_over_by_key(grammars: Grammars) -> None:
    grammars.start(7, regex_grammar("a+"), [IM_END])
    grammars.start(8, "no grammar at all: (", [IM_END])
    made: dict[int, Matcher | GrammarError] = {}
    while grammars.pending:
        made |= dict(grammars.take(5.0))
    assert isinstance(made[7], Matcher)
    assert isinstance(made[8], GrammarError)
    assert grammars.take() == []


def test_a_tokenizer_without_special_tokens_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(GrammarError, match="special token"):
        Grammars(tmp_path, VOCABULARY)
