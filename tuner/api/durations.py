"""Durations as people write them: ``90s``, ``30m``, ``2h``, ``1d``, ``1h30m``."""

import math
import re

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PATTERN = re.compile(r"(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s)?", re.ASCII)
MAX_DAYS = 999_999
_MAX_DIGITS = 12
_SHOWN_CHARACTERS = 30


def parse_duration(text: str) -> int:
    """Seconds, more than 0. Raises ValueError with a remedy."""
    match = _PATTERN.fullmatch(text.strip())
    parts = {} if match is None else {unit: match[unit] or "0" for unit in _SECONDS}
    long = any(len(digits) > _MAX_DIGITS for digits in parts.values())
    seconds = 0 if long else sum(int(digits) * _SECONDS[unit] for unit, digits in parts.items())
    shown = repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")
    if long or seconds > MAX_DAYS * _SECONDS["d"]:
        raise ValueError(f"{shown} is too long a duration: write at most {MAX_DAYS}d")
    if seconds <= 0:
        raise ValueError(f"{shown} is not a duration above zero: write 90s, 30m, 2h or 1d")
    return seconds


def describe_duration(seconds: float) -> str:
    """The two largest units of a length of time, rounded up, e.g. ``1h 59m``: after a second of two hours it is 2h."""
    left = max(0, math.ceil(seconds))
    step = 3_600 if left > _SECONDS["d"] else 60 if left > _SECONDS["h"] else 1
    left = -(-left // step) * step
    parts: list[str] = []
    for unit, size in _SECONDS.items():
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2]) or "0s"
