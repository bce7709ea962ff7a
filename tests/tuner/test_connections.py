"""tuner.connections: a connection whose request does not come is closed, over real sockets."""

import asyncio
import socket

import pytest
import uvicorn
from fastapi import FastAPI

from tuner.connections import ImpatientProtocol

DEADLINE_SECONDS = 30.0
WHOLE = b"GET /x HTTP/1.1\r\nhost: server\r\n\r\n"


class HastyProtocol(ImpatientProtocol):
    seconds = 0.1


async def said_to(pieces: list[bytes]) -> bytes:
    """What a server says to a client that sends `pieces`, each after an answer to the one before, until it closes."""
    app = FastAPI()
    app.add_api_route("/x", lambda: "there")
    config = uvicorn.Config(app, http=HastyProtocol, lifespan="off", log_level="critical", timeout_keep_alive=1)
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        serving = asyncio.create_task(server.serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        heard = b""
        for piece in pieces:
            writer.write(piece)
            if piece is not pieces[-1]:
                heard += await reader.readuntil(b'"there"')
        heard += await reader.read()
        writer.close()
        server.should_exit = True
        await serving
    return heard


@pytest.mark.parametrize(
    ("pieces", "answers", "late"),
    [([b""], 0, False), ([WHOLE[:-2]], 0, True), ([WHOLE, WHOLE[:20]], 1, True), ([WHOLE, WHOLE], 2, False)],
)
def test_a_connection_is_closed_when_no_request_comes_and_told_so_when_a_part_has(
    pieces: list[bytes], answers: int, late: bool
) -> None:
    heard = asyncio.run(asyncio.wait_for(said_to(pieces), DEADLINE_SECONDS))
    assert heard.count(b"200 OK") == answers
    assert heard.endswith(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n") == late
