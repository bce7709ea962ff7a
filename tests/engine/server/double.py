"""An engine and a tokenizer without a model: what they say is written in the test, how it ends is the engine's own."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.messages import Submit, Tokens
from engine.process import EngineGoneError
from engine.request import RunningSequence
from engine.server.tools import Message, Tools
from kernels.sampling import TokenLogprob
from policies.stats import EngineInfo
from policies.types import Decision

EOS = 256
VOCABULARY = 257
CONTEXT_LIMIT = 64
MODEL = "tiny/model"
TOKEN_BYTES = [bytes([value]) for value in range(256)] + [b""]

INFO = EngineInfo(
    model=MODEL,
    drafters=("none", "ngram"),
    dtype="float32",
    device="cpu",
    threads=1,
    slots=16,
    blocks=64,
    context_limit=CONTEXT_LIMIT,
    vocabulary=VOCABULARY,
    linear_seconds=0.001,
    calibration=(),
)

HANG = "hang"
Step = tuple[int, ...] | Exception | str
"""Tokens of one cycle, or a failure, or `HANG`: nothing comes any more."""


class ByteTokenizer:
    """A token for each byte, and EOS."""

    stop_token_ids: tuple[int, ...] = (EOS,)
    token_bytes: Sequence[bytes] = TOKEN_BYTES
    special_tokens: Mapping[int, str] = {EOS: "<eos>"}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def encode_output(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(
        self, messages: Sequence[Message], tools: Tools | None, template_arguments: Mapping[str, Any]
    ) -> list[int]:
        return [EOS, *"".join(message.content for message in messages).encode()]


class ScriptedEngine:
    """An `EngineHandle` that plays a script for each sequence, one step a cycle."""

    def __init__(
        self,
        script: Callable[[Submit], Iterable[Step]],
        context_limit: int = CONTEXT_LIMIT,
        reused: Callable[[Submit], int] = lambda _: 0,
    ) -> None:
        """`reused` tells how many prompt tokens were in the cache already."""
        self.info = replace(INFO, context_limit=context_limit)
        self.alive = True
        self.submitted: list[Submit] = []
        self.cancelled: list[int] = []
        self.redirected: list[tuple[int, Decision]] = []
        self.started = asyncio.Event()
        """Set once a sequence has delivered its first step."""
        self._script = script
        self.reused = reused
        self._keys = itertools.count(1)

    def next_key(self) -> int:
        return next(self._keys)

    def submit(self, message: Submit) -> "ScriptedSequence":
        if not self.alive:
            raise EngineGoneError("gone")
        self.submitted.append(message)
        return ScriptedSequence(self, message, self._script(message))

    def redirect(self, request_key: int, decision: Decision) -> None:
        self.redirected.append((request_key, decision))


class ScriptedSequence:
    def __init__(self, engine: ScriptedEngine, submit: Submit, steps: Iterable[Step]) -> None:
        self._engine = engine
        self._key = submit.request_key
        self._top_logprobs = submit.top_logprobs
        self._reused = engine.reused(submit)
        self._running = RunningSequence(submit, engine.info.context_limit)
        self._steps = iter(steps)
        self._open = True

    def __aiter__(self) -> AsyncIterator[Tokens]:
        return self

    async def __anext__(self) -> Tokens:
        if not self._open:
            raise StopAsyncIteration
        await asyncio.sleep(0)
        step = next(self._steps)
        self._engine.started.set()
        if isinstance(step, Exception):
            self._open = False
            raise step
        if isinstance(step, str):
            await asyncio.Event().wait()
            raise AssertionError("nothing sets that event")
        count, reason = self._running.append(list(step), TOKEN_BYTES)
        self._running.cycles += 1
        self._open = reason is None
        finished = self._running.finished(reason) if reason is not None else None
        tokens = tuple(step[:count])
        logprobs = () if self._top_logprobs is None else tuple(logprob(token, self._top_logprobs) for token in tokens)
        return Tokens(self._key, tokens, finished, logprobs, self._reused)

    async def aclose(self) -> None:
        if self._open:
            self._open = False
            self._engine.cancelled.append(self._key)


def logprob(token: int, top: int) -> TokenLogprob:
    """A value for each token, and the tokens after it as the most likely ones."""
    return TokenLogprob(-token / 100, tuple(((token + more) % VOCABULARY, -more / 8) for more in range(top)))


def says(*pieces: str, end: bool = True) -> Callable[[Submit], Iterable[Step]]:
    """A script: the bytes of each piece in one cycle, then EOS."""
    steps: list[Step] = [tuple(piece.encode()) for piece in pieces]
    return lambda _: [*steps, (EOS,)] if end else steps
