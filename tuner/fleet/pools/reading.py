"""What a chooser reads of a request: its context, its length, what it asks of the answer. Nothing of it is kept."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from policies.language_detection import LanguageDetector
from policies.languages import LANGUAGES
from policies.types import OTHER_ROUTE, UNDETERMINED
from tuner.fleet.engines.model_key import model_key
from tuner.fleet.pools.snapshot import FleetSnapshot
from tuner.fleet.types import Asked

_MOST_TOKENS = 10_000_000
"""Of an answer that anybody waits for: what asks for more asks for so many."""
_MOST_TEMPERATURE = 1000.0
BYTES_A_TOKEN = 4.0
"""Of a body, roughly; only prices of prefixes rest on it."""
_LONGEST_TAG = 35
"""Characters of a language tag that are looked at."""


class Turn(NamedTuple):
    """One message of a conversation, as `LanguageDetector` reads them."""

    role: str
    content: str


def route_of(asked: Asked, snapshot: FleetSnapshot) -> str:
    """The route that is asked for, if it is one of the configured ones."""
    return asked.route if asked.route in snapshot.routes and asked.route is not None else OTHER_ROUTE


def language_of(asked: Asked, detector: LanguageDetector) -> str:
    """By the header; else by what the last user turn, or the prompt, is written in."""
    if asked.language is not None:
        subtag = asked.language[:_LONGEST_TAG].strip().lower().partition("-")[0]
        if subtag in LANGUAGES:
            return subtag
    if asked.body is None:
        return UNDETERMINED
    messages = asked.body.get("messages")
    if isinstance(messages, list):
        turns = [turn for message in messages if (turn := _turn(message)) is not None]
        return detector.detect_chat(turns) if turns else UNDETERMINED
    prompt = asked.body.get("prompt")
    if isinstance(prompt, list):
        prompt = next((text for text in prompt if isinstance(text, str)), None)
    return detector.detect(prompt) if isinstance(prompt, str) else UNDETERMINED


def model_of(asked: Asked, snapshot: FleetSnapshot) -> str:
    """The model that is asked for, if an upstream lists it, with its adapters: they have an acceptance of their own."""
    return model_key(asked.body, lambda name: any(name in lane.models for lane in snapshot.lanes), snapshot.model)


def most_tokens(body: Mapping[str, Any]) -> float | None:
    """What the client lets the answer have at most; None where it does not say."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return float(min(value, _MOST_TOKENS))
    return None


def temperature_of(body: Mapping[str, Any]) -> float:
    """The temperature that is asked for; the protocol's default where that is none that an engine takes."""
    value = body.get("temperature")
    if isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= _MOST_TEMPERATURE:
        return float(value)
    return 1.0


def usage_edit(body: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The member that makes a stream tell its usage; None where it does anyway, or is no stream.

    What is neither absent, null, false nor true is left as it is: it is the engine's to refuse, in its own words.
    """
    options = body.get("stream_options")
    options = {} if options is None else options
    if body.get("stream") is not True or not isinstance(options, Mapping):
        return None
    asked = options.get("include_usage")
    if asked is not None and asked is not False:
        return None
    return "stream_options", {**options, "include_usage": True}


def _turn(message: object) -> Turn | None:
    if not isinstance(message, Mapping):
        return None
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "\n".join(text for text in parts if isinstance(text, str))
    if not isinstance(content, str):
        return None
    return Turn(str(message.get("role", "")), content)
