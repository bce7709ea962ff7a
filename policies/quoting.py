"""What was given, as it stands in a sentence about it."""

import json

_MOST_CHARACTERS = 60


def shown(value: object) -> str:
    """`value` as JSON, cut to a length that fits a sentence."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # an integer with more digits than Python is willing to print
        text = "a number too long to show"
    return clipped(text)


def clipped(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
