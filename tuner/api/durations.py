"""Durations as people write them: ``90s``, ``30m``, ``2h``, ``1d``, ``1h30m``."""

import math
import re

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PATTERN = re.compile(r"(?:(?P<d>\d{1,6})d)?(?:(?P<h>\d{1,6})h)?(?:(?P<m>\d{1,6})m)?(?:(?P<s>\d{1,6})s)?", re.ASCII)


def parse_duration(text: str) -> int:
    """Seconds, more than 0. Raises ValueError with a remedy."""
    match = _PATTERN.fullmatch(text.strip())
    seconds = 0 if match is None else sum(int(match[unit] or 0) * size for unit, size in _SECONDS.items())
    if seconds <= 0:
        raise ValueError(f"{text!r} is not a duration above zero: write 90s, 30m, 2h or 1d")
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
