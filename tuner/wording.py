"""Words that several rooms print: numbers with their nouns, and the program's own name."""

import shutil
import sys
from pathlib import Path

from policies.types import UNKNOWN_LENGTH


def counted(number: int, noun: str) -> str:
    """``1 request``, ``2,000 requests``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def program() -> str:
    """What to type for this program: its name, or its path as it was called by where the shell would not find it."""
    called = sys.argv[0]
    return called if shutil.which("paceline") is None and Path(called).name == "paceline" else "paceline"


def length_words(block_length: int) -> str:
    """A block length for people."""
    return "unknown" if block_length == UNKNOWN_LENGTH else str(block_length)
