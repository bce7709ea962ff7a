"""The SQL store: synchronous, one short transaction for each call, and never a connection kept between calls.

Not keeping one is what notices a database file that was deleted or replaced: a kept connection would go on writing
into the unlinked file. Callers on the serving path never call this; `tuner.recorder` does, from its own thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, make_url, select
from sqlalchemy.exc import ArgumentError, DatabaseError, DataError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from policies import row_values
from policies.database_url import without_password
from policies.models import (
    AuditRow,
    DecisionRow,
    KillSwitchRow,
    PinRow,
    PolicyRow,
    PosteriorRow,
    RequestWindowRow,
    TelemetryWindowRow,
)
from policies.records import AuditEntry, RequestWindow, Row, SampledDecision, StoredState, TelemetryWindow
from policies.rows import RowWriter, same_context
from policies.sqlite import SqliteFile, sqlite_path
from policies.types import Context, Policy


class StoreError(Exception):
    """The store cannot do what was asked; the message is one sentence for people."""


class StoreUrlError(StoreError):
    """The URL names no database that could be opened: the configuration is at fault."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached, is locked, read-only, missing or damaged: the same call may succeed later."""


class SchemaTooNewError(StoreError):
    """The database belongs to a newer version of this program; nothing was written."""


class RowRejectedError(StoreError):
    """The database refuses the rows themselves: the same call would fail for ever."""


