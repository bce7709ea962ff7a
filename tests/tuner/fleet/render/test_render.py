"""What is rendered means to the engine what was learned: parsed again by each engine's own rules, as they were read."""

import configparser
import json
import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import xllamacpp
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuner.fleet.render.learned import EDIT, MODEL, STORY, geometric, known
from tests.tuner.fleet.render.test_merging import routes
from tuner.fleet.render import Engine, Known, Launch, Merged, lossy, merge, render
from tuner.fleet.render.launch import commented
from tuner.fleet.render.spellings import SPELLINGS, spelling_of

LARGEST_BATCH = 64
HEAD = known(
    "edit/code",
    [(1, 3, 8), (4, 7, 4), (8, 16, 0)],
    drafter="eagle3",
    survival=geometric(0.9),
    predicted=((1, 2.9), (4, 1.6), (8, 1.0)),
)


def as_learned(merged: Merged) -> list[int]:
    """The block length at batch sizes 1, 2, ... `LARGEST_BATCH`."""
    lengths = {load: length for low, high, length in merged.ranges for load in range(low, min(high, LARGEST_BATCH) + 1)}
    return [lengths[load] for load in range(1, LARGEST_BATCH + 1)]


def of_vllm(launch: Launch) -> list[int]:
    """By `build_dynamic_sd_schedule_lookup` of vLLM 0.32.0: gaps and the tail carry the last length on."""
    config = json.loads(launch.flags[launch.flags.index("--speculative-config") + 1])
    most = config["num_speculative_tokens"]
    table = config.get("num_speculative_tokens_per_batch_size")
    if table is None:
        return [most] * LARGEST_BATCH
    assert table[0][0] == 1
    assert all(after[0] > before[1] for before, after in pairwise(table))
    assert all(low <= high and length >= 0 for low, high, length in table)
    starts = [low for low, _, _ in table]
    return [min(most, table[bisect_right(starts, load) - 1][2]) for load in range(1, LARGEST_BATCH + 1)]


def of_sglang(launch: Launch) -> list[int]:
    """By `AdaptiveStepRouter` without CUDA graphs: the largest key that is not above; the largest candidate."""
    most = int(launch.flags[launch.flags.index("--speculative-num-steps") + 1])
    assert launch.flags[launch.flags.index("--speculative-num-draft-tokens") + 1] == str(most + 1)
    if launch.file is None:
        return [most] * LARGEST_BATCH
    slots = {int(key): entry["candidate_steps"] for key, entry in json.loads(launch.file.content).items()}
    assert all(steps and all(isinstance(step, int) and step >= 0 for step in steps) for steps in slots.values())
    keys = sorted(slots)
    return [max(slots[keys[max(0, bisect_right(keys, load) - 1)]]) for load in range(1, LARGEST_BATCH + 1)]


def of_tensorrt_llm(launch: Launch, upper: bool = True) -> list[int]:
    """By `get_draft_len_for_batch_size` and the validator: up to a key, or from it on before #10860."""
    assert launch.file is not None
    section = yaml.safe_load(launch.file.content)["speculative_config"]
    schedule: Mapping[int, int] | None = section.get("draft_len_schedule")
    if schedule is None:
        return [section["max_draft_len"]] * LARGEST_BATCH
    keys = sorted(schedule)
    assert schedule[keys[0]] == section["max_draft_len"]
    if upper:
        places = [bisect_left(keys, load) for load in range(1, LARGEST_BATCH + 1)]
        return [schedule[keys[place]] if place < len(keys) else 0 for place in places]
    assert keys[0] == 1
    return [schedule[keys[bisect_right(keys, load) - 1]] for load in range(1, LARGEST_BATCH + 1)]


