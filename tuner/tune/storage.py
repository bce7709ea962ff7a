"""Where studies are kept: Optuna's tables, apart from ours, so that neither's migrations meet the other's."""

import logging

from optuna.exceptions import OptunaError, StorageInternalError
from optuna.logging import WARNING, set_verbosity
from optuna.storages import RDBStorage
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema

from policies.database_url import without_password
from policies.store import StoreUnavailableError, StoreUrlError

_log = logging.getLogger(__name__)

SCHEMA = "paceline_tune"
"""On PostgreSQL."""
_MAKERS = 8
"""Processes that may make the tables at once."""


def default_storage(database_url: str) -> str:
    """Beside the store: of an SQLite file another one with ``-tune`` in its name, elsewhere the same database.

    Raises:
        StoreUrlError: the URL cannot be read.
    """
    try:
        url = make_url(database_url)
    except ArgumentError as error:
        raise _unusable(database_url, "no URL") from error
    if url.get_backend_name() != "sqlite" or url.database is None or in_memory(url):
        return database_url
    stem, dot, ending = url.database.rpartition(".")
    name = f"{stem}-tune{dot}{ending}" if stem and "/" not in ending else f"{url.database}-tune"
    return url.set(database=name).render_as_string(hide_password=False)


def open_storage(given: str) -> RDBStorage:
    """Open a storage, and make its schema where there is none. On PostgreSQL the tables go into `SCHEMA`.

    Raises:
        StoreUrlError: the URL cannot be used.
        StoreUnavailableError: the database cannot be reached or read.
    """
    set_verbosity(WARNING)  # what it says of each trial, the command says better
    try:
        url = make_url(given)
        if url.get_backend_name() == "sqlite" and in_memory(url):
            raise _unusable(given, "it is in memory, where nothing is kept between two connections")
        return _opened(url)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, ImportError) as error:
        raise _unusable(given, str(error).splitlines()[0]) from error
    except (OptunaError, SQLAlchemyError, RuntimeError) as error:
        reason = reason_of(error)
        remedy = "try again once it is free" if "locked" in reason else "correct tune.storage, or give --storage"
        raise StoreUnavailableError(
            f"The studies at {without_password(given)} cannot be opened ({reason}): {remedy}."
        ) from error


def reason_of(error: Exception) -> str:
    """Why a database failed, in one line without a password: what it said, and not what Optuna makes of it."""
    said = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ is not None else error
    return without_password(str(said).splitlines()[0])


def in_memory(url: URL) -> bool:
    """Whether an SQLite database is no file."""
    return url.database in (None, "", ":memory:") or "memory" in url.query.get("mode", "")


def _opened(url: URL) -> RDBStorage:
    """Tables are made without regard to another process that makes them too: whoever is second opens what is there."""
    for _ in range(_MAKERS - 1):
        try:
            return _made(url)
        except (IntegrityError, OperationalError, ProgrammingError) as error:
            if not isinstance(error, IntegrityError) and "already exists" not in str(error):
                raise
            _log.info("another process makes the tables of the studies too: %s", reason_of(error))
    return _made(url)


def _made(url: URL) -> RDBStorage:
    if url.get_backend_name() == "postgresql":
        engine = create_engine(url, poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(CreateSchema(SCHEMA, if_not_exists=True))
        url = url.update_query_dict({"options": f"-csearch_path={SCHEMA}"})
    return RDBStorage(url.render_as_string(hide_password=False), engine_kwargs={"poolclass": NullPool})


def _unusable(given: str, reason: str) -> StoreUrlError:
    return StoreUrlError(
        f"tune.storage is {without_password(given)!r}, which cannot be used ({without_password(reason)}): give a URL "
        "such as sqlite:///paceline-tune.db."
    )
