"""The logits of a row are the same bits whatever block, batch or prefill chunk it sits in."""

from pathlib import Path

import pytest
import torch

from engine.decoder import Decoder, _silu
from engine.linear import MIN_ROWS, PackedLinear
from engine.weights import choose_dtype, load_decoder
from tests.engine.decoder_runs import chunked, random_tokens, rows, together

DTYPES = ["float32", "bfloat16"]
LENGTHS = ([2], [4], [5], [8], [17], [3, 1, 9, 2, 6, 1], [16], [64], [200])
BATCH = ((0, 250, 1), (1, 280, 3), (2, 100, 9), (4, 200, 17), (5, 60, 5), (6, 290, 2), (9, 10, 1), (11, 150, 8))
"""(slot, context, rows): every kind of length together, with holes in the range of slots."""


def load(folder: Path, dtype: str, capacity: int = 320) -> Decoder:
    if dtype == "bfloat16" and choose_dtype("auto") != torch.bfloat16:
        pytest.skip("this CPU multiplies no bfloat16 natively")
    return load_decoder(folder, dtype, slots=12, capacity=capacity)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_block_or_chunk_that_it_sits_in(
    tiny_model: Path, dtype: str, threads: int
) -> None:
    decoder = load(tiny_model, dtype)
    token_ids = random_tokens(decoder.config.vocab_size, 200)
    alone = chunked(decoder, token_ids, 0, [1])
    for lengths in LENGTHS:
        assert torch.equal(chunked(decoder, token_ids, 7, lengths), alone), f"passes of {lengths} rows"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sequences", [1, 2, 3, 5, 8])
def test_a_row_does_not_depend_on_its_neighbours(tiny_model: Path, dtype: str, sequences: int) -> None:
    decoder = load(tiny_model, dtype)
    texts = [random_tokens(decoder.config.vocab_size, 300, seed) for seed in range(sequences)]
    parts = [(text, *where) for text, where in zip(texts, BATCH[:sequences], strict=True)]
    for text, slot, context, _ in parts:
        decoder.forward(rows(text, slot, 0, context, logits=False))
    mixed = decoder.forward(together(parts))
    alone = [
        chunked(decoder, text[: context + length], 3, [context, 1])[context:] for text, _, context, length in parts
    ]
    assert torch.equal(mixed, torch.cat(alone))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [3, 17, 256])
def test_a_row_beyond_1024_keys_does_not_depend_on_the_block_either(tiny_model: Path, dtype: str, length: int) -> None:
    decoder = load(tiny_model, dtype, capacity=1200)
    token_ids = random_tokens(decoder.config.vocab_size, 1100)
    blocks = chunked(decoder, token_ids, 1, [length])
    decoder.forward(rows(token_ids, 0, 0, 1000, logits=False))
    one_by_one = torch.cat([decoder.forward(rows(token_ids, 0, at, 1)) for at in range(1000, 1100)])
    assert torch.equal(blocks[1000:], one_by_one)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_short_row_does_not_depend_on_a_neighbour_beyond_1024_keys(tiny_model: Path, dtype: str) -> None:
    decoder = load(tiny_model, dtype, capacity=1200)
    short, long = (random_tokens(decoder.config.vocab_size, 1200, seed) for seed in (1, 2))
    decoder.forward(rows(long, 0, 0, 1100, logits=False))
    decoder.forward(rows(short, 1, 0, 50, logits=False))
    mixed = decoder.forward(together([(long, 0, 1100, 17), (short, 1, 50, 3)]))
    assert torch.equal(mixed[17:], chunked(decoder, short[:53], 2, [1])[50:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (1536, 576), (576, 1536), (384, 64), (48, 80)])
def test_a_row_of_a_packed_linear_layer_does_not_depend_on_the_number_of_rows(
    dtype: torch.dtype, outputs: int, inputs: int, threads: int
) -> None:
    if dtype == torch.bfloat16 and choose_dtype("auto") != torch.bfloat16:
        pytest.skip("this CPU multiplies no bfloat16 natively")
    layer = PackedLinear(torch.randn(outputs, inputs).to(dtype) / inputs**0.5)
    x, other = torch.randn(1024, inputs).to(dtype), torch.randn(1024, outputs).to(dtype)
    with torch.inference_mode():
        whole = (layer(x), layer.plus(x, other))
        for count in (MIN_ROWS, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 256, 300, 512):
            for start in (0, 3, 500):
                part = slice(start, start + count)
                cut = (layer(x[part]), layer.plus(x[part], other[part]))
                assert all(torch.equal(a, b[part]) for a, b in zip(cut, whole, strict=True)), (count, start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_silu_does_not_depend_on_how_threads_share_the_rows(dtype: torch.dtype) -> None:
    gate = torch.randn(111, 3072).to(dtype)[:, :1536]
    before = torch.get_num_threads()
    torch.set_num_threads(5)  # 111 rows of 1536 in five shares: every share ends inside a vector
    shared = _silu(gate)
    torch.set_num_threads(before)
    assert torch.equal(shared, torch.cat([_silu(row[None]) for row in gate]))


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_the_default_model_does_not_depend_on_its_company(
    default_model: Path, dtype: str, threads: int
) -> None:
    decoder = load(default_model, dtype, capacity=128)
    token_ids = random_tokens(decoder.config.vocab_size, 80)
    alone = chunked(decoder, token_ids, 0, [1])
    for slot, lengths in enumerate(([2], [5], [17], [80], [64, 1, 8]), start=1):
        assert torch.equal(chunked(decoder, token_ids, slot, lengths), alone), f"passes of {lengths} rows"
    parts = [(token_ids, slot, start, length) for slot, start, length in ((0, 40, 1), (1, 70, 9), (3, 20, 17))]
    parts += [(token_ids, slot, 50, length) for slot, length in ((4, 2), (5, 5))]
    expected = torch.cat([alone[start : start + length] for _, _, start, length in parts])
    assert torch.equal(decoder.forward(together(parts)), expected)


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_the_default_model_beyond_1024_keys_does_not_depend_on_its_block(
    default_model: Path, dtype: str
) -> None:
    decoder = load(default_model, dtype, capacity=1100)
    token_ids = random_tokens(decoder.config.vocab_size, 1090)
    for slot, chunk in ((0, 256), (1, 64)):
        for start in range(0, 1080, chunk):
            decoder.forward(rows(token_ids, slot, start, min(chunk, 1080 - start), logits=False))
    one_by_one = torch.cat([decoder.forward(rows(token_ids, 0, at, 1)) for at in range(1080, 1090)])
    assert torch.equal(decoder.forward(rows(token_ids, 1, 1080, 10)), one_by_one)
