"""GBNF, llama.cpp's form of EBNF, as llguidance's Lark.

Token by token, since the two differ in how a rule is written down and in little else. Rules are renamed: what refers to
no rule but such ones becomes a terminal, which llguidance follows as one regular expression.
"""

import json
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

from engine.grammar_wording import GrammarError

MAX_NESTING = 100
_SHOWN_CHARACTERS = 20
_TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
    | (?P<define>[\w-]+\s*::=) | (?P<name>[\w-]+)
    | (?P<literal>"(?:[^"\\]|\\.)*") | (?P<set>\[(?:[^\]\\]|\\.)*\]) | (?P<any>\.)
    | (?P<repeat>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\}) | (?P<open>\() | (?P<close>\)) | (?P<or>\|)""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(
    r"""\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt"\\\[\]]))|([^\\])""", re.DOTALL
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}

Token = tuple[str, str]
"""Its kind, and as it will stand in Lark; of a name, as it stands in GBNF."""


def lark_from_gbnf(text: str) -> str:
    """Raises GrammarError."""
    rules = _rules(text)
    if "root" not in rules:
        raise GrammarError("it has no rule root; define one, as in root ::= ...")
    for name, body in rules.items():
        _check(name, body, rules.keys())
    terminals = _terminals(rules)
    names = {
        name: "start" if name == "root" else f"T{index}" if name in terminals else f"r{index}"
        for index, name in enumerate(rules)
    }
    return "\n".join(f"{names[name]}: {_written(body, names)}" for name, body in rules.items())


def _rules(text: str) -> dict[str, list[Token]]:
    rules: dict[str, list[Token]] = {}
    body: list[Token] | None = None
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or (body is None and found.lastgroup not in ("define", "blank")):
            line = text.count("\n", 0, at) + 1
            raise GrammarError(f'line {line}: {_shown(text[at:])} is no GBNF; write rules as in root ::= "a" | [0-9]+')
        at, kind, given = found.end(), str(found.lastgroup), found[0]
        if kind == "define":
            name = given[: -len("::=")].rstrip()
            if name in rules:
                raise GrammarError(f"it defines the rule {_shown(name)} twice; give it one definition")
            body = rules[name] = []
        elif body is not None and kind != "blank":
            body.append((kind, _token(kind, given)))
    return rules


def _token(kind: str, given: str) -> str:
    if kind == "literal":
        return json.dumps("".join(_characters(given[1:-1], given)))
    if kind == "set":
        return _set(given)
    if kind == "any":
        return "/(?s:.)/"
    if kind == "repeat" and given.startswith("{"):
        least, comma, most = given[1:-1].partition(",")
        return f"{{{least.strip()},{most.strip() if comma else least.strip()}}}"
    return given


def _characters(text: str, token: str) -> list[str]:
    characters = []
    at = 0
    while at < len(text):
        found = _CHARACTER.match(text, at)
        code = "" if found is None else found[1] or found[2] or found[3] or ""
        if found is None or (code and (int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000)):
            raise GrammarError(
                f"{_shown(token)} has an escape that names no character; give one of "
                r"\n \r \t \" \\ \[ \] \xHH \uHHHH \UHHHHHHHH"
            )
        characters.append(chr(int(code, 16)) if code else _ESCAPED.get(found[4], found[4]) if found[4] else found[5])
        at = found.end()
    return characters


def _set(given: str) -> str:
    inside = given[1:-1]
    negated = inside.startswith("^")
    characters = _characters(inside[negated:], given)
    if not characters:
        raise GrammarError(f"the set {given} has no characters; give at least one")
    parts: list[str] = []
    at = 0
    while at < len(characters):
        # A hyphen between two characters is a range; one that is first or last is itself.
        last = at + 2 if characters[at + 1 : at + 2] == ["-"] and at + 2 < len(characters) else at
        parts.append("-".join(_code(character) for character in dict.fromkeys((characters[at], characters[last]))))
        at = last + 1
    return f"/[{'^' if negated else ''}{''.join(parts)}]/"


def _code(character: str) -> str:
    return f"\\u{{{ord(character):X}}}"


def _check(name: str, body: Sequence[Token], known: Container[str]) -> None:
    """Raises GrammarError for what no reader of GBNF could make sense of."""
    depth, before = 0, "or"
    for kind, text in body:
        if kind == "name" and text not in known:
            raise GrammarError(f"it uses the rule {_shown(text)} without defining it; define it")
        if kind == "repeat" and before in ("or", "open", "repeat"):
            raise GrammarError(f"the rule {_shown(name)} has a {text} that repeats nothing; put it behind an item")
        depth += (kind == "open") - (kind == "close")
        if depth < 0:
            break
        if depth > MAX_NESTING:
            raise GrammarError("it is nested too deeply; give one that is nested less")
        before = kind
    if depth:
        raise GrammarError(f"the rule {_shown(name)} has a parenthesis without its other one; give both")


def _terminals(rules: dict[str, list[Token]]) -> set[str]:
    """Rules that refer to nothing but such rules, so that none of them refers to itself."""
    waiting = {name: {text for kind, text in body if kind == "name"} for name, body in rules.items() if name != "root"}
    users: defaultdict[str, list[str]] = defaultdict(list)
    for name, needed in waiting.items():
        for other in needed:
            users[other].append(name)
    ready = [name for name, needed in waiting.items() if not needed]
    terminals: set[str] = set()
    while ready:
        done = ready.pop()
        terminals.add(done)
        for user in users[done]:
            waiting[user].discard(done)
            if not waiting[user]:
                ready.append(user)
    return terminals


def _written(body: Sequence[Token], names: dict[str, str]) -> str:
    return " ".join(_parts(body, names))


def _parts(body: Sequence[Token], names: dict[str, str]) -> Iterator[str]:
    before = "or"
    for kind, text in (*body, ("end", "")):
        if kind in ("or", "close", "end") and before in ("or", "open"):
            yield '""'
        yield names[text] if kind == "name" else text
        before = kind


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")
