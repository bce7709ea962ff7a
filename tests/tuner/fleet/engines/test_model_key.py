"""The model of a request as a key of policies."""

from typing import Any

import pytest

from policies.types import Context
from tuner.fleet.engines.model_key import model_key

LISTED = {"llama", "llama-legal", "legal"}


def key_of(body: dict[str, Any] | None) -> str:
    return model_key(body, LISTED.__contains__, "llama")


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"model": "llama-legal"}, "llama-legal"),
        ({"model": "llama:legal"}, "llama:legal"),
        ({"model": "llama", "lora_path": "legal"}, "llama:legal"),
        ({"model": "any", "lora": [{"id": 1, "scale": 0.5}, {"id": 0, "scale": 1.0}]}, "llama+lora-0+lora-1"),
    ],
)
def test_report_55_vllm_52038_sglang_37772_an_adapter_has_a_key_of_its_own(body: dict[str, Any], key: str) -> None:
    assert key_of(body) == key
    assert Context(key_of({"model": "llama"}), "chat", "en") != Context(key, "chat", "en")


@pytest.mark.parametrize(
    "lora",
    [
        None,
        [],
        "legal",
        [{"id": 0, "scale": 0.0}],
        [{"id": "a", "scale": 1}],
        [{"id": [0], "scale": 1}],
        [{"id": 99, "scale": 1}],
        [7],
    ],
    ids=str,
)
def test_no_adapter_that_is_in_force_leaves_the_models_key(lora: Any) -> None:
    assert key_of({"model": "llama", "lora": lora}) == "llama"


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"model": "made-up"},
        {"model": 7},
        {"model": ""},
        {"model": "llama:made-up"},
        {"model": "llama", "lora_path": "made-up"},
        {"model": "llama", "lora_path": ["legal"]},
    ],
    ids=str,
)
def test_a_name_that_is_not_listed_makes_no_key(body: dict[str, Any] | None) -> None:
    assert key_of(body) == "llama"
