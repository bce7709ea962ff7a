"""The recorder against a real SQLite file that is locked, read-only, deleted and replaced while it records."""

import dataclasses
import logging
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from policies import BlockEnd, Context, CycleStats, FinishReason, Interval, Reason, SequenceStats, Window
from policies.records import RequestWindow, Row
from policies.store import Store
from policies.testing import FakeClock
from tests.policies import store_samples as samples
from tuner.guardrails import Check, GuardrailState, Standing, Verdict
from tuner.learning import ChangeKind, FoundChange
from tuner.recorder import Recorder, RecorderOptions
from tuner.window_counts import output_length_bucket

DEADLINE_SECONDS = 60.0
"""Far beyond what anything here needs: it is there to fail instead of hanging."""
OPTIONS = RecorderOptions(model=samples.MODEL, sample_share=0.0, flush_seconds=3600.0, retry_seconds=3600.0)
"""Pauses so long that only what a test asks for happens."""
READ_ONLY = 3
"""A write version beyond 2 in SQLite's file header: the file may be read and not written, whoever asks."""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "paceline.db"


@pytest.fixture
def store(database: Path) -> Store:
    return Store(f"sqlite:///{database}", busy_timeout_seconds=0.01)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def recorder(store: Store, clock: FakeClock) -> Iterator[Recorder]:
    recorder = Recorder(store, OPTIONS, clock)
    recorder.start()
    assert recorder.flush(DEADLINE_SECONDS)
    yield recorder
    recorder.close(DEADLINE_SECONDS)


def sequence(key: int, context: Context = samples.CONTEXT, accepted: int = 2) -> SequenceStats:
    return SequenceStats(key, context, "ngram", 4, 3, 3, accepted, accepted + 1, 3, BlockEnd.REJECTED)


def cycle(sequences: Sequence[SequenceStats], plain: bool = False) -> CycleStats:
    return CycleStats(
        cycle=1,
        policy_version=1,
        window=Window(1, plain),
        first_after_switch=False,
        killed=False,
        load=len(sequences),
        tokens=8,
        kv_tokens=100,
        draft_seconds={"ngram": 0.002},
        verify_seconds=0.04,
        cycle_seconds=0.05,
        prefill_tokens=0,
        prefill_seconds=0.0,
        waiting=0,
        sequences=tuple(sequences),
        shadows=(),
    )


def set_write_version(database: Path, version: int) -> None:
    with database.open("r+b") as file:
        file.seek(18)
        file.write(bytes([version]))


def test_what_is_recorded_is_in_the_store_after_a_flush(recorder: Recorder, store: Store) -> None:
    recorder.record_policy(samples.policy(1))
    recorder.record_pin(samples.pin())
    recorder.record_kill_switch(samples.kill_switch())
    recorder.save_posterior({"a": 1})
    recorder.save_posterior({"a": 2})
    assert recorder.flush(DEADLINE_SECONDS)
    state = store.load_state(samples.MODEL)
    assert state.policies == (samples.policy(1),)
    assert state.pins == (samples.pin(),)
    assert state.kill_switches == (samples.kill_switch(),)
    assert state.posterior == {"a": 2}
    assert recorder.store_up
    assert recorder.dropped == 0


def test_every_change_is_audited_with_its_actor(recorder: Recorder, store: Store) -> None:
    recorder.record_policy(samples.policy(1))
    recorder.record_pin(samples.pin())
    recorder.record_pin_removed("code-edit", "code", "grace", "done")
    recorder.record_kill_switch(samples.kill_switch("chat"))
    recorder.record_kill_cleared("chat", "grace", "over")
    recorder.record_audit(samples.audit_entry("note"))
    assert recorder.flush(DEADLINE_SECONDS)
    assert [(entry.action, entry.actor, entry.route) for entry in reversed(store.audit(10))] == [
        ("policy", "tuner", "code-edit"),
        ("pin", "ada", "code-edit"),
        ("unpin", "grace", "code-edit"),
        ("kill", "ada", "chat"),
        ("unkill", "grace", "chat"),
        ("note", "ada", "code-edit"),
    ]
    assert store.load_state(samples.MODEL).pins == ()
    assert store.load_state(samples.MODEL).kill_switches == ()


