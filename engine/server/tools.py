"""Tools: what a request offers, how the model is told of it, and the calls of earlier turns."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.grammar import GrammarError, tool_call_grammar, tool_text_grammar
from engine.server.errors import invalid, missing
from engine.server.fields import checked
from engine.server.rules import (
    CALLED_RULES,
    FUNCTION_RULES,
    NAMED_RULES,
    TOOL_CALL_RULES,
    TOOL_CHOICE_RULES,
    TOOL_RULES,
)
from engine.server.structured import unusable

CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
"""How Hermes, Qwen and SmolLM write a call: one JSON object between these."""
AUTO, REQUIRED = "auto", "required"


@dataclass(frozen=True, slots=True)
class CallTurn:
    """A call in an earlier turn of the conversation."""

    call_id: str
    name: str
    arguments: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str
    calls: tuple[CallTurn, ...] = ()
    """Of an assistant."""
    call_id: str | None = None
    """Of a tool: the call that it answers."""


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    parameters: Mapping[str, Any]
    """JSON schema of its arguments, an object's."""
    strict: bool
    declared: Mapping[str, Any]
    """The tool as the request gave it, for the chat template."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that a model may call. With a choice of none there is no `Tools`."""

    functions: tuple[Function, ...]
    choice: str
    """`AUTO`, `REQUIRED`, or a function's name, which must then be called."""
    several: bool
    """Whether one answer may hold more than one call."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)

    @property
    def must_call(self) -> bool:
        return self.choice != AUTO

    def grammar(self) -> str | None:
        """What the output must follow; None where nothing is promised of it. Raises `ApiError`."""
        functions = [
            (function.name, function.parameters)
            for function in self.functions
            if self.choice in (AUTO, REQUIRED, function.name)
        ]
        begin, end = f"{CALL_BEGIN}\n", f"\n{CALL_END}"
        try:
            if self.must_call:
                return tool_call_grammar(functions, begin, end, self.several and self.choice == REQUIRED)
            if any(function.strict for function in self.functions):
                return tool_text_grammar(functions, CALL_BEGIN, begin, end)
        except GrammarError as error:
            raise unusable("tools", error) from error
        return None


def parse_tools(given: Mapping[str, Any]) -> Tools | None:
    """From the checked fields of a chat body. Raises `ApiError`."""
    functions = tuple(_function(tool, index) for index, tool in enumerate(given.get("tools", [])))
    names = [function.name for function in functions]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise invalid(f"tools[{index}].function.name", name, "every function its own name")
    choice = _choice(given.get("tool_choice", AUTO if functions else "none"))
    if not functions:
        if choice not in (AUTO, "none"):
            raise missing("tools", "the functions that tool_choice asks for")
        return None
    if choice == "none":
        return None
    if choice not in (AUTO, REQUIRED) and choice not in names:
        raise invalid("tool_choice.function.name", choice, f"the name of one of the tools: {', '.join(names)}")
    return Tools(functions, choice, given.get("parallel_tool_calls", True))


def _function(tool: object, index: int) -> Function:
    prefix = f"tools[{index}]."
    given = checked(tool, TOOL_RULES, prefix=prefix, required={"type": "function", "function": "a JSON object"})
    function = checked(
        given["function"], FUNCTION_RULES, prefix=f"{prefix}function.", required={"name": "the function's name"}
    )
    parameters = {"type": "object", **function.get("parameters", {"properties": {}})}
    if parameters["type"] != "object":
        raise invalid(f"{prefix}function.parameters.type", parameters["type"], "object")
    declared = {"type": "function", "function": function}
    return Function(function["name"], parameters, function.get("strict", False), declared)


def _choice(choice: object) -> str:
    """`AUTO`, `REQUIRED`, none, or a function's name."""
    if isinstance(choice, str):
        return choice
    given = checked(
        choice, TOOL_CHOICE_RULES, prefix="tool_choice.", required={"type": "function", "function": "a JSON object"}
    )
    named = checked(
        given["function"], NAMED_RULES, prefix="tool_choice.function.", required={"name": "the function's name"}
    )
    name: str = named["name"]
    if name in (AUTO, REQUIRED, "none"):
        raise invalid("tool_choice.function.name", name, "the name of one of the tools")
    return name


def parse_calls(calls: Sequence[object], prefix: str) -> tuple[CallTurn, ...]:
    """The ``tool_calls`` of an assistant's message. Raises `ApiError`."""
    parsed = []
    for index, call in enumerate(calls):
        at = f"{prefix}tool_calls[{index}]."
        given = checked(call, TOOL_CALL_RULES, prefix=at, required={"id": "a string", "function": "a JSON object"})
        called = checked(
            given["function"], CALLED_RULES, prefix=f"{at}function.", required={"name": "a string", "arguments": "JSON"}
        )
        try:
            # As this server writes the arguments of a call, they may name half of a surrogate pair.
            json.loads(called["arguments"])
        except (ValueError, RecursionError) as error:
            raise invalid(f"{at}function.arguments", called["arguments"], "JSON in a string") from error
        parsed.append(CallTurn(given["id"], called["name"], called["arguments"]))
    return tuple(parsed)


def template_turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a chat template with tools of its own reads them."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            turn["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.loads(call.arguments)},
                }
                for call in message.calls
            ]
        if message.call_id is not None:
            turn["tool_call_id"] = message.call_id
        turns.append(turn)
    return turns


def plain_turns(messages: Sequence[Message], tools: Tools | None) -> list[dict[str, Any]]:
    """Messages for a chat template that knows nothing of calls in this form: tools, calls and answers are written
    into them, as Hermes and Qwen do."""
    told: list[Message] = []
    for message in messages:
        if message.calls:
            calls = "\n".join(f"{CALL_BEGIN}\n{_written(call)}\n{CALL_END}" for call in message.calls)
            told.append(Message("assistant", f"{message.content}\n{calls}" if message.content else calls))
        elif message.role == "tool":
            answer = f"<tool_response>\n{message.content}\n</tool_response>"
            # Templates that want roles to alternate read the answers to parallel calls as one turn.
            if told and told[-1].role == "user" and told[-1].call_id is not None:
                told[-1] = replace(told[-1], content=f"{told[-1].content}\n{answer}")
            else:
                told.append(Message("user", answer, call_id=message.call_id or ""))
        else:
            told.append(message)
    if tools is not None:
        prompt = _tool_prompt(tools)
        if told[0].role == "system":
            told[0] = replace(told[0], content=f"{told[0].content}\n\n{prompt}")
        else:
            told.insert(0, Message("system", prompt))
    return [{"role": message.role, "content": message.content} for message in told]


def _written(call: CallTurn) -> str:
    return f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'


def _tool_prompt(tools: Tools) -> str:
    """The wording of Qwen's chat template, which follows Hermes."""
    declared = "\n".join(json.dumps(function.declared, ensure_ascii=False) for function in tools.functions)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{declared}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        f"{CALL_BEGIN}{CALL_END} XML tags:\n"
        f'{CALL_BEGIN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CALL_END}'
    )
