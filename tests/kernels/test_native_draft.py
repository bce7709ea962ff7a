"""The choice of drafts in C against the Python kernels that define it."""

import ctypes
import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from engine.weights import native_threads
from kernels.gumbel_race import race
from kernels.native_draft import CANDIDATES, DraftChoice, bound, draft_sampling, native_gumbel
from kernels.native_threads import NativeThreads
from kernels.philox import draft_stream, gumbel_noise
from kernels.processors import target_scores
from kernels.sampling import Sampling, Verifier

VOCABULARY = 3000
UNHURRIED = settings(deadline=None, derandomize=True)


@functools.cache
def kernels() -> NativeThreads:
    return native_threads(1)


WORDS = st.integers(0, 2**32 - 1)


@UNHURRIED
@given(
    seed=st.integers(0, 2**64 - 1),
    choice=WORDS,
    position=WORDS,
    stream=WORDS,
    token_ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40),
)
def test_noise_has_the_bits_of_the_python_kernel(
    seed: int, choice: int, position: int, stream: int, token_ids: list[int]
) -> None:
    expected = gumbel_noise(seed, choice, position, torch.tensor(token_ids), stream=stream)
    found = native_gumbel(kernels(), (seed, choice, position, stream), np.array(token_ids, dtype=np.int32))
    # The last bit is the logarithm's, of one library or another.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def native_choice(
    logits: NDArray[np.float32],
    sampling: Sampling,
    position: int,
    step: int,
    token_ids: NDArray[np.int32] | None = None,
) -> tuple[DraftChoice, NDArray[np.int32], NDArray[np.float32]]:
    tokens, probs = np.zeros(CANDIDATES, dtype=np.int32), np.zeros(CANDIDATES, dtype=np.float32)
    choice: DraftChoice = bound(kernels().library).choose_draft(
        draft_sampling(sampling, position),
        step,
        logits.ctypes.data,
        logits.size,
        None if token_ids is None else token_ids.ctypes.data,
        tokens.ctypes.data,
        probs.ctypes.data,
    )
    return choice, tokens[: choice.candidates], probs[: choice.candidates]


def random_logits(seed: int, size: int = VOCABULARY, spread: float = 3.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=spread, size=size).astype(np.float32)


def peaked_logits(seed: int) -> NDArray[np.float32]:
    """As language models have them: likely tokens are few, by Zipf's law."""
    ranks = np.random.default_rng(seed).permutation(VOCABULARY)
    logits: NDArray[np.float32] = (-2.0 * np.log(ranks + 1.0)).astype(np.float32)
    return logits


def some_tokens(seed: int, size: int) -> NDArray[np.int32]:
    return np.sort(np.random.default_rng(seed).choice(49152, size=size, replace=False)).astype(np.int32)


@pytest.mark.parametrize("size", [1, 5, 16, 17, 500, VOCABULARY])
def test_greedy_is_the_largest_logit_with_its_probability(size: int) -> None:
    for seed in range(20):
        logits = random_logits(seed, size)
        token_ids = some_tokens(seed, size)
        choice, _, _ = native_choice(logits, Sampling(temperature=0.0, seed=seed), 3, 1, token_ids)
        assert choice.token == token_ids[logits.argmax()]
        assert choice.confidence == pytest.approx(float(torch.softmax(torch.from_numpy(logits), 0).max()), rel=1e-4)


def test_the_lowest_of_equal_logits_is_the_greedy_one() -> None:
    logits = np.zeros(100, dtype=np.float32)
    logits[[7, 40, 93]] = 2.0
    assert native_choice(logits, Sampling(temperature=0.0), 0, 0)[0].token == 7


@pytest.mark.parametrize("verifier", [Verifier.COUPLED, Verifier.REJECTION, Verifier.BLOCK])
@pytest.mark.parametrize("temperature", [0.4, 0.8, 1.0])
def test_sampled_choices_are_those_of_the_python_kernel(verifier: Verifier, temperature: float) -> None:
    """With the target's noise under coupled verification, with the drafter's own stream otherwise; but for tokens
    less likely than e**-10 of the likeliest, which are not looked at."""
    unlikely = 0
    for seed in range(60):
        sampling = Sampling(temperature=temperature, seed=seed * 10**17, choice=seed % 3, verifier=verifier)
        logits, token_ids = peaked_logits(seed), some_tokens(seed, VOCABULARY)
        scores = ((logits - logits.max()) / np.float32(temperature)).astype(np.float32)
        for step in (0, 1, 6):
            found = native_choice(logits, sampling, 40 + seed, step, token_ids)[0].token
            place = (40 + seed, draft_stream(step)) if verifier is not Verifier.COUPLED else (40 + seed + step,)
            expected = race(scores, token_ids.astype(np.int64), sampling, *place)
            if scores[np.searchsorted(token_ids, expected)] < -10.0:
                unlikely += 1
            else:
                assert found == expected
    assert unlikely <= 4


