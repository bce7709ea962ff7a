"""The model of a request as a key of policies."""

from typing import Any

import pytest

from policies.types import Context
from tuner.fleet.engines.model_key import model_key

MODELS = ("llama", "llama-legal")


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"model": "llama"}, "llama"),
        ({"model": "llama-legal"}, "llama-legal"),
        ({"model": "llama:legal"}, "llama:legal"),
        ({"model": "llama", "lora_path": "legal"}, "llama+legal"),
        ({"model": "llama", "lora": [{"id": 1, "scale": 0.5}, {"id": 0, "scale": 1.0}]}, "llama+lora-0@1+lora-1@0.5"),
    ],
)
def test_report_55_vllm_52038_sglang_37772_an_adapter_has_a_key_of_its_own(body: dict[str, Any], key: str) -> None:
    assert model_key(body, MODELS) == key
    plain = Context(model_key({"model": "llama"}, MODELS), "chat", "en")
    assert (Context(key, "chat", "en") == plain) is (key == "llama")


@pytest.mark.parametrize(
    "lora",
    [None, [], "legal", [{"id": 0, "scale": 0.0}], [{"id": "a"}], [{"scale": 1.0}], [7], [{"id": 0, "scale": "1"}]],
)
def test_no_adapter_that_is_in_force_leaves_the_models_key(lora: Any) -> None:
    assert model_key({"model": "llama", "lora": lora}, MODELS) == "llama"


@pytest.mark.parametrize("body", [None, {}, {"model": "made-up"}, {"model": 7}, {"model": ""}])
def test_a_name_that_is_not_served_makes_no_key(body: dict[str, Any] | None) -> None:
    assert model_key(body, MODELS) == "llama"


def test_without_a_list_the_name_is_taken_as_it_is() -> None:
    assert model_key({"model": "any"}) == "any"
    assert model_key(None) == ""
