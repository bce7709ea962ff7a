"""Finds tool calls in a text as it comes, however it is cut into tokens and blocks."""

import json
import uuid
from collections.abc import Set
from dataclasses import dataclass, field

from engine.server.tools import CALL_BEGIN, CALL_END


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """A JSON object, as text."""
    call_id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def body(self) -> dict[str, object]:
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class ToolCallStream:
    """Splits the text of one answer into text and calls.

    A call is a JSON object ``{"name": ..., "arguments": {...}}``, or a list of them, between `CALL_BEGIN` and
    `CALL_END`; the end of the answer stands for a missing `CALL_END`. What begins like a call and is none, or names a
    function that was not offered, stays text. Blanks before a call, and at the end after one, are left out.
    """

    def __init__(self, names: Set[str], several: bool) -> None:
        self._names = names
        self._several = several
        self._held = ""
        self._inside = False
        self._blanks = ""
        self._called = False
        self.ended = False
        """One call was wanted and is there: nothing comes after it."""

    def push(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """The text and the calls that `text` makes certain."""
        self._held += text
        return self._read(last=False)

    def finish(self) -> tuple[str, tuple[ToolCall, ...]]:
        """What was held back for a call that did not come to its end."""
        return self._read(last=True)

    def _read(self, last: bool) -> tuple[str, tuple[ToolCall, ...]]:
        written, calls = "", []
        while not self.ended:
            if not self._inside:
                begin = self._held.find(CALL_BEGIN)
                keep = 0 if begin >= 0 or last else _begins(self._held, CALL_BEGIN)
                until = begin if begin >= 0 else len(self._held) - keep
                written += self._text(self._held[:until])
                self._held = self._held[until:]
                if begin < 0:
                    break
                self._inside = True
            found = self._call(last)
            if found is None:
                break
            raw, made = found
            self._inside = False
            self._held = self._held[len(raw) :]
            if not made:
                written += self._text(raw)
                continue
            calls += made if self._several else made[:1]
            self._called, self._blanks = True, ""
            self.ended = not self._several
        if last and not self._called:
            written, self._blanks = written + self._blanks, ""
        return written, tuple(calls)

    def _call(self, last: bool) -> tuple[str, list[ToolCall]] | None:
        """The text of the call that `_held` begins with, and its calls, none if it is no call; None: not known yet."""
        start = len(CALL_BEGIN)
        end = self._held.find(CALL_END, start)
        while end >= 0:
            made, unterminated = self._parse(self._held[start:end])
            # The mark may stand in a string of the arguments.
            if not unterminated:
                return self._held[: end + len(CALL_END)], made
            end = self._held.find(CALL_END, end + 1)
        if not last:
            return None
        return self._held, self._parse(self._held[start:])[0]

    def _parse(self, text: str) -> tuple[list[ToolCall], bool]:
        """The calls in `text`, none if it is anything else, and whether it ends within a string."""
        try:
            value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except json.JSONDecodeError as error:
            return [], error.msg.startswith("Unterminated string")
        except (ValueError, RecursionError):
            return [], False
        calls = []
        for one in value if isinstance(value, list) else [value]:
            name, arguments = (one.get("name"), one.get("arguments", {})) if isinstance(one, dict) else (None, None)
            if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
                return [], False
            calls.append(ToolCall(name, _json(arguments)))
        return calls, False

    def _text(self, text: str) -> str:
        """`text`, with blanks held back until something else follows them."""
        text = self._blanks + text
        kept = text.rstrip()
        self._blanks = text[len(kept) :]
        return kept


def _begins(text: str, mark: str) -> int:
    """Length of the longest end of `text` with which `mark` begins."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-n:])), 0)


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can name and UTF-8 cannot
        return json.dumps(value)
    return text


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    if abs(value) == float("inf"):
        raise ValueError(f"{number} is too large")
    return value
