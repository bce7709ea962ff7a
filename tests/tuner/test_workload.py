"""The workload is large, varied and valid; the server takes all of it; a bad record is named by file and line."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.server.schema import parse_chat
from engine.server.tools import Message
from policies.language_detection import LanguageDetector, last_user_turn
from policies.languages import CODE
from tuner.workload import ROUTES, Prompt, WorkloadError, load_workload, read_prompts

CHARACTER_LIMITS = {"code-edit": 1600, "extract": 700, "chat": 450, "story": 450}
"""Prompts are short: with the default model's tokenizer these are under 500 tokens for code, under 330 elsewhere."""
BEGINNING = 110
"""Characters of about 32 tokens."""
FENCE = re.compile(r"```\w+\n(.*?)\n```", re.DOTALL)


@pytest.fixture(scope="module")
def prompts() -> tuple[Prompt, ...]:
    return load_workload()


def _words(prompt: Prompt) -> list[str]:
    return re.findall(r"\w+", " ".join(message["content"] for message in prompt.messages).lower())


def _five_grams(prompt: Prompt) -> set[tuple[str, ...]]:
    words = _words(prompt)
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


def _record(**changes: object) -> dict[str, Any]:
    return {
        "id": "chat-tea",
        "route": "chat",
        "language": "en",
        "messages": [{"role": "user", "content": "How long does green tea draw?"}],
        "sampling": {"temperature": 0.7, "top_p": 0.9},
        "max_tokens": 96,
        **changes,
    }


def _written(folder: Path, *records: object) -> Path:
    path = folder / "chat.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_there_are_at_least_200_prompts_and_40_for_each_route(prompts: tuple[Prompt, ...]) -> None:
    counts = Counter(prompt.route for prompt in prompts)
    assert len(prompts) >= 200
    assert set(counts) == set(ROUTES)
    assert min(counts.values()) >= 40


@pytest.mark.parametrize("route", [route for route in ROUTES if route != "code-edit"])
def test_a_route_of_prose_has_at_least_five_languages_twice_or_more(route: str) -> None:
    counts = Counter(prompt.language for prompt in load_workload([route]))
    assert sum(count >= 2 for count in counts.values()) >= 5


def test_the_first_eight_prompts_of_a_route_of_prose_mix_languages() -> None:
    for route in ("extract", "chat", "story"):
        assert len({prompt.language for prompt in load_workload([route])[:8]}) >= 3


def test_ids_are_unique_over_all_routes(prompts: tuple[Prompt, ...]) -> None:
    assert len({prompt.id for prompt in prompts}) == len(prompts)


def test_no_two_prompts_share_a_quarter_of_their_word_five_grams(prompts: tuple[Prompt, ...]) -> None:
    grams = {prompt.id: _five_grams(prompt) for prompt in prompts}
    assert min(len(found) for found in grams.values()) >= 5
    for one, other in itertools.combinations(grams, 2):
        smaller = min(len(grams[one]), len(grams[other]))
        assert len(grams[one] & grams[other]) < smaller / 4, (one, other)


def test_no_two_prompts_have_the_same_last_turn(prompts: tuple[Prompt, ...]) -> None:
    turns = Counter(prompt.messages[-1]["content"] for prompt in prompts)
    assert max(turns.values()) == 1


def test_prompts_and_outputs_are_short(prompts: tuple[Prompt, ...]) -> None:
    for prompt in prompts:
        characters = sum(len(message["content"]) for message in prompt.messages)
        assert characters <= CHARACTER_LIMITS[prompt.route], prompt.id
        assert 48 <= prompt.max_tokens <= 256, prompt.id


def test_a_code_edit_prompt_holds_whole_files_of_15_to_45_lines() -> None:
    for prompt in load_workload(["code-edit"]):
        files = [found for message in prompt.messages for found in FENCE.findall(message["content"])]
        assert files, prompt.id
        for content in files:
            assert 15 <= len(content.split("\n")) <= 45, prompt.id


