"""A GGUF becomes the model that it was made from."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from engine.gguf_convert import convert_gguf
from engine.model_config import read_config
from engine.weights import load_decoder
from kernels.native_threads import NativeThreads
from tests.engine.decoder_runs import chunked
from tests.engine.tiny_gguf import write_tiny_gguf
from tests.engine.tiny_model import make_tiny_model

TEXT = "Une ligne, 12 345 mots  et <|im_end|> 🙂\n\n\tdef f(): pass"


@pytest.fixture(params=[True, False], ids=["tied head", "untied head"])
def original(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "original", seed=6, tied=request.param)


@pytest.fixture
def converted(original: Path, tmp_path: Path) -> Path:
    write_tiny_gguf(original, tmp_path / "tiny.gguf")
    folder = tmp_path / "converted"
    folder.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", folder, lambda done, total: None)
    return folder


def test_the_weights_and_the_config_are_those_that_the_gguf_was_made_from(original: Path, converted: Path) -> None:
    found, expected = load_file(converted / "model.safetensors"), load_file(original / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name].to(torch.bfloat16)) for name in expected)
    assert read_config(converted) == read_config(original)


def test_the_tokenizer_and_the_chat_template_are_those_that_the_gguf_was_made_from(
    original: Path, converted: Path
) -> None:
    found, expected = AutoTokenizer.from_pretrained(converted), AutoTokenizer.from_pretrained(original)
    assert found(TEXT)["input_ids"] == expected(TEXT)["input_ids"]
    assert found.decode(found(TEXT)["input_ids"]) == TEXT
    assert (found.bos_token_id, found.eos_token_id) == (expected.bos_token_id, expected.eos_token_id)
    messages = [{"role": "user", "content": "hi"}]
    assert found.apply_chat_template(messages, tokenize=False) == expected.apply_chat_template(messages, tokenize=False)


def test_the_logits_are_those_of_the_original_up_to_the_rounding_of_its_weights(
    original: Path, converted: Path, native: NativeThreads
) -> None:
    token_ids = AutoTokenizer.from_pretrained(original)(TEXT)["input_ids"]
    found, expected = (
        chunked(load_decoder(folder, "float32", blocks=4, capacity=64, native=native), token_ids, [8])
        for folder in (converted, original)
    )
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_a_gguf_with_a_tensor_that_llama_does_not_have_is_refused(original: Path, tmp_path: Path) -> None:
    write_tiny_gguf(original, tmp_path / "tiny.gguf", extra={"blk.0.attn_q.bias": torch.ones(64).numpy()})
    with pytest.raises(ValueError, match=r"tensor blk\.0\.attn_q\.bias"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path, lambda done, total: None)


def test_progress_rises_to_the_whole(original: Path, tmp_path: Path) -> None:
    write_tiny_gguf(original, tmp_path / "tiny.gguf")
    seen: list[tuple[int, int]] = []
    convert_gguf(tmp_path / "tiny.gguf", tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.model
def test_the_default_model_answers_and_splits_digits(default_model: Path, native: NativeThreads) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  12")["input_ids"]) == ["a", "ĠĠ", "1", "2"]
    assert json.loads((default_model / "config.json").read_text())["tie_word_embeddings"] is True
    decoder = load_decoder(default_model, "float32", blocks=4, capacity=64, native=native)
    token_ids = tokenizer("The capital of France is")["input_ids"]
    best = int(chunked(decoder, token_ids, [64])[-1].argmax())
    assert tokenizer.decode([best]) == " Paris"
