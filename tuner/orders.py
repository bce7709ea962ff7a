"""What operators ordered: pins and kill switches, in force until they expire or are taken back."""

from policies.ladder import ANY
from policies.types import MAX_BLOCK_LENGTH, PLAIN, KillSwitch, Pin


class Orders:
    """Not thread-safe; its values are immutable, and may be read from anywhere once handed out."""

    def __init__(self, drafters: tuple[str, ...]) -> None:
        self.drafters = drafters
        self.pins: tuple[Pin, ...] = ()
        self.kill_switches: tuple[KillSwitch, ...] = ()

    @property
    def exempt_from_switchback(self) -> bool:
        """Whether a pin forbids plain windows."""
        return any(pin.exempt_from_switchback for pin in self.pins)

    @property
    def killed_everywhere(self) -> bool:
        return any(kill.route == ANY for kill in self.kill_switches)

    @property
    def killed_routes(self) -> frozenset[str]:
        """Routes with a kill switch of their own."""
        return frozenset(kill.route for kill in self.kill_switches if kill.route != ANY)

    def set_pin(self, pin: Pin) -> None:
        """Add a pin; it replaces the one of the same route and language.

        Raises:
            ValueError: the drafter is unknown, or the block length out of range or at odds with the drafter.
        """
        if pin.drafter not in self.drafters:
            known = ", ".join(self.drafters)
            raise ValueError(f"drafter {pin.drafter!r} is unknown to this engine; use one of {known}")
        if not 0 <= pin.block_length <= MAX_BLOCK_LENGTH:
            raise ValueError(f"block_length {pin.block_length} is out of range; use 0 to {MAX_BLOCK_LENGTH}")
        if pin.drafter == PLAIN and pin.block_length:
            raise ValueError(f"block_length {pin.block_length} needs a drafter; use 0 with drafter {PLAIN!r}")
        self.remove_pin(pin.route, pin.language)
        self.pins = (*self.pins, pin)

    def remove_pin(self, route: str, language: str) -> Pin | None:
        """The pin of exactly (`route`, `language`), taken out; None if there is none."""
        found = next((pin for pin in self.pins if (pin.route, pin.language) == (route, language)), None)
        self.pins = tuple(pin for pin in self.pins if pin is not found)
        return found

    def set_kill(self, kill: KillSwitch) -> None:
        """Add a kill switch; it replaces the one of the same route."""
        self.clear_kill(kill.route)
        self.kill_switches = (*self.kill_switches, kill)

    def clear_kill(self, route: str) -> KillSwitch | None:
        """The kill switch of exactly `route`, taken out; None if there is none."""
        found = next((kill for kill in self.kill_switches if kill.route == route), None)
        self.kill_switches = tuple(kill for kill in self.kill_switches if kill is not found)
        return found

    def drop_expired(self, now: float) -> bool:
        """Forget what has expired at `now` (Unix seconds); True if anything had."""
        pins = tuple(pin for pin in self.pins if pin.expires_at > now)
        kills = tuple(kill for kill in self.kill_switches if kill.expires_at is None or kill.expires_at > now)
        expired = len(pins) < len(self.pins) or len(kills) < len(self.kill_switches)
        self.pins, self.kill_switches = pins, kills
        return expired
