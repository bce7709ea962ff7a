"""The sampled text follows the target exactly, under every verifier, at every block length and with every drafter;
broken verifiers fail.

Numbers in names: docs/field-reports.md. Seeds are fixed, so a p-value is the same in every run.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from kernels.sampling import Sampling, Verifier
from tests.kernels.markov import (
    DRAFTERS,
    POSITIONS,
    CheckFailed,
    Drafter,
    any_token,
    check_distribution,
    check_same_text,
    copying_drafter,
    coupled_drafter,
    decode,
    exact_distribution,
    far_table,
    greedy_drafter,
    no_neighbours,
    sampling_drafter,
    seeded,
)
from tests.kernels.mutants import (
    ACCEPT_ALL,
    BLOCK_MISTAKES,
    COUPLED_MISTAKES,
    DRAFTERS_REPLACEMENT,
    LATE_NOISE,
    NO_BONUS,
    PENALTY_OFF_BY_ONE,
    REJECTION_MISTAKES,
    BlockMutant,
    Mutant,
    RejectionMutant,
)
from tests.kernels.native import verify_natively as verify
from tests.kernels.verify_cases import Verify

PURE = Sampling()
PENALISED = Sampling(
    temperature=0.9,
    repetition_penalty=1.4,
    presence_penalty=0.5,
    frequency_penalty=0.8,
    logit_bias=((2, 1.0), (5, -0.5)),
)
EVERYTHING = Sampling(
    temperature=1.3,
    top_k=6,
    top_p=0.97,
    min_p=0.03,
    repetition_penalty=1.3,
    presence_penalty=0.2,
    frequency_penalty=0.4,
    logit_bias=((4, 0.5),),
    bad_words=((7,), (2, 3)),
    min_tokens=2,
    end_tokens=(5,),
    allowed_tokens=(0, 1, 2, 3, 4, 5, 7),
    forced_prefix=(4,),
)
SAMPLINGS = {
    "pure": PURE,
    "top-p": Sampling(temperature=0.7, top_p=0.8),
    "top-k min-p": Sampling(temperature=1.4, top_k=6, min_p=0.1),
    "penalised": PENALISED,
    "penalised top-p": Sampling(temperature=1.2, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.7),
    "everything": EVERYTHING,
}
GREEDY_PENALISED = Sampling(temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.8)
WITH_DRAFT_PROBS = [Verifier.REJECTION, Verifier.BLOCK]
far_drafter: Drafter = partial(sampling_drafter, table=far_table)
MUTANTS: dict[Verifier, Callable[[str | None], Verify]] = {
    Verifier.REJECTION: RejectionMutant,
    Verifier.BLOCK: BlockMutant,
}


@pytest.mark.parametrize("grammar", [any_token, no_neighbours])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_enumerated_distribution_is_one(sampling: Sampling, grammar: Callable[[tuple[int, ...]], int]) -> None:
    assert sum(exact_distribution(sampling, grammar).values()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_plain_decoding_samples_the_target(sampling: Sampling) -> None:
    check_distribution(verify, sampling, copying_drafter, 0, first_seed=100)


@pytest.mark.parametrize("verifier", WITH_DRAFT_PROBS)
def test_plain_decoding_of_the_other_verifiers_samples_the_target(verifier: Verifier) -> None:
    check_distribution(verify, replace(EVERYTHING, verifier=verifier), copying_drafter, 0, first_seed=150)


@pytest.mark.parametrize("block_length", [1, 2, 3, 4])
def test_report_13_vllm_54282_coupled_noise_shared_by_drafter_and_target_leaves_the_target_unbiased(
    block_length: int,
) -> None:
    check_distribution(verify, PURE, coupled_drafter, block_length, first_seed=200 + block_length)


@pytest.mark.parametrize(
    ("drafter", "block_length"),
    [*((sampling_drafter, length) for length in (1, 2, 3, 4)), (far_drafter, 2), (far_drafter, 4)],
    ids=["near-1", "near-2", "near-3", "near-4", "far-2", "far-4"],
)
@pytest.mark.parametrize("verifier", WITH_DRAFT_PROBS)
def test_sampled_drafts_leave_the_target_unbiased(verifier: Verifier, block_length: int, drafter: Drafter) -> None:
    sampling = replace(PURE, verifier=verifier)
    check_distribution(verify, sampling, drafter, block_length, first_seed=250 + block_length)


@pytest.mark.parametrize("block_length", [1, 4])
@pytest.mark.parametrize("verifier", Verifier)
def test_report_19_transformers_32867_a_greedy_drafter_leaves_the_target_unbiased(
    verifier: Verifier, block_length: int
) -> None:
    sampling = replace(PURE, verifier=verifier)
    check_distribution(verify, sampling, greedy_drafter, block_length, first_seed=300 + block_length)


@pytest.mark.parametrize("block_length", [2, 4])
@pytest.mark.parametrize("verifier", Verifier)
def test_report_18_vllm_22987_penalties_see_the_drafts_before_them_in_the_block(
    verifier: Verifier, block_length: int
) -> None:
    drafter = coupled_drafter if verifier is Verifier.COUPLED else sampling_drafter
    sampling = replace(PENALISED, verifier=verifier)
    check_distribution(verify, sampling, drafter, block_length, first_seed=400 + block_length)


@pytest.mark.parametrize("verifier", Verifier)
@pytest.mark.parametrize("name", ["top-p", "top-k min-p", "penalised top-p", "everything"])
def test_masks_inside_a_block_leave_the_target_unbiased(name: str, verifier: Verifier) -> None:
    drafter = copying_drafter if verifier is Verifier.COUPLED else sampling_drafter
    check_distribution(verify, replace(SAMPLINGS[name], verifier=verifier), drafter, 3, first_seed=500)


@pytest.mark.parametrize("verifier", Verifier)
def test_a_grammar_inside_a_block_leaves_the_target_unbiased(verifier: Verifier) -> None:
    sampling = replace(EVERYTHING, verifier=verifier)
    check_distribution(verify, sampling, sampling_drafter, 4, first_seed=550, grammar=no_neighbours)


@pytest.mark.parametrize("sampling", [*SAMPLINGS.values(), GREEDY_PENALISED], ids=[*SAMPLINGS, "greedy penalised"])
def test_the_text_is_the_same_for_every_drafter_and_block_length(sampling: Sampling) -> None:
    check_same_text(verify, sampling, first_seed=600)


@pytest.mark.parametrize("verifier", WITH_DRAFT_PROBS)
def test_a_greedy_text_is_the_same_under_every_verifier(verifier: Verifier) -> None:
    check_same_text(verify, replace(GREEDY_PENALISED, verifier=verifier), first_seed=650, sequences=20)


@pytest.mark.parametrize("verifier", WITH_DRAFT_PROBS)
def test_a_sampled_text_of_the_other_verifiers_repeats_with_its_drafter_and_block_length(verifier: Verifier) -> None:
    samplings = seeded(replace(PENALISED, verifier=verifier), 660, 60)
    alone = decode(samplings, sampling_drafter, 3, verify, together=1)
    assert decode(samplings, sampling_drafter, 3, verify, together=60) == alone
    assert decode(samplings, sampling_drafter, 2, verify) != alone


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_drafters_of_these_tests_are_both_kept_and_rejected(name: str) -> None:
    kept, rejected = 0, 0
    samplings = seeded(PURE, 700, 50)
    for sampling, output in zip(samplings, decode(samplings, copying_drafter, 0, verify), strict=True):
        for index in range(POSITIONS):
            draft = DRAFTERS[name](output[:index], sampling, 1).tokens[0]
            kept += draft == output[index]
            rejected += draft != output[index]
    assert kept > 10
    assert rejected > 10


@pytest.mark.parametrize("sampling", [PURE, PENALISED], ids=["pure", "penalised"])
def test_the_mutants_without_their_mistake_pass_the_checks(sampling: Sampling) -> None:
    check_same_text(Mutant(None), sampling, first_seed=800, sequences=40)
    check_distribution(Mutant(None), sampling, coupled_drafter, 3, first_seed=801, sequences=1000)


@pytest.mark.parametrize("mistake", COUPLED_MISTAKES)
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


@pytest.mark.parametrize("verifier", WITH_DRAFT_PROBS)
@pytest.mark.parametrize("sampling", [PURE, PENALISED], ids=["pure", "penalised"])
def test_the_other_mutants_without_their_mistake_emit_what_the_verifiers_do(
    sampling: Sampling, verifier: Verifier
) -> None:
    samplings = seeded(replace(sampling, verifier=verifier), 900, 100)
    ours = decode(samplings, far_drafter, 4, verify)
    assert decode(samplings, far_drafter, 4, MUTANTS[verifier](None)) == ours


@pytest.mark.parametrize(
    ("verifier", "mistake"),
    [
        *((Verifier.REJECTION, mistake) for mistake in REJECTION_MISTAKES),
        *((Verifier.BLOCK, mistake) for mistake in BLOCK_MISTAKES),
    ],
)
def test_a_mutant_of_the_other_verifiers_fails_the_check_of_the_distribution(verifier: Verifier, mistake: str) -> None:
    sampling = replace(PENALISED if mistake == PENALTY_OFF_BY_ONE else PURE, verifier=verifier)
    drafter = sampling_drafter if mistake in (PENALTY_OFF_BY_ONE, ACCEPT_ALL, NO_BONUS) else far_drafter
    reason = "without another token" if mistake == NO_BONUS else "chi-square|without another token"
    with pytest.raises(CheckFailed, match=reason):
        check_distribution(MUTANTS[verifier](mistake), sampling, drafter, 4, first_seed=901)
