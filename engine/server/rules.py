"""The fields of the OpenAI requests and what each may hold.

A table rather than a model library, so that every refusal names the field, the value and the remedy in one sentence,
and so that a field is either honoured, or accepted because its value changes nothing, or a 400; never ignored.
``null`` is "not given" for every field, as in OpenAI's own interface.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.server.errors import shown

MAX_CHOICES = 8
MAX_PROMPTS = 64
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1000
MAX_BIASES = 1024
"""Each sequence of a request carries its own copy of stops and biases: without limits a body of a few megabytes would
become gigabytes."""
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a field may hold. `remedy` completes "give ..." or, for a neutral field, says what to do instead."""

    accepts: Callable[[Any], bool]
    remedy: str
    neutral: bool = False
    """True for a field that is accepted only where it changes nothing."""


def number(low: float, high: float) -> Rule:
    def accepts(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high

    return Rule(accepts, f"a number from {low:g} to {high:g}")


def is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _integer(low: int, high: int, remedy: str = "") -> Rule:
    return Rule(lambda value: is_integer(value, low, high), remedy or f"a whole number from {low} to {high}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_stop(value: object) -> bool:
    texts = value if isinstance(value, list) else [value]
    return len(texts) <= MAX_STOPS and all(
        isinstance(text, str) and 0 < len(text) <= MAX_STOP_CHARACTERS for text in texts
    )


def _is_string_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())


def _only(*values: object) -> Rule:
    """A field of which only these values change nothing. 0, False and 0.0 are told apart."""
    listed = " or ".join(shown(value) for value in values)
    return Rule(
        lambda value: any(type(value) is type(one) and value == one for one in values),
        f"leave it out or give {listed}" if values else "leave it out",
        neutral=True,
    )


_BOOLEAN = Rule(lambda value: isinstance(value, bool), "true or false")
_TEXT = Rule(_is_text, "a string")
_INT32_MAX = (1 << 31) - 1

_SHARED: Mapping[str, Rule] = {
    "model": _TEXT,
    "max_tokens": _integer(1, _INT32_MAX, "a whole number of at least 1"),
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "top_k": _integer(-1, _INT32_MAX, "a whole number of at least 1, or 0 or -1 to keep every token"),
    "min_p": number(0, 1),
    "repetition_penalty": number(0.01, 10),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "logit_bias": Rule(
        lambda value: isinstance(value, dict) and len(value) <= MAX_BIASES,
        f"an object from at most {MAX_BIASES} token ids to numbers from -100 to 100",
    ),
    "seed": _integer(INT64_MIN, INT64_MAX),
    "stop": Rule(
        _is_stop, f"a non-empty string of at most {MAX_STOP_CHARACTERS} characters, or up to {MAX_STOPS} of them"
    ),
    "n": _integer(1, MAX_CHOICES),
    "stream": _BOOLEAN,
    "stream_options": Rule(lambda value: isinstance(value, dict), 'an object such as {"include_usage": true}'),
    # Accepted as they are: they label a request and change nothing in its answer.
    "user": _TEXT,
    "metadata": Rule(_is_string_map, "an object from strings to strings"),
    "safety_identifier": _TEXT,
    "prompt_cache_key": _TEXT,
    "service_tier": _only("auto", "default"),
    "store": _only(False),
}

CHAT_RULES: Mapping[str, Rule] = {
    **_SHARED,
    "messages": Rule(lambda value: isinstance(value, list) and bool(value), "a list of at least one message"),
    "max_completion_tokens": _integer(1, _INT32_MAX, "a whole number of at least 1"),
    "response_format": _only({"type": "text"}),
    "logprobs": _only(False),
    "top_logprobs": _only(0),
    "tools": _only([]),
    "tool_choice": _only("none", "auto"),
    "functions": _only([]),
    "function_call": _only("none", "auto"),
    "parallel_tool_calls": _only(True, False),
    "modalities": _only(["text"]),
    "reasoning_effort": _only("none"),
    "verbosity": _only("medium"),
    "audio": _only(),
    "moderation": _only(),
    "prediction": _only(),
    "prompt_cache_options": _only(),
    "prompt_cache_retention": _only(),
    "web_search_options": _only(),
}

COMPLETION_RULES: Mapping[str, Rule] = {
    **_SHARED,
    "prompt": Rule(lambda value: isinstance(value, str | list) and bool(value), "a non-empty string or list"),
    "best_of": _integer(1, MAX_CHOICES),
    "echo": _only(False),
    "logprobs": _only(),
    "suffix": _only(""),
}

MESSAGE_RULES: Mapping[str, Rule] = {
    "role": Rule(lambda value: value in ("system", "user", "assistant"), "system, user or assistant"),
    "content": Rule(lambda value: isinstance(value, str | list), "a string or a list of text parts"),
    # An answer of this server may be sent back as it came.
    "name": _only(),
    "refusal": _only(),
    "annotations": _only([]),
    "audio": _only(),
    "function_call": _only(),
    "tool_calls": _only([]),
}

PART_RULES: Mapping[str, Rule] = {
    "type": Rule(lambda value: value == "text", "text, the only kind of part that this server takes"),
    "text": _TEXT,
}

STREAM_OPTION_RULES: Mapping[str, Rule] = {"include_usage": _BOOLEAN, "include_obfuscation": _only(False)}
