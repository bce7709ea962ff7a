"""How many drafts rejection and block verification keep, and that noise which must be independent is.

Numbers in names: docs/field-reports.md. Seeds are fixed, so a p-value is the same in every run.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.philox import Stream, draft_stream
from kernels.sampling import Block, DraftProbs, Sampling, Verifier
from tests.kernels.context_free import ContextFree
from tests.kernels.markov import SMALLEST_P_VALUE
from tests.kernels.native import verify_natively as verify

WITH_DRAFT_PROBS = [Verifier.REJECTION, Verifier.BLOCK]
PAPER = ContextFree((1 / 3, 2 / 3), (2 / 3, 1 / 3))
"""The example of Sun 2024, section 3: of two drafts 10/9 are kept token by token, 11/9 as a block."""
FOUR = ContextFree((0.1, 0.1, 0.4, 0.4), (0.35, 0.35, 0.29, 0.01))
SKEWED = ContextFree((0.5, 0.5), (0.9, 0.1))
CASES = {"paper": PAPER, "four tokens": FOUR, "skewed": SKEWED}


def mean_kept(case: ContextFree, verifier: Verifier, block_length: int, sequences: int) -> tuple[float, float]:
    """Accepted drafts of one block over many seeds: their mean and its standard error."""
    rows = case.rows(block_length)
    kept = []
    for seed in range(sequences):
        block = case.block(Sampling(verifier=verifier, seed=seed), 0, block_length)
        kept.append(len(verify(rows, [block])[0].tokens) - 1)
    return float(np.mean(kept)), float(np.std(kept)) / math.sqrt(sequences)


def test_the_papers_example_keeps_10_and_11_ninths() -> None:
    assert PAPER.kept_token_wise(2) == pytest.approx(10 / 9)
    assert PAPER.kept_by_blocks(2) == pytest.approx(11 / 9)


@pytest.mark.parametrize("block_length", [1, 3])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_token_wise_rejection_keeps_a_draft_with_probability_1_minus_tv(case: ContextFree, block_length: int) -> None:
    mean, error = mean_kept(case, Verifier.REJECTION, block_length, 1000)
    assert abs(mean - case.kept_token_wise(block_length)) < 4 * error


@pytest.mark.parametrize("block_length", [1, 3])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_block_verification_keeps_as_many_as_its_shares_say(case: ContextFree, block_length: int) -> None:
    mean, error = mean_kept(case, Verifier.BLOCK, block_length, 1000)
    assert abs(mean - case.kept_by_blocks(block_length)) < 4 * error


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_block_verification_keeps_at_least_as_many_as_token_wise_rejection(case: ContextFree) -> None:
    assert case.kept_by_blocks(1) == pytest.approx(case.kept_token_wise(1))
    for block_length in (2, 3, 4):
        assert case.kept_by_blocks(block_length) > case.kept_token_wise(block_length)
    by_token, error_by_token = mean_kept(case, Verifier.REJECTION, 4, 1000)
    by_block, error_by_block = mean_kept(case, Verifier.BLOCK, 4, 1000)
    assert by_block - by_token > -4 * math.hypot(error_by_token, error_by_block)


def test_report_46_sglang_11572_expected_acceptance_is_never_above_1() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        size = int(generator.integers(2, 4))
        target, draft = (tuple(generator.dirichlet(np.full(size, 0.7)).tolist()) for _ in range(2))
        case = ContextFree(target, draft)
        for block_length in (1, 2, 3):
            token_wise, by_blocks = case.kept_token_wise(block_length), case.kept_by_blocks(block_length)
            assert token_wise <= by_blocks + 1e-9 <= block_length + 2e-9


def test_a_one_hot_drafter_is_kept_with_the_targets_probability_of_its_token() -> None:
    rows = torch.tensor([0.7, 0.2, 0.1]).log().repeat(2, 1)
    for verifier in WITH_DRAFT_PROBS:
        kept = 0
        for seed in range(2000):
            block = Block(0, (1,), Sampling(verifier=verifier, seed=seed), 3)
            kept += len(verify(rows, [block])[0].tokens) - 1
        assert abs(kept / 2000 - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 2000)


@pytest.mark.parametrize("verifier", WITH_DRAFT_PROBS)
@pytest.mark.parametrize("block_length", [1, 2, 3, 4])
@pytest.mark.parametrize("case", [FOUR, PAPER], ids=["four tokens", "paper"])
def test_report_13_vllm_54282_with_noise_of_its_own_a_drafter_leaves_the_target_unbiased(
    case: ContextFree, block_length: int, verifier: Verifier
) -> None:
    length = 4 if len(case.target_probs) == 2 else 2
    p_value = case.p_value(verify, lambda seed: Sampling(verifier=verifier, seed=seed), block_length, length)
    assert p_value > SMALLEST_P_VALUE


@pytest.mark.parametrize("verifier", WITH_DRAFT_PROBS)
@pytest.mark.parametrize("block_length", [1, 4])
def test_report_13_vllm_54282_a_drafter_that_shares_the_targets_noise_is_found_out(
    block_length: int, verifier: Verifier
) -> None:
    def shared(position: int, index: int) -> tuple[int, int]:
        return position + index, Stream.RECOVERED

    p_value = FOUR.p_value(verify, lambda seed: Sampling(verifier=verifier, seed=seed), block_length, 2, shared)
    assert p_value < SMALLEST_P_VALUE


@pytest.mark.parametrize("case", [PAPER, SKEWED], ids=["paper", "skewed"])
def test_block_verification_finds_out_a_drafter_that_draws_a_positions_noise_again(case: ContextFree) -> None:
    def again(position: int, index: int) -> tuple[int, int]:
        return position + index, draft_stream(0)

    def of_block(seed: int) -> Sampling:
        return Sampling(verifier=Verifier.BLOCK, seed=seed)

    assert case.p_value(verify, of_block, 4, 4, again) < SMALLEST_P_VALUE
    # Token by token nothing behind the first rejection was looked at, and it may be drawn again.
    token_wise = case.p_value(verify, lambda seed: replace(of_block(seed), verifier=Verifier.REJECTION), 4, 4, again)
    assert token_wise > SMALLEST_P_VALUE


@pytest.mark.parametrize("verifier", WITH_DRAFT_PROBS)
def test_report_19_transformers_32867_a_greedy_draft_that_claims_to_be_sampled_is_found_out(verifier: Verifier) -> None:
    def biased(claimed: tuple[DraftProbs | None, ...]) -> float:
        first = [0, 0, 0, 0]
        for seed in range(2000):
            block = Block(0, (0,), Sampling(verifier=verifier, seed=seed), 0, draft_probs=claimed)
            first[verify(FOUR.rows(1), [block])[0].tokens[0]] += 1
        expected = 2000 * np.array(FOUR.target_probs)
        return float(((np.array(first) - expected) ** 2 / expected).sum())

    sampled = DraftProbs(np.arange(4), np.array(FOUR.draft_probs, dtype=np.float32))
    assert biased((None,)) < 21.1  # chi-square of three degrees of freedom: p-value 1e-4
    assert biased((sampled,)) > 100.0
