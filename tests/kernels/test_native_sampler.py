"""The C of sampling against numpy's: the same tokens kept, the same scores, the same choice, bit for bit."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from kernels.logprobs import token_logprob
from kernels.philox import Stream, draft_stream
from kernels.processors import Row, RowError
from kernels.sampler import NUMPY
from kernels.sampling import Sampling, Verifier
from kernels.verify import verify
from tests.kernels.native import native_sampler
from tests.kernels.verify_cases import random_case

VOCABULARY = 49_152
SIZES = [1, 2, 8, 15, 16, 17, 63, 64, 65, 127, 1024, 1025, 5000]
ROW = np.random.default_rng(1).standard_normal(VOCABULARY).astype(np.float32)


def random_row(source: random.Random, vocabulary: int) -> Row:
    """Peaked, flat, all equal, full of ties or half masked."""
    generator = np.random.default_rng(source.getrandbits(60))
    row: Row = generator.standard_normal(vocabulary).astype(np.float32)
    row *= np.float32(source.choice([0.0, 0.3, 1.0, 3.0, 8.0]))
    row += np.float32(source.choice([0.0, -30.0, 12.0]))
    if source.random() < 0.3:
        row = np.round(row)
    if source.random() < 0.2:
        row[generator.random(vocabulary) < 0.5] = -np.inf
        row[vocabulary // 2] = 0.0
    return row


def random_sampling(source: random.Random, vocabulary: int) -> Sampling:
    return Sampling(
        temperature=source.choice([0.05, 0.5, 0.8, 1.0, 2.0]),
        top_k=source.choice([0, 0, 1, 5, 50, vocabulary - 1, vocabulary]),
        top_p=source.choice([1.0, 1.0, 0.999, 0.95, 0.5, 0.1, 0.0]),
        min_p=source.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
        seed=source.getrandbits(64),
        choice=source.randrange(3),
    )


@pytest.mark.parametrize("seed", range(30))
def test_native_and_numpy_keep_and_choose_the_same(seed: int) -> None:
    source = random.Random(seed)
    native = native_sampler()
    for vocabulary in [*source.choices(SIZES, k=15), VOCABULARY]:
        row, sampling = random_row(source, vocabulary), random_sampling(source, vocabulary)
        before = row.copy()
        position = source.randrange(2000)
        stream = source.choice([Stream.COUPLED, Stream.RECOVERED, draft_stream(3)])
        ours, theirs = native.scores(row, sampling), NUMPY.scores(row, sampling)
        assert (ours.token_ids is None) == (theirs.token_ids is None)
        if ours.token_ids is not None and theirs.token_ids is not None:
            assert np.array_equal(ours.token_ids, theirs.token_ids)
        assert np.array_equal(ours.scores, theirs.scores)
        races = [one.race(theirs.scores, theirs.token_ids, sampling, position, stream) for one in (native, NUMPY)]
        assert races[0] == races[1]
        assert native.token(row, sampling, position) == NUMPY.token(row, sampling, position)
        assert math.isclose(native.mass(theirs.scores), NUMPY.mass(theirs.scores), rel_tol=1e-12)
        uniforms = native.uniforms(sampling, position, 7)
        assert np.array_equal(uniforms, NUMPY.uniforms(sampling, position, 7))
        assert np.array_equal(row, before)


@pytest.mark.parametrize("verifier", Verifier)
@pytest.mark.parametrize("seed", range(40))
def test_native_and_numpy_verify_alike(seed: int, verifier: Verifier) -> None:
    case = random_case(seed, [8, 127, 1025][seed % 3], verifier)
    assert verify(case.logits, case.blocks, native_sampler()) == verify(case.logits, case.blocks)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.9), Sampling(top_k=3)])
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_a_row_without_a_finite_maximum_is_a_fault(sampling: Sampling, value: float) -> None:
    row = np.full(100, value, dtype=np.float32)
    for sampler in (native_sampler(), NUMPY):
        with pytest.raises(RowError, match="have the maximum"):
            sampler.token(row, sampling, 0)
        with pytest.raises(RowError, match="have the maximum"):
            sampler.scores(row, sampling)


@pytest.mark.parametrize("index", [0, 50, 97, 99])
def test_one_nan_among_numbers_is_a_fault(index: int) -> None:
    row = np.zeros(100, dtype=np.float32)
    row[index] = np.nan
    with pytest.raises(RowError, match="have the maximum nan"):
        native_sampler().token(row, Sampling(), 0)


def test_every_token_of_a_flat_row_can_win() -> None:
    row = np.zeros(70, dtype=np.float32)
    native = native_sampler()
    assert {native.token(row, Sampling(seed=seed), 0) for seed in range(2000)} == set(range(70))


@pytest.mark.parametrize("top_p", [0.2, 0.9, 1.0])
def test_a_view_with_steps_is_read_as_what_it_shows(top_p: float) -> None:
    view = ROW[::3]
    sampling = Sampling(top_p=top_p, seed=4)
    assert native_sampler().token(view, sampling, 9) == native_sampler().token(view.copy(), sampling, 9)


def test_a_seed_is_its_64_bits() -> None:
    sampling = Sampling(seed=-1)
    unsigned = replace(sampling, seed=2**64 - 1)
    assert native_sampler().token(ROW, sampling, 0) == native_sampler().token(ROW, unsigned, 0)


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_logprobs_are_numpys(top: int) -> None:
    for row in (ROW, ROW * 4, np.round(ROW)):
        assert token_logprob(row, 77, top, native_sampler()) == token_logprob(row, 77, top)
