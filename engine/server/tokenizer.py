"""The model's tokenizer and chat template, as much of them as the server needs."""

import json
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from engine.model_config import ModelError
from engine.server.errors import ApiError, unsupported
from engine.server.tools import CALL_BEGIN, Message, Tools, plain_turns, template_turns
from engine.token_bytes import load_token_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OPENING_CHARACTERS = 16
"""For each token of the context, of a text that is longer: nearly every text has more tokens than the context by
then, and the rest of it need not be read."""
_FAULTS_OF_ARGUMENTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a template raises that reckons with an argument of another kind than it knows."""
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>")
"""Tokens that end a turn or a text by their name, whatever the configuration says."""


class Tokenizer(Protocol):
    """What the server needs of a tokenizer."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a sequence."""
        ...

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """The bytes of every token id; special tokens have none."""
        ...

    @property
    def special_tokens(self) -> Mapping[int, str]:
        """The names of tokens that have no bytes."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text to be continued, with whatever the model wants in front of it. Raises `ApiError`."""
        ...

    def encode_output(self, text: str) -> list[int]:
        """Token ids of a piece of output, with nothing in front of it."""
        ...

    def encode_chat(
        self, messages: Sequence[Message], tools: Tools | None, template_arguments: Mapping[str, Any]
    ) -> list[int]:
        """Token ids of a conversation, up to the beginning of the answer. Raises `ApiError`.

        `template_arguments` are what the chat template is told beside messages and tools.
        """
        ...


class ModelTokenizer:
    """A `Tokenizer` from a model folder, through transformers."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", model_path: Path, vocabulary: int, context_limit: int | None
    ) -> None:
        self._tokenizer = tokenizer
        self._context_limit = context_limit
        # Also what transformers itself hands on to the template.
        self._taken_arguments = frozenset(
            {"self", "conversations", "messages", "raise_exception", "strftime_now", *tokenizer.special_tokens_map}
        ).union(signature(tokenizer.apply_chat_template).parameters)
        self.token_bytes: list[bytes] = load_token_bytes(model_path, vocabulary)
        self.stop_token_ids: tuple[int, ...] = _stop_token_ids(tokenizer, model_path)
        self.special_tokens: Mapping[int, str] = {
            token: added.content for token, added in tokenizer.added_tokens_decoder.items() if added.special
        }

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self._refuse_long(text, "prompt")
        return self._encode(text, add_special_tokens=add_special_tokens)

    def encode_output(self, text: str) -> list[int]:
        return self._encode(text, add_special_tokens=False)

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        template_arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[int]:
        from jinja2 import TemplateError

        for name, value in template_arguments.items():
            if name in self._taken_arguments:
                raise unsupported(f"chat_template_kwargs.{name}", value, "remove it, since the server sets it itself")
        if not self._tokenizer.chat_template:
            raise ApiError("This model has no chat template; use /v1/completions.", code="no_chat_template")
        # A template that writes calls in another form is not told of tools: the answer is read in this form.
        own = CALL_BEGIN in str(self._tokenizer.chat_template)
        turns = template_turns(messages) if own else plain_turns(messages, tools)
        declared: list[Any] | None = None
        if own and tools is not None:
            declared = [dict(function.declared) for function in tools.functions]
        try:
            text = self._tokenizer.apply_chat_template(
                turns, tools=declared, add_generation_prompt=True, tokenize=False, **template_arguments
            )
        except (TemplateError, RecursionError, *_FAULTS_OF_ARGUMENTS) as error:
            given = "messages with these chat_template_kwargs" if template_arguments else "messages"
            raise ApiError(
                f"{given} cannot be rendered by the model's chat template; {error}.",
                param="messages",
                code="invalid_value",
            ) from error
        # The arguments of a call may name half of a surrogate pair, which is no text.
        text = str(text).encode(errors="replace").decode()
        self._refuse_long(text, "messages")
        return self._encode(text, add_special_tokens=False)

    def _refuse_long(self, text: str, field: str) -> None:
        """Raise `ApiError` for a text that is far too long, at a cost that the context sets and not the text."""
        limit = self._context_limit
        if limit is None:
            return
        characters = _OPENING_CHARACTERS * limit
        while characters < len(text):
            # Twice the limit: the rest of a text can change the last few tokens of its opening, and no more.
            if len(self._encode(text[:characters], add_special_tokens=False)) >= 2 * limit:
                raise ApiError(
                    f"{field} has more than {limit} tokens and the context holds {limit}, output included; "
                    f"give at most {limit - 1}.",
                    param=field,
                    code="context_length_exceeded",
                )
            characters *= 4

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The tokenizer behind transformers' wrapper: no warning about the length, and safe in any thread. Alone among
        # its methods this one lets other threads run; the offsets that it leaves out are quadratic in a long text.
        backend = self._tokenizer.backend_tokenizer
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids


def load_tokenizer(model_path: Path, vocabulary: int, context_limit: int | None = None) -> ModelTokenizer:
    """The tokenizer of the model in `model_path`, whose target has `vocabulary` logits. Reads local files only.

    With `context_limit`, a text that has far more tokens is refused before it has been read whole.

    Raises:
        ModelError: its files are missing or damaged, or are those of another model.
    """
    from transformers import AutoTokenizer  # takes a second to import

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
        return ModelTokenizer(tokenizer, model_path, vocabulary, context_limit)
    except ModelError:
        raise
    except Exception as error:  # tokenizers raises bare ones for a file that it cannot read
        reason = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
        raise ModelError(
            f"{model_path} holds no tokenizer that can be read ({reason}); fetch the model again"
        ) from error


def _stop_token_ids(tokenizer: "PreTrainedTokenizerBase", model_path: Path) -> tuple[int, ...]:
    """EOS as the tokenizer, config.json and generation_config.json name it, and tokens that are ends by name."""
    found: set[int] = set()
    if isinstance(tokenizer.eos_token_id, int):
        found.add(tokenizer.eos_token_id)
    for name in ("config.json", "generation_config.json"):
        path = model_path / name
        if path.exists():
            ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    vocabulary = tokenizer.get_vocab()
    found.update(vocabulary[token] for token in _END_TOKENS if token in vocabulary)
    return tuple(sorted(found))