@pytest.mark.parametrize(
    ("engine", "version", "parse"),
    [
        (Engine.VLLM, "0.32.0+cpu", of_vllm),
        (Engine.SGLANG, "0.6.1", of_sglang),
        (Engine.TENSORRT_LLM, "1.4.0rc1", of_tensorrt_llm),
        (Engine.TENSORRT_LLM, "1.2.0", lambda launch: of_tensorrt_llm(launch, upper=False)),
    ],
)
@settings(max_examples=100, deadline=None)
@given(mix=st.lists(routes(), min_size=1, max_size=4, unique_by=lambda one: one.name))
def test_an_engine_that_takes_a_schedule_reads_back_the_one_that_was_learned(
    engine: Engine, version: str, parse: Callable[[Launch], list[int]], mix: list[Known]
) -> None:
    merged = merge(mix)
    merged = Merged(merged.model, "eagle3", merged.steps, merged.counted, merged.left_out)
    expected = as_learned(merged)
    if engine is Engine.TENSORRT_LLM:
        expected = [min(length, expected[0]) for length in expected]
    launch = render(engine, merged, version)
    assert launch.speculates is any(expected)
    if launch.speculates:
        assert parse(launch) == expected
    else:
        assert launch.flags == ()
    assert lossy(launch.flags) == []


def test_vllms_table_ends_with_plain_since_its_tail_carries_the_last_length_on() -> None:
    launch = render(Engine.VLLM, merge([EDIT]), "0.32.0")
    config = json.loads(launch.flags[1])
    assert config["method"] == "ngram"
    assert config["num_speculative_tokens"] == 8
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 3, 8], [4, 7, 4], [8, 65536, 0]]
    told = " ".join(launch.notes)
    assert "--data-parallel-size" in told
    assert "that runner has no ngram" in told
    assert "vllm#49548" in told


def test_a_vllm_from_before_its_tables_gets_one_length_and_is_told_so() -> None:
    launch = render(Engine.VLLM, merge([EDIT]), "0.23.1")
    assert json.loads(launch.flags[1]) == {"method": "ngram", "num_speculative_tokens": 4}
    assert "vLLM 0.23.1 has no table by batch size" in " ".join(launch.notes)


def test_vllms_file_is_yaml_of_one_line_that_holds_the_json() -> None:
    launch = render(Engine.VLLM, merge([EDIT]), "0.32.0", "spec.yaml")
    assert launch.flags == ("--config", "spec.yaml")
    assert launch.file is not None
    (text,) = yaml.safe_load(commented(launch.notes) + launch.file.content).values()
    assert json.loads(text)["num_speculative_tokens"] == 8


def test_weights_are_left_to_the_user_by_name() -> None:
    mine = known("a/en", [(1, 4, 3)], drafter="my-small-one", survival=geometric(0.8), predicted=((1, 1.4),))
    for engine, flag in ((Engine.VLLM, '"model"'), (Engine.SGLANG, "--speculative-draft-model-path")):
        launch = render(engine, merge([mine]))
        assert "WEIGHTS" in launch.line
        assert f"Put the weights of the drafter that is called my-small-one here into {flag}" in " ".join(launch.notes)


def test_sglangs_candidates_are_what_routes_ask_for_up_to_what_the_mix_can_pay_and_plain_stands_alone() -> None:
    short = known("b/en", [(1, 3, 2), (4, 16, 0)], drafter="eagle3", survival=geometric(0.5), predicted=((1, 1.2),))
    merged = merge([HEAD, short])
    launch = render(Engine.SGLANG, merged)
    assert launch.file is not None
    assert not launch.file.comments
    slots = json.loads(launch.file.content)
    longest = merged.steps[0].block_length
    assert slots["1"]["candidate_steps"] == sorted({2, longest})
    assert slots["8"]["candidate_steps"] == [0]
    assert slots["1"]["down_hysteresis"] == -0.25
    assert "--speculative-adaptive" in launch.flags


def test_sglangs_other_drafters_follow_no_schedule_and_get_one_length() -> None:
    launch = render(Engine.SGLANG, merge([EDIT]))
    assert launch.flags == ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "5")
    assert launch.file is None
    told = " ".join(launch.notes)
    assert "SGLang follows no schedule with NGRAM" in told
    assert "edit/code loses at load 1-3: K=8 alone is 2.90x plain, K=4 for all is" in told or "not known" in told


def test_tensorrt_llm_takes_no_length_above_that_of_the_smallest_batch() -> None:
    rising = known("a/en", [(1, 2, 2), (3, 8, 6)], survival=geometric(0.9), predicted=((1, 1.2), (3, 2.0)))
    launch = render(Engine.TENSORRT_LLM, merge([rising]), "1.4.0")
    assert launch.file is not None
    assert yaml.safe_load(launch.file.content)["speculative_config"]["draft_len_schedule"] == {8: 2}
    assert "cut to it" in " ".join(launch.notes)