def test_cycles_add_up_per_context_drafter_and_window(recorder: Recorder, store: Store, clock: FakeClock) -> None:
    chat = Context(samples.MODEL, "chat", "en")
    recorder.fold_cycle(cycle([sequence(1), sequence(2, chat, accepted=0)]))
    recorder.fold_cycle(cycle([sequence(1, accepted=1)]))
    recorder.fold_cycle(cycle([sequence(1)], plain=True))
    clock.advance(7.0)
    assert recorder.flush(DEADLINE_SECONDS)
    windows = {(window.context.route, window.plain): window for window in store.telemetry_windows(0.0)}
    assert set(windows) == {("code-edit", False), ("chat", False), ("code-edit", True)}
    served = windows["code-edit", False]
    assert (served.started_at, served.ended_at) == (100.0, 107.0)
    assert (served.cycles, served.load_sum) == (2, 3)
    assert (served.requested, served.proposed, served.verified, served.accepted, served.emitted) == (8, 6, 6, 3, 5)
    assert served.draft_seconds == pytest.approx(0.001 + 0.002)
    assert served.verify_seconds == pytest.approx(0.02 + 0.04)
    assert served.blocks == ((4, 3, 3, 1, "rejected", 1), (4, 3, 3, 2, "rejected", 1))


def test_requests_add_up_per_output_length_and_every_count_is_kept(recorder: Recorder, store: Store) -> None:
    recorder.fold_request(samples.request_stats(1))
    recorder.fold_request(samples.request_stats(2, FinishReason.CANCELLED))
    recorder.fold_request(dataclasses.replace(samples.request_stats(3, output_tokens=300), looped=True))
    recorder.fold_request(samples.request_stats(4, FinishReason.ERROR, output_tokens=0))
    assert recorder.flush(DEADLINE_SECONDS)
    windows = {window.output_length: window for window in store.request_windows(0.0)}
    both = windows["17-64"]
    assert (both.requests, both.cancelled, both.errors, both.looped) == (2, 1, 0, 0)
    assert (both.output_tokens, both.decode_tokens, both.ttft_requests, both.prompt_tokens) == (96, 94, 2, 200)
    assert (both.proposed, both.verified, both.accepted, both.rejected_at) == (120, 100, 56, (10, 6))
    assert both.decode_seconds == pytest.approx(0.94)
    assert windows["257+"].looped == 1
    failed = windows[output_length_bucket(0)]
    assert (failed.requests, failed.errors, failed.ttft_requests, failed.decode_tokens) == (1, 1, 0, 0)


def test_windows_of_later_flushes_add_to_the_earlier_ones(recorder: Recorder, store: Store) -> None:
    for key in (1, 2, 3):
        recorder.fold_request(samples.request_stats(key))
        assert recorder.flush(DEADLINE_SECONDS)
    assert [window.requests for window in store.request_windows(0.0)] == [1, 1, 1]


def test_failed_requests_and_failed_decisions_are_stored_though_nothing_is_sampled(
    recorder: Recorder, store: Store
) -> None:
    broken = samples.decision("v0.none-0.ERROR.chat.en.2", Reason.ERROR)
    recorder.fold_request(samples.request_stats(1))
    recorder.fold_request(samples.request_stats(2, made=broken))
    recorder.fold_request(samples.request_stats(3, FinishReason.ERROR))
    assert recorder.flush(DEADLINE_SECONDS)
    assert store.decision(samples.request_stats(1).decision.decision_id) is None
    found = store.decision(broken.decision_id)
    assert found is not None
    assert found.decision == broken
    failed = recorder.find_decision(samples.request_stats(3).decision.decision_id)
    assert failed is not None
    assert failed.finish == "error"


def test_the_sampled_share_is_near_what_was_asked(store: Store, clock: FakeClock) -> None:
    recorder = Recorder(store, dataclasses.replace(OPTIONS, sample_share=0.25), clock)
    recorder.start()
    for key in range(400):
        recorder.fold_request(samples.request_stats(key))
    assert recorder.close(DEADLINE_SECONDS)
    stored = sum(store.decision(f"7.ngram-8.LEARNED.{key}") is not None for key in range(400))
    assert 60 <= stored <= 140  # 100 expected, standard deviation below 9


