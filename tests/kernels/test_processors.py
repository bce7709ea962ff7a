"""The processed target_probs against transformers' own processors, in the order in which transformers builds them."""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList

from kernels import coupled_verify as fast
from kernels import reference
from kernels.sampling import Sampling


class PresenceAndFrequency(LogitsProcessor):
    """OpenAI's two penalties, which transformers lacks, over the tokens after `prompt_length`."""

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        self.sampling = sampling
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(input_ids[0, self.prompt_length :], minlength=scores.shape[1])
        penalty = self.sampling.presence_penalty * (counts > 0) + self.sampling.frequency_penalty * counts
        return scores - penalty


class ProcessorOwner(GenerationMixin):
    """As much of a model as building the list of processors needs."""

    config = SimpleNamespace(is_encoder_decoder=False)


def transformers_probs(logits: torch.Tensor, sampling: Sampling, prompt: list[int], output: list[int]) -> torch.Tensor:
    make_config: Any = GenerationConfig  # transformers leaves it untyped
    config = make_config(
        do_sample=True,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p or None,
        repetition_penalty=sampling.repetition_penalty,
        sequence_bias={(token,): bias for token, bias in sampling.logit_bias} or None,
    )
    custom = LogitsProcessorList([PresenceAndFrequency(sampling, len(prompt))])
    owner: Any = ProcessorOwner()
    processors = owner._get_logits_processor(config, len(prompt), logits_processor=custom)
    input_ids = torch.tensor([[*prompt, *output]])
    scores: torch.Tensor = processors(input_ids, logits[None].float())
    return scores.softmax(-1)[0]


def occurrences(tokens: list[int]) -> Mapping[int, int]:
    return {token: tokens.count(token) for token in tokens}


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 40]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-0.7, 0.0, 0.5]),
    frequency_penalty=st.sampled_from([-0.2, 0.0, 0.4]),
    logit_bias=st.sampled_from([(), ((3, 4.0),), ((0, -100.0), (5, 2.5), (7, 0.25))]),
)


@pytest.mark.parametrize("module", [fast, reference], ids=["fast", "dense"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    sampling=SAMPLINGS,
    vocabulary=st.sampled_from([8, 127, 1024]),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.5, 2.0, 5.0]),
)
def test_target_probs_are_those_of_transformers_own_processors(
    module: Any, sampling: Sampling, vocabulary: int, seed: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocabulary, generator=generator) * scale
    prompt = torch.randint(vocabulary, (6,), generator=generator).tolist()
    output = torch.randint(min(vocabulary, 16), (9,), generator=generator).tolist()
    ours = module.processed_log_probs(logits, sampling, frozenset(prompt), occurrences(output)).exp()
    expected = transformers_probs(logits, sampling, prompt, output)
    assert torch.equal(ours > 0, expected > 0)
    assert (ours - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("top_p", [0.1, 0.3, 0.55, 0.9])
def test_top_p_keeps_as_many_of_equal_tokens_as_transformers_and_the_lowest_ids(top_p: float) -> None:
    logits = torch.tensor([0.5, 2.0, 0.5, 2.0, 0.5, 2.0, 0.5, 2.0])
    sampling = Sampling(top_p=top_p)
    kept = torch.isfinite(fast.processed_log_probs(logits, sampling))
    assert int(kept.sum()) == int((transformers_probs(logits, sampling, [0], []) > 0).sum())
    by_rank = [1, 3, 5, 7, 0, 2, 4, 6]
    assert sorted(by_rank[: int(kept.sum())]) == kept.nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("top_p", "kept"), [(0.0, 1), (0.125, 1), (0.5, 4), (0.5001, 5), (0.99, 8), (1.0, 8)])
def test_top_p_keeps_tokens_until_the_mass_is_reached_and_never_none(top_p: float, kept: int) -> None:
    log_probs = fast.processed_log_probs(torch.zeros(8), Sampling(top_p=top_p))
    assert torch.isfinite(log_probs).nonzero()[:, 0].tolist() == list(range(kept))


def test_top_k_keeps_what_equals_the_kth() -> None:
    log_probs = fast.processed_log_probs(torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0]), Sampling(top_k=2))
    assert torch.isfinite(log_probs).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("top_k", [1, 3, 300, 2000])
def test_top_k_is_right_however_far_down_the_kth_lies(top_k: int) -> None:
    logits = torch.linspace(0, 200, 2048)
    log_probs = fast.processed_log_probs(logits, Sampling(top_k=top_k))
    assert int(torch.isfinite(log_probs).sum()) == top_k


def test_min_p_of_one_keeps_the_most_likely_token() -> None:
    log_probs = fast.processed_log_probs(torch.tensor([1.0, 3.0, 2.9]), Sampling(min_p=1.0))
    assert log_probs.tolist() == [-math.inf, 0.0, -math.inf]


def test_greedy_target_probs_are_one_hot_at_the_lowest_of_equal_logits() -> None:
    log_probs = fast.processed_log_probs(torch.tensor([1.0, 3.0, 3.0]), Sampling(temperature=0.0))
    assert log_probs.tolist() == [-math.inf, 0.0, -math.inf]


def test_a_bias_of_minus_infinity_forbids_a_token() -> None:
    log_probs = fast.processed_log_probs(torch.zeros(3), Sampling(logit_bias=((1, -math.inf),)))
    assert log_probs.exp().tolist() == pytest.approx([0.5, 0.0, 0.5])


def test_a_bias_listed_twice_adds_up() -> None:
    twice = fast.processed_log_probs(torch.zeros(3), Sampling(logit_bias=((1, 1.0), (1, 2.0))))
    once = fast.processed_log_probs(torch.zeros(3), Sampling(logit_bias=((1, 3.0),)))
    assert torch.equal(twice, once)


def test_probabilities_of_any_row_sum_to_one() -> None:
    logits = torch.randn(1025, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    for sampling in (Sampling(), Sampling(top_p=0.7), Sampling(top_k=9, min_p=0.1), Sampling(temperature=0.0)):
        assert float(fast.processed_log_probs(logits, sampling).exp().sum()) == pytest.approx(1.0, abs=1e-5)
