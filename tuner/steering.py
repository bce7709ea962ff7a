"""What the admin API needs of whatever steers: `tuner.controller.Controller` here, a fleet's twin later."""

from typing import Protocol

from policies.types import KillSwitch, Pin
from tuner.snapshot import PolicySnapshot


class Steering(Protocol):
    """Every change is in force when the call returns. Any thread may call."""

    @property
    def snapshot(self) -> PolicySnapshot:
        """What is in force now."""
        ...

    def set_pin(self, pin: Pin) -> None:
        """Put a pin in force; ValueError, with a remedy, if this engine cannot follow it."""
        ...

    def remove_pin(self, route: str, language: str) -> Pin | None:
        """Take back the pin of exactly (`route`, `language`); None if there was none."""
        ...

    def set_kill(self, kill: KillSwitch) -> None:
        """Switch speculation off for a route, or everywhere."""
        ...

    def clear_kill(self, route: str) -> KillSwitch | None:
        """Take back the kill switch of exactly `route`; None if there was none."""
        ...
