"""Log-probabilities as OpenAI writes them: one entry for each token that the answer counts, in order.

The token that ends an answer and the tokens of a stop string are counted and listed as well; nothing after them is.
"""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.messages import Tokens

LEAST = -9999.0
"""What OpenAI writes for a token without any chance: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token with its log-probability, as text."""

    token: str
    raw: bytes | None
    """None for a special token, which stands for no bytes."""
    logprob: float
    top: tuple["TokenEntry", ...]
    """The most likely tokens; an entry's own are not asked for."""
    offset: int
    """Characters of the answer before it."""


class TokenNames:
    """Token ids as text: a special token by its name, bytes that are no UTF-8 escaped as OpenAI does."""

    def __init__(self, token_bytes: Sequence[bytes], special_tokens: Mapping[int, str]) -> None:
        self._token_bytes = token_bytes
        self._special_tokens = special_tokens

    def __call__(self, token: int) -> tuple[str, bytes | None]:
        if token in self._special_tokens:
            return self._special_tokens[token], None
        raw = self._token_bytes[token] if token < len(self._token_bytes) else b""
        try:
            return raw.decode(), raw
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in raw), raw


class LogprobReader:
    """The entries of one answer, message by message."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def read(self, message: Tokens) -> tuple[TokenEntry, ...]:
        """Empty where the sequence did not ask for log-probabilities."""
        entries = []
        for token, given in zip(message.token_ids, message.logprobs, strict=bool(message.logprobs)):
            top = tuple(self._entry(other, logprob, (), 0) for other, logprob in given.top)
            entry = self._entry(token, given.logprob, top, self._offset)
            self._offset += len(self._decoder.decode(entry.raw or b""))
            entries.append(entry)
        return tuple(entries)

    def _entry(self, token: int, logprob: float, top: tuple[TokenEntry, ...], offset: int) -> TokenEntry:
        text, raw = self._names(token)
        return TokenEntry(text, raw, max(logprob, LEAST), top, offset)


def chat_logprobs(entries: Sequence[TokenEntry]) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion, whole or of one chunk."""
    content = [_chat_entry(one) | {"top_logprobs": [_chat_entry(top) for top in one.top]} for one in entries]
    return {"content": content, "refusal": None}


def _chat_entry(entry: TokenEntry) -> dict[str, Any]:
    return {
        "token": entry.token,
        "logprob": entry.logprob,
        "bytes": list(entry.raw) if entry.raw is not None else None,
    }


def completion_logprobs(entries: Sequence[TokenEntry], top: int) -> dict[str, Any]:
    """``choices[].logprobs`` of a text completion; the emitted token is among its own `top_logprobs`."""
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            {other.token: other.logprob for other in entry.top} | {entry.token: entry.logprob} for entry in entries
        ]
        if top
        else None,
        "text_offset": [entry.offset for entry in entries],
    }
