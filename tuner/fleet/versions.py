"""The versions that engines tell, as numbers that compare."""

import re

_RELEASE = re.compile(r"^\s*v?(\d+(?:\.\d+)+)(.*)$", re.DOTALL)
_BEFORE_RELEASE = re.compile(r"^[.\-_]?(?:a|b|c|rc|alpha|beta|dev|pre)\.?\d*", re.IGNORECASE)
_BUILD = re.compile(r"\bbuild:?\s*(\d{3,})|\bb(\d{3,})\b|^\s*(\d{3,})\b")
_NUMBERS = 4


def version_key(version: str) -> tuple[int, ...] | None:
    """A version as numbers that compare; None for one that has none, such as ``dev`` or an empty one.

    ``0.32.0+cpu`` is 0.32.0, and ``0.32.0rc1`` comes before it: the last number is -1 for what precedes a release, 0
    for the release and what follows it. A build of llama.cpp is its one number, whether it is told as
    ``b9115-68e7ea3``, ``9115 (68e7ea3)`` or ``0.2.0-dev (build 9115, commit 68e7ea3)``.
    """
    release = _RELEASE.match(version)
    if build := _BUILD.search(release[2] if release else version):
        return (int(next(filter(None, build.groups()))),)
    if release is None:
        return None
    numbers = [int(number) for number in release[1].split(".")][:_NUMBERS]
    numbers += [0] * (_NUMBERS - len(numbers))
    return (*numbers, -1 if _BEFORE_RELEASE.match(release[2]) else 0)


def is_before(version: str, border: str) -> bool | None:
    """Whether `version` comes before `border`; None where `version` cannot be read."""
    known, limit = version_key(version), version_key(border)
    if limit is None:
        raise ValueError(f"{border!r} is no version")
    # A build's number and a release's numbers have no order between them.
    return None if known is None or len(known) != len(limit) else known < limit
