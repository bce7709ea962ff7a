"""A target's chat template as pieces of tokens, so that a conversation can be written turn by turn."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from engine.model_config import ModelError

_MARKS = ("PACELINEMARKONE", "PACELINEMARKTWO", "PACELINEMARKTHREE")


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How the turns of a conversation are written."""

    tokenizer: Any
    to_answer: tuple[int, ...]
    """Tokens from the end of the user's text to the begin of the answer's."""
    to_user: tuple[int, ...]
    """Tokens from the end of an answer's text to the begin of the user's next."""
    stop_tokens: frozenset[int]
    """Any of them ends a turn."""

    def conversation(self, messages: Sequence[Mapping[str, str]], *, open_turn: bool) -> list[int]:
        """Tokens up to where the target goes on: with the answer, or inside the last user's turn if it is open."""
        if not open_turn:
            return list(self._encode(_render(self.tokenizer, messages)))
        *before, last = messages
        text = _render(self.tokenizer, [*before, {"role": "user", "content": _MARKS[0]}])
        return list(self._encode(text.partition(_MARKS[0])[0] + last["content"]))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


def _render(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
    text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return text


def load_chat_format(model_path: Path) -> ChatFormat:
    """Read the tokenizer and the chat template of a model folder.

    Raises:
        ModelError: it has no chat template, or one that changes what the turns say.
    """
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    if not tokenizer.chat_template:
        raise ModelError(f"{model_path} has no chat template; give an instruction-tuned model, or text files instead")
    first, second, third = _MARKS
    turns = (("user", first), ("assistant", second), ("user", third))
    text = _render(tokenizer, [{"role": role, "content": mark} for role, mark in turns])
    if not all(text.count(mark) == 1 for mark in _MARKS):
        raise ModelError(f"the chat template of {model_path} does not keep what the turns say; choose another model")
    after_second, after_third = text.partition(second)[2].partition(third)[::2]

    def encode(part: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(part, add_special_tokens=False))

    to_answer, to_user = encode(after_third), encode(after_second)
    return ChatFormat(tokenizer, to_answer, to_user, frozenset({to_answer[0], to_user[0]}) | _end_tokens(model_path))


def _end_tokens(model_path: Path) -> frozenset[int]:
    """The end-of-sequence tokens of config.json and generation_config.json."""
    ends: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        file = model_path / name
        if file.is_file():
            said = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
            ends |= set(said if isinstance(said, list) else [] if said is None else [said])
    return frozenset(ends)
