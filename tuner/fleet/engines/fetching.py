"""One request to an engine, in bounded time and bytes."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from policies.quoting import shown

MOST_BYTES = 8 << 20
"""A page of vLLM's metrics has 58 KB with one engine and some 30 KB more for each further one."""


class FetchError(Exception):
    """No answer, or none that is read; the message is one sentence for people."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    @property
    def mapping(self) -> Mapping[str, Any]:
        """The JSON object that it is; empty where it is none."""
        try:
            found = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def listing(self) -> list[Any]:
        """The JSON array that it is; empty where it is none."""
        try:
            found = json.loads(self.content)
        except (ValueError, RecursionError):
            return []
        return found if isinstance(found, list) else []


async def fetch(
    client: httpx.AsyncClient,
    where: str,
    *,
    seconds: float,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Fetched:
    """What `where` answers to a GET, or to a POST of `body`; whole within `seconds`.

    Raises:
        FetchError: there is no answer in that time, or it is longer than `MOST_BYTES` or compressed.
    """
    # So that the bound is one of what comes: a few kilobytes can unpack to gigabytes.
    sent = {"accept-encoding": "identity", **(headers or {})}
    method = "GET" if body is None else "POST"
    try:
        async with (
            asyncio.timeout(seconds),
            client.stream(method, where, headers=sent, json=body, timeout=seconds) as answer,
        ):
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise FetchError(f"{where} is compressed though nobody asked, and not read: switch that off there.")
            received = bytearray()
            async for piece in answer.aiter_bytes():
                received += piece
                if len(received) > MOST_BYTES:
                    raise FetchError(f"{where} is longer than {MOST_BYTES >> 20} MiB and not read: correct the URL.")
            return Fetched(answer.status_code, dict(answer.headers), bytes(received))
    except (TimeoutError, httpx.TimeoutException):
        raise FetchError(
            f"{where} did not answer within {seconds:g} seconds: look whether the server still works."
        ) from None
    except httpx.LocalProtocolError:  # its text quotes headers, and a key is one
        raise FetchError(f"{where} could not be asked: its address or key is not one that HTTP takes.") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = shown(str(error) or type(error).__name__)
        raise FetchError(f"{where} could not be read ({said}): start the server there, or correct its URL.") from error