def test_guardrails_and_changes_that_were_found_are_audited_as_the_tuners_own(recorder: Recorder, store: Store) -> None:
    share = Interval(0.2, 0.1, 0.3)
    recorder.record_guardrail(
        GuardrailState("chat", Check.ERRORS, Verdict.FAILED, Standing.TRIPPED, 0.02, 30, share, 400.0, 1)
    )
    recorder.record_change(FoundChange(ChangeKind.COST, "", "", "", "cycles take a third longer"))
    assert recorder.flush(DEADLINE_SECONDS)
    change, guardrail = store.audit(10)
    assert (guardrail.action, guardrail.actor, guardrail.route) == ("guardrail", "tuner", "chat")
    assert guardrail.reason == Reason.GUARDRAIL_ERRORS
    assert guardrail.details["standing"] == "tripped"
    assert guardrail.details["measured"] == [0.2, 0.1, 0.3]
    assert (change.action, change.route, change.reason) == ("change", "*", "cycles take a third longer")


def test_a_read_only_database_costs_nothing_and_writing_resumes(
    recorder: Recorder, store: Store, database: Path
) -> None:
    set_write_version(database, READ_ONLY)
    recorder.record_pin(samples.pin())
    recorder.fold_request(samples.request_stats(1))
    assert not recorder.flush(DEADLINE_SECONDS)
    assert not recorder.store_up
    set_write_version(database, 2)
    assert recorder.flush(DEADLINE_SECONDS)
    assert recorder.store_up
    assert recorder.dropped == 0
    assert store.load_state(samples.MODEL).pins == (samples.pin(),)
    assert len(store.request_windows(0.0)) == 1
    assert [entry.action for entry in store.audit(10)] == ["pin"]


def test_a_locked_database_costs_nothing_and_writing_resumes(recorder: Recorder, store: Store, database: Path) -> None:
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    recorder.record_pin(samples.pin())
    assert not recorder.flush(DEADLINE_SECONDS)
    assert not recorder.store_up
    holder.execute("ROLLBACK")
    holder.close()
    assert recorder.flush(DEADLINE_SECONDS)
    assert store.load_state(samples.MODEL).pins == (samples.pin(),)


def test_a_deleted_file_is_made_again_with_the_current_state(recorder: Recorder, store: Store, database: Path) -> None:
    recorder.record_policy(samples.policy(1))
    recorder.record_policy(samples.policy(2))
    recorder.record_pin(samples.pin())
    recorder.record_pin(samples.pin("da"))
    recorder.record_pin_removed("code-edit", "da", "ada", "done")
    recorder.record_kill_switch(samples.kill_switch())
    recorder.save_posterior({"a": 1})
    assert recorder.flush(DEADLINE_SECONDS)
    database.unlink()
    recorder.fold_request(samples.request_stats(1))
    assert not recorder.flush(DEADLINE_SECONDS)
    assert not recorder.store_up
    assert recorder.flush(DEADLINE_SECONDS)
    state = store.load_state(samples.MODEL)
    assert state.policies == (samples.policy(2),)
    assert state.pins == (samples.pin(),)
    assert state.kill_switches == (samples.kill_switch(),)
    assert state.posterior == {"a": 1}
    assert len(store.request_windows(0.0)) == 1
    assert recorder.dropped == 0


def test_what_the_store_held_at_the_start_is_part_of_the_current_state(store: Store, database: Path) -> None:
    store.upgrade()
    store.write([samples.policy(3), samples.pin(), samples.kill_switch("chat")])
    recorder = Recorder(store, OPTIONS, FakeClock(100.0), store.load_state(samples.MODEL))
    database.unlink()
    recorder.start()
    assert recorder.close(DEADLINE_SECONDS)
    state = store.load_state(samples.MODEL)
    assert (state.policies, state.pins) == ((samples.policy(3),), (samples.pin(),))
    assert state.kill_switches == (samples.kill_switch("chat"),)


