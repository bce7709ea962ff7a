"""`paceline tune --live` as text for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console


def print_tuning(console: Console, found: Mapping[str, Any]) -> None:
    """The state of the live study."""
    console.print(f"{found['state']}: {found['sentence']}")
    if found["trial"] is not None:
        ratio = found["ratio"]
        measured = "not known yet"
        if ratio is not None:
            measured = f"{ratio['estimate']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] times production"
        console.print(f"trial {found['trial']}: {_values(found['values'])}")
        console.print(f"measured {measured} over {found['windows']} windows")
    console.print(f"tried {found['tried']} since it was started; adopted: {_values(found['adopted']) or 'nothing'}")


def _values(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
