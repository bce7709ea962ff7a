"""Log-probabilities against torch."""

import numpy as np
import pytest
import torch

from kernels.coupled_verify import coupled_verify
from kernels.logprobs import token_logprob
from kernels.sampling import Block, Sampling
from kernels.verify import verify


@pytest.mark.parametrize("scale", [0.0, 1.0, 20.0, 1000.0])
@pytest.mark.parametrize("vocabulary", [2, 300, 49_152])
def test_values_are_torchs_log_softmax(scale: float, vocabulary: int) -> None:
    row = (np.random.default_rng(vocabulary).normal(size=vocabulary) * scale).astype(np.float32)
    expected = torch.from_numpy(row).double().log_softmax(0)
    for token in (0, vocabulary - 1, int(row.argmax())):
        assert token_logprob(row, token, 0).logprob == pytest.approx(expected[token].item(), rel=1e-5, abs=1e-5)


def test_the_top_is_sorted_and_ties_go_to_the_lower_id() -> None:
    row = np.array([1.0, 3.0, 2.0, 3.0, 2.0, 2.0, -np.inf], dtype=np.float32)
    assert [token for token, _ in token_logprob(row, 0, 4).top] == [1, 3, 2, 4]
    assert [token for token, _ in token_logprob(row, 0, 20).top] == [1, 3, 2, 4, 5, 0, 6]
    assert token_logprob(row, 0, 0).top == ()
    assert token_logprob(row, 6, 0).logprob == -np.inf


def test_the_row_is_not_changed() -> None:
    row = np.arange(10, dtype=np.float32)
    token_logprob(row, 3, 5)
    assert (row == np.arange(10)).all()


def test_report_24_an_accepted_draft_has_its_own_rows_logprob_and_not_zero() -> None:
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(2))
    sampling = Sampling(temperature=0.7, seed=4, top_k=10, logit_bias=((3, 2.0),))
    drafts: tuple[int, ...] = ()
    for _ in range(4):
        drafts = coupled_verify(logits, [Block(0, drafts, sampling, 0)])[0].tokens
    chosen = verify(logits, [Block(0, drafts, sampling, 0, top_logprobs=2)])[0]
    assert chosen.tokens[:4] == drafts
    assert len(chosen.logprobs) == len(chosen.tokens) == 5
    expected = logits.log_softmax(1)
    for index, (token, logprob) in enumerate(zip(chosen.tokens, chosen.logprobs, strict=True)):
        assert logprob.logprob == pytest.approx(expected[index, token].item(), abs=1e-5)
        assert [other for other, _ in logprob.top] == expected[index].topk(2).indices.tolist()
