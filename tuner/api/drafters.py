"""The drafters of a running engine, as the admin API changes them."""

from typing import Protocol


class DrafterConflictError(Exception):
    """A drafter cannot be loaded or unloaded now; one sentence for people, with or without its full stop."""

    def __str__(self) -> str:
        return f"{super().__str__().rstrip('.')}."


class DrafterControl(Protocol):
    """Called in the event loop of the servers."""

    @property
    def drafters(self) -> tuple[str, ...]:
        """What a pin may name, plain first."""
        ...

    async def load_drafter(self, source: str) -> None:
        """Load one while serving. Raises DrafterConflictError."""
        ...

    async def unload_drafter(self, name: str) -> None:
        """Let one go while serving: what still runs with it goes on plain. Raises DrafterConflictError."""
        ...
