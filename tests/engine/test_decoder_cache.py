"""What a decoder remembers between passes, what it refuses, and what it returns."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.decoder import Decoder, Pass
from engine.weights import load_decoder
from tests.engine.decoder_runs import chunked, random_tokens, rows, together


@pytest.fixture
def decoder(tiny_model: Path) -> Decoder:
    return load_decoder(tiny_model, "float32", slots=4, capacity=200)


def test_a_reused_slot_gives_the_logits_of_a_fresh_one(decoder: Decoder, tiny_model: Path) -> None:
    before, after = random_tokens(384, 200, seed=1), random_tokens(384, 60, seed=2)
    chunked(decoder, before, 2, [64])
    fresh = load_decoder(tiny_model, "float32", slots=4, capacity=200)
    assert torch.equal(chunked(decoder, after, 2, [13]), chunked(fresh, after, 2, [13]))


def test_rejected_drafts_leave_no_trace(decoder: Decoder) -> None:
    text, draft = random_tokens(384, 60, seed=3), random_tokens(384, 8, seed=4)
    clean = chunked(decoder, text, 0, [1])
    chunked(decoder, text[:40], 1, [40])
    decoder.forward(Pass([text[40], *draft], [1] * 9, list(range(40, 49)), None))
    assert torch.equal(decoder.forward(rows(text, 1, 41, 19)), clean[41:])


def test_sequences_do_not_see_each_other(decoder: Decoder) -> None:
    texts = [random_tokens(384, 30, seed) for seed in range(3)]
    alone = [chunked(decoder, text, 3, [30]) for text in texts]
    side_by_side = decoder.forward(together([(text, slot, 0, 30) for slot, text in enumerate(texts)]))
    assert torch.equal(side_by_side, torch.cat(alone))


def test_nothing_reads_memory_that_was_not_written(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = random_tokens(384, 60)
    clean = chunked(load_decoder(tiny_model, "float32", slots=4, capacity=200), text, 1, [7])

    def poisoned(like: Tensor) -> Tensor:
        return torch.full_like(like, torch.nan)

    monkeypatch.setattr(torch, "empty_like", poisoned)
    decoder = load_decoder(tiny_model, "float32", slots=4, capacity=200)
    assert torch.equal(chunked(decoder, text, 1, [7]), clean)


def test_only_the_rows_asked_for_are_returned_in_the_order_asked_for(decoder: Decoder) -> None:
    text = random_tokens(384, 20)
    every = decoder.forward(rows(text, 0, 0, 20))
    chosen = decoder.forward(Pass(text, [0] * 20, list(range(20)), [19, 3, 4]))
    assert torch.equal(chosen, every[[19, 3, 4]])
    assert decoder.forward(Pass(text, [0] * 20, list(range(20)), [])).shape == (0, 384)


def test_the_last_position_of_the_last_slot_can_be_used(decoder: Decoder) -> None:
    text = random_tokens(384, 200)
    assert torch.equal(chunked(decoder, text, 3, [199, 1]), chunked(decoder, text, 0, [200]))


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        (Pass([], [], [], None), "0 token_ids"),
        (Pass([1, 2], [0], [0, 1], None), "1 slots"),
        (Pass([1], [0], [0, 1], None), "2 positions"),
        (Pass([1], [4], [0], None), "slots 4..4"),
        (Pass([1], [-1], [0], None), "slots -1..-1"),
        (Pass([1], [0], [200], None), "position 200"),
        (Pass([1], [0], [-1], None), "position -1"),
    ],
)
def test_a_pass_outside_the_cache_is_refused_by_name(decoder: Decoder, batch: Pass, named: str) -> None:
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        decoder.forward(batch)


def test_the_linear_layers_alone_take_less_than_a_pass_over_many_rows(decoder: Decoder) -> None:
    assert 0.0 < decoder.linear_seconds() < 1.0
