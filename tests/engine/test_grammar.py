"""engine.grammar: what is refused, and a matcher that only emitted tokens advance."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.grammar import (
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
from engine.grammar_check import MAX_GRAMMAR_CHARACTERS
from tests.engine.lock_watch import longest_wait
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
        (lambda: json_schema_grammar({"$ref": "https://example.com/schema.json"}), "nothing is fetched"),
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


def test_report_28_vllm_44006_masks_of_drafts_leave_the_matcher_where_it_was(
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


HOSTILE = ["(a{1000}){1000}", "x(a{1000}){1000}", "((a{100}){100}){100}", "a{100000}", "a{1000000000}"]


@pytest.mark.parametrize("pattern", HOSTILE)
@pytest.mark.parametrize("make", [regex_grammar, lambda pattern: json_schema_grammar({"pattern": f"^{pattern}$"})])
def test_repetitions_within_repetitions_are_refused_at_once_or_at_the_token_where_they_begin(
    grammars: Grammars, make: Callable[[str], str], pattern: str
) -> None:
    started = time.thread_time()
    with pytest.raises(GrammarError, match=r"give a simpler one|cannot be followed any further"):
        follow(grammars.matcher(make(pattern), ENDS), 20)
    assert time.thread_time() - started < 1.0


def test_a_grammar_whose_work_comes_later_ends_its_own_sequence_at_once(grammars: Grammars) -> None:
    matcher = grammars.matcher(regex_grammar("[a-z]{3}((a?){1000}){1000}"), ENDS)
    with pytest.raises(GrammarError, match="cannot be followed any further"):
        follow(matcher, 200)


def follow(matcher: Matcher, steps: int) -> None:
    """Take the lowest token at every step; none of their masks may take long."""
    for _ in range(steps):
        started = time.thread_time()
        tokens = tokens_of(matcher.masks(())[0]) - ENDS
        assert time.thread_time() - started < 0.2
        if not tokens:
            return
        matcher.accept([min(tokens)])


def fields(count: int, required: bool) -> dict[str, object]:
    kinds: list[dict[str, object]] = [
        {"type": "string", "maxLength": 100},
        {"type": "integer", "minimum": 0, "maximum": 100_000},
        {"enum": [f"value number {index}" for index in range(20)]},
        {"type": "array", "items": {"type": "number"}, "maxItems": 20},
        {"type": "string", "format": "date-time"},
        {"type": ["string", "null"], "pattern": r"^[A-Z]{2}-\d{4,8}$"},
        {"type": "number", "multipleOf": 0.25},
    ]
    properties = {f"field_{index}": kinds[index % len(kinds)] for index in range(count)}
    needed = list(properties) if required else []
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: json_schema_grammar(fields(400, required=True)), '{"field_0": "a", "field_1": 12'),
        (lambda: json_schema_grammar(fields(300, required=False)), '{"field_7": "a", "field_286": 0.5'),
        (lambda: json_schema_grammar({"enum": [f"{index}: {'x' * 40}" for index in range(900)]}), f'"899: {"x" * 40}"'),
        (lambda: choice_grammar([f"{index} [a|b]*" for index in range(3000)]), "2999 [a|b]*"),
        (lambda: regex_grammar(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"), "2026-11-30"),
        (
            lambda: regex_grammar(r"[A-Za-z0-9._%+-]{1,64}@([A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"),
            "a.b@mail.example.org",
        ),
        (lambda: regex_grammar(r"https?://[\w.-]+(:\d+)?(/[\w./%-]*)?(\?[\w=&%-]*)?"), "https://a.org/b?c=d"),
        (lambda: json_schema_grammar({"type": "string", "pattern": r"^[\p{L}\s'-]{1,100}$"}), '"Zoë d\'Or"'),
        (lambda: json_schema_grammar({"type": "string", "maxLength": 10_000}), '"' + "lorem ipsum " * 200 + '"'),
        (lambda: json_schema_grammar({"type": "integer", "multipleOf": 3600}), "7200"),
    ],
)
def test_ordinary_forms_are_followed_within_the_limits(
    grammars: Grammars, encode: Callable[[str], list[int]], make: Callable[[], str], text: str
) -> None:
    matcher = grammars.matcher(make(), ENDS)
    for token in encode(text):
        assert token in tokens_of(matcher.masks(())[0])
        matcher.accept([token])


@pytest.mark.parametrize(
    "value", [10**400, 10**5000, float("inf"), float("nan"), "\ud800"], ids=["400", "5000", "inf", "nan", "half"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda value: json_schema_grammar({"const": value}),
        lambda value: json_schema_grammar({"type": "number", "multipleOf": value}),
        lambda value: tool_call_grammar([("go", {"type": "object", "default": value})], "<<", ">>", several=True),
        lambda value: tool_text_grammar([("go", {"type": "object", "default": value})], "<<", "<<", ">>"),
    ],
)
def test_a_schema_with_a_value_that_json_cannot_write_is_refused(make: Callable[[object], str], value: object) -> None:
    with pytest.raises(GrammarError):
        make(value)


@pytest.mark.parametrize("make", [regex_grammar, context_free_grammar, lambda text: choice_grammar([text])])
def test_half_of_a_surrogate_pair_is_refused(make: Callable[[str], str]) -> None:
    with pytest.raises(GrammarError):
        make('root ::= "\ud800"')


def test_a_schema_that_is_nested_deeper_than_it_can_be_written_is_refused() -> None:
    schema: dict[str, object] = {}
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(GrammarError, match="nested too deeply"):
        json_schema_grammar(schema)


@pytest.mark.parametrize(
    "make",
    [
        lambda value: json_schema_grammar({"type": "integer", "multipleOf": value}),
        lambda value: json_schema_grammar({"allOf": [{"type": "integer", "multipleOf": 983}, {"multipleOf": value}]}),
        lambda value: tool_call_grammar([("go", {"properties": {"a": {"multipleOf": value}}})], "", "", several=False),
        lambda value: context_free_grammar('start: %json {"type": "integer", "multipleOf": ' + str(value) + "}"),
    ],
)
def test_multiples_that_would_take_seconds_are_refused(make: Callable[[int], str]) -> None:
    with pytest.raises(GrammarError, match="multipleOf"):
        make(999_983)


@pytest.mark.parametrize("text", ["root ::=", 'root ::= ""', "start: ", 'root ::= "" | empty\nempty ::= ""'])
def test_a_grammar_of_the_empty_text_alone_is_refused(text: str) -> None:
    with pytest.raises(GrammarError, match="only the empty text"):
        context_free_grammar(text)


@pytest.mark.parametrize(
    "make", [lambda: context_free_grammar('root ::= root "a"'), lambda: regex_grammar("[^\\s\\S]")]
)
def test_a_grammar_that_nothing_matches_is_refused(make: Callable[[], str]) -> None:
    with pytest.raises(GrammarError, match="no text matches"):
        make()


def test_a_matcher_is_handed_over_with_its_first_mask_computed_in_the_thread_that_made_it(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    masks = Matcher.masks

    def watched(self: Matcher, drafts: Sequence[int]) -> tuple[Mask | None, ...]:
        threads.append(threading.current_thread().name)
        return masks(self, drafts)

    monkeypatch.setattr(Matcher, "masks", watched)
    grammars.start(1, regex_grammar("a+"), [IM_END])
    [(_, made)] = grammars.take(5.0)
    assert isinstance(made, Matcher)
    assert [name.startswith("grammar") for name in threads] == [True]


def test_many_sequences_with_one_grammar_do_not_keep_one_with_another_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(folder, VOCABULARY)
    made: list[str] = []
    begun, release = threading.Event(), threading.Event()
    make = grammars.matcher

    def matcher(grammar: str, end_tokens: frozenset[int]) -> Matcher:
        begun.set()
        assert release.wait(10)
        made.append(grammar)
        return make(grammar, end_tokens)

    monkeypatch.setattr(grammars, "matcher", matcher)
    mine, other = regex_grammar("a+"), regex_grammar("b+")
    for key in range(20):
        grammars.start(key, mine, [IM_END])
    assert begun.wait(10)
    grammars.start(20, other, [IM_END])
    release.set()
    taken: dict[int, Matcher | GrammarError] = {}
    while grammars.pending:
        taken |= dict(grammars.take(5.0))
    assert sorted(taken) == list(range(21))
    assert made.index(other) <= 2


def test_other_threads_run_while_a_large_grammar_is_checked() -> None:
    schema = fields(600, required=True)
    assert longest_wait(lambda: json_schema_grammar(schema)) < 0.1
