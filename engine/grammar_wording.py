"""What llguidance finds wrong with a grammar, in words for people: what is wrong, and the remedy."""

import re
from collections.abc import Callable

_MESSAGE_CHARACTERS = 300
_UNREADABLE = "<non-verbose/>"


class GrammarError(ValueError):
    """A grammar that cannot be used; the message is one sentence for people, without its full stop."""


def sentence(message: str) -> str:
    """A message of llguidance, which may have many lines, as one that fits a sentence."""
    text = message.replace(_UNREADABLE, "")
    for pattern, words in _WORDINGS:
        found = pattern.search(text)
        if found:
            return _clipped(words(*found.groups()))
    place = _PLACE.match(text)
    text = _EXCERPT.sub("", text[place.end() :] if place else text)
    return _clipped(f"line {place[1]}, column {place[2]}: {text}" if place else text)


def _clipped(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= _MESSAGE_CHARACTERS else text[: _MESSAGE_CHARACTERS - 1] + "…"


def _keys(listed: str) -> str:
    return f"its {listed.replace(chr(34), '')} cannot be honoured; leave that out"


def _expected(kind: str, keyword: str, given: str) -> str:
    kinds = {"f64": "a number", "positive integer": "a whole number of at least 0"}
    return f"its {keyword} is {given}; give {kinds.get(kind, f'one that is of the type {kind}')}"


def _regex(line: str, blanks: str, problem: str) -> str:
    where = f" at character {len(blanks) - 3}" if line else ""
    return f"a regular expression is wrong{where} ({problem}); correct it"


_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_EXCERPT = re.compile(r"(?m)^[ \t]*(?:\d+ \|.*|\^+)$\n?")
"""Lines of the grammar as llguidance read it, with a mark under the fault."""
_WORDINGS: tuple[tuple[re.Pattern[str], Callable[..., str]], ...] = (
    (
        re.compile(r"regex parse error:\n    (.*)\n( {4} *)\^[^\n]*\nerror: ([^\n]+)"),
        _regex,
    ),
    (re.compile(r"regex parse error:.*\nerror: ([^\n]+)", re.DOTALL), lambda problem: _regex("", "", problem)),
    (
        re.compile(r"lookarounds not supported"),
        lambda: r"a regular expression looks around itself (\b, or ^ or $ inside of it); leave that out",
    ),
    (re.compile(r"^NoExtension"), lambda: "no text matches it; give one that some text matches"),
    (
        re.compile(r"oneOf constraints are not supported"),
        lambda: "its oneOf has parts that one value may satisfy together; give anyOf instead",
    ),
    (re.compile(r"Unimplemented keys: \[([^\]]*)\]"), _keys),
    (
        re.compile(r"Invalid type: (.*)"),
        lambda kind: f"its type is {kind}; give string, number, integer, boolean, null, array or object",
    ),
    (
        re.compile(r"Unknown format: (.*)"),
        lambda name: f"its format {name} is not known; give a pattern instead",
    ),
    (
        re.compile(r"Pointer '(.*?)' does not exist"),
        lambda to: f"its $ref #{to} points to nothing; define it",
    ),
    (
        re.compile(r"Resource '(.*?)' is not present"),
        lambda to: f"its $ref {to} lies outside of it, and nothing is fetched; give the definition under $defs",
    ),
    (
        re.compile(r"Value for 'multipleOf' has too many digits"),
        lambda: "its multipleOf has too many digits; give one with fewer",
    ),
    (
        re.compile(r"Failed to generate regex for (?:integer|float) range"),
        lambda: "the minimum and maximum of its numbers cannot be followed; give simpler ones",
    ),
    (
        re.compile(r"Unsatisfiable schema: (.*)"),
        lambda why: f"nothing satisfies it ({why}); change that",
    ),
    (re.compile(r"Expected (.+?) for '(.+?)', got (.*)"), _expected),
    (
        re.compile(r"Unable to determine if regex is empty"),
        lambda: "it joins patterns that are too complex to be followed together; give fewer, or simpler ones",
    ),
    (re.compile(r"not JSON compliant"), lambda: "it holds a number that is out of range; give one that JSON can write"),
    (re.compile(r"too deeply nested"), lambda: "it is nested too deeply; give one that is nested less"),
    (re.compile(r'unknown name: "(.*?)"'), lambda name: f"it uses the rule {name} without defining it; define it"),
    (re.compile(r'duplicate rule: "(.*?)"'), lambda name: f"it defines the rule {name} twice; give it one definition"),
    (
        re.compile(r"(.*?(?:too many|too big|too large|fuel exhausted|max is).*)", re.IGNORECASE | re.DOTALL),
        lambda limit: (
            f"it takes too much work to follow ({' '.join(_EXCERPT.sub('', limit).split())}); give a simpler one"
        ),
    ),
)
"""What llguidance says, and what is said instead of it; the first that is found."""
