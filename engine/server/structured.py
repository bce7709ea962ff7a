"""What a request asks of the form of its output: response_format, structured_outputs and guided_*, as one grammar."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.grammar import (
    GrammarError,
    choice_grammar,
    context_free_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
)
from engine.server.errors import ApiError, invalid, repeated
from engine.server.fields import checked
from engine.server.reading import RepeatedKeyError, parse_json
from engine.server.rules import JSON_SCHEMA_RULES, RESPONSE_FORMAT_RULES, STRUCTURED_RULES


class Form(StrEnum):
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The form that a whole output must have."""

    form: Form
    value: Any
    """A schema, a pattern, a list of strings, or the text of a grammar."""
    field: str
    """Where the request says so."""

    def holds(self, text: str) -> bool | None:
        """Whether a whole output has this form, as far as can be told without the grammar that made it: JSON is JSON,
        and a choice is one of those given. None for the other forms."""
        match self.form:
            case Form.JSON_OBJECT | Form.JSON_SCHEMA:
                try:
                    json.loads(text)
                except ValueError:
                    return False
                return True
            case Form.CHOICE:
                return text in self.value
            case Form.REGEX | Form.GRAMMAR:
                return None

    def grammar(self) -> str:
        """As `engine.messages.Submit` takes it. Takes milliseconds, and more for a large schema. Raises `ApiError`."""
        try:
            match self.form:
                case Form.JSON_OBJECT:
                    return json_object_grammar()
                case Form.JSON_SCHEMA:
                    return json_schema_grammar(self.value)
                case Form.REGEX:
                    return regex_grammar(self.value)
                case Form.CHOICE:
                    return choice_grammar(self.value)
                case Form.GRAMMAR:
                    return context_free_grammar(self.value)
        except GrammarError as error:
            raise unusable(self.field, error) from error


def unusable(field: str, error: GrammarError) -> ApiError:
    return ApiError(f"{field} cannot be used as a grammar: {error}.", param=field, code="invalid_grammar")


def structured_output(given: Mapping[str, Any]) -> StructuredOutput | None:
    """From the checked fields of a body; None where the output may be any text. Raises `ApiError`."""
    found = [
        output
        for output in (_response_format(given), _structured_outputs(given), *_guided(given))
        if output is not None
    ]
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        raise ApiError(f"{second} is given beside {first}; give only one of the two.", param=second, code="conflict")
    return found[0] if found else None


def _response_format(given: Mapping[str, Any]) -> StructuredOutput | None:
    if "response_format" not in given:
        return None
    wanted = checked(
        given["response_format"], RESPONSE_FORMAT_RULES, prefix="response_format.", required={"type": '"json_object"'}
    )
    if wanted["type"] != "json_schema":
        if "json_schema" in wanted:
            raise invalid("response_format.type", wanted["type"], "json_schema, whose schema is given")
        if wanted["type"] == "text":
            return None
        return StructuredOutput(Form.JSON_OBJECT, None, "response_format")
    given_schema, prefix = wanted.get("json_schema", {}), "response_format.json_schema."
    schema = checked(given_schema, JSON_SCHEMA_RULES, prefix=prefix, required={"schema": "a JSON schema"})
    return StructuredOutput(Form.JSON_SCHEMA, schema["schema"], "response_format")


def _structured_outputs(given: Mapping[str, Any]) -> StructuredOutput | None:
    if "structured_outputs" not in given:
        return None
    fields = checked(given["structured_outputs"], STRUCTURED_RULES, prefix="structured_outputs.")
    wanted = {name: value for name, value in fields.items() if not STRUCTURED_RULES[name].neutral}
    if len(wanted) != 1:
        raise ApiError(
            f"structured_outputs has {len(wanted)} forms; give one of {', '.join(Form)}.",
            param="structured_outputs",
            code="invalid_value",
        )
    ((name, value),) = wanted.items()
    field = f"structured_outputs.{name}"
    form = Form(name)
    return StructuredOutput(form, _schema(value, field) if form is Form.JSON_SCHEMA else value, field)


def _guided(given: Mapping[str, Any]) -> list[StructuredOutput]:
    found = []
    for form in (Form.JSON_SCHEMA, Form.REGEX, Form.CHOICE, Form.GRAMMAR):
        field = f"guided_{form.value}"
        if field in given:
            value = _schema(given[field], field) if form is Form.JSON_SCHEMA else given[field]
            found.append(StructuredOutput(form, value, field))
    return found


def _schema(value: object, field: str) -> object:
    """A schema, which vLLM also takes as a string."""
    if not isinstance(value, str):
        return value
    try:
        schema = parse_json(value)
    except RepeatedKeyError as error:
        raise repeated(field, error) from error
    except ValueError as error:
        raise invalid(field, value, "a JSON schema") from error
    if not isinstance(schema, dict | bool):
        raise invalid(field, value, "a JSON schema")
    return schema
