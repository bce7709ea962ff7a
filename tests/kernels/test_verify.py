"""Rejection and block verification against their dense twins, and what every verifier owes its callers.

Numbers in names: docs/field-reports.md.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.block_verification import block_verify
from kernels.coupled_verify import coupled_verify
from kernels.logprobs import token_logprob
from kernels.rejection import rejection_verify
from kernels.sampling import Block, Chosen, DraftProbs, Sampling, Verifier
from kernels.verify import verify
from tests.kernels.verify_cases import Verify, random_case, texts

DENSE: dict[Verifier, Callable[[torch.Tensor, tuple[Block, ...]], list[tuple[int, ...]]]] = {
    Verifier.COUPLED: reference.coupled_verify,
    Verifier.REJECTION: reference.rejection_verify,
    Verifier.BLOCK: reference.block_verify,
}
DIRECT: dict[Verifier, Verify] = {
    Verifier.COUPLED: coupled_verify,
    Verifier.REJECTION: rejection_verify,
    Verifier.BLOCK: block_verify,
}
OF_DRAFT_PROBS = [Verifier.REJECTION, Verifier.BLOCK]
every_verifier = pytest.mark.parametrize("verifier", Verifier)


@pytest.mark.parametrize("verifier", OF_DRAFT_PROBS)
@settings(max_examples=120, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), vocabulary=st.sampled_from([1, 2, 8, 127, 1025]))
def test_emits_exactly_what_the_dense_twin_emits(verifier: Verifier, seed: int, vocabulary: int) -> None:
    case = random_case(seed, vocabulary, verifier)
    chosen = DIRECT[verifier](case.logits, case.blocks)
    assert texts(chosen) == DENSE[verifier](case.logits, case.blocks)
    for one in chosen:
        assert (one.failure is None) == bool(one.tokens)


@every_verifier
@pytest.mark.parametrize("seed", range(30))
def test_report_15_vllm_16952_neither_logits_nor_draft_probs_nor_history_are_changed(
    seed: int, verifier: Verifier
) -> None:
    case = random_case(seed, 127, verifier)
    logits, blocks = case.logits.clone(), copy.deepcopy(case.blocks)
    verify(case.logits, case.blocks)
    assert torch.equal(case.logits, logits)
    for block, before in zip(case.blocks, blocks, strict=True):
        assert replace(block, masks=None, draft_probs=None) == replace(before, masks=None, draft_probs=None)
        for ours, theirs in zip(block.draft_probs or (), before.draft_probs or (), strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert np.array_equal(ours.token_ids, theirs.token_ids)
                assert np.array_equal(ours.probs, theirs.probs)
        for mine, theirs_mask in zip(block.masks or (), before.masks or (), strict=True):
            assert (mine is None) == (theirs_mask is None)
            if mine is not None and theirs_mask is not None:
                assert np.array_equal(mine, theirs_mask)


@every_verifier
@pytest.mark.parametrize("vocabulary", [8, 127, 1025, 5000])
@pytest.mark.parametrize("seed", range(8))
def test_report_16_vllm_6038_a_block_emits_the_same_alone_in_a_batch_and_at_any_row(
    seed: int, vocabulary: int, verifier: Verifier
) -> None:
    case = random_case(seed, vocabulary, verifier)
    together = verify(case.logits, case.blocks)
    assert verify(case.logits, case.blocks[::-1]) == together[::-1]
    for block, chosen in zip(case.blocks, together, strict=True):
        rows = case.logits[block.first_row : block.first_row + len(block.drafts) + 1].clone()
        assert verify(rows, [replace(block, first_row=0)]) == [chosen]


@every_verifier
@pytest.mark.parametrize("seed", range(60))
def test_report_46_sglang_11572_a_block_keeps_at_most_its_drafts_and_emits_one_more(
    seed: int, verifier: Verifier
) -> None:
    case = random_case(seed, 8, verifier)
    for block, chosen in zip(case.blocks, verify(case.logits, case.blocks), strict=True):
        kept = len(block.drafts) if chosen.tokens == block.drafts else max(len(chosen.tokens) - 1, 0)
        assert 0 <= kept <= len(block.drafts)
        assert chosen.tokens[:kept] == block.drafts[:kept]
        assert len(chosen.tokens) <= len(block.drafts) + 1
        assert kept == len(block.drafts) or not chosen.tokens or chosen.tokens[-1] != block.drafts[kept]


@every_verifier
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_report_21_vllm_18902_a_frequency_penalty_is_applied_by_every_verifier(
    temperature: float, verifier: Verifier
) -> None:
    logits = torch.zeros(4, 8)
    logits[:, 2] = 9.0
    penalised = Sampling(temperature=temperature, frequency_penalty=20.0, verifier=verifier, seed=3)
    free = replace(penalised, frequency_penalty=0.0)
    assert texts(verify(logits, [Block(0, (2, 2, 2), free, 0)])) == [(2, 2, 2, 2)]
    kept = texts(verify(logits, [Block(0, (2, 2, 2), penalised, 0)]))[0]
    assert kept[0] == 2
    assert len(kept) == 2
    assert kept[1] != 2
    seen = Block(0, (2, 2, 2), penalised, 1, output_counts={2: 1})
    assert texts(verify(logits, [seen]))[0][0] != 2


@pytest.mark.parametrize("seed", range(30))
def test_a_greedy_sequence_is_verified_alike_by_every_verifier(seed: int) -> None:
    case = random_case(seed, 127, Verifier.REJECTION)
    texts_by = []
    for verifier in Verifier:
        blocks = [
            replace(block, sampling=replace(block.sampling, temperature=0.0, verifier=verifier))
            for block in case.blocks
        ]
        texts_by += [texts(verify(case.logits, blocks)), texts(DIRECT[verifier](case.logits, blocks))]
    assert all(one == texts_by[0] for one in texts_by)


@pytest.mark.parametrize("verifier", OF_DRAFT_PROBS)
def test_the_same_seed_drafts_and_block_length_repeat_and_another_seed_differs(verifier: Verifier) -> None:
    logits = torch.randn(4, 1024, generator=torch.Generator().manual_seed(1))
    block = Block(0, (5, 6, 7), Sampling(verifier=verifier, seed=1), 10)
    other = replace(block, sampling=replace(block.sampling, seed=2))
    assert verify(logits, [block]) == verify(logits, [block])
    assert verify(logits, [block]) != verify(logits, [other])


@pytest.mark.parametrize("verifier", OF_DRAFT_PROBS)
def test_draft_probs_that_are_missing_are_one_hot(verifier: Verifier) -> None:
    logits = torch.randn(200, 8, generator=torch.Generator().manual_seed(2))
    drafts = (1, 2, 3)
    one_hot = tuple(DraftProbs(np.array([draft]), np.ones(1, dtype=np.float32)) for draft in drafts)
    for seed in range(50):
        block = Block(4 * seed, drafts, Sampling(verifier=verifier, seed=seed), seed)
        named = verify(logits, [replace(block, draft_probs=one_hot)])
        assert verify(logits, [block]) == named == verify(logits, [replace(block, draft_probs=(None,) * 3)])


@pytest.mark.parametrize("verifier", OF_DRAFT_PROBS)
def test_drafts_of_the_target_itself_are_all_kept(verifier: Verifier) -> None:
    logits = torch.randn(5, 64, generator=torch.Generator().manual_seed(3))
    for seed in range(40):
        drafts = tuple(int(row.argmax()) for row in logits[:4])
        probs = tuple(DraftProbs(np.arange(64), row.softmax(0).numpy()) for row in logits[:4])
        block = Block(0, drafts, Sampling(verifier=verifier, seed=seed), 0, draft_probs=probs)
        assert texts(verify(logits, [block]))[0][:4] == drafts


@pytest.mark.parametrize("verifier", OF_DRAFT_PROBS)
def test_a_draft_that_a_mask_forbids_is_never_kept_and_the_recovered_token_is_permitted(verifier: Verifier) -> None:
    mask = np.array([0b00001010], dtype=np.int32)
    for seed in range(60):
        sampling = Sampling(verifier=verifier, seed=seed)
        block = Block(0, (3, 4), sampling, 0, masks=(mask, mask, None))
        tokens = texts(verify(torch.zeros(3, 8), [block]))[0]
        assert len(tokens) <= 2
        assert set(tokens) <= {1, 3}


@pytest.mark.parametrize("verifier", OF_DRAFT_PROBS)
@pytest.mark.parametrize(
    "probs",
    [
        DraftProbs(np.array([0, 1]), np.array([0.5, 0.5], dtype=np.float32)),
        DraftProbs(np.array([2, 9]), np.array([0.0, 1.0], dtype=np.float32)),
    ],
)
def test_a_draft_that_its_own_distribution_excludes_is_refused(probs: DraftProbs, verifier: Verifier) -> None:
    block = Block(0, (2,), Sampling(verifier=verifier), 0, draft_probs=(probs,))
    with pytest.raises(ValueError, match=r"a draft has probability 0\.0 in its own draft_probs"):
        verify(torch.zeros(2, 10), [block])


@every_verifier
def test_draft_probs_for_another_number_of_drafts_are_refused(verifier: Verifier) -> None:
    block = Block(0, (2, 3), Sampling(verifier=verifier), 0, draft_probs=(None,))
    with pytest.raises(ValueError, match="a block has 2 drafts and 1 draft_probs"):
        verify(torch.zeros(3, 10), [block])


@every_verifier
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_token_ends_the_block_before_it(verifier: Verifier, temperature: float) -> None:
    logits = torch.full((3, 8), -100.0)
    logits[:, 5] = 100.0
    nothing = np.zeros(1, dtype=np.int32)
    sampling = Sampling(temperature=temperature, verifier=verifier)
    block = Block(0, (5, 5), sampling, 0, masks=(None, None, nothing))
    assert verify(logits, [block]) == [Chosen((5, 5))]
    assert verify(logits, [replace(block, masks=(None, nothing, None))]) == [Chosen((5,))]
    failed = verify(logits, [replace(block, masks=(nothing, None, None))])[0]
    assert failed.tokens == ()
    assert failed.failure is not None
    assert not failed.failure.fault
    logits[0] = math.nan
    faulty = verify(logits, [block])[0]
    assert faulty.failure is not None
    assert faulty.failure.fault


@every_verifier
def test_report_24_llama_27972_every_token_has_the_raw_targets_logprob_and_25_one_entry_each(
    verifier: Verifier,
) -> None:
    logits = torch.randn(40, 16, generator=torch.Generator().manual_seed(4)) * 2
    kept = 0
    for seed in range(8):
        sampling = Sampling(temperature=0.7, top_k=4, verifier=verifier, seed=seed)
        drafts = tuple(int(token) for token in logits[5 * seed : 5 * seed + 4].argmax(1))
        chosen = verify(logits, [Block(5 * seed, drafts, sampling, 0, top_logprobs=3)])[0]
        kept += len(chosen.tokens) - 1
        assert len(chosen.logprobs) == len(chosen.tokens)
        for index, (token, entry) in enumerate(zip(chosen.tokens, chosen.logprobs, strict=True)):
            row = logits[5 * seed + index]
            assert entry == token_logprob(row.numpy(), token, 3)
            assert entry.logprob == pytest.approx(float(row.log_softmax(0)[token]), abs=1e-5)
            assert [one for one, _ in entry.top] == row.topk(3).indices.tolist()
    assert kept > 8


@every_verifier
def test_logprobs_are_given_only_where_they_are_asked_for(verifier: Verifier) -> None:
    block = Block(0, (), Sampling(verifier=verifier), 0)
    logits = torch.zeros(1, 8)
    assert verify(logits, [block])[0].logprobs == ()
    own = verify(logits, [replace(block, top_logprobs=0)])[0].logprobs
    assert [entry.top for entry in own] == [()]


def test_each_block_is_verified_by_its_own_verifier() -> None:
    logits = torch.randn(9, 512, generator=torch.Generator().manual_seed(5))
    blocks = [Block(3 * row, (1, 2), Sampling(verifier=verifier, seed=9), 0) for row, verifier in enumerate(Verifier)]
    for block, chosen in zip(blocks, verify(logits, blocks), strict=True):
        assert DIRECT[block.sampling.verifier](logits, [block]) == [chosen]


@every_verifier
def test_a_row_without_numbers_has_no_logprob_even_for_a_forced_token(verifier: Verifier) -> None:
    logits = torch.full((1, 8), math.nan)
    block = Block(0, (), Sampling(verifier=verifier, forced_prefix=(3,)), 0)
    assert verify(logits, [block]) == [Chosen((3,))]
    failed = verify(logits, [replace(block, top_logprobs=0)])[0]
    assert failed.tokens == ()
    assert failed.failure is not None
    assert failed.failure.fault
