"""Training prompts: the mix, the languages, and none of the workload's."""

import itertools
from collections import Counter

import pytest

from engine.training.exclusion import Exclusion
from engine.training.prompts import OTHER_LANGUAGES, SHARES, training_prompts
from tuner.workload import load_workload

WORKLOAD = [message["content"] for prompt in load_workload() for message in prompt.messages]


def test_the_same_seed_gives_the_same_prompts_and_another_seed_others() -> None:
    nothing = Exclusion([])
    first = list(itertools.islice(training_prompts(3, nothing), 50))
    assert first == list(itertools.islice(training_prompts(3, nothing), 50))
    assert first != list(itertools.islice(training_prompts(4, nothing), 50))


def test_every_kind_and_language_comes_in_its_share() -> None:
    prompts = list(itertools.islice(training_prompts(0, Exclusion([])), 6000))
    counts = Counter((prompt.kind, prompt.language) for prompt in prompts)
    assert set(counts) == set(SHARES)
    for key, share in SHARES.items():
        assert counts[key] / len(prompts) == pytest.approx(share, rel=0.35), key
    assert sum(prompt.temperature == 0 for prompt in prompts) / len(prompts) == pytest.approx(0.5, abs=0.05)


def test_the_mix_holds_every_language_of_the_workload() -> None:
    wanted = {prompt.language for prompt in load_workload()}
    assert wanted <= {"en", "code", *OTHER_LANGUAGES}


def test_no_prompt_is_one_of_the_workload_or_near_one() -> None:
    workload = Exclusion(WORKLOAD)
    for prompt in itertools.islice(training_prompts(1, Exclusion([])), 3000):
        for message in prompt.messages:
            assert message["content"] not in WORKLOAD
            assert not workload.covers(message["content"]), message["content"]


def test_excluded_texts_are_found_exactly_nearly_and_only_then() -> None:
    text = "Write a short story about a lighthouse keeper who starts to receive radio messages from a sunken ship."
    excluded = Exclusion([text, "Short one"])
    assert excluded.covers(text)
    assert excluded.covers(text.upper().replace(",", ""))
    assert excluded.covers(text.replace("lighthouse keeper", "museum guard"))
    assert excluded.covers("short ONE!")
    assert not excluded.covers("Write a short story about a baker who receives a letter.")
    assert not excluded.covers("A short one")
    assert not excluded.covers("")
