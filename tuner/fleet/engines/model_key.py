"""The model of a request as a key of policies: its adapters among it, since each has an acceptance of its own.

vLLM and SGLang list an adapter beside its model in ``/v1/models``. vLLM serves it under that name; SGLang as
``MODEL:ADAPTER``, or with ``lora_path`` beside the model. llama.cpp has no names: ``lora`` lists scales of the adapters
that it was launched with, ``[{"id": 0, "scale": 1.0}]``.

Clients cannot make keys: a name that nobody lists is none.
"""

from collections.abc import Callable, Mapping
from typing import Any

_MOST_SCALED = 8
"""Adapters of llama.cpp with a key of their own, by their number: combinations of them are keys too."""


def model_key(body: Mapping[str, Any] | None, serves: Callable[[str], bool], default: str) -> str:
    """`policies.types.Context.model` of a request.

    Args:
        body: the request; None where it was not read.
        serves: whether an upstream lists the name of a model or an adapter.
        default: the model of requests that name none, or one that is not listed: vLLM refuses those, and llama.cpp
            serves them with the one model that it has.
    """
    told = {} if body is None else body
    named, path = told.get("model"), told.get("lora_path")
    model = default
    if isinstance(named, str):
        base, _, adapter = named.partition(":")
        if serves(named) or (adapter and serves(base) and serves(adapter)):
            model = named
    if isinstance(path, str) and serves(path):
        model = f"{model}:{path}"
    return model + "".join(f"+lora-{one}" for one in _scaled(told.get("lora")))


def _scaled(lora: Any) -> list[int]:
    """The numbers of the adapters that llama.cpp was asked to add."""
    listed = [each for each in lora if isinstance(each, dict)] if isinstance(lora, list) else []
    numbers = [each.get("id") for each in listed if each.get("scale") not in (0, None)]
    return [one for one in range(_MOST_SCALED) if one in numbers]
