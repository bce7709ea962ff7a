"""What a connection calls on either side of an exchange."""

import asyncio
from typing import Protocol


class Awaiting(Protocol):
    """Who waits for an answer on a connection."""

    def answer_received(self, data: bytes) -> None: ...

    def upstream_lost(self, error: Exception | None) -> None: ...

    def upstream_writable(self, writable: bool) -> None: ...


class Client(Protocol):
    """The side of the client."""

    transport: asyncio.Transport

    def answered(self, keep_alive: bool) -> None:
        """The answer is whole."""
        ...

    def refuse(self, status: int, sentence: str, code: str) -> None:
        """Answer in the upstream's place, and close."""
        ...

    def cut(self, visibly: bool) -> None:
        """Close in the middle of an answer; `visibly`: by a reset, since an end would look like the answer's."""
        ...

    def read(self, wanted: bool) -> None:
        """Whether the client's body is to be read on."""
        ...