def test_a_folder_in_place_of_the_file_is_survived_and_no_cause_is_told_twice(
    recorder: Recorder, store: Store, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.unlink()
    database.mkdir()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            recorder.record_audit(samples.audit_entry())
            assert not recorder.flush(DEADLINE_SECONDS)
        told = [record.getMessage() for record in caplog.records]
        # Writing there and looking there fail with different words.
        assert 1 <= len(told) == len(set(told)) <= 2
    database.rmdir()
    assert recorder.flush(DEADLINE_SECONDS)
    assert len(store.audit(10)) == 3


def test_another_cause_is_told_and_the_same_one_only_once(
    recorder: Recorder, store: Store, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        """What flushing twice adds to the log."""
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert not recorder.flush(DEADLINE_SECONDS)
        return [record.getMessage() for record in caplog.records]

    recorder.record_audit(samples.audit_entry())
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    (locked,) = told()
    assert locked.startswith("serving goes on without the store, rows wait in memory: ")
    assert "database is locked" in locked
    holder.execute("ROLLBACK")
    holder.close()
    for file in database.parent.glob("paceline.db*"):
        file.write_bytes(b"no database at all" * 100)
    (damaged,) = told()
    assert damaged.startswith("the store is still not written, now for another reason: ")
    assert "file is not a database" in damaged


def test_the_writer_retries_by_itself_when_the_pause_is_over(database: Path, clock: FakeClock) -> None:
    class Failing(Store):
        """Fails twice, then works; says when it has written."""

        attempts = 0
        written = threading.Event()

        def write(self, rows: Sequence[Row]) -> None:
            Failing.attempts += 1
            if Failing.attempts <= 2:
                raise OSError("no space left on device")
            super().write(rows)
            Failing.written.set()

    quick = dataclasses.replace(OPTIONS, retry_seconds=0.001, longest_retry_seconds=0.002)
    recorder = Recorder(Failing(f"sqlite:///{database}"), quick, clock)
    recorder.record_audit(samples.audit_entry())
    recorder.start()
    assert Failing.written.wait(DEADLINE_SECONDS)
    assert Failing.attempts == 3
    assert recorder.close(DEADLINE_SECONDS)


def test_rows_beyond_the_limit_cost_telemetry_first_and_are_counted(
    store: Store, database: Path, clock: FakeClock
) -> None:
    database.mkdir()
    recorder = Recorder(store, dataclasses.replace(OPTIONS, queue_limit=4), clock)
    recorder.start()
    for key in range(3):
        recorder.record_decision(samples.request_stats(key))
    for number in range(3):
        recorder.record_audit(samples.audit_entry(f"change {number}"))
    assert not recorder.flush(DEADLINE_SECONDS)
    assert recorder.dropped == 2
    recorder.record_audit(samples.audit_entry("change 3"))
    recorder.record_audit(samples.audit_entry("change 4"))
    assert recorder.dropped == 4
    database.rmdir()
    assert recorder.close(DEADLINE_SECONDS)
    assert [entry.action for entry in reversed(store.audit(10))] == [f"change {number}" for number in (1, 2, 3, 4)]


def test_a_row_that_the_database_refuses_is_dropped_alone(recorder: Recorder, store: Store) -> None:
    broken = dataclasses.replace(samples.request_stats(1), queue_seconds=float("nan"))
    recorder.fold_request(broken)
    recorder.record_audit(samples.audit_entry())
    assert recorder.flush(DEADLINE_SECONDS)
    assert recorder.dropped == 1
    assert recorder.store_up
    assert len(store.audit(10)) == 1
    assert store.request_windows(0.0) == []


def test_close_writes_the_open_window_and_says_so(store: Store, clock: FakeClock) -> None:
    recorder = Recorder(store, OPTIONS, clock)
    recorder.start()
    recorder.fold_request(samples.request_stats(1))
    assert recorder.close(DEADLINE_SECONDS)
    assert [type(window) for window in store.request_windows(0.0)] == [RequestWindow]


def test_close_without_a_database_ends_and_tells_what_is_lost(
    store: Store, database: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    database.mkdir()
    recorder = Recorder(store, OPTIONS, clock)
    recorder.start()
    recorder.record_audit(samples.audit_entry())
    recorder.fold_request(samples.request_stats(1))
    recorder.record_pin(samples.pin())
    recorder.save_posterior({"a": 1})
    with caplog.at_level(logging.WARNING):
        assert not recorder.close(DEADLINE_SECONDS)
    assert recorder.dropped == 4
    assert caplog.records[-1].getMessage() == (
        "the store was not written to the end, and these rows are lost: AuditEntry 2, Pin 1, Posterior 1, "
        "RequestWindow 1"
    )
    assert recorder.find_decision("any") is None
