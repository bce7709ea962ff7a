"""The bytes of the default model's tokens, over the texts that the workload sends."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.token_bytes import load_token_bytes
from tuner.workload import load_workload

pytestmark = pytest.mark.model


def test_the_bytes_of_the_default_models_tokens_join_to_every_text_of_the_workload(default_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    pieces = load_token_bytes(default_model, tokenizer.get_vocab_size())
    for prompt in load_workload():
        for message in prompt.messages:
            token_ids = tokenizer.encode(message["content"], add_special_tokens=False).ids
            assert b"".join(pieces[token] for token in token_ids).decode() == message["content"]


def test_each_token_of_the_default_model_decodes_alone_as_its_tokenizer_decodes_it(default_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    pieces = load_token_bytes(default_model, tokenizer.get_vocab_size())
    assert [piece.decode(errors="replace") for piece in pieces] == [
        tokenizer.decode([token]) for token in range(len(pieces))
    ]
