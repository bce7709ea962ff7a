"""Each guard against request smuggling is held by a case: without it, one of the cases of `test_framing` passes.

A mutated copy of the module is made from its source in memory; the file stays as it is.
"""

import inspect
import sys
import types

import pytest

from tests.tuner.fleet.proxy.test_framing import BAD_CHUNKS, BAD_HEADS, BAD_LINES
from tuner.fleet.proxy import framing, head

FIELDS = 'rb":[\\t\\x20-\\x7e\\x80-\\xff]*\\r\\n)*)\\r\\n"'
TARGET = "(/[\\x21-\\x7e]*|\\*)"
SIZE = "([0-9A-Fa-f]{1,15})(?:;"
SIZE_END = 'rb")?)*\\r\\n\\Z")'
HEAD_MUTATIONS = {
    "one of a kind": (
        '_count(lines, b"content-length:") + _count(lines, b"transfer-encoding:") > 1',
        'max(_count(lines, b"content-length:"), _count(lines, b"transfer-encoding:")) > 1',
    ),
    "two of a kind": (
        '_count(lines, b"content-length:") + _count(lines, b"transfer-encoding:") > 1',
        "length is not None and coding is not None",
    ),
    "a count that sees case": (
        "return sum(line[: len(name)].lower() == name for line in lines)",
        "return sum(line[: len(name)] == name.title() for line in lines)",
    ),
    "the digits of a length": ("if _LENGTH.fullmatch(length) is None:", "if False:"),
    "the end of a length": ("_LENGTH.fullmatch(length)", "_LENGTH.match(length)"),
    "the coding": ('coding.lower() != b"chunked"', 'b"chunked" not in coding.lower()'),
    "two hosts": ("if hosts > 1 or", "if False or"),
    "no host": ('or (not hosts and minor == b"1")', ""),
    "the names of headers": ("""_NAME = rb"[!#$%&'*+\\-.^_`|~0-9A-Za-z]+\"""", '_NAME = rb"[^:\\r\\n]+"'),
    "a name at all": ('0-9A-Za-z]+"\n_FIELDS', '0-9A-Za-z]*"\n_FIELDS'),
    "the values of headers": (FIELDS, 'rb":[^\\r\\n]*\\r\\n)*)\\r\\n"'),
    "bare line feeds": (FIELDS, 'rb":[^\\r\\x00]*\\r\\n)*)\\r\\n"'),
    "carriage returns": (FIELDS, 'rb":[^\\n\\x00]*\\r\\n)*)\\r\\n"'),
    "folds": ('_FIELDS = rb"((?:" + _NAME + rb":', '_FIELDS = rb"((?:(?:" + _NAME + rb":|[ \\t])'),
    "the target": (TARGET, "(/[^\\r\\n]*|\\*)"),
    "a target of a path": (TARGET, "([\\x21-\\x7e]*)"),
    "the version": ("HTTP/1\\.([01])\\r\\n", "HTTP/[12]\\.([012])\\r\\n"),
    "CONNECT": ('if method == b"CONNECT":', "if False:"),
    "the method": ("([A-Z][A-Z\\-]{0,31})", "([A-Za-z \\t]+)"),
}
FRAMING_MUTATIONS = {
    "the size alone": (SIZE, "([0-9A-Fa-f]{1,15})[ ]*(?:;"),
    "the digits of a size": (SIZE, "([+_x0-9A-Fa-f]{1,15})(?:;"),
    "how many digits": (SIZE, "([0-9A-Fa-f]{1,150})(?:;"),
    "the end of a size": (SIZE_END, 'rb")?)*\\r?\\n\\Z")'),
    "what an extension has": ('"(?:=" + _TOKEN + rb")?', '"(?:=[^\\n]*)?'),
    "the name of an extension": ('(?:;" + _TOKEN + rb"', "(?:;[^\\n=]*"),
    "the end of content": ('if data[at : at + 2] != b"\\r\\n":', "if False:"),
    "the end of content in two pieces": ("if data[at] != (13 if left == 2 else 10):", "if False:"),
    "a trailer": ("if _TRAILER_LINE.match(line) is None or", "if"),
    "how many trailers": ("or self._trailers > _MAX_TRAILERS:", ":"),
    "how long a line is": ("or len(line) > _MAX_LINE", ""),
    "how long a line may be without an end": ("if len(self._line) > (", "if False and len(self._line) > ("),
}


def mutated(module: types.ModuleType, old: str, new: str) -> types.ModuleType:
    source = inspect.getsource(module)
    assert old in source, "the mutation no longer finds its place"
    made = types.ModuleType(module.__name__ + "_mutated")
    sys.modules[made.__name__] = made  # dataclasses look their module up
    try:
        exec(compile(source.replace(old, new), made.__name__, "exec"), made.__dict__)
    finally:
        del sys.modules[made.__name__]
    return made


def heads_taken(module: types.ModuleType) -> int:
    """How many bad heads are not refused."""
    heads = [b"POST / HTTP/1.1\r\n" + fields + b"\r\n" for fields in BAD_HEADS.values()]
    heads += [start + b"Host: x\r\n\r\n" for start in BAD_LINES]
    taken = 0
    for one in heads:
        try:
            module.parse_request(one)
        except module.HeadError:
            continue
        except ValueError:  # a crash is no refusal
            pass
        taken += 1
    return taken


def bodies_taken(module: types.ModuleType) -> int:
    """How many bad bodies are not refused in one piece, or not byte by byte."""
    taken = 0
    for body in BAD_CHUNKS.values():
        for size in (len(body), 1):
            chunked = module.Chunked()
            try:
                for at in range(0, len(body), size):
                    if not chunked.done:
                        chunked.consume(body[at : at + size])
            except module.FramingError:
                continue
            taken += 1
    return taken


def test_without_a_mutation_nothing_bad_is_taken() -> None:
    assert heads_taken(mutated(head, "import re", "import re")) == 0
    assert bodies_taken(mutated(framing, "import re", "import re")) == 0


@pytest.mark.parametrize(("old", "new"), HEAD_MUTATIONS.values(), ids=HEAD_MUTATIONS)
def test_a_guard_of_heads_that_is_gone_is_seen(old: str, new: str) -> None:
    assert heads_taken(mutated(head, old, new))


@pytest.mark.parametrize(("old", "new"), FRAMING_MUTATIONS.values(), ids=FRAMING_MUTATIONS)
def test_a_guard_of_bodies_that_is_gone_is_seen(old: str, new: str) -> None:
    assert bodies_taken(mutated(framing, old, new))