def test_a_second_edit_starts_from_an_answer_that_differs_from_the_first_file() -> None:
    conversations = [prompt for prompt in load_workload(["code-edit"]) if len(prompt.messages) >= 3]
    assert len(conversations) >= 40
    for prompt in conversations:
        before, after = (FENCE.findall(message["content"]) for message in prompt.messages[-3:-1])
        assert len(before) == len(after) == 1, prompt.id
        assert before != after, prompt.id


def test_an_extract_prompt_has_60_to_150_words_and_asks_for_json() -> None:
    for prompt in load_workload(["extract"]):
        text = " ".join(message["content"] for message in prompt.messages)
        assert 60 <= len(text.split()) <= 160, prompt.id
        assert "JSON" in text, prompt.id


def test_sampling_is_what_people_use_for_the_route(prompts: tuple[Prompt, ...]) -> None:
    ranges = {"code-edit": (0, 0.2), "extract": (0, 0.2), "chat": (0.3, 0.9), "story": (0.9, 1.0)}
    for prompt in prompts:
        low, high = ranges[prompt.route]
        assert low <= prompt.sampling["temperature"] <= high, prompt.id
    used = {field for prompt in prompts for field in prompt.sampling}
    assert {"top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"} <= used


def test_the_server_takes_every_prompt_as_it_stands(prompts: tuple[Prompt, ...]) -> None:
    for prompt in prompts:
        body: Mapping[str, Any] = {
            "model": "m",
            "messages": [dict(message) for message in prompt.messages],
            "max_tokens": prompt.max_tokens,
            **prompt.sampling,
        }
        assert len(parse_chat(json.loads(json.dumps(body)), "m", 49152).messages) == len(prompt.messages)


def test_the_server_resolves_the_language_that_the_label_says(prompts: tuple[Prompt, ...]) -> None:
    detector = LanguageDetector()
    for prompt in prompts:
        turn = last_user_turn([Message(message["role"], message["content"]) for message in prompt.messages])
        if prompt.language == CODE and not FENCE.search(turn):
            continue  # the file stands in an earlier turn; the server sees code in the first tokens of the answer
        assert detector.detect(turn) == prompt.language, prompt.id


def test_no_beginning_of_a_program_moves_a_request_to_a_language(prompts: tuple[Prompt, ...]) -> None:
    """Everywhere in the workload's files and our own, since a model may begin its answer with any of it."""
    detector = LanguageDetector()
    programs = [file for prompt in prompts for turn in prompt.messages for file in FENCE.findall(turn["content"])]
    programs += [path.read_text(encoding="utf-8") for room in ("policies", "engine/server") for path in _sources(room)]
    beginnings = [text for program in programs for text in _beginnings(program)]
    assert len(beginnings) > 4000
    assert {detector.detect_output(text, CODE) for text in beginnings} == {CODE}
    assert {detector.detect_output(text, "en") for text in beginnings} == {CODE, "en"}


def test_prose_moves_a_request_to_its_language_most_of_the_time_and_never_to_another(
    prompts: tuple[Prompt, ...],
) -> None:
    detector = LanguageDetector()
    found: dict[str, Counter[str]] = {}
    for prompt in prompts:
        if prompt.route in ("chat", "story"):
            asked = "de" if prompt.language == "en" else "en"
            for turn in prompt.messages:
                for start in range(0, len(turn["content"]) - BEGINNING, BEGINNING):
                    text = turn["content"][start : start + BEGINNING]
                    found.setdefault(prompt.language, Counter())[detector.detect_output(text, asked)] += 1
    assert len(found) > 5
    for language, counts in found.items():
        assert set(counts) <= {language, "de" if language == "en" else "en"}, language
        assert counts[language] > 0.7 * counts.total(), (language, counts)


def _sources(room: str) -> list[Path]:
    return sorted((Path(__file__).parents[2] / room).rglob("*.py"))


def _beginnings(program: str) -> list[str]:
    """What stands behind every second line break, in the length of 32 tokens."""
    lines = program.splitlines(keepends=True)
    return ["".join(lines[at : at + 12])[:BEGINNING] for at in range(0, len(lines), 2)]


