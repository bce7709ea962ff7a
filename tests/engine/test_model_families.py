"""Every family against transformers' own logits."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.checkpoint import Checkpoint
from engine.model_config import read_config
from engine.model_weights import model_weights
from tests.engine.decoder_runs import random_tokens
from tests.engine.family_model import FAMILIES, VOCABULARY, make_family_model, transformers_logits
from tests.engine.reference_decoder import ReferenceDecoder

LENGTH = 100
CHUNKS = {
    "at once": [LENGTH],
    "in chunks": [37, 16, 1, 5, 41],
    "then one by one": [10] + [1] * (LENGTH - 10),
}


@pytest.fixture(scope="module", params=FAMILIES, ids=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family_model(tmp_path_factory.mktemp("family"), FAMILIES[request.param])


def loaded(folder: Path, dtype: torch.dtype) -> ReferenceDecoder:
    config = read_config(folder)
    return ReferenceDecoder(config, model_weights(config, Checkpoint(folder), dtype))


def chunked(decoder: ReferenceDecoder, token_ids: list[int], lengths: list[int]) -> Tensor:
    logits, start = [], 0
    for length in lengths:
        logits.append(decoder.forward(token_ids[start : start + length]))
        start += length
    return torch.cat(logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_weights_of_every_family_give_the_logits_of_transformers(family: Path, dtype: torch.dtype) -> None:
    token_ids = random_tokens(VOCABULARY, LENGTH)
    exact = transformers_logits(family, token_ids, torch.float32)
    for lengths in CHUNKS.values():
        logits = chunked(loaded(family, dtype), token_ids, lengths)
        torch.testing.assert_close(logits, exact, rtol=1e-4, atol=1e-4)
