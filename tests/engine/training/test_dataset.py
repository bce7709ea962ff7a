"""Shards, the held-out split, the output vocabulary and the batches."""

import random
from pathlib import Path

import pytest
import torch

from engine.training.dataset import (
    TextSequence,
    batches,
    data_hash,
    frequent_tokens,
    make_batch,
    read_shard,
    write_shard,
)


def sequence(tokens: list[int], answers: tuple[tuple[int, int], ...], kind: str = "chat") -> TextSequence:
    features = torch.arange(4.0)[None] + torch.tensor(tokens)[:, None]
    return TextSequence(torch.tensor(tokens, dtype=torch.int32), features.bfloat16(), answers, kind, "en", 0.0)


def test_a_shard_gives_back_what_was_written(tmp_path: Path) -> None:
    written = [sequence([5, 6, 7], ((1, 3),)), sequence([8, 9, 1, 2, 3], ((1, 2), (3, 5)), "story")]
    write_shard(tmp_path / "a.safetensors", written)
    read = read_shard(tmp_path / "a.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    assert [each.answers for each in read] == [((1, 3),), ((1, 2), (3, 5))]
    assert [each.kind for each in read] == ["chat", "story"]
    for before, after in zip(written, read, strict=True):
        assert torch.equal(before.tokens, after.tokens)
        assert torch.equal(before.features, after.features)


def test_the_hash_is_of_the_tokens(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.safetensors" for name in "abc"]
    for path, tokens in zip(paths, ([1, 2], [1, 2], [1, 3]), strict=True):
        write_shard(path, [sequence(tokens, ((1, 2),))])
    assert data_hash(paths[:1]) == data_hash(paths[1:2])
    assert data_hash(paths[:1]) != data_hash(paths[2:])


def test_answers_to_one_prompt_are_on_one_side_and_few_prompts_are_held_out() -> None:
    sides = [sequence([prompt, prompt + 1, 3], ((2, 3),)).held_out for prompt in range(2000)]
    others = [sequence([prompt, prompt + 1, 4, 5], ((2, 4),)).held_out for prompt in range(2000)]
    assert sides == others
    assert 0.01 < sum(sides) / len(sides) < 0.04


def test_output_tokens_are_the_answers_most_frequent_ones_rising() -> None:
    text = [sequence([9, 9, 9, 9, 5, 5, 3, 3, 3, 8], ((4, 10),))]
    tokens, share = frequent_tokens(text, 3, 12, always=[1])
    assert tokens.tolist() == [1, 3, 5]
    assert tokens.dtype == torch.int32
    assert share == pytest.approx(5 / 6)


def test_drafted_positions_are_those_of_the_answers() -> None:
    batch = make_batch([sequence([4, 5, 6, 7], ((2, 4),)), sequence([1, 2], ((1, 2),))])
    assert batch.tokens.tolist() == [[4, 5, 6, 7], [1, 2, 0, 0]]
    assert batch.drafted.tolist() == [[False, False, True, True], [False, True, False, False]]


def test_batches_hold_every_sequence_once_within_the_limit_and_follow_the_seed() -> None:
    lengths = [random.Random(number).randrange(5, 60) for number in range(100)]
    groups = list(batches(lengths, 128, random.Random(1)))
    assert sorted(index for group in groups for index in group) == list(range(100))
    assert all(max(lengths[index] for index in group) * len(group) <= 128 for group in groups)
    assert groups == list(batches(lengths, 128, random.Random(1)))
    assert groups != list(batches(lengths, 128, random.Random(2)))
