"""What was given, as it stands in a sentence about it."""

import json
from collections.abc import Iterable

_MOST_CHARACTERS = 60
_MOST_NAMES = 10


def shown(value: object) -> str:
    """`value` as JSON, cut to a length that fits a sentence."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # an integer with more digits than Python is willing to print
        text = "a number too long to show"
    return clipped(text)


def clipped(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def listed(names: Iterable[str]) -> str:
    """The first of `names`, and how many more there are."""
    every = list(names)
    more = len(every) - _MOST_NAMES
    return ", ".join(every[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
