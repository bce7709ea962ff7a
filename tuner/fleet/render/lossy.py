"""Settings under which a drafter changes what the model says. None is ever written here, and `doctor` names them.

Sources: SGLang ``server_args.py`` and ``set_internal_state`` (2026-08); vLLM ``config/speculative.py`` (0.32.0) and its
page on FLy; TensorRT-LLM ``llm_args.py`` (2026-08); llama.cpp #27711.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from policies.quoting import shown

_ACCEPTS_MORE = "accepts drafts that the model would not have chosen"
_INVENTS = "accepts drafts by chance, whatever the model says: for measuring only"


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


def _is_one_of(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value.lower() in names


_RULES: Mapping[str, tuple[Callable[[Any], bool], str, str]] = {
    "speculative_accept_threshold_single": (_below_one, _ACCEPTS_MORE, "set it to 1.0"),
    "speculative_accept_threshold_acc": (_below_one, _ACCEPTS_MORE, "set it to 1.0"),
    "rejection_sample_method": (_is_one_of("synthetic", "fly"), _INVENTS, "set it to standard or block"),
    "synthetic_acceptance_rates": (_given, _INVENTS, "leave it out"),
    "synthetic_acceptance_length": (_given, _INVENTS, "leave it out"),
    "verification_method": (_is_one_of("fly", "typical", "relaxed"), _ACCEPTS_MORE, "leave it out"),
    "spec_decoding_acceptance_method": (
        _is_one_of("typical_acceptance_sampler"),
        _ACCEPTS_MORE,
        "set it to rejection_sampler",
    ),
    "typical_acceptance_sampler_posterior_threshold": (_given, _ACCEPTS_MORE, "leave it out"),
    "typical_acceptance_sampler_posterior_alpha": (_given, _ACCEPTS_MORE, "leave it out"),
    "posterior_threshold": (_above_zero, _ACCEPTS_MORE, "leave it out"),
    "use_relaxed_acceptance_for_thinking": (_on, _ACCEPTS_MORE, "set it to false"),
    "relaxed_delta": (_above_zero, _ACCEPTS_MORE, "leave it out"),
    "spec_synth_len": (_above_zero, _INVENTS, "leave it out"),
    "spec_synth_rates": (_given, _INVENTS, "leave it out"),
    "sglang_simulate_acc_len": (_above_zero, _INVENTS, "unset it"),
}
"""By the setting's name in lower case with underscores: when it is lossy, what it does, and the remedy."""


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
    fly = name == "fly" or name.startswith("fly_")
    applies, does, remedy = (_given, _ACCEPTS_MORE, "leave it out") if fly else _RULES.get(name, (None, "", ""))
    if applies is not None and applies(value):
        yield f"{key} is {shown(value)}, which {does}: {remedy}."


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
