"""The OpenAI answers: whole, and as chunks."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policies.types import FinishReason


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    """As the engine emitted them: EOS and the tokens of a stop string are counted."""

    def body(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(slots=True)
class Choice:
    """One choice while its text comes in."""

    text: str = ""
    tokens: int = 0
    finish: FinishReason | None = None
    looped: bool = False


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """How the answer to one request is written: chat or text completion."""

    chat: bool
    model: str
    answer_id: str
    created: int
    """Unix seconds."""

    @classmethod
    def new(cls, chat: bool, model: str) -> "AnswerShape":
        return cls(chat, model, f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}", int(time.time()))

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        bodies = [self._choice(index, choice) for index, choice in enumerate(choices)]
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": bodies, "usage": usage.body()}

    def chunk(self, index: int, text: str, finish: FinishReason | None, first: bool) -> dict[str, Any]:
        """What one message of the engine adds to a choice; `first` for the choice's first chunk."""
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": _finish(finish)}
        if self.chat:
            role = {"role": "assistant"} if first else {}
            choice["delta"] = {**role, "content": text}
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
        body: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": _finish(choice.finish)}
        if self.chat:
            body["message"] = {"role": "assistant", "content": choice.text, "refusal": None}
        else:
            body["text"] = choice.text
        return body


def _finish(finish: FinishReason | None) -> str | None:
    return finish.value if finish is not None else None
