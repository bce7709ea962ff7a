"""The lazy verifier against its dense twin, and what it owes its callers. Numbers: reports in the research notes."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.coupled_verify import coupled_verify, processed_log_probs
from kernels.sampling import Block, Sampling
from tests.kernels.verify_cases import random_case

GREEDY = Sampling(temperature=0.0)
VOCABULARY = 49_152


@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), vocabulary=st.sampled_from([1, 2, 8, 127, 1024, 1025]))
def test_emits_exactly_what_the_dense_twin_emits(seed: int, vocabulary: int) -> None:
    case = random_case(seed, vocabulary)
    assert coupled_verify(case.logits, case.blocks) == reference.coupled_verify(case.logits, case.blocks)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), vocabulary=st.sampled_from([1, 8, 127, 1025]))
def test_target_probs_are_those_of_the_dense_twin(seed: int, vocabulary: int) -> None:
    case = random_case(seed, vocabulary)
    for block in case.blocks:
        arguments = (case.logits[block.first_row], block.sampling, block.prompt_tokens, block.output_counts)
        ours, dense = processed_log_probs(*arguments), reference.processed_log_probs(*arguments)
        assert torch.equal(ours.isinf(), dense.isinf())
        torch.testing.assert_close(ours, dense, atol=1e-5, rtol=1e-6)


FULL_SIZE = {
    "greedy": GREEDY,
    "temperature": Sampling(temperature=1.0),
    "top-p": Sampling(temperature=0.8, top_p=0.95),
    "top-k": Sampling(temperature=0.8, top_k=50, top_p=0.9),
    "min-p": Sampling(temperature=1.2, min_p=0.05),
    "penalised": Sampling(
        temperature=0.8,
        top_p=0.95,
        repetition_penalty=1.2,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias=((4, 2.0),),
    ),
    "penalised greedy": replace(GREEDY, repetition_penalty=1.3),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("sampling", FULL_SIZE.values(), ids=FULL_SIZE)
def test_emits_what_the_dense_twin_emits_at_a_real_vocabulary(
    sampling: Sampling, scale: float, dtype: torch.dtype
) -> None:
    logits = (torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(3)) * scale).to(dtype)
    history = {token: 1 + token % 3 for token in range(0, VOCABULARY, 401)}
    blocks = [
        Block(row, (), replace(sampling, seed=row), 5 * row, frozenset(range(0, VOCABULARY, 97)), history)
        for row in range(4)
    ]
    assert coupled_verify(logits, blocks) == reference.coupled_verify(logits, blocks)


@pytest.mark.parametrize("seed", range(40))
def test_15_vllm_16952_neither_logits_nor_history_are_changed(seed: int) -> None:
    case = random_case(seed, 127)
    logits, blocks = case.logits.clone(), copy.deepcopy(case.blocks)
    coupled_verify(case.logits, case.blocks)
    for block in case.blocks:
        processed_log_probs(case.logits[block.first_row], block.sampling, block.prompt_tokens, block.output_counts)
    assert torch.equal(case.logits, logits)
    assert case.blocks == blocks


@pytest.mark.parametrize("vocabulary", [8, 127, 1025, 5000])
@pytest.mark.parametrize("seed", range(20))
def test_16_vllm_6038_a_block_emits_the_same_alone_in_a_batch_and_at_any_row(seed: int, vocabulary: int) -> None:
    case = random_case(seed, vocabulary)
    together = coupled_verify(case.logits, case.blocks)
    backwards = coupled_verify(case.logits, case.blocks[::-1])
    assert backwards == together[::-1]
    for block, tokens in zip(case.blocks, together, strict=True):
        rows = case.logits[block.first_row : block.first_row + len(block.drafts) + 1].clone()
        assert coupled_verify(rows, [replace(block, first_row=0)]) == [tokens]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_21_vllm_18902_a_frequency_penalty_changes_the_text_and_equally_with_drafts(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(12, 8, generator=generator)
    table[:, 2] += 2.5  # a token that repeats unless it is penalised

    def text(penalty: float, block_length: int) -> list[int]:
        sampling = Sampling(temperature=temperature, frequency_penalty=penalty, seed=11)
        output: list[int] = []
        while len(output) < 8:
            counts = {token: output.count(token) for token in output}
            drafts = (2,) * block_length
            rows = table[len(output) : len(output) + block_length + 1]
            output += coupled_verify(rows, [Block(0, drafts, sampling, len(output), output_counts=counts)])[0]
        return output[:8]

    assert text(2.0, 0) != text(0.0, 0)
    for block_length in (1, 2, 3, 4):
        assert text(2.0, block_length) == text(2.0, 0)
        assert text(0.0, block_length) == text(0.0, 0)


def test_22_vllm_42744_min_p_and_logit_bias_are_applied_at_every_row_of_a_block() -> None:
    logits = torch.zeros(4, 8)
    logits[:, 5] = 1.0
    forced = Sampling(temperature=5.0, min_p=1.0, logit_bias=((5, -100.0), (6, 3.0)))
    assert coupled_verify(logits, [Block(0, (6, 6, 6), forced, 0)]) == [[6, 6, 6, 6]]


@pytest.mark.parametrize("seed", range(60))
def test_46_sglang_11572_a_block_keeps_at_most_its_drafts_and_emits_one_more(seed: int) -> None:
    case = random_case(seed, 8)
    for block, tokens in zip(case.blocks, coupled_verify(case.logits, case.blocks), strict=True):
        accepted = len(tokens) - 1
        assert 0 <= accepted <= len(block.drafts)
        assert tuple(tokens[:accepted]) == block.drafts[:accepted]
        assert accepted == len(block.drafts) or tokens[-1] != block.drafts[accepted]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([0.0, 2.0, 2.0, 1.0], 1),
        ([-3.0, -1.0, -2.0, -1.0], 1),
        ([-1.0, -0.0, 0.0, -5.0], 1),
        ([-math.inf, -math.inf, -7.0, -8.0], 2),
        ([1.0, math.inf, math.inf, 0.0], 1),
    ],
)
def test_greedy_takes_the_lowest_of_equal_logits(row: list[float], token: int, dtype: torch.dtype) -> None:
    assert coupled_verify(torch.tensor([row], dtype=dtype), [Block(0, (), GREEDY, 0)]) == [[token]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_greedy_agrees_with_torch_on_random_rows(dtype: torch.dtype) -> None:
    logits = (torch.randn(64, 1025, generator=torch.Generator().manual_seed(5)) * 3).to(dtype)
    logits[::3] -= 20
    blocks = [Block(row, (), GREEDY, 0) for row in range(64)]
    assert [tokens[0] for tokens in coupled_verify(logits, blocks)] == logits.float().argmax(1).tolist()


def test_greedy_keeps_drafts_to_the_first_difference_and_adds_the_bonus_after_all() -> None:
    logits = torch.eye(8)[[3, 1, 4, 1, 5]]
    assert coupled_verify(logits, [Block(0, (3, 1, 4, 1), GREEDY, 0)]) == [[3, 1, 4, 1, 5]]
    assert coupled_verify(logits, [Block(0, (3, 1, 0, 1), GREEDY, 0)]) == [[3, 1, 4]]
    assert coupled_verify(logits, [Block(0, (0, 1, 4, 1), GREEDY, 0)]) == [[3]]
    assert coupled_verify(logits, [Block(0, (3, 1), GREEDY, 0), Block(3, (), GREEDY, 9)]) == [[3, 1, 4], [1]]


def test_a_temperature_below_the_greedy_bound_is_greedy() -> None:
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(2))
    tokens = coupled_verify(logits, [Block(0, (), Sampling(temperature=1e-9), 0)])
    assert tokens == [[int(logits.argmax())]]


def test_rows_after_the_first_difference_are_not_looked_at() -> None:
    logits = torch.eye(8)[[3, 1, 4]]
    logits[2] = math.nan
    assert coupled_verify(logits, [Block(0, (0, 1), Sampling(temperature=0.01), 0)]) == [[3]]


def test_choices_of_one_request_differ() -> None:
    logits = torch.zeros(1, 1024)
    tokens = {coupled_verify(logits, [Block(0, (), Sampling(seed=4, choice=index), 0)])[0][0] for index in range(4)}
    assert len(tokens) == 4


def test_no_blocks_emit_nothing() -> None:
    assert coupled_verify(torch.zeros(0, 8), []) == []


def test_logits_may_be_a_view_and_may_require_gradients() -> None:
    wide = torch.randn(2, 40, generator=torch.Generator().manual_seed(8), requires_grad=True)
    blocks = [Block(0, (), Sampling(seed=1), 0), Block(1, (), GREEDY, 0)]
    for view in (wide[:, :32], wide[:, ::2]):
        assert coupled_verify(view, blocks) == coupled_verify(view.detach().clone(), blocks)


@pytest.mark.parametrize("sampling", [GREEDY, replace(GREEDY, logit_bias=((0, 1.0),)), Sampling()])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logits_that_are_not_numbers_are_refused(dtype: torch.dtype, sampling: Sampling) -> None:
    logits = torch.full((1, 8), math.nan, dtype=dtype)
    with pytest.raises(ValueError, match=r"logits (hold NaN|have the maximum nan)"):
        coupled_verify(logits, [Block(0, (), sampling, 0)])


def test_a_sampled_row_without_a_finite_logit_is_refused() -> None:
    with pytest.raises(ValueError, match="logits have the maximum -inf"):
        coupled_verify(torch.full((1, 8), -math.inf), [Block(0, (), Sampling(), 0)])


@pytest.mark.parametrize("first_row", [-1, 1, 5])
def test_a_block_beyond_the_logits_is_refused(first_row: int) -> None:
    with pytest.raises(ValueError, match=r"a block owns rows .* but logits have 2 rows"):
        coupled_verify(torch.zeros(2, 8), [Block(first_row, (1,), GREEDY, 0)])


@pytest.mark.parametrize("logits", [torch.zeros(8), torch.zeros(1, 8, dtype=torch.float64)])
def test_logits_of_another_shape_or_type_are_refused(logits: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="logits must be bfloat16 or float32"):
        coupled_verify(logits, [Block(0, (), GREEDY, 0)])


@pytest.mark.parametrize("token", [-1, 8])
def test_a_bias_or_a_history_beyond_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match=f"logit_bias names token {token}, but the vocabulary has ids 0 to 7"):
        coupled_verify(torch.zeros(1, 8), [Block(0, (), Sampling(logit_bias=((token, 1.0),)), 0)])
    penalised = Sampling(repetition_penalty=1.1)
    with pytest.raises(ValueError, match=f"the tokens so far name token {token}"):
        coupled_verify(torch.zeros(1, 8), [Block(0, (), penalised, 0, frozenset({token}))])
