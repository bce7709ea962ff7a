"""The decoder's logits against transformers' own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

from engine.weights import choose_dtype, load_decoder
from tests.engine.decoder_runs import chunked, random_tokens
from tests.engine.tiny_model import make_tiny_model

TEXT = (
    "The harbour master counted the boats twice before he believed the number. Forty-one had left before sunrise, "
    "and only forty were back.\n\ndef missing(left: set[str], back: set[str]) -> list[str]:\n"
    '    """Names of the boats that did not return, in order."""\n    return sorted(left - back)\n\n'
    "Die Boote, die nicht zurückkamen, wurden am Abend gesucht. 12345 kroner, 6.78 %."
)


def transformers_logits(folder: Path, token_ids: list[int], dtype: torch.dtype) -> Tensor:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def relative_error(logits: Tensor, reference: Tensor) -> float:
    return float((logits.float() - reference).norm() / reference.norm())


@pytest.mark.parametrize("tied", [True, False], ids=["tied head", "untied head"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 4), (6, 1), (9, 3)])
def test_logits_are_those_of_transformers_for_every_kind_of_head(
    tmp_path: Path, tied: bool, heads: int, kv_heads: int
) -> None:
    folder = make_tiny_model(tmp_path, seed=3, tied=tied, heads=heads, kv_heads=kv_heads)
    decoder = load_decoder(folder, "float32", slots=2, capacity=128)
    token_ids = random_tokens(decoder.config.vocab_size, 100)
    reference = transformers_logits(folder, token_ids, torch.float32)
    torch.testing.assert_close(chunked(decoder, token_ids, 1, [37, 5, 1]), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=["linear", "llama3"],
)
@pytest.mark.parametrize("new_style", [True, False], ids=["rope_parameters", "rope_scaling"])
def test_scaled_rotary_frequencies_are_those_of_transformers(
    tmp_path: Path, scaling: dict[str, Any], new_style: bool
) -> None:
    folder = make_tiny_model(tmp_path, seed=4)
    plain = load_decoder(folder, "float32", slots=1, capacity=256)
    token_ids = random_tokens(plain.config.vocab_size, 200)
    unscaled = chunked(plain, token_ids, 0, [200])
    config = json.loads((folder / "config.json").read_text())
    if new_style:
        config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), **scaling}
    else:
        config["rope_scaling"] = scaling
    (folder / "config.json").write_text(json.dumps(config))
    decoder = load_decoder(folder, "float32", slots=1, capacity=256)
    reference = transformers_logits(folder, token_ids, torch.float32)
    logits = chunked(decoder, token_ids, 0, [200])
    torch.testing.assert_close(logits, reference, rtol=1e-4, atol=1e-4)
    assert relative_error(unscaled, reference) > 0.01


def test_bfloat16_logits_are_as_near_to_float32_as_those_of_transformers(tmp_path: Path) -> None:
    if choose_dtype("auto") != torch.bfloat16:
        pytest.skip("this CPU multiplies no bfloat16 natively")
    folder = make_tiny_model(tmp_path, seed=5, layers=4)
    decoder = load_decoder(folder, "bfloat16", slots=1, capacity=256)
    token_ids = random_tokens(decoder.config.vocab_size, 200)
    exact = transformers_logits(folder, token_ids, torch.float32)
    theirs = relative_error(transformers_logits(folder, token_ids, torch.bfloat16), exact)
    assert relative_error(chunked(decoder, token_ids, 0, [64]), exact) < 1.2 * theirs


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_of_the_default_model_are_those_of_transformers(default_model: Path, dtype: str) -> None:
    if dtype == "bfloat16" and choose_dtype("auto") != torch.bfloat16:
        pytest.skip("this CPU multiplies no bfloat16 natively")
    token_ids: list[int] = AutoTokenizer.from_pretrained(default_model)(TEXT)["input_ids"]
    decoder = load_decoder(default_model, dtype, slots=1, capacity=256)
    logits = chunked(decoder, token_ids, 0, [64, 9, 1, 1, 1, 40])
    exact = transformers_logits(default_model, token_ids, torch.float32)
    if dtype == "float32":
        assert relative_error(logits, exact) < 1e-5
        torch.testing.assert_close(logits, exact, rtol=1e-3, atol=1e-3)
        assert torch.equal(logits.argmax(-1), exact.argmax(-1))
        return
    theirs = relative_error(transformers_logits(default_model, token_ids, torch.bfloat16), exact)
    assert relative_error(logits, exact) < 1.2 * theirs < 0.02
    ours_best, exact_best = logits.argmax(-1), exact.argmax(-1)
    assert (ours_best == exact_best).float().mean() > 0.95
    # where rounding moves the choice, float32 held both tokens nearly equal
    row = torch.arange(len(token_ids))
    assert (exact[row, exact_best] - exact[row, ours_best]).max() < 0.6
