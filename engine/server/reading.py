"""How requests are read: for so long, up to so many bytes, and as JSON that says everything once."""

import asyncio
import json
from http import HTTPStatus

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 4 << 20
BODY_SECONDS = 60.0
_CLOSING = {"connection": "close"}
"""What is left of the request is not read."""


class ReadLimits:
    """Ends a request whose body is too large, or does not come in time, with an HTTPException where it is read."""

    def __init__(self, app: ASGIApp, most_bytes: int = MAX_BODY_BYTES, seconds: float = BODY_SECONDS) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self._seconds
        told = Headers(scope=scope).get("content-length", "")
        announced = int(told[:20]) if told.isdecimal() else 0
        read, complete = 0, False

        async def limited() -> Message:
            nonlocal read, complete
            if complete:  # what comes now is that the client has left
                return await receive()
            if announced > self._most_bytes:
                raise self._too_large()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(
                    HTTPStatus.REQUEST_TIMEOUT,
                    f"The body did not come within {self._seconds:g} seconds; send it again",
                    _CLOSING,
                ) from error
            read += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if read > self._most_bytes:
                raise self._too_large()
            return message

        await self._app(scope, limited, send)

    def _too_large(self) -> HTTPException:
        text = f"The body is larger than {self._most_bytes} bytes; send less"
        return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, _CLOSING)


class RepeatedKeyError(ValueError):
    """An object in a JSON text names a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def parse_json(text: bytes | str) -> object:
    """Raises RepeatedKeyError, and ValueError for what is no JSON."""
    parsed: object = from_json(text, allow_inf_nan=False)
    # Numbers have been read above, where those of any length can be.
    json.loads(text, object_pairs_hook=_refuse_repeated, parse_int=str, parse_float=str)
    return parsed


def _refuse_repeated(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise RepeatedKeyError(key)
        seen.add(key)
