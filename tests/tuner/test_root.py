"""What the composition root lets into the log."""

import asyncio
import logging
import socket
import sqlite3
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI

from policies.store import Store
from tuner.http_servers import KEEP_ALIVE_SECONDS, HttpServer, listen, log_no_messages, serving
from tuner.root.memory import free_share
from tuner.stored_state import load_state


def record_of(error: BaseException) -> logging.LogRecord:
    try:
        raise error
    except BaseException:  # noqa: BLE001  logged, as uvicorn would
        fault = sys.exc_info()
    return logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, "Exception in ASGI application\n", (), fault)


def test_a_fault_is_logged_with_its_place_and_without_its_message() -> None:
    record = record_of(KeyError("what the prompt said"))
    assert log_no_messages(record)
    text = logging.Formatter().format(record)
    assert text.startswith("Exception in ASGI application\n")
    assert "in record_of" in text
    assert text.endswith("KeyError")
    assert "prompt" not in text


def test_a_cancelled_request_is_no_fault_and_other_lines_stay() -> None:
    assert not log_no_messages(record_of(asyncio.CancelledError()))
    line = logging.LogRecord("uvicorn.error", logging.WARNING, __file__, 1, "%d left", (3,), None)
    assert log_no_messages(line)
    assert line.getMessage() == "3 left"


def test_the_memory_that_is_left_is_a_share_and_unknown_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert free_share(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    meminfo = tmp_path / "proc/meminfo"
    meminfo.write_text("MemTotal:        8192 kB\nMemAvailable:    2048 kB\n")
    assert free_share(tmp_path) == 0.25
    meminfo.write_text("MemTotal:        8192 kB\nMemAvailable:    what\n")
    assert free_share(tmp_path) is None


def test_serving_starts_without_a_store_whose_schema_is_in_doubt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(f"sqlite:///{tmp_path / 'paceline.db'}")
    store.upgrade()
    with sqlite3.connect(tmp_path / "paceline.db") as connection:
        connection.execute("INSERT INTO alembic_version VALUES ('0001')")
    connection.close()
    assert load_state(store, "tiny") is None
    (line,) = caplog.messages
    assert line.startswith("serving starts without the store: ")
    assert "2 rows in alembic_version" in line


def test_a_connection_is_kept_longer_than_its_clients_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[HttpServer] = []

    async def serve(self: HttpServer, sockets: list[socket.socket] | None = None) -> None:
        servers.append(self)

    monkeypatch.setattr(HttpServer, "serve", serve)

    async def run() -> None:
        with listen("127.0.0.1", 0, "port") as listener:
            async with serving(FastAPI(), listener):
                await asyncio.sleep(0)

    asyncio.run(run())
    # httpx lets go of an idle connection after 5 s, nginx and most balancers after 60.
    assert [server.config.timeout_keep_alive for server in servers] == [KEEP_ALIVE_SECONDS]
    assert KEEP_ALIVE_SECONDS > 60
