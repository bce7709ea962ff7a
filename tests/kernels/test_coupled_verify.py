"""The lazy verifier against its dense twin, and what it owes its callers. Numbers: docs/field-reports.md."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.coupled_verify import coupled_verify, processed_log_probs
from kernels.sampling import Block, Chosen, Sampling
from tests.kernels.verify_cases import random_case, texts

GREEDY = Sampling(temperature=0.0)
VOCABULARY = 49_152


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), vocabulary=st.sampled_from([1, 2, 8, 127, 1024, 1025]))
def test_emits_exactly_what_the_dense_twin_emits(seed: int, vocabulary: int) -> None:
    case = random_case(seed, vocabulary)
    assert texts(coupled_verify(case.logits, case.blocks)) == reference.coupled_verify(case.logits, case.blocks)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), vocabulary=st.sampled_from([1, 8, 127, 1025]))
def test_target_probs_are_those_of_the_dense_twin(seed: int, vocabulary: int) -> None:
    case = random_case(seed, vocabulary)
    for block in case.blocks:
        if block.sampling.bad_words or block.sampling.forced_prefix:
            continue  # they may leave no token, which has no probabilities
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


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("sampling", FULL_SIZE.values(), ids=FULL_SIZE)
def test_emits_what_the_dense_twin_emits_at_a_real_vocabulary(sampling: Sampling, scale: float, coarse: bool) -> None:
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(3)) * scale
    if coarse:
        logits = logits.bfloat16().float()
    history = {token: 1 + token % 3 for token in range(0, VOCABULARY, 401)}
    blocks = [
        Block(row, (), replace(sampling, seed=row), 5 * row, frozenset(range(0, VOCABULARY, 97)), history)
        for row in range(4)
    ]
    assert texts(coupled_verify(logits, blocks)) == reference.coupled_verify(logits, blocks)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_report_21_vllm_18902_a_frequency_penalty_changes_the_text_and_equally_with_drafts(temperature: float) -> None:
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
            block = Block(0, drafts, sampling, len(output), output_counts=counts)
            output += coupled_verify(rows, [block])[0].tokens
        return output[:8]

    assert text(2.0, 0) != text(0.0, 0)
    for block_length in (1, 2, 3, 4):
        assert text(2.0, block_length) == text(2.0, 0)
        assert text(0.0, block_length) == text(0.0, 0)


def test_report_22_vllm_42744_min_p_and_logit_bias_are_applied_at_every_row_of_a_block() -> None:
    logits = torch.zeros(4, 8)
    logits[:, 5] = 1.0
    forced = Sampling(temperature=5.0, min_p=1.0, logit_bias=((5, -100.0), (6, 3.0)))
    assert texts(coupled_verify(logits, [Block(0, (6, 6, 6), forced, 0)])) == [(6, 6, 6, 6)]


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
def test_greedy_takes_the_lowest_of_equal_logits(row: list[float], token: int) -> None:
    assert texts(coupled_verify(torch.tensor([row]), [Block(0, (), GREEDY, 0)])) == [(token,)]


def test_greedy_agrees_with_torch_on_random_rows() -> None:
    logits = torch.randn(64, 1025, generator=torch.Generator().manual_seed(5)) * 3
    logits[::3] -= 20
    blocks = [Block(row, (), GREEDY, 0) for row in range(64)]
    assert [one.tokens[0] for one in coupled_verify(logits, blocks)] == logits.argmax(1).tolist()


def test_greedy_keeps_drafts_to_the_first_difference_and_adds_the_bonus_after_all() -> None:
    logits = torch.eye(8)[[3, 1, 4, 1, 5]]
    assert texts(coupled_verify(logits, [Block(0, (3, 1, 4, 1), GREEDY, 0)])) == [(3, 1, 4, 1, 5)]
    assert texts(coupled_verify(logits, [Block(0, (3, 1, 0, 1), GREEDY, 0)])) == [(3, 1, 4)]
    assert texts(coupled_verify(logits, [Block(0, (0, 1, 4, 1), GREEDY, 0)])) == [(3,)]
    assert texts(coupled_verify(logits, [Block(0, (3, 1), GREEDY, 0), Block(3, (), GREEDY, 9)])) == [(3, 1, 4), (1,)]


def test_a_temperature_below_the_greedy_bound_is_greedy() -> None:
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(2))
    tokens = texts(coupled_verify(logits, [Block(0, (), Sampling(temperature=1e-9), 0)]))
    assert tokens == [(int(logits.argmax()),)]


def test_rows_after_the_first_difference_are_not_looked_at() -> None:
    logits = torch.eye(8)[[3, 1, 4]]
    logits[2] = math.nan
    assert texts(coupled_verify(logits, [Block(0, (0, 1), Sampling(temperature=0.01), 0)])) == [(3,)]


def test_choices_of_one_request_differ() -> None:
    logits = torch.zeros(1, 1024)
    blocks = [Block(0, (), Sampling(seed=4, choice=index), 0) for index in range(4)]
    assert len(set(texts(coupled_verify(logits, blocks)))) == 4


def test_no_blocks_emit_nothing() -> None:
    assert coupled_verify(torch.zeros(0, 8), []) == []


def test_logits_may_be_a_view_and_may_require_gradients() -> None:
    wide = torch.randn(2, 40, generator=torch.Generator().manual_seed(8), requires_grad=True)
    blocks = [Block(0, (), Sampling(seed=1), 0), Block(1, (), GREEDY, 0)]
    for view in (wide[:, :32], wide[:, ::2]):
        assert coupled_verify(view, blocks) == coupled_verify(view.detach().clone(), blocks)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("sampling", [GREEDY, replace(GREEDY, logit_bias=((0, 1.0),)), Sampling()])
def test_a_row_without_a_number_is_a_fault_of_the_target_and_ends_the_block_before_it(
    sampling: Sampling, value: float
) -> None:
    logits = torch.zeros(3, 8)
    logits[:2, 5] = 100.0
    logits[2] = value
    kept, failed = coupled_verify(logits, [Block(0, (5, 5), sampling, 0), Block(2, (), sampling, 2)])
    assert kept == Chosen((5, 5))
    assert failed.tokens == ()
    assert failed.failure is not None
    assert failed.failure.fault
    assert "check its weights" in failed.failure.message


@pytest.mark.parametrize("first_row", [-1, 1, 5])
def test_a_block_beyond_the_logits_is_refused(first_row: int) -> None:
    with pytest.raises(ValueError, match=r"a block owns rows .* but logits have 2 rows"):
        coupled_verify(torch.zeros(2, 8), [Block(first_row, (1,), GREEDY, 0)])


@pytest.mark.parametrize("logits", [torch.zeros(8), torch.zeros(1, 8).bfloat16()])
def test_logits_of_another_shape_or_type_are_refused(logits: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="logits must be float32"):
        coupled_verify(logits, [Block(0, (), GREEDY, 0)])


@pytest.mark.parametrize("token", [-1, 8])
def test_a_bias_or_a_history_beyond_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match=f"logit_bias names token {token}, but the vocabulary has ids 0 to 7"):
        coupled_verify(torch.zeros(1, 8), [Block(0, (), Sampling(logit_bias=((token, 1.0),)), 0)])
    penalised = Sampling(repetition_penalty=1.1)
    with pytest.raises(ValueError, match=f"the tokens so far name token {token}"):
        coupled_verify(torch.zeros(1, 8), [Block(0, (), penalised, 0, frozenset({token}))])
