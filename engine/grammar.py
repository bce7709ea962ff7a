"""Grammars through llguidance: what a request may ask for, and one matcher for each sequence that must follow one.

A grammar crosses to the engine as llguidance's own text, which the functions here make and check in the control
process: a schema that cannot be honoured, in whole, is refused before anything is submitted. In the engine a thread
makes the matchers, so that no cycle waits for one; a matcher is the state of one sequence, and only tokens that the
sequence has emitted advance it.
"""

import json
import queue
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, StructTag
from numpy.typing import NDArray

from engine.gbnf import lark_from_gbnf
from engine.grammar_check import LIMITS, checked, checked_lark
from engine.grammar_wording import GrammarError as GrammarError
from engine.grammar_wording import sentence
from engine.schema_check import refuse_lone_backslash

Mask = NDArray[np.int32]

MAX_CHOICES_CHARACTERS = 50_000
_JSON_OPTIONS: Mapping[str, Any] = {
    # Left to itself a small model can fill its output with blanks between two values.
    "whitespace_pattern": r"[ \n\t]{0,16}",
    # A keyword that is not known is refused and never ignored, whatever the schema says of it.
    "lenient": False,
}
_LARK = re.compile(r"(?m)^\s*(?:%llguidance\b|start\s*:(?!:=))")
"""What a grammar in Lark has, and one in GBNF does not."""


def json_schema_grammar(schema: Mapping[str, Any] | bool) -> str:
    """JSON that validates against `schema`. Raises GrammarError."""
    if schema is False:
        raise GrammarError("the schema is false, which nothing satisfies")
    options: Any = dict(_JSON_OPTIONS)
    given = {} if schema is True else schema
    return checked(lambda: LLMatcher.grammar_from_json_schema(_written(given), overrides=options), [given])


def json_object_grammar() -> str:
    """Any JSON object."""
    return json_schema_grammar({"type": "object"})


def regex_grammar(pattern: str) -> str:
    """Text that `pattern` matches from end to end. Raises GrammarError."""
    refuse_lone_backslash(pattern)
    return checked(lambda: LLMatcher.grammar_from_regex(pattern))


def choice_grammar(choices: Sequence[str]) -> str:
    """One of `choices`. Raises GrammarError."""
    characters = sum(len(choice) for choice in choices)
    if characters > MAX_CHOICES_CHARACTERS:
        raise GrammarError(
            f"its {len(choices)} strings have {characters} characters; give at most {MAX_CHOICES_CHARACTERS} in all"
        )
    # One expression: as alternatives of a grammar, thousands of them would take thousands of times as long.
    return regex_grammar("|".join(re.sub(r"[][\\.+*?()|{}^$#&~/-]", r"\\\g<0>", choice) for choice in choices))


def context_free_grammar(text: str) -> str:
    """A context-free grammar, GBNF (llama.cpp's EBNF) or llguidance's Lark. Raises GrammarError."""
    return checked_lark(text if _LARK.search(text) else lark_from_gbnf(text))


def tool_call_grammar(functions: Sequence[tuple[str, Mapping[str, Any]]], begin: str, end: str, several: bool) -> str:
    """Calls ``{"name": ..., "arguments": {...}}`` between `begin` and `end`: one, or `several` with a line break
    between them. `functions` are names with the JSON schemas of their arguments. Raises GrammarError."""

    def make() -> str:
        more = f" ({_written(chr(10))} call)*" if several else ""
        rules = [
            f"start: call{more}",
            f"call: {_written(begin)} body {_written(end)}",
            "body: " + " | ".join(f"body_{index}" for index in range(len(functions))),
        ]
        for index, (name, arguments) in enumerate(functions):
            head = f'{{"name": {_written(name)}, "arguments": '
            # Each schema is a %json of its own, so that it keeps the root that its references point to.
            schema = _written({**arguments, "x-guidance": dict(_JSON_OPTIONS)})
            rules.append(f"body_{index}: {_written(head)} %json {schema} {_written('}')}")
        return LLMatcher.grammar_from_lark("\n".join(rules))

    return checked(make, [arguments for _, arguments in functions])


def tool_text_grammar(functions: Sequence[tuple[str, Mapping[str, Any]]], mark: str, begin: str, end: str) -> str:
    """Any text, in which `mark` begins a call as in `tool_call_grammar`. Raises GrammarError."""

    def make() -> str:
        tags = [
            StructTag(
                trigger=mark,
                begin=f'{begin}{{"name": {_written(name)}, "arguments": ',
                grammar={**arguments, "x-guidance": dict(_JSON_OPTIONS)},
                end=f"}}{end}",
            )
            for name, arguments in functions
        ]
        return LLMatcher.grammar_from_lark(StructTag.to_grammar(tags, assume_special=False))

    return checked(make, [arguments for _, arguments in functions])


def _written(value: object) -> str:
    return json.dumps(value, allow_nan=False)


