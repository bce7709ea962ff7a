"""The generator against its published vectors, and its noise against its definition."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from kernels import reference
from kernels.philox import (
    GUMBEL_MAX,
    Stream,
    acceptance_uniforms,
    draft_stream,
    gumbel_from_bits,
    gumbel_noise,
    philox_4x32,
    uniform_bits,
)
from kernels.sampling import Sampling

VOCABULARY = 49_152
STREAMS = (Stream.RECOVERED, Stream.WATERMARK, *map(draft_stream, (0, 1, 2, 15)))

# Random123's tests/kat_vectors, philox4x32 with 10 rounds: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers_of_random123(counter: str, key: str, output: str) -> None:
    low, high = words(key)
    block = np.array(words(counter), dtype=np.uint64)[:, None]
    assert philox_4x32(block, (low, high))[:, 0].tolist() == words(output)


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_the_dense_twins_philox_gives_the_known_answers_too(counter: str, key: str, output: str) -> None:
    low, high = words(key)
    block = torch.tensor(words(counter))[:, None]
    assert reference.philox_4x32(block, (low, high))[:, 0].tolist() == words(output)


def test_philox_leaves_its_counter_alone() -> None:
    counter = np.arange(12, dtype=np.uint64).reshape(4, 3)
    philox_4x32(counter, (1, 2))
    assert counter.tolist() == np.arange(12).reshape(4, 3).tolist()


@pytest.mark.parametrize("count", [1, 7, 64, 5000, 40_000])
def test_sparse_noise_is_the_full_noise_bit_for_bit(count: int) -> None:
    token_ids = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(count))[:count]
    full = gumbel_noise(7, 1, 33, vocabulary=VOCABULARY)
    assert torch.equal(gumbel_noise(7, 1, 33, token_ids), full[token_ids])


@pytest.mark.parametrize("vocabulary", [1, 5, 8, 127, 1025, VOCABULARY])
@pytest.mark.parametrize("seed", [0, 1, 2**63 + 12_345, 2**64 - 1])
def test_the_noise_is_the_dense_twins_bit_for_bit(seed: int, vocabulary: int) -> None:
    ours = gumbel_noise(seed, 2, 1000, vocabulary=vocabulary)
    assert torch.equal(ours, reference.gumbel_noise(seed, 2, 1000, vocabulary))


def test_a_negative_seed_is_its_64_bits() -> None:
    assert torch.equal(gumbel_noise(-1, 0, 0, vocabulary=8), gumbel_noise(2**64 - 1, 0, 0, vocabulary=8))


def test_no_tokens_have_no_noise() -> None:
    assert uniform_bits(0, 0, 0, np.empty(0, dtype=np.int64)).size == 0


def test_seed_choice_position_stream_and_token_each_change_the_noise() -> None:
    base = gumbel_noise(5, 0, 10, vocabulary=VOCABULARY)
    others = [
        gumbel_noise(5 + 2**32, 0, 10, vocabulary=VOCABULARY),
        gumbel_noise(6, 0, 10, vocabulary=VOCABULARY),
        gumbel_noise(5, 1, 10, vocabulary=VOCABULARY),
        gumbel_noise(5, 0, 11, vocabulary=VOCABULARY),
        *(gumbel_noise(5, 0, 10, vocabulary=VOCABULARY, stream=stream) for stream in STREAMS),
        base.roll(1),
        base.roll(4),
    ]
    for other in others:
        # 49,152 independent pairs: the correlation's standard error is 0.0045.
        assert abs(float(torch.corrcoef(torch.stack((base, other)))[0, 1])) < 0.02


def test_the_noise_follows_the_gumbel_distribution() -> None:
    noise = torch.cat([gumbel_noise(seed, 0, seed, vocabulary=VOCABULARY) for seed in range(8)])
    assert stats.kstest(noise.numpy(), "gumbel_r").pvalue > 1e-3


def test_every_uniform_gives_finite_noise_below_the_bound_that_the_race_relies_on() -> None:
    ends = gumbel_from_bits(np.array([0, 2**24 - 1], dtype=np.uint64))
    assert math.isclose(float(ends[0]), -math.log(25 * math.log(2)), rel_tol=1e-6)
    assert 17.328 < float(ends[1]) < GUMBEL_MAX


def test_numpy_and_torch_agree_on_the_noise_of_all_but_one_uniform_in_a_million() -> None:
    differing = 0
    for start in range(0, 2**24, 2**20):
        bits = np.arange(start, start + 2**20, dtype=np.uint64)
        uniform = (torch.from_numpy(bits.astype(np.float64)) + 0.5) * 2.0**-24
        noise = (-torch.log(-torch.log(uniform))).float().numpy()
        differing += int((noise != gumbel_from_bits(bits)).sum())
    assert differing <= 16


@pytest.mark.parametrize("stream", [*STREAMS, Stream.COUPLED])
def test_the_noise_of_a_stream_is_the_dense_twins_bit_for_bit(stream: int) -> None:
    ours = gumbel_noise(2**63 + 1, 1, 7, vocabulary=1025, stream=stream)
    assert torch.equal(ours, reference.gumbel_noise(2**63 + 1, 1, 7, 1025, stream))


def test_no_two_streams_have_the_same_fourth_word() -> None:
    words = [*(int(stream) for stream in Stream if stream is not Stream.DRAFT), *map(draft_stream, range(64))]
    assert len(set(words)) == len(words)


def test_acceptance_uniforms_are_the_dense_twins_and_a_block_of_any_length_begins_alike() -> None:
    sampling = Sampling(seed=2**64 - 3, choice=2)
    uniforms = acceptance_uniforms(sampling.seed, sampling.choice, 40, 16)
    assert uniforms.tolist() == [reference.acceptance_uniform(sampling, 40, index) for index in range(16)]
    assert acceptance_uniforms(sampling.seed, sampling.choice, 40, 5).tolist() == uniforms[:5].tolist()
    assert acceptance_uniforms(sampling.seed, sampling.choice, 40, 0).size == 0


def test_acceptance_uniforms_are_uniform() -> None:
    uniforms = np.concatenate([acceptance_uniforms(seed, 0, seed % 7, 16) for seed in range(2000)])
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-3
    assert uniforms.min() > 0.0
    assert uniforms.max() < 1.0
