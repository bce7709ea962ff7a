"""Blocks of every length against a walk of one request at a time."""

import numpy as np
import pytest

from tests.tuner.replay.small_traces import small_trace
from tuner.replay.reblock import LENGTHS, Reblocked


def test_blocks_and_proposals_are_those_of_a_walk_from_the_first_token_to_the_last() -> None:
    trace = small_trace(1)
    routes = ["chat", "code"]
    group_of = np.array([routes.index(one.route) for one in trace.requests])
    tables = Reblocked(trace).tables(group_of, 2)
    for group, route in enumerate(routes):
        for place, drafter in enumerate(trace.drafters):
            for length in range(LENGTHS):
                proposed = [0] * LENGTHS
                for one in trace.requests:
                    if one.route != route:
                        continue
                    position = 0
                    while position < one.output_tokens:
                        draft = one.drafts[drafter]
                        offered = min(draft.offered[position], length, one.output_tokens - position - 1)
                        proposed[offered] += 1
                        position += min(draft.kept[position], offered) + 1
                assert tables.proposed[group, place, length].tolist() == proposed
                assert tables.blocks[group, place, length] == sum(proposed)
    assert tables.tokens.sum() == sum(one.output_tokens for one in trace.requests)
    assert tables.emitted[0, 1, 4] == pytest.approx(tables.tokens[0] / tables.blocks[0, 1, 4])


def test_a_group_without_requests_emits_one_token_a_block_and_proposes_nothing() -> None:
    trace = small_trace(2)
    tables = Reblocked(trace).tables(np.zeros(len(trace.requests), dtype=np.int64), 2)
    assert (tables.emitted[1] == 1.0).all()
    assert (tables.chances[1, :, :, 0] == 1.0).all()


def test_by_confidence_are_the_blocks_that_are_offered_and_keep_that_many() -> None:
    trace = small_trace(3)
    nobody = np.zeros(len(trace.requests), dtype=np.int64)
    found = Reblocked(trace).by_confidence(1, nobody, 1, 4)
    seen = [[[0] * LENGTHS for _ in range(4)] for _ in range(2)]
    for length in range(1, LENGTHS):
        for one in trace.requests:
            draft = one.drafts["learned"]
            position = 0
            while position < one.output_tokens:
                room = one.output_tokens - position - 1
                kept = draft.kept[position]
                for which, most in enumerate((draft.offered[position], kept)):
                    for reached in range(min(most, room) + 1):
                        seen[which][draft.confidence[position]][reached] += 1
                position += min(min(kept, length) + 1, room + 1)
    for counts, expected in zip(found, seen, strict=True):
        assert counts[0].tolist() == expected


def test_tables_of_groups_of_groups_are_those_of_the_requests_in_them() -> None:
    trace = small_trace(4)
    blocks = Reblocked(trace)
    fine = np.arange(len(trace.requests)) % 6
    merged = blocks.tables(fine, 6).merged(np.array([0, 1, 2, 0, 1, 2]), 3)
    direct = blocks.tables(fine % 3, 3)
    assert (merged.tokens == direct.tokens).all()
    assert (merged.blocks == direct.blocks).all()
    assert (merged.proposed == direct.proposed).all()
