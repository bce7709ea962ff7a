"""How the store opens a SQLite file: which calls may create it, which may write, and the journal that it uses."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool


class SqliteFile:
    """Three engines over one file, none of which keeps a connection."""

    def __init__(self, path: Path, busy_timeout_seconds: float) -> None:
        self.path = path
        self._busy_timeout_seconds = busy_timeout_seconds

    def reader(self) -> Engine:
        """Neither creates nor changes the file. What a column holds that is no text or no JSON comes as it stands, so
        that `policies.row_values` refuses that row alone."""

        def connect() -> sqlite3.Connection:
            connection = self._connect("ro")
            connection.text_factory = _text
            return connection

        return _engine(connect, "BEGIN")

    def writer(self) -> Engine:
        """Never creates the file: one that was deleted is an error, not an empty database."""
        return _engine(lambda: self._connect("rw"), "BEGIN IMMEDIATE")

    def migrator(self) -> Engine:
        """Creates the file when it is missing, and sets the write-ahead log, which the file then keeps."""

        def connect() -> sqlite3.Connection:
            connection = self._connect("rwc")
            connection.execute("PRAGMA journal_mode=WAL")
            return connection

        return _engine(connect, "BEGIN IMMEDIATE")

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={mode}",
            uri=True,
            timeout=self._busy_timeout_seconds,
            # sqlite3 would otherwise begin transactions by itself, and not before DDL.
            isolation_level=None,
        )
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection


def sqlite_path(database: str | None) -> Path:
    """The absolute path of a SQLite URL's file; ValueError for what is no file."""
    if not database or database == ":memory:" or database.startswith("file:"):
        raise ValueError("SQLite needs a plain file path")
    return Path(database).absolute()


def _engine(connect: Callable[[], sqlite3.Connection], begin: str) -> Engine:
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, json_deserializer=_json)

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "begin", on_begin)
    return engine


def _text(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _json(stored: Any) -> Any:
    """The value of a JSON column, a list or an object; what is no JSON as it is stored, which is neither."""
    try:
        return json.loads(stored)
    except (TypeError, ValueError, RecursionError):  # TypeError: SQLite keeps a number as one
        return stored
