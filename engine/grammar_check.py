"""Whether a grammar may be used: within limits that bound what making it, and following it, takes of the machine.

llguidance counts most of its work and gives up at a limit. What it does not count is bounded here, by the size of the
text and of the multiples in its schemas.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_GRAMMAR_CHARACTERS = 128_000
MAX_REMAINDERS = 20_000
"""How many remainders the numbers with a multipleOf may need in all. Each is a state, and some tens of thousands take
seconds to make, which no limit of llguidance cuts short."""
LIMITS = LLParserLimits(
    verbose_errors=False,
    # A state takes one to two kilobytes, and they are made as the text meets them.
    max_lexer_states=50_000,
    # Each unit is up to half a microsecond of a first mask, and of every later one. A schema of a thousand fields
    # takes nearly all of the first; one of hundreds of strings, a fifth of the second.
    initial_lexer_fuel=100_000,
    step_lexer_fuel=100_000,
    # Up to two microseconds each, of one mask. Objects with 300 optional fields stay within them.
    step_max_items=25_000,
    max_grammar_size=20_000,
)
_MESSAGE_CHARACTERS = 300
_UNREADABLE = "<non-verbose/>"
_TOO_MUCH = ("too many", "too big", "too large", "fuel exhausted", "max is")
"""What llguidance says where one of its limits is met."""


class GrammarError(ValueError):
    """A grammar that cannot be used; the message is one sentence for people."""


def checked(make: Callable[[], str], schemas: Iterable[object] = ()) -> str:
    """The grammar that `make` gives, whose JSON schemas are `schemas`. The work is llguidance's, which lets other
    threads run; it takes tens of milliseconds for what is large, and a quarter of a second at most. Raises
    GrammarError."""
    try:
        _check_multiples(schemas)
        grammar = make()
        if len(grammar) > MAX_GRAMMAR_CHARACTERS:
            raise GrammarError(f"it has {len(grammar)} characters; give at most {MAX_GRAMMAR_CHARACTERS}")
        _follow(grammar)
    except GrammarError:
        raise
    except RecursionError as error:
        raise GrammarError("it is nested too deeply; give one that is nested less") from error
    except Exception as error:  # numbers that JSON readers refuse, and whatever else llguidance finds in it
        raise GrammarError(sentence(str(error))) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise GrammarError("llguidance fails on it; give a simpler one") from error
    return grammar


def lark_schemas(text: str) -> Iterator[object]:
    """The JSON schemas that stand in a grammar as ``%json {...}``."""
    decoder = json.JSONDecoder()
    for part in text.split("%json")[1:]:
        try:
            yield decoder.raw_decode(part.lstrip())[0]
        except ValueError:
            continue  # no JSON stands here; whether the grammar may say so is llguidance's to judge


def sentence(message: str) -> str:
    """A message of llguidance, which may have many lines, as one that fits a sentence."""
    text = " ".join(message.replace(_UNREADABLE, "").split()).rstrip(".")
    return text if len(text) <= _MESSAGE_CHARACTERS else text[: _MESSAGE_CHARACTERS - 1] + "…"


def _check_multiples(schemas: Iterable[object]) -> None:
    multiples: list[int] = []
    open_values = list(schemas)
    while open_values:
        value = open_values.pop()
        if isinstance(value, list):
            open_values += value
        elif isinstance(value, dict):
            open_values += value.values()
            multiple = value.get("multipleOf")
            if isinstance(multiple, int | float) and multiple:
                multiples.append(abs(int("".join(map(str, Decimal(str(multiple)).normalize().as_tuple().digits)))))
    # Those of one number may be given in several places: then it is their least common multiple that counts.
    remainders = len(multiples) * math.lcm(*multiples)
    if remainders > MAX_REMAINDERS:
        raise GrammarError(
            f"its multipleOf are {len(multiples)} with a least common multiple that is too large; give fewer, "
            f"or smaller ones, so that the two multiplied are at most {MAX_REMAINDERS}"
        )


def _follow(grammar: str) -> None:
    """Take its first step, over bytes. Too much work shows in the mask of the first or the second."""
    bytes_only = LLTokenizer("byte")
    matcher = LLMatcher(bytes_only, grammar, log_level=0, limits=LIMITS)
    _refuse_error(matcher)
    warnings = matcher.get_grammar_warnings()
    if warnings:
        raise GrammarError(sentence(warnings[0]))
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    _refuse_error(matcher)
    mask[bytes_only.eos_token] = 0
    if not mask.any():
        raise GrammarError("only the empty text matches it; give one that some other text matches")
    matcher.consume_token(int(mask.argmax()))
    matcher.compute_bitmask()
    _refuse_error(matcher)


def _refuse_error(matcher: LLMatcher) -> None:
    if not matcher.is_error():
        return
    message = sentence(matcher.get_error())
    if message.startswith("NoExtension"):
        raise GrammarError("no text matches it; give one that some text matches")
    if any(words in message.lower() for words in _TOO_MUCH):
        raise GrammarError(f"it takes too much work to follow ({message}); give a simpler one")
    raise GrammarError(message)