def test_tensorrt_llm_of_before_the_keys_changed_has_the_other_keys_and_flag() -> None:
    launch = render(Engine.TENSORRT_LLM, merge([EDIT]), "1.2.1")
    assert launch.flags[0] == "--extra_llm_api_options"
    assert launch.file is not None
    assert yaml.safe_load(launch.file.content)["speculative_config"]["draft_len_schedule"] == {1: 8, 4: 4, 8: 0}


@pytest.mark.parametrize(
    ("version", "flags", "noted"),
    [
        ("b10573", ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "4"), False),
        ("b9115-68e7ea3", ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "4"), True),
        ("", ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "4"), True),
        ("b7788", ("--spec-type", "ngram-simple", "--spec-ngram-size-m", "4"), False),
    ],
)
def test_llama_servers_flags_are_spelled_as_its_build_knows_them(
    version: str, flags: tuple[str, ...], noted: bool
) -> None:
    launch = render(Engine.LLAMA_SERVER, merge([EDIT]), version)
    assert launch.flags == flags
    assert ("#22397" in " ".join(launch.notes)) is noted


def test_llama_servers_draft_models_are_spelled_as_its_build_knows_them() -> None:
    mine = known("a/en", [(1, 4, 3)], drafter="draft", survival=geometric(0.8), predicted=((1, 1.4),))
    new = render(Engine.LLAMA_SERVER, merge([mine]), "b10573").flags
    assert new == ("--spec-type", "draft-simple", "--model-draft", "WEIGHTS", "--spec-draft-n-max", "3")
    old = render(Engine.LLAMA_SERVER, merge([mine]), "b7788").flags
    assert old == ("--model-draft", "WEIGHTS", "--draft-max", "3")


def test_every_flag_for_todays_llama_server_is_in_the_real_library() -> None:
    (library,) = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
    content = library.read_bytes()
    drafters = [name for name, spelling in SPELLINGS.items() if spelling.llama_server is not None]
    for drafter in drafters:
        mine = known("a/en", [(1, 4, 3)], drafter=drafter, survival=geometric(0.8), predicted=((1, 1.4),))
        for part in render(Engine.LLAMA_SERVER, merge([mine]), "b10573").flags:
            if part not in ("3", "WEIGHTS"):
                assert part.encode() + b"\x00" in content, part
    assert b"--draft-max-of-nobody\x00" not in content


@pytest.mark.parametrize(
    ("drafter", "flags"),
    [
        ("ngram-simple", "--spec-type ngram-simple --spec-ngram-simple-size-m 3"),
        ("ngram-map-k4v", "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-m 3"),
        ("ngram-mod", "--spec-type ngram-mod --spec-ngram-mod-n-max 3"),
        ("ngram-cache", "--spec-type ngram-cache"),
        ("draft-simple", "--spec-type draft-simple --model-draft WEIGHTS --spec-draft-n-max 3"),
        ("draft-mtp", "--spec-type draft-mtp --spec-draft-n-max 3"),
        (
            "ngram-mod,draft-mtp",
            "--spec-type ngram-mod,draft-mtp --spec-ngram-mod-n-max 3 --spec-draft-n-max 3",
        ),
    ],
)
def test_llama_servers_own_names_come_back_as_they_were(drafter: str, flags: str) -> None:
    mine = known("a/en", [(1, 4, 3)], drafter=drafter, survival=geometric(0.8), predicted=((1, 1.4),))
    assert render(Engine.LLAMA_SERVER, merge([mine]), "b10573").line == flags


@pytest.mark.parametrize(
    ("drafter", "method"),
    [
        ("ngram-simple", "ngram"),
        ("ngram-mod", "ngram"),
        ("draft-simple", "draft_model"),
        ("standalone", "draft_model"),
        ("nextn", "mtp"),
        ("frozen_kv_mtp", "mtp"),
        ("deepseek_mtp", "mtp"),
        ("draft-eagle3", "eagle3"),
        ("ngram_gpu", "ngram_gpu"),
        ("NGRAM", "ngram"),
        ("smol-draft", "draft_model"),
    ],
)
def test_what_other_engines_call_a_drafter_is_understood(drafter: str, method: str) -> None:
    mine = known("a/en", [(1, 4, 3)], drafter=drafter, survival=geometric(0.8), predicted=((1, 1.4),))
    launch = render(Engine.VLLM, merge([mine]))
    config = json.loads(launch.flags[1])
    assert config["method"] == method
    assert ("model" in config) is SPELLINGS[method].weights
    assert ("it is taken for a draft model" in " ".join(launch.notes)) is (drafter == "smol-draft")


