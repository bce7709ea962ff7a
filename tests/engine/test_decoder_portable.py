"""The kernels without the instructions of this processor: what another machine compiles."""

from pathlib import Path

import pytest
import torch

from engine.weights import load_decoder
from kernels.native_library import _compiler
from kernels.native_threads import NativeThreads
from tests.engine.decoder_runs import chunked, random_tokens


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> NativeThreads:
    """No AVX-512, hence vectors in halves and bfloat16 expanded to float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", " ".join((*_compiler(), "-mno-avx512f")))
        return NativeThreads(tmp_path_factory.mktemp("portable"), 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_for_another_processor_agree_to_rounding(
    tiny_model: Path, portable: NativeThreads, native: NativeThreads, dtype: str
) -> None:
    text = random_tokens(384, 90)
    there = chunked(load_decoder(tiny_model, dtype, blocks=8, capacity=100, native=portable), text, [30, 1, 7])
    here = chunked(load_decoder(tiny_model, dtype, blocks=8, capacity=100, native=native), text, [30, 1, 7])
    # float32 sums in the same order, but for fused multiplications; bfloat16 inputs are rounded from such sums, and a
    # half step of its 8 bits is 2 ** -9
    tolerance = 1e-5 if dtype == "float32" else 2**-6
    assert (there - here).norm() / here.norm() < tolerance


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_does_not_depend_on_its_block_there_either(tiny_model: Path, portable: NativeThreads, dtype: str) -> None:
    decoder = load_decoder(tiny_model, dtype, blocks=8, capacity=100, native=portable)
    text = random_tokens(384, 90)
    alone = chunked(decoder, text, [1])
    for lengths in ([2], [5], [13], [90], [3, 1, 9, 2]):
        assert torch.equal(chunked(decoder, text, lengths), alone), f"passes of {lengths} rows"
