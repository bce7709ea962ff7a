"""The OpenAI request bodies as checked values. Everything that is wrong with one is an `ApiError` that says so."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.server.controls import OutputControls, output_controls
from engine.server.errors import ApiError, invalid, missing, unsupported
from engine.server.fields import checked, token_ids
from engine.server.rules import (
    CHAT_RULES,
    COMPLETION_MAX_TOKENS,
    COMPLETION_RULES,
    MAX_PROMPTS,
    MESSAGE_RULES,
    PART_RULES,
    STREAM_OPTION_RULES,
    number,
)
from engine.server.tools import Message, Tools, parse_calls, parse_tools
from policies.quoting import shown

_LEAST_TEMPERATURE = 1e-9
"""Below it no two float32 logits that differ leave any chance to the lower one: that is greedy."""
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,8}")
_LEAST_TOP_P = 1e-9
"""Of any mass the most likely token alone; OpenAI's range begins with 0, which is no mass at all."""


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """What both endpoints share. The ranges have been checked; token ids in `logit_bias` exist."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int | None
    """int64, as the client gave it."""
    stops: tuple[str, ...]
    choices: int
    max_tokens: int | None
    """None: up to the context limit."""
    limited_by: str | None
    """The field that gave `max_tokens`; None: it is a default, of which the context may hold less."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """Whether every chunk tells the usage so far, and not only the last one; only with `include_usage`."""
    request_id: str | None
    """What the answer's id ends with; None: random."""
    controls: OutputControls


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: tuple[Message, ...]
    fields: SamplingFields
    tools: Tools | None
    template_arguments: Mapping[str, Any]
    """``chat_template_kwargs``: what the chat template is told beside messages and tools. Its names are not checked."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    prompts: tuple[str | tuple[int, ...], ...]
    """Each a text or its token ids; at least one, none empty."""
    fields: SamplingFields


def parse_chat(body: object, model: str, vocabulary: int) -> ChatRequest:
    """The body of /v1/chat/completions. Raises `ApiError`."""
    given = checked(body, CHAT_RULES, required={"model": f"{model!r}", "messages": "a list of messages"})
    check_model(given["model"], model)
    limit, newer = given.get("max_tokens"), given.get("max_completion_tokens")
    if limit is not None and newer is not None and limit != newer:
        raise invalid("max_tokens", limit, f"{newer}, the value of max_completion_tokens, or only one of the two")
    top = given.get("top_logprobs", 0)
    if top and not given.get("logprobs", False):
        raise invalid("top_logprobs", top, "it only together with logprobs: true")
    limited_by = next((name for name in ("max_tokens", "max_completion_tokens") if name in given), None)
    fields = _sampling_fields(
        given,
        vocabulary,
        newer if limit is None else limit,
        limited_by,
        top if given.get("logprobs") else None,
    )
    tools = parse_tools(given)
    _refuse_conflicts(fields.controls, tools)
    return ChatRequest(parse_messages(given["messages"]), fields, tools, given.get("chat_template_kwargs", {}))


def parse_completion(body: object, model: str, vocabulary: int) -> CompletionRequest:
    """The body of /v1/completions. Raises `ApiError`."""
    given = checked(body, COMPLETION_RULES, required={"model": f"{model!r}", "prompt": "a string"})
    check_model(given["model"], model)
    fields = _sampling_fields(
        given,
        vocabulary,
        given.get("max_tokens", COMPLETION_MAX_TOKENS),
        "max_tokens" if "max_tokens" in given else None,
        given.get("logprobs"),
    )
    return CompletionRequest(_prompts(given["prompt"], vocabulary), fields)


def check_model(asked: str, served: str) -> None:
    if asked != served:
        raise ApiError(
            f"model is {shown(asked)}, which is not served here; give {shown(served)}.",
            status=404,
            param="model",
            code="model_not_found",
        )


def parse_messages(messages: list[object]) -> tuple[Message, ...]:
    """Raises `ApiError`."""
    return tuple(_message(message, index) for index, message in enumerate(messages))


def _message(message: object, index: int) -> Message:
    prefix = f"messages[{index}]."
    given = checked(message, MESSAGE_RULES, prefix=prefix, required={"role": "system, user, assistant or tool"})
    role = given["role"]
    calls = parse_calls(given.get("tool_calls", []), prefix)
    if calls and role != "assistant":
        raise invalid(f"{prefix}tool_calls", given["tool_calls"], "it only with the role assistant")
    call_id = given.get("tool_call_id")
    if call_id is not None and role != "tool":
        raise invalid(f"{prefix}tool_call_id", call_id, "it only with the role tool")
    if call_id is None and role == "tool":
        raise missing(f"{prefix}tool_call_id", "the id of the call that this message answers")
    if "content" not in given and not calls:
        raise missing(f"{prefix}content", "a string")
    content = given.get("content", "")
    if isinstance(content, list):
        content = "".join(_part(part, f"{prefix}content[{at}].") for at, part in enumerate(content))
    return Message(role, content, calls, call_id)


def _refuse_conflicts(controls: OutputControls, tools: Tools | None) -> None:
    """A grammar speaks of a whole output, and so does the form of a call."""
    if tools is None:
        return
    if controls.structured is not None:
        field = controls.structured.field
        raise ApiError(
            f"{field} is given beside tools; give only one of the two, or tool_choice: none.",
            param=field,
            code="conflict",
        )
    if controls.forced_prefix is not None:
        raise ApiError(
            "forced_prefix is given beside tools; give only one of the two, or tool_choice: none.",
            param="forced_prefix",
            code="conflict",
        )


def _part(part: object, prefix: str) -> str:
    given = checked(part, PART_RULES, prefix=prefix, required={"type": "text", "text": "a string"})
    text: str = given["text"]
    return text


def _prompts(prompt: str | list[Any], vocabulary: int) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if all(isinstance(entry, int) for entry in prompt):
        return (token_ids(prompt, "prompt", vocabulary),)
    if len(prompt) > MAX_PROMPTS:
        raise ApiError(
            f"prompt is a list of {len(prompt)} prompts; give at most {MAX_PROMPTS} in one request.",
            param="prompt",
            code="invalid_value",
        )
    prompts: list[str | tuple[int, ...]] = []
    for index, entry in enumerate(prompt):
        field = f"prompt[{index}]"
        if isinstance(entry, list) and entry:
            prompts.append(token_ids(entry, field, vocabulary))
        elif isinstance(entry, str) and entry:
            prompts.append(entry)
        else:
            raise invalid(field, entry, "a non-empty string or a list of token ids")
    return tuple(prompts)


def _logit_bias(given: Mapping[str, Any], vocabulary: int) -> tuple[tuple[int, float], ...]:
    entries: list[tuple[int, float]] = []
    bias = number(-100, 100)
    for key, value in given.items():
        if not (_TOKEN_ID.fullmatch(key) and int(key) < vocabulary):
            raise invalid("logit_bias", key, f"keys that are token ids from 0 to {vocabulary - 1}, as JSON writes them")
        if not bias.accepts(value):
            raise invalid(f"logit_bias[{key}]", value, bias.remedy)
        entries.append((int(key), float(value)))
    return tuple(sorted(entries))


def _temperature(given: float) -> float:
    return given if given >= _LEAST_TEMPERATURE else 0.0


def _sampling_fields(
    given: Mapping[str, Any],
    vocabulary: int,
    max_tokens: int | None,
    limited_by: str | None,
    top_logprobs: int | None,
) -> SamplingFields:
    stream = given.get("stream", False)
    options = given.get("stream_options")
    if options is not None and not stream:
        raise invalid("stream_options", options, "it only together with stream: true")
    options = checked(options or {}, STREAM_OPTION_RULES, prefix="stream_options.")
    include_usage, continuous = options.get("include_usage", False), options.get("continuous_usage_stats", False)
    if continuous and not include_usage:
        raise invalid("stream_options.continuous_usage_stats", True, "it only together with include_usage: true")
    stop, choices = given.get("stop", []), given.get("n", 1)
    if given.get("best_of", choices) != choices:
        raise unsupported("best_of", given["best_of"], f"leave it out or give {choices}, the value of n")
    return SamplingFields(
        temperature=_temperature(float(given.get("temperature", 1.0))),
        top_p=max(_LEAST_TOP_P, float(given.get("top_p", 1.0))),
        top_k=max(0, given.get("top_k", 0)),
        min_p=float(given.get("min_p", 0.0)),
        repetition_penalty=float(given.get("repetition_penalty", 1.0)),
        presence_penalty=float(given.get("presence_penalty", 0.0)),
        frequency_penalty=float(given.get("frequency_penalty", 0.0)),
        logit_bias=_logit_bias(given.get("logit_bias", {}), vocabulary),
        seed=given.get("seed"),
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        choices=choices,
        max_tokens=max_tokens,
        limited_by=limited_by,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous,
        request_id=given.get("request_id"),
        controls=output_controls(given, vocabulary, top_logprobs, max_tokens),
    )