def test_every_name_of_every_engine_is_one_drafter() -> None:
    for name, spelling in SPELLINGS.items():
        for told in (name, spelling.vllm, spelling.sglang, spelling.tensorrt_llm, spelling.llama_server):
            if told is not None:
                found = spelling_of(told)[1]
                assert told in (name, found.vllm, found.sglang, found.tensorrt_llm, found.llama_server)


def test_llama_servers_presets_have_an_alias_for_plain_and_for_each_block_length() -> None:
    launch = render(Engine.LLAMA_SERVER, merge([EDIT, STORY]), "b10573")
    assert launch.file is not None
    presets = configparser.ConfigParser()
    presets.read_string("[top]\n" + commented(launch.notes) + launch.file.content)
    assert presets["top"]["version"] == "1"
    assert presets.sections()[1:] == [f"{MODEL}-plain", f"{MODEL}-4", f"{MODEL}-8"]
    assert dict(presets[f"{MODEL}-plain"]) == {"model": "MODEL", "spec-type": "none"}
    assert presets[f"{MODEL}-8"]["spec-ngram-simple-size-m"] == "8"


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        (Engine.VLLM, "--speculative-config"),
        (Engine.SGLANG, "--speculative-algorithm"),
        (Engine.TENSORRT_LLM, "speculative_config"),
        (Engine.LLAMA_SERVER, "--spec-type none"),
    ],
)
def test_where_the_evidence_says_not_to_the_plain_launch_is_rendered_with_the_reason(engine: Engine, flag: str) -> None:
    launch = render(engine, merge([STORY]))
    assert not launch.speculates
    assert launch.flags == ()
    assert launch.file is None
    assert launch.notes[0] == "Plain at every load."
    assert launch.notes[-1].startswith("Launch with")
    assert flag in launch.notes[-1]
    assert "It was compared with plain." in " ".join(launch.notes)


@pytest.mark.parametrize("engine", [Engine.SGLANG, Engine.LLAMA_SERVER])
def test_a_drafter_that_an_engine_has_not_is_told_and_plain_rendered(engine: Engine) -> None:
    suffix = known("a/en", [(1, 4, 3)], drafter="suffix", survival=geometric(0.8), predicted=((1, 1.4),))
    launch = render(engine, merge([suffix]))
    assert not launch.speculates
    told = " ".join(launch.notes)
    assert "has no drafter suffix." in told
    assert "a/en loses at load 1-4: K=3 alone is 1.40x plain, plain for all is 1.00x" in told


@pytest.mark.parametrize("engine", [Engine.VLLM, Engine.SGLANG, Engine.TENSORRT_LLM])
def test_a_chain_of_drafters_is_llama_servers_alone(engine: Engine) -> None:
    chain = known("a/en", [(1, 4, 3)], drafter="ngram-mod,draft-mtp", survival=geometric(0.8), predicted=((1, 1.4),))
    launch = render(engine, merge([chain]))
    assert not launch.speculates
    assert "has no drafter ngram-mod,draft-mtp." in " ".join(launch.notes)


def test_what_an_engine_cannot_do_is_not_taken_for_what_is_not_accepted() -> None:
    unknown = known("a/en", [(1, 4, 1)], drafter="suffix", predicted=((1, 1.15),))
    told = render(Engine.SGLANG, merge([unknown])).notes
    assert "a/en loses at load 1-4: K=1 alone is 1.15x plain, plain for all is 1.00x, slower" not in " ".join(told)
    assert "a/en loses at load 1-4: K=1 alone is 1.15x plain, plain for all is 1.00x." in told


def test_comments_are_lines_of_their_own_that_a_shell_skips() -> None:
    text = commented(("a " * 120 + "end.", "Second."))
    assert all(line.startswith("# ") for line in text.splitlines())
    assert all(len(line) <= 110 for line in text.splitlines())
    assert text.splitlines()[-1] == "# Second."


def test_the_line_is_quoted_for_a_shell() -> None:
    launch = render(Engine.VLLM, merge([EDIT]), "0.32.0")
    assert tuple(shlex.split(launch.line)) == launch.flags
