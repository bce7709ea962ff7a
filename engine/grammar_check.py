"""Whether a grammar may be used: within limits that bound what making it, and following it, takes of the machine.

llguidance counts most of its work and gives up at a limit. What it does not count is bounded here, by the size of the
text and, in `engine.schema_check`, by what its schemas hold.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.grammar_wording import GrammarError, sentence
from engine.schema_check import MAX_LEVELS, check_schemas

MAX_GRAMMAR_CHARACTERS = 128_000
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
_RULE = re.compile(r"(?m)^[ \t]*\w")
"""Where a rule begins; what goes on with one on a new line begins with another character."""


def checked(make: Callable[[], str], schemas: Iterable[object] = ()) -> str:
    """The grammar that `make` gives, whose JSON schemas are `schemas`. The work is llguidance's, which lets other
    threads run; it takes tens of milliseconds for what is large, and a quarter of a second at most. Raises
    GrammarError."""
    try:
        check_schemas(schemas)
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


def checked_lark(text: str) -> str:
    """A grammar in Lark that a client wrote. Raises GrammarError."""

    def make() -> str:
        # In the worst case every rule stands inside the one before, and every parenthesis inside its rule.
        levels = len(_RULE.findall(text)) + text.count("(")
        if levels > MAX_LEVELS:
            raise GrammarError(f"it has {levels} rules and parentheses; give at most {MAX_LEVELS}")
        return LLMatcher.grammar_from_lark(text)

    return checked(make, lark_schemas(text))


def lark_schemas(text: str) -> Iterator[object]:
    """The JSON schemas that stand in a grammar as ``%json {...}``."""
    decoder = json.JSONDecoder()
    for part in text.split("%json")[1:]:
        try:
            yield decoder.raw_decode(part.lstrip())[0]
        except ValueError:
            continue  # no JSON stands here; whether the grammar may say so is llguidance's to judge


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
    if matcher.is_error():
        raise GrammarError(sentence(matcher.get_error()))
