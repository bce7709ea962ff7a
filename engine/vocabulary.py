"""The tokens of a model folder, as texts: what two models must share to draft for each other."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model_config import ModelError


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token texts as the tokenizer writes them, by id."""

    tokens: Mapping[int, str]
    special: Mapping[int, str]
    """Those of `tokens` that are control tokens."""

    @property
    def sha256(self) -> str:
        """Of the tokens in order of id, joined by NUL; an id without a token has an empty text."""
        texts = (self.tokens.get(token, "") for token in range(max(self.tokens, default=-1) + 1))
        return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def special_tokens(self) -> dict[str, int]:
        """The control tokens with their ids, in order of id."""
        return {text: token for token, text in sorted(self.special.items())}


def read_vocabulary(model_path: Path) -> Vocabulary:
    """The vocabulary in `model_path`/tokenizer.json. Raises ModelError when there is none that can be read."""
    file = model_path / "tokenizer.json"
    try:
        tokenizer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        pieces = tokenizer["model"]["vocab"]
        # Unigram models keep a list of (text, score); every other kind a mapping from text to id.
        tokens = (
            {token: entry[0] for token, entry in enumerate(pieces)}
            if isinstance(pieces, list)
            else {token: text for text, token in pieces.items()}
        )
        added = tokenizer.get("added_tokens") or []
        tokens |= {entry["id"]: entry["content"] for entry in added}
        special = {entry["id"]: entry["content"] for entry in added if entry.get("special")}
    except FileNotFoundError as error:
        raise ModelError(
            f"{model_path} holds no tokenizer.json; give a folder with the model's own tokenizer"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ModelError(f"{file} is no tokenizer that can be read ({error!r}); fetch the model again") from error
    return Vocabulary(tokens, special)


def first_difference(target: Vocabulary, drafter: Vocabulary) -> str | None:
    """The first token in which two vocabularies differ, in words; None where they are the same."""
    for token in range(max(max(target.tokens, default=-1), max(drafter.tokens, default=-1)) + 1):
        ours, theirs = target.tokens.get(token), drafter.tokens.get(token)
        if ours != theirs:
            return f"token {token} is {_shown(ours)} in the target and {_shown(theirs)} in the drafter"
        if (token in target.special) != (token in drafter.special):
            first, second = ("a control token", "plain text")
            if token not in target.special:
                first, second = second, first
            return f"token {token}, {_shown(ours)}, is {first} in the target and {second} in the drafter"
    return None


def _shown(text: str | None) -> str:
    return "missing" if text is None else ascii(text)
