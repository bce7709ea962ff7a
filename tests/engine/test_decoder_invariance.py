"""The logits of a row are the same bits whatever block, batch, prefill chunk or number of threads it sits in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.decoder import Decoder
from engine.model_fetch import cache_folder
from engine.rows import Rows
from engine.weights import load_decoder
from kernels.native_threads import NativeThreads
from tests.engine.decoder_runs import chunked, random_tokens

DTYPES = ["float32", "bfloat16"]
LENGTHS = ([2], [4], [5], [8], [13], [17], [3, 1, 9, 2, 6, 1], [16], [64], [200])
BATCH = ((250, 1), (280, 3), (100, 9), (200, 17), (60, 5), (290, 2), (10, 1), (150, 8))
"""(context, rows): every kind of length together."""
TABLE_BLOCKS = 20


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def native(request: pytest.FixtureRequest) -> Iterator[NativeThreads]:
    """Three threads on two cores: one of them is always late."""
    threads = NativeThreads(cache_folder() / "kernels", request.param)
    yield threads
    threads.resize(1)


def load(folder: Path, dtype: str, native: NativeThreads, capacity: int = 320) -> Decoder:
    return load_decoder(folder, dtype, blocks=10 * TABLE_BLOCKS, capacity=capacity, native=native)


def table(sequence: int, blocks: int = TABLE_BLOCKS) -> range:
    return range(sequence * blocks, (sequence + 1) * blocks)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_block_or_chunk_that_it_sits_in(
    tiny_model: Path, dtype: str, native: NativeThreads
) -> None:
    decoder = load(tiny_model, dtype, native)
    token_ids = random_tokens(decoder.config.vocab_size, 200)
    alone = chunked(decoder, token_ids, [1], table(0))
    for lengths in LENGTHS:
        assert torch.equal(chunked(decoder, token_ids, lengths, table(7)), alone), f"passes of {lengths} rows"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sequences", [1, 2, 3, 5, 8])
def test_a_row_does_not_depend_on_its_neighbours(
    tiny_model: Path, dtype: str, native: NativeThreads, sequences: int
) -> None:
    decoder = load(tiny_model, dtype, native)
    parts = []
    for sequence, (context, length) in enumerate(BATCH[:sequences]):
        text = random_tokens(decoder.config.vocab_size, 310, sequence)
        decoder.forward([Rows(text[:context], 0, table(sequence), 0)])
        parts.append(Rows(text[context : context + length], context, table(sequence), length))
    mixed = decoder.forward(parts).clone()
    alone = []
    for sequence, (context, length) in enumerate(BATCH[:sequences]):
        text = random_tokens(decoder.config.vocab_size, 310, sequence)
        alone.append(chunked(decoder, text[: context + length], [context, 1], table(9))[context:])
    assert torch.equal(mixed, torch.cat(alone))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [3, 17, 256])
def test_a_row_beyond_1024_keys_does_not_depend_on_the_block_either(
    tiny_model: Path, dtype: str, native: NativeThreads, length: int
) -> None:
    decoder = load(tiny_model, dtype, native, capacity=1200)
    token_ids = random_tokens(decoder.config.vocab_size, 1100)
    blocks = chunked(decoder, token_ids, [length], table(0, 75))
    decoder.forward([Rows(token_ids[:1000], 0, table(1, 75), 0)])
    one_by_one = [decoder.forward([Rows([token_ids[at]], at, table(1, 75), 1)]).clone() for at in range(1000, 1100)]
    assert torch.equal(blocks[1000:], torch.cat(one_by_one))


def test_two_numbers_of_threads_give_the_same_bits(tiny_model: Path) -> None:
    texts, tables = [random_tokens(384, 90, seed) for seed in range(4)], [table(place) for place in range(4)]
    logits = []
    for count in (1, 2, 4):
        decoder = load(tiny_model, "bfloat16", NativeThreads(cache_folder() / "kernels", count))
        parts = [Rows(text, 0, blocks, 90) for text, blocks in zip(texts, tables, strict=True)]
        logits.append(decoder.forward(parts).clone())
        decoder.native.resize(1)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_the_default_model_does_not_depend_on_its_company(default_model: Path, dtype: str) -> None:
    native = NativeThreads(cache_folder() / "kernels", 2)
    decoder = load(default_model, dtype, native, capacity=128)
    token_ids = random_tokens(decoder.config.vocab_size, 80)
    alone = chunked(decoder, token_ids, [1], table(0))
    for sequence, lengths in enumerate(([2], [5], [17], [80], [64, 1, 8]), start=1):
        assert torch.equal(chunked(decoder, token_ids, lengths, table(sequence)), alone), f"passes of {lengths} rows"
    places = ((0, 40, 1), (1, 70, 9), (3, 20, 17), (4, 50, 2), (5, 50, 5))
    expected = torch.cat([alone[start : start + length] for _, start, length in places])
    parts = [Rows(token_ids[start : start + length], start, table(place), length) for place, start, length in places]
    assert torch.equal(decoder.forward(parts), expected)
    native.resize(1)


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_the_default_model_beyond_1024_keys_does_not_depend_on_its_block(
    default_model: Path, dtype: str, native: NativeThreads
) -> None:
    decoder = load(default_model, dtype, native, capacity=1100)
    token_ids = random_tokens(decoder.config.vocab_size, 1090)
    for sequence, chunk in ((0, 256), (1, 64)):
        for start in range(0, 1080, chunk):
            part = token_ids[start : min(start + chunk, 1080)]
            decoder.forward([Rows(part, start, table(sequence, 70), 0)])
    one_by_one = [decoder.forward([Rows([token_ids[at]], at, table(0, 70), 1)]).clone() for at in range(1080, 1090)]
    assert torch.equal(decoder.forward([Rows(token_ids[1080:], 1080, table(1, 70), 10)]), torch.cat(one_by_one))