class Store:
    """The database at `url`.

    Every method raises `StoreUnavailableError` when the database cannot do its part now. Rows that cannot be read are
    left out, each by itself, with a sentence in the log.
    """

    def __init__(self, url: str, busy_timeout_seconds: float = 2.0) -> None:
        """`url` is SQLAlchemy's, e.g. ``sqlite:///paceline.db``. Opens nothing yet.

        Raises:
            StoreError: the URL cannot be used.
        """
        try:
            parsed = make_url(url)
            self.name = without_password(parsed.render_as_string(hide_password=True))
            """The URL without its password."""
            self._sqlite: SqliteFile | None = None
            if parsed.get_backend_name() == "sqlite":
                self._sqlite = SqliteFile(sqlite_path(parsed.database), busy_timeout_seconds)
                self._reader = self._sqlite.reader()
                self._writer = self._sqlite.writer()
                self._migrator = self._sqlite.migrator()
            else:
                self._reader = self._writer = self._migrator = create_engine(parsed, poolclass=NullPool)
        except ModuleNotFoundError as error:
            remedy = f"install it with pip install {error.name}"
            if parsed.get_backend_name() == "postgresql":
                remedy = "install psycopg with pip install 'psycopg[binary]', and begin the URL with postgresql+psycopg"
            raise StoreUrlError(
                f"database.url is {without_password(url)!r}, whose driver {error.name} is not installed: {remedy}."
            ) from error
        except (ArgumentError, NoSuchModuleError, ValueError) as error:
            raise StoreUrlError(
                f"database.url is {without_password(url)!r}, which cannot be used "
                f"({without_password(_first_line(error))}): give a URL such as sqlite:///paceline.db."
            ) from error

    def check(self) -> str | None:
        """The schema revision of the database; None when it is missing or empty. Writes nothing.

        Raises:
            SchemaTooNewError: this version of the program does not know the revision.
        """
        if self._sqlite is not None and not self._sqlite.path.exists():
            return None
        with self._translated(), self._reader.connect() as connection:
            revision = self._revision(connection)
        self._refuse_unknown(revision)
        return revision

    def upgrade(self) -> bool:
        """Migrate to the newest schema; True when there was none, so that the database is new.

        Raises:
            SchemaTooNewError: as `check`, and nothing was written.
        """
        config = alembic_config()
        if self.check() == ScriptDirectory.from_config(config).get_current_head():
            return False
        with self._translated(), self._migrator.begin() as connection:
            # Once more, inside the transaction: another process may have been first.
            revision = self._revision(connection)
            self._refuse_unknown(revision)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        return revision is None

    def write(self, rows: Sequence[Row]) -> None:
        """Write all of `rows`, in their order, in one transaction. Writing a policy or a decision again is harmless.

        Raises:
            RowRejectedError: one of the rows cannot be stored, so none was.
        """
        with self._translated(), Session(self._writer) as session, session.begin():
            writer = RowWriter(session)
            for row in rows:
                writer.write(row)

    def load_state(self, model: str) -> StoredState:
        """What a restart of `model` resumes from. Pins and kill switches may have expired."""
        with self._reading() as session:
            return StoredState(
                policies=row_values.newest_policies(session, model),
                pins=row_values.pins(session.scalars(select(PinRow).order_by(PinRow.route, PinRow.language))),
                kill_switches=row_values.kill_switches(
                    session.scalars(select(KillSwitchRow).order_by(KillSwitchRow.route))
                ),
                posterior=row_values.posterior(session.get(PosteriorRow, model)),
            )

    def policy_versions(self, context: Context) -> list[Policy]:
        """Every stored version of a context's policy, in the order in which they were written."""
        with self._reading() as session:
            query = select(PolicyRow).join(PolicyRow.context).where(*same_context(context))
            return row_values.policies(session.scalars(query.order_by(PolicyRow.id)))

    def decision(self, decision_id: str) -> SampledDecision | None:
        """A sampled decision; None when it was not sampled."""
        with self._reading() as session:
            query = select(DecisionRow).where(DecisionRow.decision_id == decision_id)
            return next(iter(row_values.decisions(session.scalars(query))), None)

    def audit(self, limit: int) -> list[AuditEntry]:
        """The newest `limit` audit rows, newest first."""
        with self._reading() as session:
            return row_values.audit_entries(session.scalars(select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)))

    def telemetry_windows(self, since: float) -> list[TelemetryWindow]:
        """The telemetry windows that ended after `since` (Unix seconds), oldest first."""
        query = select(TelemetryWindowRow).where(TelemetryWindowRow.ended_at > since).order_by(TelemetryWindowRow.id)
        with self._reading() as session:
            return row_values.telemetry_windows(session.scalars(query))

    def request_windows(self, since: float) -> list[RequestWindow]:
        """The request windows that ended after `since` (Unix seconds), oldest first."""
        query = select(RequestWindowRow).where(RequestWindowRow.ended_at > since).order_by(RequestWindowRow.id)
        with self._reading() as session:
            return row_values.request_windows(session.scalars(query))

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with self._translated(), Session(self._reader) as session:
            yield session

    def _revision(self, connection: Connection) -> str | None:
        revisions = MigrationContext.configure(connection).get_current_heads()
        if len(revisions) > 1:
            raise StoreUnavailableError(
                f"The database {self.name} has {len(revisions)} rows in alembic_version, and one says what its schema "
                "is: delete the others, or set database.url to another database."
            )
        return revisions[0] if revisions else None

    def _refuse_unknown(self, revision: str | None) -> None:
        scripts = ScriptDirectory.from_config(alembic_config())
        if revision is not None and revision not in {script.revision for script in scripts.walk_revisions()}:
            raise SchemaTooNewError(
                f"The database {self.name} has schema revision {revision!r}, newer than "
                f"{scripts.get_current_head()!r}, the newest that this version of paceline knows: upgrade paceline, "
                "or set database.url to another database."
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLAlchemy's exceptions become ours: those about the rows, and those that may pass."""
        try:
            yield
        except (IntegrityError, DataError) as error:
            raise RowRejectedError(f"The database {self.name} refused a row: {_first_line(error)}.") from error
        except DatabaseError as error:
            raise StoreUnavailableError(f"The database {self.name} is unavailable: {_first_line(error)}.") from error
        except (SQLAlchemyError, OverflowError) as error:
            raise RowRejectedError(f"The database {self.name} cannot hold a row: {_first_line(error)}.") from error


def alembic_config() -> Config:
    """Alembic's configuration, made here: the scripts are those of the installed package `migrations`."""
    config = Config()
    # configparser reads % as the start of a reference.
    config.set_main_option("script_location", str(resources.files("migrations")).replace("%", "%%"))
    return config


def _first_line(error: Exception) -> str:
    """What went wrong, without SQL, parameters and links."""
    origin = getattr(error, "orig", None) or error
    return str(origin).partition("\n")[0].rstrip(".")
