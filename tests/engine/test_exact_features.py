"""Every feature that changes or describes tokens gives the same inside a block of any length as it gives plain."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.grammar import choice_grammar, json_object_grammar, json_schema_grammar, regex_grammar
from engine.messages import Submit
from kernels.processors import green_tokens
from kernels.sampling import Watermark
from tests.engine.logit_target import (
    BLOCK_LENGTHS,
    ENDS,
    PERSON,
    PROMPT,
    VOCABULARY,
    LogitRig,
    Output,
    RecallingDrafter,
    ask,
    assert_same,
    outputs,
)
from tests.engine.scripted import decision
from tests.engine.tiny_model import END_OF_TEXT, IM_END, make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocabulary=VOCABULARY)


NO_END: dict[str, Any] = {"logit_bias": ((END_OF_TEXT, -100.0), (IM_END, -100.0))}
FEATURES: dict[str, Callable[[], Submit]] = {
    "nothing": lambda: ask(**NO_END),
    "greedy": lambda: ask(temperature=0.0, **NO_END),
    "min_tokens": lambda: ask(min_tokens=20, end_tokens=ENDS, logit_bias=((IM_END, 9.0),)),
    "bad words": lambda: ask(bad_words=((70,), (4, 6), (4, 4, 4)), allowed_tokens=(4, 5, 6, 9, 11, 70)),
    "allowed tokens": lambda: ask(allowed_tokens=tuple(range(30, 60))),
    "forced prefix": lambda: ask(forced_prefix=tuple(range(100, 113)), **NO_END),
    "watermark": lambda: ask(watermark=Watermark(key=99), **NO_END),
    "penalties": lambda: ask(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.7, **NO_END),
    "truncation": lambda: ask(top_k=20, top_p=0.9, min_p=0.02, **NO_END),
    "json schema": lambda: ask(grammar=json_schema_grammar(PERSON)),
    "json schema, greedy": lambda: ask(grammar=json_schema_grammar(PERSON), temperature=0.0),
    "json object": lambda: ask(grammar=json_object_grammar()),
    "regex": lambda: ask(grammar=regex_grammar("([a-z]{1,6} ){8}end")),
    "choice": lambda: ask(grammar=choice_grammar(["the riders take turns", "the others draft", "nobody"])),
    "json with a penalty and min_tokens": lambda: ask(
        grammar=json_schema_grammar(PERSON), min_tokens=60, end_tokens=ENDS, repetition_penalty=1.2
    ),
    "stop token": lambda: replace(ask(**NO_END), stop_token_ids=(*ENDS, 24)),
    "ignored ends": lambda: replace(ask(logit_bias=((IM_END, 3.0), (END_OF_TEXT, 3.0))), stop_token_ids=()),
    "stop string": lambda: ask(stops=[" th"], logit_bias=((IM_END, -100.0), (END_OF_TEXT, -100.0))),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_report_21_24_tokens_and_logprobs_are_those_of_plain_at_every_block_length(folder: Path, feature: str) -> None:
    submit = FEATURES[feature]()
    plain = outputs(folder, [submit], drafter="none", block_length=0)[1]
    assert len(plain.tokens) >= 3
    accepted = rejected = 0
    for block_length in BLOCK_LENGTHS:
        for drafter in ("recall", "ngram"):
            found = outputs(folder, [submit], drafter=drafter, block_length=block_length, plain={1: plain})[1]
            assert_same(found, plain)
            accepted, rejected = accepted + found.accepted, rejected + found.rejected
    assert accepted > 0
    assert rejected > 0 or feature == "choice"  # there the grammar cuts every wrong draft


def test_sequences_with_different_features_do_not_disturb_each_other(folder: Path) -> None:
    submits = [replace(make(), request_key=key) for key, make in enumerate(FEATURES.values(), start=1)]
    together = outputs(folder, submits, drafter="recall", block_length=4)
    for submit in submits:
        alone = outputs(folder, [submit], drafter="none", block_length=0)[submit.request_key]
        assert_same(together[submit.request_key], alone)


def test_report_24_logprobs_are_the_log_softmax_of_the_raw_logits(folder: Path) -> None:
    """Also for drafts that were accepted, under a mask, a bias and a temperature that they do not see."""
    submit = ask(temperature=0.4, allowed_tokens=tuple(range(30, 60)), logit_bias=((31, 4.0),), top_k=5)
    found = outputs(folder, [submit], drafter="recall", block_length=8, right=9)[1]
    assert found.accepted > 10
    target = LogitRig(folder).target
    text = list(PROMPT)
    for token, given_logprob in zip(found.tokens, found.logprobs, strict=True):
        expected = torch.from_numpy(target.logits(text)).log_softmax(0)
        assert given_logprob.logprob == pytest.approx(expected[token].item(), abs=1e-4)
        top = expected.topk(3)
        assert [other for other, _ in given_logprob.top] == top.indices.tolist()
        assert [value for _, value in given_logprob.top] == pytest.approx(top.values.tolist(), abs=1e-4)
        text.append(token)


@pytest.mark.parametrize("block_length", BLOCK_LENGTHS)
def test_report_25_32_one_logprob_for_each_token_and_none_past_a_stop_in_mid_block(
    folder: Path, block_length: int
) -> None:
    free = ask(**NO_END)
    text = outputs(folder, [free], drafter="none", block_length=0)[1].tokens
    # A stop string that the twelfth token completes: in blocks of eight it lies in the middle of one.
    rig = LogitRig(folder)
    stop = next(piece.decode() for token in text[11:] if (piece := rig.token_bytes[token]).isalpha() and len(piece) > 1)
    written = b"".join(rig.token_bytes[token] for token in text)
    length = next(
        count
        for count in range(1, len(text) + 1)
        if stop.encode() in b"".join(rig.token_bytes[token] for token in text[:count])
    )
    assert stop.encode() in written
    found = outputs(folder, [replace(free, stops=(stop,))], drafter="recall", block_length=block_length, right=10)[1]
    assert found.tokens == text[:length]
    assert len(found.logprobs) == length
    assert found.finish == "stop"


@pytest.mark.parametrize("block_length", [0, *BLOCK_LENGTHS])
def test_a_token_of_the_request_ends_the_output_in_mid_block(folder: Path, block_length: int) -> None:
    free = outputs(folder, [ask(**NO_END)], drafter="none", block_length=0)[1].tokens
    stop = free[20]
    assert stop not in free[:20]
    drafter = "recall" if block_length else "none"
    submit = replace(ask(**NO_END), stop_token_ids=(stop,))
    found = outputs(folder, [submit], drafter=drafter, block_length=block_length, right=10)[1]
    assert found.tokens == free[:21]
    assert found.finish == "stop"


@pytest.mark.parametrize("block_length", [0, *BLOCK_LENGTHS])
def test_where_no_token_ends_the_output_the_limit_does(folder: Path, block_length: int) -> None:
    drafter = "recall" if block_length else "none"
    submit = replace(ask(logit_bias=((IM_END, 3.0), (END_OF_TEXT, 3.0))), stop_token_ids=())
    found = outputs(folder, [submit], drafter=drafter, block_length=block_length, right=10)[1]
    assert (len(found.tokens), found.finish) == (submit.max_tokens, "length")
    assert {IM_END, END_OF_TEXT} <= set(found.tokens[:-1])


def test_min_tokens_masks_the_ends_and_looks_for_no_stop_string_before(folder: Path) -> None:
    eager: dict[str, Any] = {"logit_bias": ((IM_END, 30.0),)}
    assert len(outputs(folder, [ask(**eager)], drafter="none", block_length=0)[1].tokens) == 1
    bound = ask(min_tokens=9, end_tokens=ENDS, **eager)
    for drafter, block_length in (("none", 0), ("recall", 16)):
        found = outputs(folder, [bound], drafter=drafter, block_length=block_length)[1]
        assert len(found.tokens) == 10
        assert found.tokens[-1] == IM_END
    spaces = ask(min_tokens=6, end_tokens=ENDS, stops=["a", "b"], allowed_tokens=(*range(68, 70), IM_END))
    rig = LogitRig(folder)
    assert {rig.token_bytes[token] for token in (68, 69)} <= {b"a", b"b", b"c"}
    assert len(outputs(folder, [spaces], drafter="recall", block_length=4)[1].tokens) >= 6


@pytest.mark.parametrize("block_length", [0, 4, 16])
def test_bad_words_never_occur_and_their_beginnings_do(folder: Path, block_length: int) -> None:
    words = ((70,), (4, 6), (9, 5), (4, 4, 4))
    drafter = "recall" if block_length else "none"

    def texts(bad_words: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
        submits = [ask(key, bad_words=bad_words, allowed_tokens=(4, 5, 6, 9, 11, 70)) for key in range(1, 6)]
        found = outputs(folder, submits, drafter=drafter, block_length=block_length)
        return [output.tokens for output in found.values()]

    def occurrences(texts: list[tuple[int, ...]], word: tuple[int, ...]) -> int:
        return sum(text[at : at + len(word)] == word for text in texts for at in range(len(text)))

    free, bound = texts(()), texts(words)
    for word in words:
        assert occurrences(free, word) > 0
        assert occurrences(bound, word) == 0
        assert len(word) == 1 or occurrences(bound, word[:-1]) > 0


def test_a_bad_word_does_not_begin_in_the_prompt(folder: Path) -> None:
    assert PROMPT[-1] == 9
    found = outputs(folder, [ask(bad_words=((9, 11),), allowed_tokens=(11,))], drafter="ngram", block_length=4)[1]
    assert set(found.tokens) == {11}


@pytest.mark.parametrize("block_length", [0, 3, 16])
def test_the_output_begins_with_the_forced_prefix_and_goes_on(folder: Path, block_length: int) -> None:
    prefix = (200, 201, 202, 203, 204)
    submit = ask(forced_prefix=prefix, bad_words=((201,),), allowed_tokens=(30, 31), temperature=0.0)
    drafter = "recall" if block_length else "none"
    found = outputs(folder, [submit], drafter=drafter, block_length=block_length)[1]
    assert found.tokens[:5] == prefix
    assert set(found.tokens[5:]) <= {30, 31}
    assert len(found.tokens) == 64


def test_the_watermark_raises_the_share_of_green_tokens_for_whoever_has_the_key(folder: Path) -> None:
    mark = Watermark(gamma=0.25, delta=3.0, key=1234)

    def green_share(output: Output, key: int) -> float:
        before = (PROMPT[-1], *output.tokens[:-1])
        found = [
            green_tokens(replace(mark, key=key), last, VOCABULARY)[token]
            for last, token in zip(before, output.tokens, strict=True)
        ]
        return float(np.mean(found))

    submits = [ask(key, watermark=mark, **NO_END) for key in range(1, 5)]
    marked = outputs(folder, submits, drafter="recall", block_length=8)
    plain = outputs(
        folder,
        [replace(one, sampling=replace(one.sampling, watermark=None)) for one in submits],
        drafter="none",
        block_length=0,
    )
    assert np.mean([green_share(output, 1234) for output in marked.values()]) > 0.5
    assert np.mean([green_share(output, 77) for output in marked.values()]) < 0.4
    assert np.mean([green_share(output, 1234) for output in plain.values()]) < 0.4


def test_report_21_vllm_18902_a_penalty_changes_the_output_and_speculation_does_not(folder: Path) -> None:
    def text(frequency_penalty: float, drafter: str, block_length: int) -> tuple[int, ...]:
        submit = ask(temperature=0.0, frequency_penalty=frequency_penalty, **NO_END)
        return outputs(folder, [submit], drafter=drafter, block_length=block_length)[1].tokens

    assert text(2.0, "none", 0) != text(0.0, "none", 0)
    assert text(2.0, "recall", 8) == text(2.0, "ngram", 8) == text(2.0, "none", 0)


@pytest.mark.parametrize("drafter", ["none", "recall", "ngram"])
def test_where_nothing_may_come_only_that_sequence_fails(folder: Path, drafter: str) -> None:
    rig = LogitRig(folder, drafters=[RecallingDrafter({1: [], 2: [], 3: []}, 5)])
    chosen = decision(drafter, 4 if drafter != "none" else 0)
    impossible = ask(1, grammar=regex_grammar("[a-z]{30}[0-9]"), allowed_tokens=tuple(range(68, 90)))
    fine = ask(2, **NO_END)
    rig.run(*(replace(submit, decision=chosen) for submit in (impossible, fine)))
    assert "leave no token" in rig.delivered.failures[1]
    assert 25 <= len(rig.delivered.tokens[1]) <= 30
    assert len(rig.output(2).tokens) == 64


def test_logits_that_are_no_numbers_fail_their_own_sequence_at_the_same_token(folder: Path) -> None:
    submit = ask(1, **NO_END)
    text = outputs(folder, [submit], drafter="none", block_length=0)[1].tokens
    place = next(at for at in range(5, len(text)) if text[at] not in text[:at])
    for block_length in (0, 1, 4, 16):
        rig = LogitRig(folder, drafters=[RecallingDrafter({1: list(text), 2: []}, 10)])
        rig.target.nan_after = {text[place]}
        chosen = decision("recall", block_length) if block_length else decision()
        other = ask(2, allowed_tokens=tuple(range(30, 60)), **NO_END)
        rig.run(replace(submit, decision=chosen), replace(other, decision=chosen))
        assert tuple(rig.delivered.tokens[1]) == text[: place + 1]
        assert "logits" in rig.delivered.failures[1]
        assert len(rig.output(2).tokens) == 64
