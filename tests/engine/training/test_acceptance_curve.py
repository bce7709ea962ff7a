"""Acceptance curves on hand-made drafts."""

import torch

from engine.training.acceptance_curve import survival_counts


def test_survivals_count_drafts_up_to_the_end_of_the_answer() -> None:
    # the answer is the positions 2..5; bases 2, 3 and 4 have a token of the answer after them
    tokens = torch.tensor([7, 7, 1, 2, 3, 4, 7])
    drafted = torch.tensor(
        [
            [9, 9, 9],
            [1, 2, 3],  # the last token before the answer is no base: what follows it is the target's first
            [2, 3, 4],  # all three right
            [3, 9, 9],  # right, then wrong; the third would lie beyond the answer
            [4, 7, 7],  # right; the others lie beyond
            [7, 7, 7],
            [0, 0, 0],
        ]
    )
    tried, kept = survival_counts(drafted, tokens, [(2, 6)])
    assert tried.tolist() == [3, 2, 1]
    assert kept.tolist() == [3, 1, 1]


def test_a_wrong_token_ends_a_draft_even_if_the_next_one_is_right() -> None:
    tokens = torch.tensor([0, 1, 2, 3])
    drafted = torch.tensor([[9, 2, 3], [2, 9, 9], [9, 9, 9], [9, 9, 9]])
    tried, kept = survival_counts(drafted, tokens, [(0, 4)])
    assert tried.tolist() == [3, 2, 1]
    assert kept.tolist() == [1, 0, 0]


def test_every_range_counts_and_one_without_a_next_token_does_not() -> None:
    tokens = torch.tensor([0, 1, 2, 3, 4])
    drafted = torch.tensor([[1], [9], [3], [9], [9]])
    tried, kept = survival_counts(drafted, tokens, [(0, 2), (2, 4), (4, 5)])
    assert tried.tolist() == [2]
    assert kept.tolist() == [2]
