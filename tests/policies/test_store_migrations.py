"""Migrations: up, down, and never past what this version knows."""

import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from policies.models import Base
from policies.store import SchemaTooNewError, Store, alembic_config
from tests.policies import store_samples as samples


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "pace ?line.db"


@pytest.fixture
def store(database: Path) -> Store:
    return Store(f"sqlite:///{quote(str(database))}")


def test_the_migrated_schema_is_that_of_the_models(store: Store, database: Path) -> None:
    store.upgrade()
    engine = create_engine(f"sqlite:///{quote(str(database))}", poolclass=NullPool)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_check_writes_nothing_and_upgrade_reaches_the_head_once(store: Store, database: Path) -> None:
    assert store.check() is None
    assert not database.exists()
    assert store.upgrade()
    assert store.check() == ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert not store.upgrade()


def test_every_migration_goes_down_and_up_again(store: Store, database: Path) -> None:
    store.upgrade()
    engine = create_engine(f"sqlite:///{quote(str(database))}", poolclass=NullPool)
    config = alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    assert store.upgrade()
    store.write([samples.policy(1)])
    assert store.load_state(samples.MODEL).policies == (samples.policy(1),)


def test_decisions_of_a_database_without_propensities_are_kept_and_count_as_certain(
    store: Store, database: Path
) -> None:
    engine = create_engine(f"sqlite:///{quote(str(database))}", poolclass=NullPool)
    config = alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(text("INSERT INTO contexts VALUES (1, 'm', 'chat', 'en')"))
        connection.execute(
            text(
                "INSERT INTO decisions VALUES ('old', 1, 'ngram', 8, 0, 'LEARNED', 7, 100.0, 'stop', 48, 60, 50, 40, "
                "0.05, 0.01)"
            )
        )
    assert not store.upgrade()
    old = store.decision("old")
    assert old is not None
    assert (old.decision.drafter, old.decision.propensity) == ("ngram", 1.0)
    store.write([samples.sampled_decision("new")])
    new = store.decision("new")
    assert new is not None
    assert new.decision.propensity == 0.25


def test_a_newer_schema_is_refused_in_one_sentence_and_not_a_byte_is_written(store: Store, database: Path) -> None:
    store.upgrade()
    connection = sqlite3.connect(database)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    before = database.read_bytes()
    for refused in (store.check, store.upgrade):
        with pytest.raises(
            SchemaTooNewError, match=r"schema revision '9999', newer than .* upgrade paceline"
        ) as caught:
            refused()
        assert "\n" not in str(caught.value)
    assert database.read_bytes() == before


def test_a_failed_migration_leaves_no_table_behind(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr("alembic.op.create_index", fail)
    with pytest.raises(RuntimeError, match="power cut"):
        store.upgrade()
    assert store.check() is None
    engine = create_engine(f"sqlite:///{quote(str(database))}", poolclass=NullPool)
    assert inspect(engine).get_table_names() == []
    monkeypatch.undo()
    assert store.upgrade()
