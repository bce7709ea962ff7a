"""Where studies are kept: Optuna's tables, apart from ours, so that neither's migrations meet the other's."""

from optuna.exceptions import OptunaError
from optuna.logging import WARNING, set_verbosity
from optuna.storages import RDBStorage
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema

from policies.database_url import without_password
from policies.store import StoreUnavailableError, StoreUrlError

SCHEMA = "paceline_tune"
"""On PostgreSQL."""


def default_storage(database_url: str) -> str:
    """Beside the store: of an SQLite file another one with ``-tune`` in its name, elsewhere the same database.

    Raises:
        StoreUrlError: the URL cannot be read.
    """
    try:
        url = make_url(database_url)
    except ArgumentError as error:
        raise _unusable(database_url, "no URL") from error
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
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
        if url.get_backend_name() == "postgresql":
            engine = create_engine(url, poolclass=NullPool)
            with engine.begin() as connection:
                connection.execute(CreateSchema(SCHEMA, if_not_exists=True))
            url = url.update_query_dict({"options": f"-csearch_path={SCHEMA}"})
        return RDBStorage(url.render_as_string(hide_password=False), engine_kwargs={"poolclass": NullPool})
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, ImportError) as error:
        raise _unusable(given, str(error).splitlines()[0]) from error
    except (OptunaError, SQLAlchemyError, RuntimeError) as error:
        raise StoreUnavailableError(
            f"The studies at {without_password(given)} cannot be opened "
            f"({without_password(str(error).splitlines()[0])}): correct tune.storage, or give --storage."
        ) from error


def _unusable(given: str, reason: str) -> StoreUrlError:
    return StoreUrlError(
        f"tune.storage is {without_password(given)!r}, which cannot be used ({without_password(reason)}): give a URL "
        "such as sqlite:///paceline-tune.db."
    )