@pytest.mark.parametrize(
    "limits",
    [
        {"top_k": 5},
        {"top_p": 0.7},
        {"top_p": 0.05},
        {"min_p": 0.1},
        {"top_k": 20, "top_p": 0.8},
        {"top_k": 40, "min_p": 0.05},
    ],
)
def test_own_draft_probs_are_the_targets_probs_under_the_same_settings(limits: dict[str, float]) -> None:
    for seed in range(30):
        sampling = Sampling(temperature=0.7, seed=seed, verifier=Verifier.REJECTION, **limits)  # type: ignore[arg-type]
        logits = random_logits(seed)
        target = target_scores(logits, sampling)
        assert target.token_ids is not None
        expected = np.exp(target.scores) / np.exp(target.scores).sum()
        choice, tokens, probs = native_choice(logits, sampling, 0, 0)
        assert tokens.tolist() == target.token_ids.tolist()
        np.testing.assert_allclose(probs, expected, rtol=1e-4)
        assert choice.token in tokens
        assert choice.confidence == pytest.approx(float(expected.max()), rel=1e-4)


def test_draws_with_own_noise_follow_draft_probs() -> None:
    logits = random_logits(4, 30, 1.0)
    draws = 6000
    counts = np.zeros(30)
    for seed in range(draws):
        sampling = Sampling(temperature=1.0, seed=seed * 7919, verifier=Verifier.REJECTION)
        choice, tokens, probs = native_choice(logits, sampling, 5, 2)
        counts[choice.token] += 1
    assert tokens.tolist() == list(range(30))
    assert chisquare(counts, probs.astype(np.float64) / probs.astype(np.float64).sum() * draws).pvalue > 1e-3


def test_the_streams_of_two_steps_of_a_block_and_of_the_target_differ() -> None:
    assert len({draft_stream(0), draft_stream(1), 0}) == 3
    logits = np.zeros(400, dtype=np.float32)
    own = Sampling(temperature=1.0, seed=8, verifier=Verifier.BLOCK)
    shared = Sampling(temperature=1.0, seed=8)
    chosen = [native_choice(logits, own, 5, step)[0].token for step in range(6)]
    chosen += [native_choice(logits, shared, 5, step)[0].token for step in range(6)]
    assert len(set(chosen)) > 10
    # Under coupled verification step 3 from position 5 and step 0 from position 8 are one and the same choice.
    assert native_choice(logits, shared, 5, 3)[0].token == native_choice(logits, shared, 8, 0)[0].token


def test_confidence_under_coupled_noise_becomes_the_greedy_one_as_the_temperature_falls() -> None:
    logits = random_logits(1, 200, 1.0)
    greedy = native_choice(logits, Sampling(temperature=0.0), 0, 0)[0].confidence
    close = native_choice(logits, Sampling(temperature=1e-3, seed=3), 0, 0)[0].confidence
    assert close == pytest.approx(greedy, rel=0.05)


@UNHURRIED
@given(
    seed=st.integers(0, 10**6), spread=st.sampled_from([0.0, 0.01, 0.3, 3.0, 30.0]), temperature=st.floats(0.05, 2.0)
)
def test_any_row_gives_a_token_of_its_own_with_a_confidence_from_0_to_1(
    seed: int, spread: float, temperature: float
) -> None:
    logits = random_logits(seed, 1200, spread)
    for verifier in (Verifier.COUPLED, Verifier.REJECTION):
        sampling = Sampling(temperature=temperature, seed=seed, top_p=0.9, verifier=verifier)
        choice, tokens, probs = native_choice(logits, sampling, 1, 1)
        assert 0 <= choice.token < 1200
        assert 0.0 < choice.confidence <= 1.0 + 1e-5
        if verifier is Verifier.REJECTION:
            assert choice.token in tokens
            assert (np.diff(tokens) > 0).all()
            assert float(probs.sum()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("damage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 16, 300, 304])
def test_one_logit_that_is_no_number_gives_no_confidence(damage: float, size: int) -> None:
    for verifier in (Verifier.COUPLED, Verifier.REJECTION):
        for temperature in (0.0, 1.0):
            sampling = Sampling(temperature=temperature, verifier=verifier)
            for place in {0, size // 2, size - 1}:
                logits = random_logits(place, size)
                assert native_choice(logits, sampling, 0, 0)[0].confidence > 0.0
                logits[place] = damage
                choice, _, _ = native_choice(logits, sampling, 0, 0)
                assert math.isnan(choice.confidence)
                assert choice.candidates == 0
            choice, _, _ = native_choice(np.full(size, damage, dtype=np.float32), sampling, 0, 0)
            assert math.isnan(choice.confidence)


def test_the_structures_are_as_large_as_in_c() -> None:
    """Their fields are compared by the calls above; the draft's own by every learned drafter's test."""
    assert ctypes.sizeof(DraftChoice) == 12
