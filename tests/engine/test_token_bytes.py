"""The bytes of each token are those that the tokenizer's own decoding writes."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from engine.model_config import ModelError
from engine.token_bytes import load_token_bytes
from tests.engine.tiny_model import make_tiny_model

TEXTS = (
    "The riders take turns at the front.\n\n\tdef rider(name: str) -> None:\r\n",
    "Rytterne skiftes, så de andre kan køre i læ. Straße, naïve, €, 漢字かな, Привет, مرحبا",
    "🚴🏽‍♀️ and 👩‍👩‍👧 and a lone \u0301",
    "\x00\x01 \x7f control",
)


def written(pieces: list[bytes], token_ids: list[int]) -> str:
    return b"".join(pieces[token] for token in token_ids).decode()


def test_byte_level_tokens_join_to_the_text_that_was_encoded(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pieces = load_token_bytes(folder, tokenizer.get_vocab_size())
    for text in TEXTS:
        token_ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert written(pieces, token_ids) == text == tokenizer.decode(token_ids)


def test_byte_level_tokens_decode_alone_as_the_tokenizer_decodes_them(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for token, piece in enumerate(load_token_bytes(folder, tokenizer.get_vocab_size())):
        assert piece.decode(errors="replace") == tokenizer.decode([token])


def test_special_tokens_stand_for_no_bytes_and_other_added_tokens_for_their_text(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 384, "content": " ¶ é", "special": False})
    file.write_text(json.dumps(content))
    pieces = load_token_bytes(folder, 390)
    assert pieces[:3] == [b"", b"", b""]
    assert pieces[384] == " ¶ é".encode()
    assert pieces[385:] == [b""] * 5, "rows beyond the vocabulary stand for nothing"


def test_a_token_beyond_the_models_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    with pytest.raises(ModelError, match=r"has token .+ with id \d+, but the model's vocabulary ends at 299"):
        load_token_bytes(folder, 300)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 384, "content": "<|tool|>"})
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"has token '<\|tool\|>' with id 384"):
        load_token_bytes(folder, 384)


@pytest.fixture
def sentence_pieces(tmp_path: Path) -> tuple[Path, Tokenizer]:
    """A tokenizer as Llama 2's: ``▁`` for a space, bytes as a last resort, a decoder that strips one space."""
    words = ["▁", "▁ride", "r", "s", "é", "▁so", "<0x", "▁<0xZZ>"]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocabulary |= {word: 259 + index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path, tokenizer


def test_sentence_pieces_join_to_what_their_tokenizer_decodes(sentence_pieces: tuple[Path, Tokenizer]) -> None:
    folder, tokenizer = sentence_pieces
    pieces = load_token_bytes(folder, tokenizer.get_vocab_size())
    smile = [3 + byte for byte in "🚴".encode()]
    token_ids = [260, 261, 262, 264, 263, *smile, 259, 265]
    assert written(pieces, token_ids) == " riders soé🚴 <0x"
    assert tokenizer.decode(token_ids) == written(pieces, token_ids).removeprefix(" ")


def test_sentence_pieces_of_bytes_and_of_words_are_told_apart(sentence_pieces: tuple[Path, Tokenizer]) -> None:
    folder, tokenizer = sentence_pieces
    pieces = load_token_bytes(folder, tokenizer.get_vocab_size())
    assert pieces[:3] == [b"", b"", b""]
    assert pieces[3:259] == [bytes([byte]) for byte in range(256)]
    assert pieces[259] == b" "
    assert pieces[266] == b" <0xZZ>"
