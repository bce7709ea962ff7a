"""Numbers with their nouns."""


def counted(number: int, noun: str) -> str:
    """``1 request``, ``2,000 requests``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
