"""vLLM's /tokenize and /detokenize: how a text is cut into tokens, and what tokens say."""

import asyncio
from collections.abc import Mapping
from typing import Any

from engine.server.fields import checked, token_ids
from engine.server.rules import BOOLEAN, RENDERING_RULES, TEXT, Rule, only
from engine.server.schema import check_model, parse_messages
from engine.server.tokenizer import Tokenizer
from engine.server.tools import parse_tools

MAX_TOKENS = 131_072
"""Of one text: a body holds millions of token ids, and each may be a hundred bytes of it."""

_SHARED: Mapping[str, Rule] = {"model": TEXT, "return_token_strs": only(False)}
_CHAT_RULES: Mapping[str, Rule] = {**_SHARED, **RENDERING_RULES}
_TEXT_RULES: Mapping[str, Rule] = {**_SHARED, "prompt": TEXT, "add_special_tokens": BOOLEAN}
_DETOKENIZE_RULES: Mapping[str, Rule] = {
    "model": TEXT,
    "tokens": Rule(
        lambda value: isinstance(value, list) and len(value) <= MAX_TOKENS, f"a list of at most {MAX_TOKENS} token ids"
    ),
}


class TokenEndpoints:
    """Answers from parsed bodies; the work is done in a thread, since a body may hold megabytes."""

    def __init__(self, tokenizer: Tokenizer, model: str, context_limit: int, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._context_limit = context_limit
        self._vocabulary = vocabulary

    async def tokenize(self, body: object) -> dict[str, Any]:
        """``{"count", "max_model_len", "tokens", "token_strs"}``. Raises `ApiError`, also for a text that is far longer
        than the context."""
        tokens = await asyncio.to_thread(self._encode, body)
        return {"count": len(tokens), "max_model_len": self._context_limit, "tokens": tokens, "token_strs": None}

    async def detokenize(self, body: object) -> dict[str, str]:
        """``{"prompt"}``. Raises `ApiError`."""
        return {"prompt": await asyncio.to_thread(self._decode, body)}

    def _encode(self, body: object) -> list[int]:
        if isinstance(body, dict) and "messages" in body:
            given = checked(body, _CHAT_RULES, required={"messages": "a list of messages"})
            check_model(given.get("model", self._model), self._model)
            messages = parse_messages(given["messages"])
            return self._tokenizer.encode_chat(messages, parse_tools(given), given.get("chat_template_kwargs", {}))
        given = checked(body, _TEXT_RULES, required={"prompt": "a string, or messages"})
        check_model(given.get("model", self._model), self._model)
        return self._tokenizer.encode(given["prompt"], add_special_tokens=given.get("add_special_tokens", True))

    def _decode(self, body: object) -> str:
        given = checked(body, _DETOKENIZE_RULES, required={"tokens": "a list of token ids"})
        check_model(given.get("model", self._model), self._model)
        names, pieces = self._tokenizer.special_tokens, self._tokenizer.token_bytes
        told = token_ids(given["tokens"], "tokens", self._vocabulary)
        # Special tokens have no bytes of their own.
        written = b"".join(names[token].encode() if token in names else pieces[token] for token in told)
        return written.decode(errors="replace")
