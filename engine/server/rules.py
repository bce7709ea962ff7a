"""The fields of the OpenAI requests and what each may hold.

A table rather than a model library, so that every refusal names the field, the value and the remedy in one sentence,
and so that a field is either honoured, or accepted because its value changes nothing, or a 400; never ignored.
``null`` is "not given" for every field, as in OpenAI's own interface.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from policies.quoting import shown

MAX_CHOICES = 8
MAX_PROMPTS = 64
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1000
MAX_STOP_TOKENS = 256
MAX_BIASES = 1024
"""Each sequence of a request carries its own copy of stops and biases: without limits a body of a few megabytes would
become gigabytes."""
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
MAX_TOP_LOGPROBS = 20
MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS = 256, 200
MAX_ALLOWED_TOKENS = 4096
MAX_FORCED_CHARACTERS = 16_000
MAX_TOOLS = 128
MAX_TEMPLATE_ARGUMENTS = 64
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


def _is_words(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MAX_BAD_WORDS
        and all(isinstance(word, str) and 0 < len(word.strip()) <= MAX_BAD_WORD_CHARACTERS for word in value)
    )


def _is_forced_prefix(value: object) -> bool:
    return isinstance(value, str | list) and 0 < len(value) <= MAX_FORCED_CHARACTERS


def _is_string_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())


def only(*values: object) -> Rule:
    """A field of which only these values change nothing. 0, False and 0.0 are told apart."""
    listed = " or ".join(shown(value) for value in values)
    return Rule(
        lambda value: any(type(value) is type(one) and value == one for one in values),
        f"leave it out or give {listed}" if values else "leave it out",
        neutral=True,
    )


BOOLEAN = Rule(lambda value: isinstance(value, bool), "true or false")
TEXT = Rule(_is_text, "a string")
OBJECT = Rule(lambda value: isinstance(value, dict), "a JSON object")
SCHEMA = Rule(lambda value: isinstance(value, dict | bool), "a JSON schema")
FULL_TEXT = Rule(lambda value: isinstance(value, str) and bool(value), "a non-empty string")
CHOICES = Rule(
    lambda value: isinstance(value, list) and bool(value) and all(isinstance(text, str) and text for text in value),
    "a list of at least one non-empty string",
)
_INT32_MAX = (1 << 31) - 1

LABELS: Mapping[str, Rule] = {
    "user": TEXT,
    "metadata": Rule(_is_string_map, "an object from strings to strings"),
    "safety_identifier": TEXT,
    "prompt_cache_key": TEXT,
    "session_id": TEXT,
}
"""Fields that are accepted whatever they say: they label a request and change nothing in its answer."""

_SHARED: Mapping[str, Rule] = {
    "model": TEXT,
    "max_tokens": _integer(1, _INT32_MAX),
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "top_k": _integer(-1, _INT32_MAX, f"a whole number from 1 to {_INT32_MAX}, or 0 or -1 to keep every token"),
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
    "stream": BOOLEAN,
    "stream_options": Rule(lambda value: isinstance(value, dict), 'an object such as {"include_usage": true}'),
    **LABELS,
    "service_tier": only("auto", "default"),
    "store": only(False),
    # Not OpenAI's: what vLLM has under these names, and our own.
    "min_tokens": _integer(0, _INT32_MAX),
    "ignore_eos": BOOLEAN,
    "stop_token_ids": Rule(
        lambda value: isinstance(value, list) and len(value) <= MAX_STOP_TOKENS,
        f"a list of at most {MAX_STOP_TOKENS} token ids",
    ),
    "bad_words": Rule(
        _is_words,
        f"a list of at most {MAX_BAD_WORDS} strings of 1 to {MAX_BAD_WORD_CHARACTERS} characters and not just blanks",
    ),
    "allowed_token_ids": Rule(
        lambda value: isinstance(value, list) and 0 < len(value) <= MAX_ALLOWED_TOKENS,
        f"a list of 1 to {MAX_ALLOWED_TOKENS} token ids",
    ),
    "forced_prefix": Rule(
        _is_forced_prefix, f"a string or a list of token ids that is not empty and has at most {MAX_FORCED_CHARACTERS}"
    ),
    "watermark": Rule(lambda value: isinstance(value, dict), 'an object such as {"gamma": 0.25, "delta": 2, "key": 7}'),
    "verifier": Rule(lambda value: value in ("coupled", "rejection", "block"), "coupled, rejection or block"),
    "structured_outputs": Rule(lambda value: isinstance(value, dict), 'an object such as {"regex": "[a-z]+"}'),
    "guided_json": Rule(lambda value: isinstance(value, dict | bool | str), "a JSON schema, or one as a string"),
    "guided_regex": FULL_TEXT,
    "guided_choice": CHOICES,
    "guided_grammar": FULL_TEXT,
    "best_of": _integer(1, MAX_CHOICES),  # as many as n: nothing is ranked
    "response_format": Rule(lambda value: isinstance(value, dict), 'an object such as {"type": "json_object"}'),
    "request_id": Rule(
        lambda value: isinstance(value, str) and re.fullmatch(r"[!-~]{1,128}", value) is not None,
        "1 to 128 visible ASCII characters",
    ),
    # vLLM's, where the value is what this server does anyway: above all its defaults, which some clients write out.
    "skip_special_tokens": only(True),
    "spaces_between_special_tokens": only(True, False),  # special tokens are no text here
    "include_stop_str_in_output": only(False),
    "use_beam_search": only(False),
    "length_penalty": only(1, 1.0),
    "echo": only(False),
    "detokenize": only(True),
    "priority": only(0),
    "stream_interval": only(1),
    "thinking_token_budget": only(-1),
    "truncation_side": only("left", "right"),  # nothing is truncated
    "routed_experts_prompt_start": only(0),
    "return_mm_kwargs": only(True),  # of images, which are not taken
    "vllm_xargs": only({}),
    **dict.fromkeys(("watermarking", "return_token_ids", "return_tokens_as_token_ids"), only(False)),
    **dict.fromkeys(("return_token_offsets", "return_prompt_text", "early_stopping"), only(False)),
    **dict.fromkeys(("prompt_logprobs", "logprob_token_ids", "truncate_prompt_tokens", "cache_salt"), only()),
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "repetition_detection"), only()),
    **dict.fromkeys(("guided_decoding_backend", "guided_whitespace_pattern", "logits_processors"), only()),
    "structural_tag": only(),
}

RENDERING_RULES: Mapping[str, Rule] = {
    "messages": Rule(lambda value: isinstance(value, list) and bool(value), "a list of at least one message"),
    "tools": Rule(
        lambda value: isinstance(value, list) and len(value) <= MAX_TOOLS, f"a list of at most {MAX_TOOLS} tools"
    ),
    "chat_template_kwargs": Rule(
        lambda value: isinstance(value, dict) and len(value) <= MAX_TEMPLATE_ARGUMENTS,
        f'an object of at most {MAX_TEMPLATE_ARGUMENTS} names, such as {{"enable_thinking": false}}',
    ),
    "add_generation_prompt": only(True),
    "continue_final_message": only(False),
    "add_special_tokens": only(False),  # the template writes them
    "chat_template": only(),
    "media_io_kwargs": only({}),
    "mm_processor_kwargs": only({}),
}
"""How a conversation becomes a prompt."""

CHAT_RULES: Mapping[str, Rule] = {
    **_SHARED,
    **RENDERING_RULES,
    "documents": only([]),
    "include_reasoning": only(True),
    "max_completion_tokens": _integer(1, _INT32_MAX),
    "logprobs": BOOLEAN,
    "top_logprobs": _integer(0, MAX_TOP_LOGPROBS),
    "tool_choice": Rule(
        lambda value: value in ("none", "auto", "required") or isinstance(value, dict),
        'none, auto, required, or {"type": "function", "function": {"name": ...}}',
    ),
    "functions": only([]),
    "function_call": only("none", "auto"),
    "parallel_tool_calls": BOOLEAN,
    "modalities": only(["text"]),
    "reasoning_effort": only("none"),
    "verbosity": only("medium"),
    "audio": only(),
    "moderation": only(),
    "prediction": only(),
    "prompt_cache_options": only(),
    "prompt_cache_retention": only(),
    "web_search_options": only(),
}

COMPLETION_RULES: Mapping[str, Rule] = {
    **_SHARED,
    "prompt": Rule(lambda value: isinstance(value, str | list) and bool(value), "a non-empty string or list"),
    "logprobs": _integer(0, MAX_TOP_LOGPROBS),
    "suffix": only(""),
    "add_special_tokens": only(True),
    "prompt_embeds": only(),
}

MESSAGE_RULES: Mapping[str, Rule] = {
    "role": Rule(lambda value: value in ("system", "user", "assistant", "tool"), "system, user, assistant or tool"),
    "content": Rule(lambda value: isinstance(value, str | list), "a string or a list of text parts"),
    "tool_calls": Rule(lambda value: isinstance(value, list) and len(value) <= MAX_TOOLS, "a list of tool calls"),
    "tool_call_id": TEXT,
    # An answer of this server may be sent back as it came.
    "name": only(),
    "refusal": only(),
    "annotations": only([]),
    **dict.fromkeys(("audio", "function_call", "reasoning", "reasoning_content"), only()),
}

TOOL_CALL_RULES: Mapping[str, Rule] = {
    "id": TEXT,
    "type": Rule(lambda value: value == "function", "function"),
    "function": OBJECT,
    "index": _integer(0, _INT32_MAX),
}
CALLED_RULES: Mapping[str, Rule] = {"name": TEXT, "arguments": TEXT}

TOOL_RULES: Mapping[str, Rule] = {
    "type": Rule(lambda value: value == "function", "function, the only kind of tool that this server takes"),
    "function": OBJECT,
}
FUNCTION_RULES: Mapping[str, Rule] = {
    "name": Rule(
        lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value) is not None,
        "1 to 64 letters, digits or _.-",
    ),
    "description": TEXT,
    "parameters": OBJECT,
    "strict": BOOLEAN,
}
TOOL_CHOICE_RULES: Mapping[str, Rule] = {"type": TOOL_RULES["type"], "function": OBJECT}
NAMED_RULES: Mapping[str, Rule] = {"name": TEXT}

RESPONSE_FORMAT_RULES: Mapping[str, Rule] = {
    "type": Rule(lambda value: value in ("text", "json_object", "json_schema"), "text, json_object or json_schema"),
    "json_schema": OBJECT,
}
JSON_SCHEMA_RULES: Mapping[str, Rule] = {
    "name": TEXT,
    "description": TEXT,
    "schema": SCHEMA,
    "strict": BOOLEAN,
}
STRUCTURED_RULES: Mapping[str, Rule] = {
    "json": Rule(lambda value: isinstance(value, dict | bool | str), "a JSON schema, or one as a string"),
    "json_object": Rule(lambda value: value is True, "true"),
    "regex": FULL_TEXT,
    "choice": CHOICES,
    "grammar": FULL_TEXT,
    **dict.fromkeys(("disable_fallback", "disable_any_whitespace", "disable_additional_properties"), only(False)),
    **dict.fromkeys(("whitespace_pattern", "structural_tag"), only()),
}
WATERMARK_RULES: Mapping[str, Rule] = {
    "gamma": number(0.001, 0.999),
    "delta": number(0, 100),
    "key": _integer(INT64_MIN, INT64_MAX),
}

PART_RULES: Mapping[str, Rule] = {
    "type": Rule(lambda value: value == "text", "text, the only kind of part that this server takes"),
    "text": TEXT,
}

STREAM_OPTION_RULES: Mapping[str, Rule] = {
    "include_usage": BOOLEAN,
    "include_obfuscation": only(False),
    "continuous_usage_stats": BOOLEAN,
}
