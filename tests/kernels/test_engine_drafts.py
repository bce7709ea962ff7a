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
from tests.kernels.markov import Drafted, Prefix, check_distribution, check_same_text, far_table, logits_after
from tests.kernels.native import verify_natively as verify

OUTPUTS = np.array([0, 1, 2, 4, 5, 7], dtype=np.int32)
"""The drafter's own vocabulary: two tokens of the target it never proposes."""
TABLE = far_table()


@functools.cache
def library() -> ctypes.CDLL:
    return bound(native_threads(1).library)


def engine_drafter(prefix: Prefix, sampling: Sampling, block_length: int) -> Drafted:
    output = prefix
    settings = draft_sampling(sampling, len(prefix))
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
