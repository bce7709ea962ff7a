"""Calls are found in a text however it is cut; what is no call stays text."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.server.tool_calls import ToolCall, ToolCallStream

NAMES = frozenset({"weather", "time"})


def call(name: str = "weather", arguments: object = None) -> str:
    written = json.dumps({"name": name, "arguments": arguments if arguments is not None else {"city": "Århus"}})
    return f"<tool_call>\n{written}\n</tool_call>"


def read(pieces: Sequence[str], *, several: bool = True) -> tuple[str, list[tuple[str, object]]]:
    """The text, and each call's name and arguments."""
    stream = ToolCallStream(NAMES, several)
    written, calls = "", list[ToolCall]()
    for piece in pieces:
        if stream.ended:
            break
        text, found = stream.push(piece)
        written, calls = written + text, calls + list(found)
    text, found = stream.finish()
    calls += found
    assert len({one.call_id for one in calls}) == len(calls)
    return written + text, [(one.name, json.loads(one.arguments)) for one in calls]


UNCALLED = (
    "Hello.",
    "",
    "  \n",
    "a < b <tool",
    "<tool_call>not JSON</tool_call> text",
    '<tool_call>{"name": "time", "argum',
    call("rm"),
    '<tool_call>{"name": ["time"], "arguments": {}}</tool_call>',
    '<tool_call>{"name": "time", "arguments": "x"}</tool_call>',
    '<tool_call>{"name": "time", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "time", "arguments": {"a": 1e999}}</tool_call>',
    "<tool_call>" + "[" * 5000 + "</tool_call>",
)
IN_AARHUS: tuple[str, object] = ("weather", {"city": "Århus"})
CALLED: list[tuple[str, str, list[tuple[str, object]]]] = [
    (call(), "", [IN_AARHUS]),
    (f"Let me look. {call()}", "Let me look.", [IN_AARHUS]),
    (f"{call()}\n{call('time', {})}\n", "", [IN_AARHUS, ("time", {})]),
    (f"{call()} and then", " and then", [IN_AARHUS]),
    (
        '<tool_call>[{"name": "time", "arguments": {}}, {"name": "weather"}]</tool_call>',
        "",
        [("time", {}), ("weather", {})],
    ),
    (call("time", {"a": "</tool_call>", "b": 'x"y'}), "", [("time", {"a": "</tool_call>", "b": 'x"y'})]),
    ('<tool_call>\n{"name": "time", "arguments": {}}', "", [("time", {})]),
    (f"<tool_call>{{</tool_call>{call()}", "<tool_call>{</tool_call>", [IN_AARHUS]),
]
TEXTS = [*CALLED, *((text, text, list[tuple[str, object]]()) for text in UNCALLED)]


@pytest.mark.parametrize(("whole", "text", "calls"), TEXTS)
def test_report_30_trt_llm_17437_a_call_is_the_same_whole_and_character_by_character(
    whole: str, text: str, calls: list[tuple[str, object]]
) -> None:
    assert read([whole]) == (text, calls)
    assert read(list(whole)) == (text, calls)


@pytest.mark.parametrize("at", range(1, len(call())))
def test_report_30_a_mark_may_lie_across_the_edge_of_a_block(at: int) -> None:
    whole = f"So: {call()}."
    assert read([whole[:at], whole[at:]]) == ("So:.", [("weather", {"city": "Århus"})])


def test_report_30_any_cut_of_any_text_gives_the_same() -> None:
    parts = st.sampled_from(
        [call(), call("time", {"a": [1.5, None]}), "<tool_call>", "</tool_call>", "{", '"', " ", "x", "<"]
    )

    @given(st.lists(parts, max_size=6).map("".join), st.lists(st.integers(1, 9), max_size=40))
    def run(whole: str, cuts: list[int]) -> None:
        pieces, rest = [], whole
        for length in cuts:
            pieces.append(rest[:length])
            rest = rest[length:]
        assert read([*pieces, rest]) == read([whole])

    run()


def test_text_comes_at_once_and_only_what_may_be_a_call_is_held_back() -> None:
    stream = ToolCallStream(NAMES, several=True)
    assert stream.push("The sky") == ("The sky", ())
    assert stream.push(" is <") == (" is", ())
    assert stream.push("blue") == (" <blue", ())
    assert stream.push(" <tool_c") == ("", ())
    assert stream.push("rumb>") == (" <tool_crumb>", ())


def test_where_one_call_is_wanted_nothing_comes_after_it() -> None:
    stream = ToolCallStream(NAMES, several=False)
    text, calls = stream.push(f"{call()}{call('time', {})} more")
    assert (text, [one.name for one in calls], stream.ended) == ("", ["weather"], True)
    assert stream.finish() == ("", ())


def test_arguments_that_utf8_cannot_write_stay_escaped() -> None:
    _, calls = ToolCallStream(NAMES, several=True).push(
        '<tool_call>{"name": "time", "arguments": {"a": "\\ud800", "b": "é"}}</tool_call>'
    )
    assert json.loads(calls[0].arguments) == {"a": "\ud800", "b": "é"}
    assert calls[0].arguments.encode()
