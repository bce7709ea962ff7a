"""engine.schema_check and the words for what is wrong: what llguidance would misread is refused before it does."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.grammar import (
    GrammarError,
    context_free_grammar,
    json_schema_grammar,
    regex_grammar,
    tool_call_grammar,
    tool_text_grammar,
)
from engine.schema_check import EXACT, MAX_LEVELS
from tests.engine.bytes_grammar import fits

MAKERS: list[Callable[[Any], str]] = [
    json_schema_grammar,
    lambda schema: json_schema_grammar({"type": "object", "properties": {"a": {"items": schema}}}),
    lambda schema: tool_call_grammar([("go", {"properties": {"a": schema}})], "<", ">", several=False),
    lambda schema: tool_text_grammar([("go", {"properties": {"a": schema}})], "<<", "<<", ">>"),
    lambda schema: context_free_grammar(f"start: %json {json.dumps(schema)}"),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "integer", "minimum": 10**29}, "minimum"),
        ({"type": "integer", "minimum": EXACT + 1}, "minimum"),
        ({"type": "number", "maximum": 1e300}, "maximum"),
        ({"type": "integer", "exclusiveMinimum": -(10**29)}, "exclusiveMinimum"),
        ({"type": "integer", "exclusiveMaximum": 10**29}, "exclusiveMaximum"),
        ({"type": "integer", "multipleOf": 10**20}, "multipleOf"),
        ({"type": "string", "maxLength": 1 << 32}, "maxLength"),
        ({"const": 12345678901234567890123}, "const"),
        ({"enum": ["a", EXACT + 1]}, "enum"),
        ({"enum": [-EXACT - 1]}, "enum"),
        ({"const": float("inf")}, "const"),
        ({"const": {"minimum": [{"deep": 10**22}]}}, "const"),
        ({"const": 5.1234567890123456e-243}, "const"),
    ],
)
def test_a_number_that_would_be_changed_is_refused_with_its_keyword(
    make: Callable[[Any], str], schema: dict[str, Any], keyword: str
) -> None:
    with pytest.raises(GrammarError, match=f"its {keyword} holds .*, which cannot be kept to exactly; give "):
        make(schema)


@pytest.mark.parametrize("number", [-(1 << 63), 1 - (1 << 63), -1e300])
def test_numbers_on_which_llguidance_would_end_the_process_are_refused(number: float) -> None:
    for schema in ({"type": "integer", "minimum": number, "maximum": number}, {"type": "integer", "const": number}):
        with pytest.raises(GrammarError, match="kept to exactly"):
            json_schema_grammar(schema)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "minimum": EXACT, "maximum": EXACT}, str(EXACT), str(EXACT - 1)),
        ({"type": "integer", "exclusiveMinimum": EXACT - 1}, str(EXACT), str(EXACT - 1)),
        ({"const": EXACT}, str(EXACT), str(EXACT - 1)),
        ({"enum": [-EXACT], "type": "integer"}, str(-EXACT), str(1 - EXACT)),
        ({"const": 0.1}, "0.1", "0.2"),
        ({"properties": {"minimum": {"const": "a"}}, "required": ["minimum"]}, '{"minimum":"a"}', '{"minimum":"b"}'),
    ],
)
def test_a_number_at_the_edge_is_kept_to_exactly(schema: dict[str, Any], right: str, wrong: str) -> None:
    grammar = json_schema_grammar(schema)
    assert fits(grammar, right)
    assert not fits(grammar, wrong)


@pytest.mark.parametrize(
    "make",
    [
        regex_grammar,
        lambda pattern: json_schema_grammar({"type": "string", "pattern": pattern}),
        lambda pattern: json_schema_grammar({"type": "object", "patternProperties": {pattern: {}}}),
    ],
)
def test_a_lone_backslash_at_the_end_of_a_regular_expression_is_refused(make: Callable[[str], str]) -> None:
    for pattern in ("a\\", "\\", "a\\\\\\"):
        with pytest.raises(GrammarError, match="lone backslash; write two"):
            make(pattern)
    make("a\\\\")


def itself(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"$ref": "#"}}, **more}


def defined(**definitions: Any) -> dict[str, Any]:
    return {"$ref": "#/$defs/a", "$defs": definitions}


NEXT = {"type": "object", "properties": {"next": {"$ref": "#/$defs/b"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        itself(required=["a"]),
        defined(a=NEXT, b={"$ref": "#/$defs/a"}),
        defined(a=NEXT, b={"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}),
        defined(a=NEXT, b={"anyOf": [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/b"}]}]}),
        {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
    ],
)
def test_a_schema_that_only_endless_values_satisfy_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="no finite value satisfies it"):
        json_schema_grammar(schema)


@pytest.mark.parametrize(
    "schema",
    [
        itself(),
        itself(required=["b"]),
        itself(required=["a"]) | {"type": ["object", "null"]},
        defined(a=NEXT, b={"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}),
        defined(a=NEXT, b={"type": "array", "items": {"$ref": "#/$defs/a"}}),
        {"type": "array", "items": {"$ref": "#"}},
    ],
)
def test_a_schema_that_refers_to_itself_and_can_end_is_taken(schema: dict[str, Any]) -> None:
    assert json_schema_grammar(schema)


def chain(length: int, link: Callable[[dict[str, str]], dict[str, Any]]) -> dict[str, Any]:
    definitions = {f"a{index}": link({"$ref": f"#/$defs/a{index + 1}"}) for index in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": definitions | {f"a{length}": {"type": "null"}}}


@pytest.mark.parametrize(
    "link",
    [lambda to: {"type": "array", "items": to}, lambda to: {"allOf": [to]}, lambda to: {"anyOf": [to, {"const": 1}]}],
)
def test_references_as_deep_as_would_end_the_process_are_refused_and_fewer_are_followed(
    link: Callable[[dict[str, str]], dict[str, Any]],
) -> None:
    with pytest.raises(GrammarError, match=f"nested too deeply.* at most {MAX_LEVELS}"):
        json_schema_grammar(chain(2000, link))
    assert json_schema_grammar(chain(300, link))


@pytest.mark.parametrize(
    "text",
    [
        "start: A0\n" + "\n".join(f"A{index}: A{index + 1}" for index in range(7000)) + '\nA7000: "x"',
        "root ::= a0\n" + "\n".join(f"a{index} ::= a{index + 1}" for index in range(6000)) + '\na6000 ::= "x"',
        "start: " + "(" * 2000 + '"a"' + ")" * 2000,
    ],
)
def test_rules_as_deep_as_would_end_the_process_are_refused(text: str) -> None:
    with pytest.raises(GrammarError, match=f"rules and parentheses; give at most {MAX_LEVELS}"):
        context_free_grammar(text)


PATTERNS: list[dict[str, Any]] = [{"type": "string", "pattern": f"a.*{index}"} for index in range(40)]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": PATTERNS},
        {"allOf": [{"$ref": f"#/$defs/{index}"} for index in range(40)], "$defs": dict(enumerate(PATTERNS))},
        {"properties": {"a": {}}, "allOf": [{"properties": {"a": pattern}} for pattern in PATTERNS]},
    ],
)
def test_patterns_whose_joining_would_take_minutes_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="may join 40 patterns and formats in one value; give at most 10"):
        json_schema_grammar(schema)


def test_many_patterns_and_a_few_that_are_joined_are_taken() -> None:
    fields = {f"p{index}": pattern for index, pattern in enumerate(PATTERNS)}
    assert json_schema_grammar({"type": "object", "properties": fields, "allOf": [{"required": ["p1"]}, {}]})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: json_schema_grammar({"oneOf": [{"type": "string"}, {"minLength": 3}]}), "give anyOf instead"),
        (
            lambda: json_schema_grammar({"not": {}, "uniqueItems": True}),
            "its not, uniqueItems cannot be honoured",
        ),
        (
            lambda: json_schema_grammar({"type": "string", "format": "foo"}),
            "its format foo is not known; give a",
        ),
        (lambda: json_schema_grammar({"allOf": PATTERNS[:10]}), "too complex to be followed together; give fewer"),
        (lambda: json_schema_grammar({"$ref": "#/a"}), "its $ref #/a points to nothing; define it"),
        (lambda: json_schema_grammar({"minLength": 1.5}), "its minLength is 1.5; give a whole number of at least 0"),
        (lambda: json_schema_grammar({"type": "string", "pattern": "(a"}), "wrong at character 1 (unclosed group)"),
        (lambda: regex_grammar("ab)"), "a regular expression is wrong at character 3 (unopened group); correct it"),
        (lambda: regex_grammar("(" * 300 + ")" * 300), "nested parentheses/brackets (250)"),
        (lambda: regex_grammar(r"\ba"), "looks around itself"),
        (lambda: context_free_grammar("start: x"), "it uses the rule x without defining it; define it"),
        (lambda: context_free_grammar('start: "a"\nstart: "b"'), "it defines the rule start twice"),
    ],
)
def test_a_fault_is_told_with_its_remedy_and_without_what_llguidance_made_of_the_text(
    make: Callable[[], str], told: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        make()
    message = str(caught.value)
    assert told in message
    assert not any(word in message for word in ("coerce", "Unimplemented", "start: /", "1 |", "recursion"))
