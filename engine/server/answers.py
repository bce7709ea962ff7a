"""The OpenAI answers: whole, and as chunks."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.server.logprobs import TokenEntry, chat_logprobs, completion_logprobs
from engine.server.tool_calls import ToolCall
from policies.stats import FinishReason


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    """As the engine emitted them: EOS and the tokens of a stop string are counted."""
    cached_tokens: int
    """Those of `prompt_tokens` that the KV cache held already."""

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Delta:
    """What one message of the engine adds to a sequence's answer."""

    text: str
    tokens: int
    finish: FinishReason | None
    """STOP or LENGTH with the last one."""
    looped: bool = False
    """With the last one: the output repeated itself, see `policies.stats.RequestStats.looped`."""
    logprobs: tuple[TokenEntry, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    cached_tokens: int = 0
    """With the first one of a prompt's first choice, since usage counts a prompt once."""

    @property
    def silent(self) -> bool:
        """Nothing that a client could read."""
        return not (self.text or self.finish or self.logprobs or self.calls)


def joined(deltas: Sequence[Delta]) -> Delta:
    """Consecutive deltas of one sequence as one."""
    return Delta(
        "".join(delta.text for delta in deltas),
        sum(delta.tokens for delta in deltas),
        deltas[-1].finish,
        deltas[-1].looped,
        tuple(entry for delta in deltas for entry in delta.logprobs),
        tuple(call for delta in deltas for call in delta.calls),
        sum(delta.cached_tokens for delta in deltas),
    )


@dataclass(slots=True)
class Choice:
    """One choice while its text comes in."""

    text: str = ""
    tokens: int = 0
    cached_tokens: int = 0
    finish: FinishReason | None = None
    looped: bool = False
    logprobs: list[TokenEntry] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """How the answer to one request is written: chat or text completion."""

    chat: bool
    model: str
    answer_id: str
    created: int
    """Unix seconds."""
    top_logprobs: int | None
    """None: answers have no log-probabilities."""

    @classmethod
    def new(
        cls, chat: bool, model: str, top_logprobs: int | None = None, request_id: str | None = None
    ) -> "AnswerShape":
        answer_id = f"{'chatcmpl' if chat else 'cmpl'}-{request_id or uuid.uuid4().hex}"
        return cls(chat, model, answer_id, int(time.time()), top_logprobs)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        bodies = [self._choice(index, choice) for index, choice in enumerate(choices)]
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": bodies, "usage": usage.body()}

    def chunk(self, index: int, delta: Delta, first: bool, called: int) -> dict[str, Any]:
        """What one message of the engine adds to a choice; `first` for the choice's first chunk, `called` calls of
        tools before it."""
        finish = _finish(delta.finish, bool(called or delta.calls))
        choice: dict[str, Any] = {"index": index, "logprobs": self._logprobs(delta.logprobs), "finish_reason": finish}
        text = delta.text
        if self.chat:
            role = {"role": "assistant"} if first else {}
            content = {} if delta.calls and not text else {"content": text}
            calls = [{"index": at, **call.body()} for at, call in enumerate(delta.calls, called)]
            choice["delta"] = {**role, **content, **({"tool_calls": calls} if calls else {})}
        else:
            choice["text"] = text
        return {**self._head(self._chunk_kind), "choices": [choice]}

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The last chunk, for ``stream_options.include_usage``."""
        return {**self._head(self._chunk_kind), "choices": [], "usage": usage.body()}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        finish = _finish(choice.finish, bool(choice.calls))
        body: dict[str, Any] = {"index": index, "logprobs": self._logprobs(choice.logprobs), "finish_reason": finish}
        if self.chat:
            content = None if choice.calls and not choice.text else choice.text
            calls = {"tool_calls": [call.body() for call in choice.calls]} if choice.calls else {}
            body["message"] = {"role": "assistant", "content": content, "refusal": None, **calls}
        else:
            body["text"] = choice.text
        return body

    def _logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any] | None:
        if self.top_logprobs is None:
            return None
        return chat_logprobs(entries) if self.chat else completion_logprobs(entries, self.top_logprobs)


def _finish(finish: FinishReason | None, called: bool) -> str | None:
    if finish is FinishReason.STOP and called:
        return "tool_calls"
    return finish.value if finish is not None else None
