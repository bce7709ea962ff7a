"""Rows that no version of this program wrote so: each is left out by itself, and the log says which."""

import logging
import shutil
import sqlite3
from pathlib import Path

import pytest

from policies.records import Posterior, StoredState
from policies.store import Store, StoreUnavailableError
from policies.types import MAX_VERSION, Context
from tests.policies import store_samples as samples

CHAT = Context(samples.MODEL, "chat", "en")
DEEP = "[" * 100_000
TOO_LARGE = "1" * 400


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rows of each kind; the first of each is of ``code-edit``."""
    database = tmp_path_factory.mktemp("healthy") / "paceline.db"
    store = Store(f"sqlite:///{database}")
    store.upgrade()
    store.write(
        [
            samples.policy(1),
            samples.policy(1, CHAT),
            samples.pin(),
            samples.pin("da"),
            samples.kill_switch("code-edit"),
            samples.kill_switch("chat"),
            samples.audit_entry(),
            samples.audit_entry("unpin"),
            samples.sampled_decision("first"),
            samples.sampled_decision("second"),
            samples.telemetry_window(0.0),
            samples.telemetry_window(60.0),
            samples.request_window(0.0),
            samples.request_window(60.0),
            Posterior(samples.MODEL, {"counts": [1]}, 100.0),
        ]
    )
    return database


@pytest.fixture
def database(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(healthy, tmp_path))


@pytest.fixture
def store(database: Path) -> Store:
    return Store(f"sqlite:///{database}")


def damage(database: Path, statement: str, value: object) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("DROP TRIGGER audit_rows_never_change")
        connection.execute(statement, (value,))
    connection.close()


def what_is_left(store: Store) -> StoredState:
    return store.load_state(samples.MODEL)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("state", "weird"),
        ("reason", "NEWREASON"),
        ("schedule", "[[1,1"),
        ("schedule", "null"),
        ("schedule", "[[1]]"),
        ("schedule", '"abc"'),
        ("schedule", "[[1, 2, 8]]"),
        ("schedule", '[[1, 2, "8", "ngram"]]'),
        ("schedule", '[[1, 2, 99, "ngram"]]'),
        ("schedule", '[[1, 2, -2, "ngram"]]'),
        ("schedule", '[[4, 2, 8, "ngram"]]'),
        ("schedule", "7"),
        ("schedule", DEEP),
        ("evidence", "{}"),
        ("evidence", "[]"),
        ("evidence", b"\xff\xfe"),
        ("evidence", '{"cycles": 1, "requests": 1, "survival": [NaN], "speedup": null, "predicted_speedup": [], '
         '"note": ""}'),
        ("evidence", f'{{"cycles": 1, "requests": 1, "survival": [{TOO_LARGE}], "speedup": null, '
         '"predicted_speedup": [], "note": ""}'),
        ("evidence", '{"cycles": 1, "requests": 1, "survival": [], "speedup": {"low": 1}, "predicted_speedup": [], '
         '"note": ""}'),
        ("version", "x"),
        ("version", -1),
        ("version", MAX_VERSION + 1),
        ("version", (1 << 63) - 1),
        ("drafter", b"\xff"),
        ("created_at", "yesterday"),
        ("created_at", float("inf")),
    ],
)  # fmt: skip
def test_a_damaged_policy_costs_no_other_row(
    store: Store, database: Path, caplog: pytest.LogCaptureFixture, column: str, value: object
) -> None:
    damage(database, f"UPDATE policies SET {column} = ? WHERE id = 1", value)
    with caplog.at_level(logging.WARNING):
        found = what_is_left(store)
    assert found.policies == (samples.policy(1, CHAT),)
    assert (len(found.pins), len(found.kill_switches), found.posterior) == (2, 2, {"counts": [1]})
    (line,) = caplog.messages
    assert line.startswith(f"the row of table policies with id 1 is left out, since column {column} of policies holds ")
    assert len(line) < 300
    assert store.policy_versions(samples.CONTEXT) == []


def test_a_damaged_name_of_a_context_costs_its_policy_only(store: Store, database: Path) -> None:
    damage(database, "UPDATE contexts SET route = CAST(? AS TEXT) WHERE route = 'code-edit'", b"\xff\xfe")
    assert what_is_left(store).policies == (samples.policy(1, CHAT),)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("block_length", "abc"),
        ("block_length", 2.5),
        ("expires_at", "tomorrow"),
        ("expires_at", float("inf")),
        ("reason", b"\xff"),
        ("language", b"\xff"),
    ],
)
def test_a_damaged_pin_costs_no_other_pin(
    store: Store, database: Path, caplog: pytest.LogCaptureFixture, column: str, value: object
) -> None:
    damage(database, f"UPDATE pins SET {column} = ? WHERE language = 'code'", value)
    found = what_is_left(store)
    assert found.pins == (samples.pin("da"),)
    assert (len(found.policies), len(found.kill_switches)) == (2, 2)
    assert "the row of table pins with route 'code-edit'" in caplog.text


@pytest.mark.parametrize(("column", "value"), [("expires_at", "x"), ("created_at", "x"), ("actor", b"\xff")])
def test_a_damaged_kill_switch_costs_no_other(store: Store, database: Path, column: str, value: object) -> None:
    damage(database, f"UPDATE kill_switches SET {column} = ? WHERE route = 'code-edit'", value)
    found = what_is_left(store)
    assert found.kill_switches == (samples.kill_switch("chat"),)
    assert (len(found.policies), len(found.pins)) == (2, 2)


@pytest.mark.parametrize("value", ["", b"\x00\xff", '{"counts": [1', DEEP, "[1]", "null", "NaN", "7"])
def test_a_damaged_posterior_costs_no_policy_and_no_order(
    store: Store, database: Path, caplog: pytest.LogCaptureFixture, value: object
) -> None:
    damage(database, "UPDATE posteriors SET state = ?", value)
    found = what_is_left(store)
    assert (len(found.policies), len(found.pins), len(found.kill_switches), found.posterior) == (2, 2, 2, {})
    assert "the row of table posteriors with model 'tiny' is left out" in caplog.text


@pytest.mark.parametrize(("column", "value"), [("details", "[1"), ("created_at", "x"), ("reason", b"\xff")])
def test_a_damaged_audit_row_costs_no_other(store: Store, database: Path, column: str, value: object) -> None:
    damage(database, f"UPDATE audit SET {column} = ? WHERE action = 'pin'", value)
    assert store.audit(10) == [samples.audit_entry("unpin")]


@pytest.mark.parametrize(("column", "value"), [("reason", "NEWREASON"), ("cap", "x"), ("ttft_seconds", "x")])
def test_a_damaged_decision_is_as_one_that_was_not_sampled(
    store: Store, database: Path, column: str, value: object
) -> None:
    damage(database, f"UPDATE decisions SET {column} = ? WHERE decision_id = 'first'", value)
    assert store.decision("first") is None
    assert store.decision("second") == samples.sampled_decision("second")


@pytest.mark.parametrize(("column", "value"), [("blocks", "[[1]]"), ("blocks", "{"), ("cycles", "x")])
def test_a_damaged_telemetry_window_costs_no_other(store: Store, database: Path, column: str, value: object) -> None:
    damage(database, f"UPDATE telemetry_windows SET {column} = ? WHERE id = 1", value)
    assert store.telemetry_windows(since=0.0) == [samples.telemetry_window(60.0)]


@pytest.mark.parametrize(("column", "value"), [("rejected_at", '["a"]'), ("rejected_at", "3"), ("errors", "x")])
def test_a_damaged_request_window_costs_no_other(store: Store, database: Path, column: str, value: object) -> None:
    damage(database, f"UPDATE request_windows SET {column} = ? WHERE id = 1", value)
    assert store.request_windows(since=0.0) == [samples.request_window(60.0)]


def test_a_schema_with_two_revisions_is_unavailable_and_says_what_to_do(store: Store, database: Path) -> None:
    damage(database, "INSERT INTO alembic_version VALUES (?)", "0001")
    for call in (store.check, store.upgrade):
        with pytest.raises(StoreUnavailableError, match="2 rows in alembic_version") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_largest_version_is_one_that_every_database_can_count_on_from(store: Store) -> None:
    store.write([samples.policy(MAX_VERSION, created_at=200.0), samples.policy(MAX_VERSION + 1, CHAT, 200.0)])
    assert [policy.version for policy in what_is_left(store).policies] == [MAX_VERSION]
    assert MAX_VERSION + 1_000_000_000 < 1 << 31  # what an INTEGER of PostgreSQL holds
