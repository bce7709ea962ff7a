"""Every family against transformers' own logits."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.checkpoint import Checkpoint
from engine.model_config import ModelError, read_config
from engine.model_weights import model_weights
from engine.rows import Rows
from engine.weights import load_decoder
from kernels.native_threads import NativeThreads
from tests.engine.decoder_runs import chunked, random_tokens
from tests.engine.family_model import FAMILIES, VOCABULARY, make_family_model, transformers_logits
from tests.engine.reference_decoder import ReferenceDecoder

LENGTH = 100
CHUNKS = {
    "at once": [LENGTH],
    "in chunks": [37, 16, 1, 5, 41],
    "then one by one": [10, 1],
}
SCATTERED = [7, 2, 5, 0, 8, 3, 1]
"""A block table for `LENGTH` positions."""


@pytest.fixture(scope="module", params=FAMILIES, ids=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family_model(tmp_path_factory.mktemp("family"), FAMILIES[request.param])


@pytest.fixture(scope="module")
def exact(family: Path) -> Tensor:
    """The logits of transformers in float32."""
    return transformers_logits(family, TOKEN_IDS, torch.float32)


TOKEN_IDS = random_tokens(VOCABULARY, LENGTH)


def relative_error(logits: Tensor, reference: Tensor) -> float:
    return float((logits - reference).norm() / reference.norm())


def test_weights_of_every_family_give_the_logits_of_transformers(family: Path, exact: Tensor) -> None:
    config = read_config(family)
    for dtype in (torch.float32, torch.bfloat16):  # the models' values fit in either
        decoder = ReferenceDecoder(config, model_weights(config, Checkpoint(family), dtype))
        logits = torch.cat([decoder.forward(TOKEN_IDS[:40]), decoder.forward(TOKEN_IDS[40:])])
        torch.testing.assert_close(logits, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lengths", CHUNKS.values(), ids=CHUNKS)
def test_the_decoder_gives_the_logits_of_transformers(
    family: Path, exact: Tensor, lengths: list[int], native: NativeThreads
) -> None:
    decoder = load_decoder(family, "float32", blocks=9, capacity=128, native=native)
    logits = chunked(decoder, TOKEN_IDS, lengths, SCATTERED)
    torch.testing.assert_close(logits, exact, rtol=1e-4, atol=1e-4)


def test_bfloat16_rounds_no_more_than_transformers_does(family: Path, exact: Tensor, native: NativeThreads) -> None:
    """The weights are those of `exact`: what is left is the rounding of the inputs of products, of keys and of values.

    transformers rounds these and the residual stream, so it may be no nearer. A rounding to 8 bits errs by 2^-9 in the
    mean, and 3 layers of 7 products add some of them up.
    """
    theirs = relative_error(transformers_logits(family, TOKEN_IDS, torch.bfloat16).float(), exact)
    decoder = load_decoder(family, "bfloat16", blocks=9, capacity=128, native=native)
    logits = [chunked(decoder, TOKEN_IDS, lengths, SCATTERED) for lengths in CHUNKS.values()]
    assert relative_error(logits[0], exact) < theirs < 21 * 2**-9
    assert all(torch.equal(other, logits[0]) for other in logits[1:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_changes_no_bit_of_any_family(family: Path, native: NativeThreads, dtype: str) -> None:
    """Windows and biases included: 1, 9 and 30 rows of three sequences in one pass, as each of them alone."""
    decoder = load_decoder(family, dtype, blocks=21, capacity=112, native=native)
    tables = [range(0, 7), range(7, 14), range(14, 21)]
    starts, counts = (60, 45, 5), (1, 9, 30)
    alone = [chunked(decoder, TOKEN_IDS, [13], table) for table in tables]
    parts = [
        Rows(TOKEN_IDS[start : start + count], start, table, count)
        for start, count, table in zip(starts, counts, tables, strict=True)
    ]
    together = decoder.forward(parts)
    expected = [logits[start : start + count] for logits, start, count in zip(alone, starts, counts, strict=True)]
    assert torch.equal(together, torch.cat(expected))


def test_what_the_head_reads_is_kept_at_every_position(tmp_path: Path, native: NativeThreads) -> None:
    folder = make_family_model(tmp_path, FAMILIES["qwen3"])
    config = read_config(folder)
    decoder = load_decoder(folder, "float32", blocks=9, capacity=128, features=True, native=native)
    chunked(decoder, TOKEN_IDS, [37, 16, 1], SCATTERED)
    reference = ReferenceDecoder(config, model_weights(config, Checkpoint(folder), torch.float32))
    reference.forward(TOKEN_IDS)
    assert decoder.features is not None
    found = decoder.features.view(9, 16, -1)[SCATTERED].flatten(0, 1)[:LENGTH]
    torch.testing.assert_close(found, reference.features, rtol=1e-4, atol=1e-4)


def test_a_width_that_the_kernels_do_not_divide_is_refused_by_name(tmp_path: Path, native: NativeThreads) -> None:
    folder = make_family_model(tmp_path, {"model_type": "llama", "intermediate_size": 90})
    with pytest.raises(ModelError, match="intermediate_size 90; the CPU kernels need a multiple of 16"):
        load_decoder(folder, blocks=9, capacity=128, native=native)
