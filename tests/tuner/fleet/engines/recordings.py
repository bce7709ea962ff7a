"""The recorded pages and answers of engines."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"


def page(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def answer(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def changed(text: str, name: str, value: float, label: str = "") -> str:
    """A page in which the series `name` whose labels hold `label` tell `value`."""
    lines = []
    hits = 0
    for line in text.split("\n"):
        if line.partition("{")[0].partition(" ")[0] == name and label in line:
            line = f"{line.rpartition(' ')[0]} {value!r}"
            hits += 1
        lines.append(line)
    assert hits, f"{name} with {label!r} is not on the page"
    return "\n".join(lines)


def without(text: str, prefix: str) -> str:
    """A page without the series whose names begin with `prefix`."""
    return "\n".join(line for line in text.split("\n") if not line.startswith(prefix))
