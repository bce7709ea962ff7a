"""The contract of the store. Another database will run the same class."""

import dataclasses
import sqlite3
from pathlib import Path

import pytest

from policies.records import KillCleared, PinRemoved, Posterior, StoredState
from policies.store import RowRejectedError, Store, StoreError, StoreUnavailableError
from policies.types import UNKNOWN_LENGTH, Arm, Context, LoadStep
from tests.policies import store_samples as samples


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "paceline.db"


@pytest.fixture
def store(database: Path) -> Store:
    store = Store(f"sqlite:///{database}", busy_timeout_seconds=0.01)
    assert store.upgrade()
    return store


def test_every_kind_of_row_comes_back_as_it_went_in(store: Store) -> None:
    store.write(
        [
            samples.policy(1),
            samples.pin(),
            samples.kill_switch(),
            samples.audit_entry(),
            samples.sampled_decision(),
            samples.telemetry_window(),
            samples.request_window(),
            Posterior(samples.MODEL, {"counts": [1, 2]}, 100.0),
        ]
    )
    assert store.load_state(samples.MODEL) == StoredState(
        policies=(samples.policy(1),),
        pins=(samples.pin(),),
        kill_switches=(samples.kill_switch(),),
        posterior={"counts": [1, 2]},
    )
    assert store.audit(10) == [samples.audit_entry()]
    assert store.decision(samples.decision().decision_id) == samples.sampled_decision()
    assert store.telemetry_windows(since=0.0) == [samples.telemetry_window()]
    assert store.request_windows(since=0.0) == [samples.request_window()]


def test_a_block_length_that_nobody_knows_comes_back_as_it_went_in(store: Store) -> None:
    steps = (LoadStep(1, 2, UNKNOWN_LENGTH, "ngram"), LoadStep(3, 4, 0, "ngram"))
    policy = dataclasses.replace(samples.policy(1), arm=Arm("ngram", steps))
    assert policy.arm.cap == UNKNOWN_LENGTH
    store.write([policy])
    assert store.load_state(samples.MODEL).policies == (policy,)


def test_a_new_store_is_empty(store: Store) -> None:
    assert store.load_state(samples.MODEL) == StoredState()
    assert store.decision("unknown") is None
    assert store.audit(10) == []


def test_load_state_gives_the_newest_policy_of_each_context_of_the_model(store: Store) -> None:
    chat = Context(samples.MODEL, "chat", "en")
    store.write(
        [samples.policy(1), samples.policy(1, chat), samples.policy(2), samples.policy(9, Context("m", "r", "l"))]
    )
    found = store.load_state(samples.MODEL).policies
    assert [(policy.context.route, policy.version) for policy in found] == [("chat", 1), ("code-edit", 2)]
    assert [policy.version for policy in store.policy_versions(samples.CONTEXT)] == [1, 2]


def test_writing_a_policy_or_a_decision_again_leaves_the_first(store: Store) -> None:
    changed = dataclasses.replace(samples.policy(1), evidence=dataclasses.replace(samples.policy(1).evidence, note="x"))
    store.write([samples.policy(1), samples.sampled_decision()])
    store.write([changed, dataclasses.replace(samples.sampled_decision(), finish="error")])
    assert store.policy_versions(samples.CONTEXT) == [samples.policy(1)]
    assert store.decision(samples.decision().decision_id) == samples.sampled_decision()


def test_a_version_counted_anew_after_a_crash_is_kept_beside_the_old_one(store: Store) -> None:
    store.write([samples.policy(1, created_at=100.0)])
    store.write([samples.policy(1, created_at=200.0)])
    assert [policy.created_at for policy in store.policy_versions(samples.CONTEXT)] == [100.0, 200.0]


def test_the_last_pin_and_the_last_posterior_win_and_what_was_taken_back_is_gone(store: Store) -> None:
    store.write(
        [samples.pin(block_length=2), samples.pin("da"), samples.pin(block_length=8), PinRemoved("code-edit", "da")]
    )
    store.write([samples.kill_switch(), samples.kill_switch("chat"), KillCleared("*")])
    store.write([Posterior(samples.MODEL, {"a": 1}, 1.0), Posterior(samples.MODEL, {"a": 2}, 2.0)])
    state = store.load_state(samples.MODEL)
    assert state.pins == (samples.pin(block_length=8),)
    assert state.kill_switches == (samples.kill_switch("chat"),)
    assert state.posterior == {"a": 2}


def test_a_batch_is_written_whole_or_not_at_all(store: Store) -> None:
    broken = dataclasses.replace(samples.telemetry_window(), verify_seconds=float("nan"))
    with pytest.raises(RowRejectedError, match="NOT NULL"):
        store.write([samples.audit_entry(), broken])
    assert store.audit(10) == []


def test_audit_rows_can_be_neither_changed_nor_deleted(store: Store, database: Path) -> None:
    store.write([samples.audit_entry()])
    with sqlite3.connect(database) as connection:
        for statement in ("UPDATE audit SET actor = 'x'", "DELETE FROM audit"):
            with pytest.raises(sqlite3.IntegrityError, match="audit rows are never"):
                connection.execute(statement)
    connection.close()
    assert store.audit(10) == [samples.audit_entry()]


def test_audit_gives_the_newest_first_and_no_more_than_asked(store: Store) -> None:
    store.write([samples.audit_entry(action) for action in ("pin", "unpin", "kill")])
    assert [entry.action for entry in store.audit(2)] == ["kill", "unpin"]


def test_windows_are_read_by_the_time_at_which_they_ended(store: Store) -> None:
    store.write([samples.telemetry_window(0.0), samples.telemetry_window(60.0), samples.request_window(60.0)])
    assert store.telemetry_windows(since=60.0) == [samples.telemetry_window(60.0)]
    assert store.request_windows(since=120.0) == []


def test_the_file_uses_the_write_ahead_log(store: Store, database: Path) -> None:
    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_reference_to_a_missing_context_is_refused_by_the_database(store: Store) -> None:
    with store._writer.connect() as connection:
        enforced = connection.exec_driver_sql("PRAGMA foreign_keys").scalar()
    assert enforced == 1


def test_a_locked_database_is_unavailable_and_works_again_once_unlocked(store: Store, database: Path) -> None:
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"):
        store.write([samples.audit_entry()])
    holder.execute("ROLLBACK")
    holder.close()
    store.write([samples.audit_entry()])
    assert len(store.audit(10)) == 1


def test_a_deleted_file_is_noticed_and_not_recreated_by_writing(store: Store, database: Path) -> None:
    store.write([samples.audit_entry()])
    database.unlink()
    with pytest.raises(StoreUnavailableError, match="unable to open"):
        store.write([samples.audit_entry()])
    assert not database.exists()


def test_a_folder_or_a_foreign_file_in_its_place_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "text.db").write_text("This is no database, whatever its name says." * 100)
    for name in ("folder.db", "text.db"):
        with pytest.raises(StoreUnavailableError):
            Store(f"sqlite:///{tmp_path / name}").upgrade()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("paceline.db", "parse"),
        ("sqlite://", "plain file path"),
        ("sqlite:///:memory:", "plain file path"),
        ("nosuch://user:secret@host/name", "nosuch"),
    ],
)
def test_an_unusable_url_is_one_sentence_without_the_password(url: str, complaint: str) -> None:
    with pytest.raises(StoreError, match=complaint) as caught:
        Store(url)
    message = str(caught.value)
    assert message.startswith("database.url is ")
    assert "secret" not in message
    assert "\n" not in message
