"""What a decoder remembers between passes, what it refuses, and what it returns."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.model_config import ModelError
from engine.model_weights import Weights
from engine.rows import Rows
from engine.weights import load_decoder
from kernels.native_threads import NativeThreads
from tests.engine.decoder_runs import chunked, random_tokens

FIRST, SECOND, THIRD = range(13), (40, 13, 22, 39, 17, 30, 41, 14), (20, 21, 25, 24, 23)
"""Block tables: the second and third are scattered, and share no block."""


@pytest.fixture
def decoder(tiny_model: Path, native: NativeThreads) -> Decoder:
    return load_decoder(tiny_model, "float32", blocks=42, capacity=200, features=True, native=native)


@torch.inference_mode()
def poison(decoder: Decoder, blocks: range) -> None:
    """Every place of the blocks, in every layer and in the features, is not a number."""
    cache = decoder._cache
    cache.keys[:, blocks] = torch.nan
    cache.values[:, blocks] = torch.nan
    assert decoder.features is not None
    decoder.features.view(-1, 16, decoder.config.hidden_size)[list(blocks)] = torch.nan


def test_a_scattered_block_table_gives_the_logits_of_one_in_order(decoder: Decoder) -> None:
    text = random_tokens(384, 120)
    assert torch.equal(chunked(decoder, text, [7], SECOND), chunked(decoder, text, [120], FIRST))


def test_a_reused_block_gives_the_logits_of_a_fresh_one(
    decoder: Decoder, tiny_model: Path, native: NativeThreads
) -> None:
    before, after = random_tokens(384, 120, seed=1), random_tokens(384, 60, seed=2)
    chunked(decoder, before, [64], SECOND)
    fresh = load_decoder(tiny_model, "float32", blocks=42, capacity=200, native=native)
    assert torch.equal(chunked(decoder, after, [13], SECOND), chunked(fresh, after, [13], SECOND))


def test_rejected_drafts_leave_no_trace(decoder: Decoder) -> None:
    text, draft = random_tokens(384, 60, seed=3), random_tokens(384, 8, seed=4)
    clean = chunked(decoder, text, [1], FIRST)
    chunked(decoder, text[:40], [40], THIRD)
    decoder.forward([Rows((text[40], *draft), 40, THIRD, 9)])
    assert torch.equal(decoder.forward([Rows(text[41:], 41, THIRD, 19)]), clean[41:])


def test_sequences_do_not_see_each_other(decoder: Decoder) -> None:
    texts = [random_tokens(384, 70, seed) for seed in range(3)]
    alone = [chunked(decoder, text, [70], range(30, 35)) for text in texts]
    tables = (range(5), range(5, 10), THIRD)
    together = decoder.forward([Rows(text, 0, table, 70) for text, table in zip(texts, tables, strict=True)])
    assert torch.equal(together, torch.cat(alone))


def test_a_shared_prefix_gives_the_logits_of_a_whole_text(decoder: Decoder) -> None:
    prefix, rest = random_tokens(384, 32, seed=5), random_tokens(384, 20, seed=6)
    whole = chunked(decoder, prefix + rest, [52], range(30, 34))
    chunked(decoder, prefix, [32], (3, 9))
    shared = decoder.forward([Rows(rest, 32, (3, 9, 12, 11), 20)])
    assert torch.equal(shared, whole[32:])


def test_a_pass_reads_and_writes_only_the_places_of_its_rows(decoder: Decoder) -> None:
    """No place is a number before, and other blocks stay so; a value read from one would spread through the pass."""
    text = random_tokens(384, 60, seed=7)
    clean = chunked(decoder, text, [9], THIRD)
    poison(decoder, range(42))
    cache = decoder._cache
    assert torch.equal(chunked(decoder, text, [9], THIRD), clean)
    others = [block for block in range(42) if block not in (20, 21, 25, 24)]
    assert cache.keys[:, others].isnan().all()
    assert cache.values[:, others].isnan().all()
    assert decoder.features is not None
    features = decoder.features.view(42, 16, -1)
    assert cache.values[:, [20, 21, 25, 24]].isfinite().all()
    assert features[others].isnan().all()
    assert features[[20, 21, 25]].isfinite().all()
    assert features[24, :12].isfinite().all()
    assert features[24, 12:].isnan().all()


def test_features_are_what_the_head_reads(decoder: Decoder) -> None:
    text = random_tokens(384, 40, seed=8)
    logits = chunked(decoder, text, [11], THIRD)
    assert decoder.features is not None
    places = [THIRD[position // 16] * 16 + position % 16 for position in range(40)]
    identity = load_head(decoder)
    torch.testing.assert_close(decoder.features[places] @ identity.T, logits, rtol=1e-5, atol=1e-5)


def load_head(decoder: Decoder) -> Tensor:
    """The rows of the head, unpacked: [vocabulary / 32, words, 2, 16] in float32."""
    hidden, vocabulary = decoder.config.hidden_size, decoder.config.vocab_size
    address = decoder.model.head
    strips = next(tensor for tensor in decoder._kept if tensor.data_ptr() == address)
    return strips.view(-1, hidden, 32).transpose(1, 2).reshape(-1, hidden)[:vocabulary]


def test_the_logits_wanted_are_those_of_the_last_rows(decoder: Decoder) -> None:
    text = random_tokens(384, 20)
    every = chunked(decoder, text, [20], FIRST)
    assert torch.equal(decoder.forward([Rows(text, 0, THIRD, 3)]), every[17:])
    assert decoder.forward([Rows(text, 0, THIRD, 0)]).shape == (0, 384)


def test_the_last_position_of_the_capacity_can_be_used(decoder: Decoder) -> None:
    text = random_tokens(384, 200)
    assert torch.equal(chunked(decoder, text, [199, 1], FIRST), chunked(decoder, text, [200], range(20, 33)))


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (Rows([], 0, [0], 0), "0 rows"),
        (Rows([1, 2], 15, [0], 1), "over 1 blocks"),
        (Rows([1], -1, [0], 1), "from position -1"),
        (Rows([1], 200, range(13), 1), "below 200"),
        (Rows([384], 0, [0], 1), "token outside 0..383"),
        (Rows([-1], 0, [0], 1), "token outside 0..383"),
        (Rows([1], 0, [42], 1), "block outside 0..41"),
        (Rows([1], 0, [-1], 1), "block outside 0..41"),
    ],
)
def test_a_pass_outside_the_model_is_refused_by_name(decoder: Decoder, part: Rows, named: str) -> None:
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        decoder.forward([part])


def test_an_empty_pass_is_refused(decoder: Decoder) -> None:
    with pytest.raises(ValueError, match="no rows"):
        decoder.forward([])


def test_the_memory_told_is_weights_cache_features_and_workspace(decoder: Decoder) -> None:
    config, blocks = decoder.config, 42 * 16
    before = decoder.memory_bytes
    cache = 2 * config.num_layers * config.kv_width * blocks * 4
    assert before > cache + blocks * config.hidden_size * 4
    decoder.forward([Rows(random_tokens(384, 100), 0, FIRST, 100)])
    assert decoder.memory_bytes >= before + 100 * 384 * 4


def test_the_linear_layers_alone_take_less_than_a_second(decoder: Decoder) -> None:
    assert 0.0 < decoder.linear_seconds() < 1.0


def test_a_width_that_the_kernels_do_not_divide_is_refused_by_name(tiny_model: Path, native: NativeThreads) -> None:
    narrow = load_decoder(tiny_model, "float32", blocks=1, capacity=16, native=native)
    config = replace(narrow.config, feed_forward_size=100)
    weights = Weights(torch.float32, lambda: torch.zeros(384, 64), lambda: torch.zeros(384, 64), (), torch.ones(64))
    with pytest.raises(ModelError, match="intermediate_size 100; the CPU kernels need a multiple of 16"):
        Decoder(config, weights, native, blocks=1, capacity=16)
