"""Settings under which a drafter changes what the model says. None is ever written here, and `doctor` names them.

Sources: SGLang ``server_args.py`` and ``set_internal_state`` (2026-08); vLLM ``config/speculative.py`` (0.32.0) and its
page on FLy; TensorRT-LLM ``llm_args.py`` (2026-08); llama.cpp #27711.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.quoting import shown

_ACCEPTS_MORE = "accepts drafts that the model would not have chosen"
_INVENTS = "accepts drafts by chance, whatever the model says, for measuring only"
_FLY = "fly"
"""vLLM's verification of that name, which its page calls lossy. How it is set was not read: so whatever is called so,
begins with it, or sets a method to it."""


def _below_one(value: Any) -> bool:
    number = _number(value)
    return number is not None and number < 1.0


def _above_zero(value: Any) -> bool:
    number = _number(value)
    return number is not None and number > 0.0


def _on(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.lower() in ("true", "1", "yes", "on"))


def _given(value: Any) -> bool:
    return value not in (None, False, "", [], "none")


def _is_synthetic(value: Any) -> bool:
    return bool(value == "synthetic")


def _is_typical(value: Any) -> bool:
    return bool(value == "typical_acceptance_sampler")


@dataclass(frozen=True, slots=True)
class LossySetting:
    """One setting."""

    engine: str
    is_lossy: Callable[[Any], bool]
    does: str
    remedy: str


LOSSY_SETTINGS: Mapping[str, LossySetting] = {
    "speculative_accept_threshold_single": LossySetting("SGLang", _below_one, _ACCEPTS_MORE, "set it to 1.0"),
    "speculative_accept_threshold_acc": LossySetting("SGLang", _below_one, _ACCEPTS_MORE, "set it to 1.0"),
    "sglang_simulate_acc_len": LossySetting("SGLang", _above_zero, _INVENTS, "unset it"),
    "rejection_sample_method": LossySetting("vLLM", _is_synthetic, _INVENTS, "set it to standard or block"),
    "synthetic_acceptance_rates": LossySetting("vLLM", _given, _INVENTS, "leave it out"),
    "synthetic_acceptance_length": LossySetting("vLLM", _given, _INVENTS, "leave it out"),
    _FLY: LossySetting("vLLM", _given, _ACCEPTS_MORE, "leave it out"),
    "spec_decoding_acceptance_method": LossySetting(
        "vLLM of before V1", _is_typical, _ACCEPTS_MORE, "set it to rejection_sampler"
    ),
    "typical_acceptance_sampler_posterior_threshold": LossySetting(
        "vLLM of before V1", _given, _ACCEPTS_MORE, "leave it out"
    ),
    "typical_acceptance_sampler_posterior_alpha": LossySetting(
        "vLLM of before V1", _given, _ACCEPTS_MORE, "leave it out"
    ),
    "posterior_threshold": LossySetting("TensorRT-LLM", _above_zero, _ACCEPTS_MORE, "leave it out"),
    "use_relaxed_acceptance_for_thinking": LossySetting("TensorRT-LLM", _on, _ACCEPTS_MORE, "set it to false"),
    "relaxed_delta": LossySetting("TensorRT-LLM", _above_zero, _ACCEPTS_MORE, "leave it out"),
    "spec_synth_len": LossySetting("llama-server", _above_zero, _INVENTS, "leave it out"),
    "spec_synth_rates": LossySetting("llama-server", _given, _INVENTS, "leave it out"),
}
"""By the setting's name in lower case with underscores."""


def lossy(settings: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """One sentence for each lossy setting in a launch line, a configuration, an environment or a server's own word.

    `settings` is what a server or a file has, nested as deep as it likes, or a command line in words.
    """
    found = settings if isinstance(settings, Mapping) else dict(_of_words(settings))
    return list(dict.fromkeys(_told(found)))


def _told(settings: Any) -> Iterator[str]:
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from _rule(str(key), value)
            yield from _told(_decoded(value))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _told(value)


def _rule(key: str, value: Any) -> Iterator[str]:
    name = key.lstrip("-").rpartition(".")[2].lower().replace("-", "_")
    fly = name.startswith("fly_") or (value == _FLY and name.endswith(("method", "mode", "verification")))
    setting = LOSSY_SETTINGS.get(_FLY if fly else name)
    if setting is not None and setting.is_lossy(value):
        yield f"{key} is {shown(value)}, which {setting.does}: {setting.remedy}."


def _of_words(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(option, value) of a command line; an option without a value is True."""
    for place, word in enumerate(words):
        if not word.startswith("-"):
            continue
        option, equals, value = word.partition("=")
        if equals:
            yield option, value
        elif place + 1 < len(words) and not words[place + 1].startswith("--"):
            yield option, words[place + 1]
        else:
            yield option, True


def _decoded(value: Any) -> Any:
    """JSON that stands in a string, such as that of --speculative-config; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