def test_loading_twice_gives_the_same_order_and_routes_come_as_asked(prompts: tuple[Prompt, ...]) -> None:
    assert load_workload() == prompts
    assert [prompt.route for prompt in prompts] == sorted((p.route for p in prompts), key=ROUTES.index)
    chosen = load_workload(["story", "chat"])
    assert list(dict.fromkeys(prompt.route for prompt in chosen)) == ["story", "chat"]


def test_a_route_that_does_not_exist_is_refused_with_the_choices() -> None:
    with pytest.raises(WorkloadError, match="no route 'poems': choose from code-edit, extract, chat, story"):
        load_workload(["poems"])


def test_a_good_record_becomes_a_prompt(tmp_path: Path) -> None:
    (prompt,) = read_prompts(_written(tmp_path, _record()), "chat")
    assert (prompt.id, prompt.language, prompt.max_tokens) == ("chat-tea", "en", 96)
    assert prompt.sampling == {"temperature": 0.7, "top_p": 0.9}
    assert prompt.messages == ({"role": "user", "content": "How long does green tea draw?"},)


USER = {"role": "user", "content": "Hello"}
ASSISTANT = {"role": "assistant", "content": "Good day"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"colour": "red"}, "the fields are .*'colour'.*: give exactly id, route"),
        ({"id": ""}, "id is '': give a non-empty string"),
        ({"language": 3}, "language is 3: give a non-empty string"),
        ({"route": "story"}, "route is 'story': give 'chat'"),
        ({"max_tokens": 0}, "max_tokens is 0: give a whole number from 1 to 256"),
        ({"max_tokens": True}, "max_tokens is True: give a whole number"),
        ({"max_tokens": 64.0}, "max_tokens is 64.0: give a whole number"),
        ({"messages": []}, r"messages is \[\]: give a list"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\] is .*: give an object with role and content"),
        ({"messages": [{"role": "bot", "content": "Hi"}]}, r"messages\[0\].role is 'bot': give one of system"),
        ({"messages": [{"role": "user", "content": " "}]}, r"messages\[0\].content is ' ': give a text"),
        ({"messages": [USER, ASSISTANT]}, "messages is .*: give user and assistant in turn, the user last"),
        ({"messages": [USER, USER, USER]}, "messages is .*: give user and assistant in turn"),
        ({"messages": [{"role": "system", "content": "Be kind"}]}, "messages is .*: give user and assistant in turn"),
        ({"sampling": {}}, "sampling is {}: give an object with at least the temperature"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature is -1: give a number from 0 to 2"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature is 'hot': give a number"),
        ({"sampling": {"temperature": 0.7, "top_p": 1.5}}, "sampling.top_p is 1.5: give a number from 0 to 1"),
        ({"sampling": {"temperature": 0.7, "warmth": 1}}, "a field of sampling is 'warmth': give one of temperature"),
    ],
)
def test_a_bad_record_gives_one_sentence_with_file_line_field_and_remedy(
    changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    path = _written(tmp_path, _record(), _record(**{"id": "chat-coffee", **changes}))
    with pytest.raises(WorkloadError, match=rf"^chat\.jsonl:2: {sentence}"):
        read_prompts(path, "chat")


def test_an_id_used_twice_names_both_lines(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"^chat\.jsonl:2: id is 'chat-tea', as in line 1"):
        read_prompts(_written(tmp_path, _record(), _record()), "chat")


def test_a_line_that_is_no_json_or_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text("{not json}\n", encoding="utf-8")
    with pytest.raises(WorkloadError, match=r"^chat\.jsonl:1: the line is no JSON"):
        read_prompts(path, "chat")
    with pytest.raises(WorkloadError, match=r"^chat\.jsonl:1: the fields are 5"):
        read_prompts(_written(tmp_path, 5), "chat")


def test_a_loaded_prompt_cannot_be_changed_by_its_reader(prompts: tuple[Prompt, ...]) -> None:
    with pytest.raises(TypeError):
        prompts[0].messages[0]["content"] = "other"  # type: ignore[index]
    with pytest.raises(TypeError):
        prompts[0].sampling["temperature"] = 2.0  # type: ignore[index]
