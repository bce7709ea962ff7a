"""The default model's logits against those of transformers; `test_model_families` holds small models of every kind."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from engine.weights import load_decoder
from kernels.native_threads import NativeThreads
from tests.engine.decoder_runs import chunked
from tests.engine.family_model import transformers_logits

TEXT = (
    "The harbour master counted the boats twice before he believed the number. Forty-one had left before sunrise, "
    "and only forty were back.\n\ndef missing(left: set[str], back: set[str]) -> list[str]:\n"
    '    """Names of the boats that did not return, in order."""\n    return sorted(left - back)\n\n'
    "Die Boote, die nicht zurückkamen, wurden am Abend gesucht. 12345 kroner, 6.78 %."
)


def relative_error(logits: Tensor, reference: Tensor) -> float:
    return float((logits.float() - reference).norm() / reference.norm())


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_of_the_default_model_are_those_of_transformers(
    default_model: Path, dtype: str, native: NativeThreads
) -> None:
    token_ids: list[int] = AutoTokenizer.from_pretrained(default_model)(TEXT)["input_ids"]
    decoder = load_decoder(default_model, dtype, blocks=16, capacity=256, native=native)
    logits = chunked(decoder, token_ids, [64, 9, 1, 1, 1, 40])
    exact = transformers_logits(default_model, token_ids, torch.float32)
    if dtype == "float32":
        assert relative_error(logits, exact) < 1e-5
        torch.testing.assert_close(logits, exact, rtol=1e-3, atol=1e-3)
        assert torch.equal(logits.argmax(-1), exact.argmax(-1))
        return
    theirs = relative_error(transformers_logits(default_model, token_ids, torch.bfloat16), exact)
    assert relative_error(logits, exact) < theirs < 0.02
    ours_best, exact_best = logits.argmax(-1), exact.argmax(-1)
    assert (ours_best == exact_best).float().mean() > 0.95
    # where rounding moves the choice, float32 held both tokens nearly equal
    row = torch.arange(len(token_ids))
    assert (exact[row, exact_best] - exact[row, ours_best]).max() < 0.6
