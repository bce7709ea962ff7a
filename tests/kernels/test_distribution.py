"""The sampled text follows the target exactly, at every block length and with every drafter; broken verifiers fail.

Numbers in names: field reports in the research notes. Seeds are fixed, so a p-value is the same in every run.
"""

import pytest

from kernels.coupled_verify import coupled_verify
from kernels.sampling import Sampling
from tests.kernels.markov import (
    DRAFTERS,
    POSITIONS,
    CheckFailed,
    check_distribution,
    check_same_text,
    copying_drafter,
    coupled_drafter,
    decode,
    exact_distribution,
    greedy_drafter,
    seeded,
)
from tests.kernels.mutants import (
    ACCEPT_ALL,
    DRAFTERS_REPLACEMENT,
    LATE_NOISE,
    NO_BONUS,
    PENALTY_OFF_BY_ONE,
    Mutant,
)

PURE = Sampling()
PENALISED = Sampling(
    temperature=0.9,
    repetition_penalty=1.4,
    presence_penalty=0.5,
    frequency_penalty=0.8,
    logit_bias=((2, 1.0), (5, -0.5)),
)
SAMPLINGS = {
    "pure": PURE,
    "top-p": Sampling(temperature=0.7, top_p=0.8),
    "top-k min-p": Sampling(temperature=1.4, top_k=6, min_p=0.1),
    "penalised": PENALISED,
    "penalised top-p": Sampling(temperature=1.2, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.7),
}
GREEDY_PENALISED = Sampling(temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.8)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_enumerated_distribution_is_one(sampling: Sampling) -> None:
    assert sum(exact_distribution(sampling).values()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_plain_decoding_samples_the_target(sampling: Sampling) -> None:
    check_distribution(coupled_verify, sampling, copying_drafter, 0, first_seed=100)


@pytest.mark.parametrize("block_length", [1, 2, 3, 4])
def test_13_vllm_54282_noise_shared_by_drafter_and_target_leaves_the_target_unbiased(block_length: int) -> None:
    check_distribution(coupled_verify, PURE, coupled_drafter, block_length, first_seed=200 + block_length)


@pytest.mark.parametrize("block_length", [1, 4])
def test_19_transformers_32867_a_greedy_drafter_leaves_the_target_unbiased(block_length: int) -> None:
    check_distribution(coupled_verify, PURE, greedy_drafter, block_length, first_seed=300 + block_length)


@pytest.mark.parametrize("block_length", [2, 4])
def test_18_vllm_22987_penalties_see_the_drafts_before_them_in_the_block(block_length: int) -> None:
    check_distribution(coupled_verify, PENALISED, coupled_drafter, block_length, first_seed=400 + block_length)


@pytest.mark.parametrize("name", ["top-p", "top-k min-p", "penalised top-p"])
def test_masks_inside_a_block_leave_the_target_unbiased(name: str) -> None:
    check_distribution(coupled_verify, SAMPLINGS[name], copying_drafter, 3, first_seed=500)


@pytest.mark.parametrize("sampling", [*SAMPLINGS.values(), GREEDY_PENALISED], ids=[*SAMPLINGS, "greedy penalised"])
def test_the_text_is_the_same_for_every_drafter_and_block_length(sampling: Sampling) -> None:
    check_same_text(coupled_verify, sampling, first_seed=600)


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_drafters_of_these_tests_are_both_kept_and_rejected(name: str) -> None:
    kept, rejected = 0, 0
    samplings = seeded(PURE, 700, 50)
    for sampling, output in zip(samplings, decode(samplings, copying_drafter, 0, coupled_verify), strict=True):
        for index in range(POSITIONS):
            draft = DRAFTERS[name](output[:index], sampling, 1)[0]
            kept += draft == output[index]
            rejected += draft != output[index]
    assert kept > 10
    assert rejected > 10


@pytest.mark.parametrize("sampling", [PURE, PENALISED], ids=["pure", "penalised"])
def test_the_mutants_without_their_mistake_pass_the_checks(sampling: Sampling) -> None:
    check_same_text(Mutant(None), sampling, first_seed=800, sequences=40)
    check_distribution(Mutant(None), sampling, coupled_drafter, 3, first_seed=801)


@pytest.mark.parametrize("mistake", [LATE_NOISE, ACCEPT_ALL, DRAFTERS_REPLACEMENT, PENALTY_OFF_BY_ONE, NO_BONUS])
def test_a_mutant_fails_the_check_of_the_text(mistake: str) -> None:
    with pytest.raises(CheckFailed):
        check_same_text(Mutant(mistake), PENALISED, first_seed=802, sequences=40)


@pytest.mark.parametrize("drafter", ["coupled", "greedy"])
@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        (LATE_NOISE, "chi-square"),
        (ACCEPT_ALL, "chi-square"),
        (PENALTY_OFF_BY_ONE, "chi-square"),
        (DRAFTERS_REPLACEMENT, "without another token"),
        (NO_BONUS, "without another token"),
    ],
)
def test_a_mutant_fails_the_check_of_the_distribution(mistake: str, reason: str, drafter: str) -> None:
    with pytest.raises(CheckFailed, match=reason):
        check_distribution(Mutant(mistake), PENALISED, DRAFTERS[drafter], 4, first_seed=803)
