"""The model of a request as a key of policies: its adapters among it, since each has an acceptance of its own.

vLLM serves an adapter under a name of its own in ``model``, and lists it with its ``parent``. SGLang takes
``BASE:ADAPTER`` there, or ``lora_path`` beside it. llama.cpp has no names: ``lora`` lists the scales of the adapters
that it was launched with, ``[{"id": 0, "scale": 1.0}]``.
"""

from collections.abc import Mapping
from typing import Any


def model_key(body: Mapping[str, Any] | None, models: tuple[str, ...] = ()) -> str:
    """`policies.types.Context.model` of a request.

    Args:
        body: the request; None where it was not read.
        models: what the upstream lists. A name that is not among them has no policies of its own: vLLM refuses it,
            and llama.cpp serves it with the one model that it has.
    """
    told = {} if body is None else body
    named = told.get("model")
    model = named if isinstance(named, str) else ""
    if models and model not in models and model.partition(":")[0] not in models:
        model = models[0]
    return "+".join([model, *_adapters(told)])


def _adapters(body: Mapping[str, Any]) -> list[str]:
    path = body.get("lora_path")
    found = [path] if isinstance(path, str) and path else []
    lora = body.get("lora")
    if isinstance(lora, list):
        scales = {
            each["id"]: float(each.get("scale", 0.0))
            for each in lora
            if isinstance(each, dict) and isinstance(each.get("id"), int) and _is_number(each.get("scale", 0.0))
        }
        found += [f"lora-{one}@{scale:g}" for one, scale in sorted(scales.items()) if scale != 0.0]
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