class Matcher:
    """Where one sequence stands in its grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary: int, end_token: int, end_tokens: frozenset[int]) -> None:
        self._matcher = matcher
        self._words = (vocabulary + 31) // 32
        self._end_token = end_token
        self._end_tokens = end_tokens
        self._ended = False

    def permitted(self, drafts: Sequence[int]) -> int:
        """How many of `drafts`, from the first, the grammar lets come; nothing comes after an end token."""
        if self._ended:
            return 0
        return self._matcher.validate_tokens(self._own(drafts))

    def masks(self, drafts: Sequence[int]) -> tuple[Mask | None, ...]:
        """A mask (see `kernels.sampling.Block.masks`) for each row of a block. None after a draft that the grammar
        forbids: its row rejects it, so that no later one counts. Raises GrammarError where the grammar is too complex
        to be followed here."""
        masks: list[Mask | None] = []
        consumed = 0
        for token in (*self._own(drafts), None):
            mask = self._mask()
            masks.append(mask)
            if token is None or not mask[token >> 5] >> (token & 31) & 1 or token == self._end_token:
                break
            if not self._matcher.consume_token(token):
                raise self._error()
            consumed += 1
        if consumed and not self._matcher.rollback(consumed):
            raise self._error()
        return (*masks, *(None,) * (len(drafts) + 1 - len(masks)))

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by tokens that were emitted. After one that the grammar does not let come, `masks` raises."""
        for token in tokens:
            if token in self._end_tokens:
                self._ended = True
            else:
                self._matcher.consume_token(token)

    def _own(self, tokens: Sequence[int]) -> list[int]:
        """`tokens` with the grammar's one end token in place of each of the sequence's, and none behind it."""
        own: list[int] = []
        for token in tokens:
            if token in self._end_tokens:
                return [*own, self._end_token]
            own.append(token)
        return own

    def _mask(self) -> Mask:
        mask = np.zeros(self._words, dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise self._error()
        bits = mask.view(np.uint32)
        word, bit = self._end_token >> 5, np.uint32(1 << (self._end_token & 31))
        may_end = bool(bits[word] & bit)
        bits[word] &= ~bit
        if may_end:
            for token in self._end_tokens:
                bits[token >> 5] |= np.uint32(1 << (token & 31))
        return mask

    def _error(self) -> GrammarError:
        return GrammarError(f"The grammar cannot be followed any further: {sentence(self._matcher.get_error())}.")


class Grammars:
    """Makes matchers for one target's vocabulary, in a thread of its own."""

    def __init__(self, model_path: Path, vocabulary: int) -> None:
        """Reads tokenizer.json. That holds the interpreter for some tenths of a second: do it before serving.

        Raises GrammarError when llguidance cannot use the tokenizer.
        """
        text = (model_path / "tokenizer.json").read_text(encoding="utf-8")
        special = [token["id"] for token in json.loads(text).get("added_tokens", []) if token["special"]]
        if not special or special[0] >= vocabulary:
            raise GrammarError("The tokenizer has no special token, which a grammar needs to say where it ends.")
        self._vocabulary = vocabulary
        self._end_token: int = special[0]
        try:
            self._tokenizer = LLTokenizer(text, n_vocab=vocabulary, eos_token=self._end_token)
        except ValueError as error:
            raise GrammarError(f"llguidance cannot use this tokenizer: {sentence(str(error))}") from error
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[int, frozenset[int]]]] = {}
        """Sequences by grammar, which take turns: one request may ask for hundreds of sequences with its own."""
        self._ready: queue.SimpleQueue[tuple[int, Matcher | GrammarError]] = queue.SimpleQueue()
        self.pending = 0
        """Matchers that were asked for and not taken yet."""

    def start(self, request_key: int, grammar: str, end_tokens: Sequence[int]) -> None:
        """Ask for the matcher of a sequence; `take` gives it once it is made."""
        self.pending += 1
        with self._lock:
            self._waiting.setdefault(grammar, deque()).append((request_key, frozenset(end_tokens)))
        self._thread.submit(self._make_next)

    def take(self, wait_seconds: float = 0.0) -> list[tuple[int, Matcher | GrammarError]]:
        """What has been made since, by request key. Where nothing has, wait up to `wait_seconds` for the first."""
        taken: list[tuple[int, Matcher | GrammarError]] = []
        while self.pending:
            try:
                taken.append(self._ready.get(timeout=0.0 if taken or not wait_seconds else wait_seconds))
            except queue.Empty:
                break
            self.pending -= 1
        return taken

    def matcher(self, grammar: str, end_tokens: frozenset[int]) -> Matcher:
        """A matcher at the beginning of `grammar`, with its first mask computed once, since that one takes longest.

        Raises GrammarError.
        """
        made = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if made.is_error():
            raise GrammarError(f"The grammar cannot be used: {sentence(made.get_error())}.")
        matcher = Matcher(made, self._vocabulary, self._end_token, end_tokens)
        matcher.masks(())
        return matcher

    def _make_next(self) -> None:
        with self._lock:
            grammar = next(iter(self._waiting))
            sequences = self._waiting.pop(grammar)
            request_key, end_tokens = sequences.popleft()
            if sequences:
                self._waiting[grammar] = sequences
        made: Matcher | GrammarError
        try:
            made = self.matcher(grammar, end_tokens)
        except GrammarError as error:
            made = error
        except BaseException as error:  # noqa: BLE001 - llguidance's own panics: the sequence must hear of it
            made = GrammarError(f"The grammar cannot be used: llguidance failed with {type(error).__name__}.")
        self._ready.put((request_key, made))
