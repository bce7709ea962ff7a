"""The bytes that each token stands for, so that stop strings are matched without decoding text."""

import json
from pathlib import Path

from engine.model_config import ModelError


def load_token_bytes(model_path: Path, vocabulary: int) -> list[bytes]:
    """Bytes of every token id below `vocabulary`, from the model's tokenizer.json.

    Byte-level BPE (GPT-2's printable alphabet for bytes) and SentencePiece-style pieces (``▁`` for a space,
    ``<0xE2>`` for a byte) are told apart by the tokenizer's own decoder. Special tokens stand for no bytes, and so do
    rows of the model that the tokenizer has no token for.

    Raises:
        ModelError: a token that the model has no row for; a prompt that contains it could not be read.
    """
    tokenizer = json.loads((model_path / "tokenizer.json").read_text(encoding="utf-8"))
    byte_level = _uses_byte_level(tokenizer.get("decoder"))
    alphabet = {character: byte for byte, character in enumerate(_printable_bytes())}
    pieces = [b""] * vocabulary
    added_tokens = tokenizer.get("added_tokens", [])
    ids = {**tokenizer["model"]["vocab"], **{added["content"]: added["id"] for added in added_tokens}}
    for piece, token in ids.items():
        if token >= vocabulary:
            raise ModelError(
                f"{model_path / 'tokenizer.json'} has token {piece!r} with id {token}, but the model's vocabulary ends "
                f"at {vocabulary - 1}; use the tokenizer that the model was trained with"
            )
    for piece, token in tokenizer["model"]["vocab"].items():
        pieces[token] = _byte_level_piece(piece, alphabet) if byte_level else _sentence_piece(piece)
    for added in added_tokens:
        pieces[added["id"]] = b"" if added["special"] else added["content"].encode()
    return pieces


def _uses_byte_level(decoder: dict[str, object] | None) -> bool:
    if decoder is None:
        return False
    if decoder.get("type") == "ByteLevel":
        return True
    inner = decoder.get("decoders")
    return isinstance(inner, list) and any(_uses_byte_level(part) for part in inner)


def _byte_level_piece(piece: str, alphabet: dict[str, int]) -> bytes:
    if all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    return piece.encode()


def _sentence_piece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


def _printable_bytes() -> list[str]:
    """GPT-2's alphabet: the printable Latin-1 characters stand for themselves, the rest are moved beyond 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    characters: list[str] = []
    moved = 0
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(256 + moved))
            moved += 1
    return characters
