"""Drafts as the engine's learned drafters choose them in C, under every verifier: the text follows the target.

Numbers in names: docs/field-reports.md.
"""

import ctypes
import functools

import numpy as np
import pytest

from engine.weights import native_threads
from kernels.native_draft import CANDIDATES, bound, draft_sampling
from kernels.sampling import DraftProbs, Sampling, Verifier
from tests.kernels.markov import (
    CheckFailed,
    Drafted,
    Prefix,
    check_distribution,
    check_same_text,
    far_table,
    logits_after,
)
from tests.kernels.native import verify_natively as verify

OUTPUTS = np.array([0, 1, 2, 4, 5, 7], dtype=np.int32)
"""The drafter's own vocabulary: two tokens of the target it never proposes."""
TABLE = far_table()


@functools.cache
def library() -> ctypes.CDLL:
    return bound(native_threads(1).library)


def engine_drafter(prefix: Prefix, sampling: Sampling, block_length: int, temperature: float = 1.0) -> Drafted:
    output = prefix
    settings = draft_sampling(sampling, len(prefix), temperature)
    named: list[DraftProbs] = []
    for index in range(block_length):
        logits = logits_after(TABLE, output)[OUTPUTS].numpy()
        tokens, probs = np.zeros(CANDIDATES, dtype=np.int32), np.zeros(CANDIDATES, dtype=np.float32)
        choice = library().choose_draft(
            settings, index, logits.ctypes.data, logits.size, OUTPUTS.ctypes.data, tokens.ctypes.data, probs.ctypes.data
        )
        if choice.candidates:
            named.append(DraftProbs(tokens[: choice.candidates].astype(np.int64), probs[: choice.candidates].copy()))
        output += (choice.token,)
    return Drafted(output[len(prefix) :], tuple(named) if named else None)


@pytest.mark.parametrize("block_length", [1, 2, 4])
@pytest.mark.parametrize("verifier", Verifier)
def test_report_13_vllm_54282_the_engines_own_drafts_leave_the_target_unbiased(
    verifier: Verifier, block_length: int
) -> None:
    sampling = Sampling(temperature=0.9, verifier=verifier)
    check_distribution(verify, sampling, engine_drafter, block_length, first_seed=1000 + block_length)


@pytest.mark.parametrize("verifier", Verifier)
def test_report_18_vllm_22987_the_engines_own_drafts_under_penalties_and_truncation(verifier: Verifier) -> None:
    sampling = Sampling(temperature=1.1, top_p=0.9, top_k=5, repetition_penalty=1.3, verifier=verifier)
    check_distribution(verify, sampling, engine_drafter, 3, first_seed=1010)


def test_coupled_texts_are_those_of_plain_decoding_with_the_engines_own_drafts() -> None:
    drafters = {"engine": engine_drafter}
    check_same_text(verify, Sampling(temperature=0.8), first_seed=1020, sequences=60, drafters=drafters)


@pytest.mark.parametrize("temperature", [0.25, 0.6, 1.8])
@pytest.mark.parametrize("verifier", Verifier)
def test_a_tempered_drafter_leaves_the_target_unbiased(verifier: Verifier, temperature: float) -> None:
    """Its draft_probs are what it drew from, and not those of the request's temperature."""
    sampling = Sampling(temperature=0.9, verifier=verifier)
    tempered = functools.partial(engine_drafter, temperature=temperature)
    check_distribution(verify, sampling, tempered, 3, first_seed=1030)


def test_untempered_draft_probs_of_a_tempered_drafter_are_found_out() -> None:
    """The check above can fail: with the probabilities of the request's own temperature the text is another's."""

    def mistaken(prefix: Prefix, sampling: Sampling, block_length: int) -> Drafted:
        tempered = engine_drafter(prefix, sampling, block_length, 0.25)
        named = []
        for index in range(block_length):
            logits = logits_after(TABLE, prefix + tempered.tokens[:index])[OUTPUTS].double()
            probs = (logits / sampling.temperature).softmax(0).float().numpy()
            named.append(DraftProbs(OUTPUTS.astype(np.int64), probs))
        return Drafted(tempered.tokens, tuple(named))

    with pytest.raises(CheckFailed, match="chi-square"):
        check_distribution(verify, Sampling(temperature=0.9, verifier=Verifier.REJECTION), mistaken, 3, first_seed=1040)


@pytest.mark.parametrize("temperature", [0.0001, 0.3, 3.0])
def test_coupled_texts_are_those_of_plain_decoding_whatever_the_drafts_temperature(temperature: float) -> None:
    drafters = {"tempered": functools.partial(engine_drafter, temperature=temperature)}
    check_same_text(verify, Sampling(temperature=0.8), first_seed=1050, sequences=60, drafters=drafters)


@pytest.mark.parametrize("verifier", [Verifier.REJECTION, Verifier.BLOCK])
def test_a_draft_temperature_as_good_as_greedy_drafts_without_noise(verifier: Verifier) -> None:
    """The most likely token, which is one-hot, and no draft_probs that would name nothing."""
    sampling = Sampling(temperature=0.5, verifier=verifier)
    cold = functools.partial(engine_drafter, temperature=1e-6)
    drafted = cold((), sampling, 3)
    assert drafted == engine_drafter((), Sampling(temperature=0.0), 3)
    assert drafted.draft_probs is None
    check_distribution(verify, sampling, cold, 2, first_seed=1060)
