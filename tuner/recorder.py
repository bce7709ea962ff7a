"""Write-behind to the store: everything goes through a bounded queue in memory and one writer thread.

The database may be locked, read-only or gone for as long as it likes: recording never fails and never waits for it.
What the store has to say last of all things (policies, pins, kill switches, posterior) is also kept here, so that a
database that was deleted is made again with its state.
"""

import logging
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from policies.records import (
    AuditEntry,
    KillCleared,
    PinRemoved,
    Posterior,
    Row,
    SampledDecision,
    StoredState,
)
from policies.stats import CycleStats, FinishReason, RequestStats
from policies.store import RowRejectedError, Store, StoreError
from policies.types import Context, KillSwitch, Pin, Policy, Reason
from tuner.guardrails import REASONS, GuardrailState
from tuner.learning import FoundChange
from tuner.window_counts import WindowCounts
from tuner.write_queue import WriteQueue

log = logging.getLogger(__name__)

TUNER = "tuner"
"""The actor of changes that nobody asked for by hand."""


@dataclass(frozen=True, slots=True)
class RecorderOptions:
    """How the recorder queues, batches and retries."""

    model: str
    """The served model's name, the key of the posterior."""
    queue_limit: int = 10_000
    """Rows that wait at most."""
    batch_rows: int = 500
    """Rows in one transaction at most; as many waiting wake the writer."""
    flush_seconds: float = 1.0
    """How long a row waits at most while the store is up."""
    window_seconds: float = 30.0
    """Length of the telemetry windows."""
    sample_share: float = 0.05
    """Share of decisions that are stored; those whose request or resolution failed always are."""
    retry_seconds: float = 1.0
    """First pause after a failure; it doubles up to `longest_retry_seconds`."""
    longest_retry_seconds: float = 30.0


class Recorder:
    """A telemetry `Consumer`, and the one writer of the store. Any thread may call any method."""

    def __init__(
        self,
        store: Store,
        options: RecorderOptions,
        clock: Callable[[], float] = time.time,
        known: StoredState | None = None,
    ) -> None:
        """`clock` gives Unix seconds. `known` is what the store held at the start, if it could be read."""
        self._store = store
        self._options = options
        self._clock = clock
        known = known or StoredState()
        self._policies: dict[Context, Policy] = {policy.context: policy for policy in known.policies}
        self._pins: dict[tuple[str, str], Pin] = {(pin.route, pin.language): pin for pin in known.pins}
        self._kill_switches: dict[str, KillSwitch] = {kill.route: kill for kill in known.kill_switches}
        self._posterior = Posterior(options.model, known.posterior, clock()) if known.posterior else None
        self._queue = WriteQueue(options.queue_limit)
        self._counts = WindowCounts(secrets.token_hex(4))
        self._window_started_at = clock()
        self._store_up = False
        self._failures = 0
        self._cause = ""
        """What the last of them said."""
        self._tickets = 1  # the first round opens the database
        self._served = 0
        self._closing = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    @property
    def store_up(self) -> bool:
        """True while the store takes what is written."""
        return self._store_up

    @property
    def dropped(self) -> int:
        """Rows that never reached the store, since the start."""
        return self._queue.dropped

    def start(self) -> None:
        """Start the writer thread, which first brings the database to the newest schema."""
        self._thread.start()

    def fold_cycle(self, stats: CycleStats) -> None:
        """Count one cycle."""
        with self._condition:
            self._counts.add_cycle(stats)

    def fold_request(self, stats: RequestStats) -> None:
        """Count one request, and keep its decision if it is sampled or went wrong."""
        with self._condition:
            self._counts.add_request(stats)
        if stats.finish is FinishReason.ERROR or stats.decision.reason is Reason.ERROR or self._sampled(stats):
            self.record_decision(stats)

    def record_decision(self, stats: RequestStats) -> None:
        """Keep a request's decision, and in counts and seconds what became of the request."""
        self._add(
            SampledDecision(
                decision=stats.decision,
                created_at=self._clock(),
                finish=stats.finish.value,
                output_tokens=stats.output_tokens,
                proposed=stats.proposed,
                verified=stats.verified,
                accepted=stats.accepted,
                ttft_seconds=stats.ttft_seconds,
                tpot_seconds=stats.tpot_seconds,
            )
        )

    def record_policy(self, policy: Policy) -> None:
        """Store a new version of a policy, and audit it as the tuner's own change."""
        details = {
            "version": policy.version,
            "drafter": policy.arm.drafter,
            "schedule": policy.arm.entries,
            "state": policy.state.value,
            "note": policy.evidence.note,
        }
        with self._condition:
            self._policies[policy.context] = policy
            self._add(policy)
            self._audit(TUNER, "policy", policy.context.route, policy.context.language, policy.reason.value, details)

    def record_guardrail(self, state: GuardrailState) -> None:
        """Audit that a guardrail tripped, lets some requests try again, or came to rest."""
        share = state.share
        details = {
            "check": state.check.value,
            "standing": state.standing.value,
            "verdict": state.verdict.value,
            "requests": state.requests,
            "bar": state.bar,
            "measured": None if share is None else [share.estimate, share.low, share.high],
        }
        self._audit(TUNER, "guardrail", state.route, "*", REASONS[state.check].value, details)

    def record_change(self, change: FoundChange) -> None:
        """Audit that acceptance, cost or a version was found to have changed."""
        details = {"drafter": change.drafter, "kind": change.kind.value}
        self._audit(TUNER, "change", change.route or "*", change.language or "*", change.note, details)

    def record_pin(self, pin: Pin) -> None:
        """Store a pin and audit it."""
        details = {"drafter": pin.drafter, "block_length": pin.block_length, "expires_at": pin.expires_at}
        with self._condition:
            self._pins[pin.route, pin.language] = pin
            self._add(pin)
            self._audit(pin.actor, "pin", pin.route, pin.language, pin.reason, details)

    def record_pin_removed(self, route: str, language: str, actor: str, reason: str) -> None:
        """Forget a pin and audit who took it back."""
        with self._condition:
            self._pins.pop((route, language), None)
            self._add(PinRemoved(route, language))
            self._audit(actor, "unpin", route, language, reason, {})

    def record_kill_switch(self, kill: KillSwitch) -> None:
        """Store a kill switch and audit it."""
        with self._condition:
            self._kill_switches[kill.route] = kill
            self._add(kill)
            self._audit(kill.actor, "kill", kill.route, "*", kill.reason, {"expires_at": kill.expires_at})

    def record_kill_cleared(self, route: str, actor: str, reason: str) -> None:
        """Forget a kill switch and audit who took it back."""
        with self._condition:
            self._kill_switches.pop(route, None)
            self._add(KillCleared(route))
            self._audit(actor, "unkill", route, "*", reason, {})

    def record_audit(self, entry: AuditEntry) -> None:
        """Keep an audit row."""
        self._add(entry)

    def save_posterior(self, state: Mapping[str, Any]) -> None:
        """Keep the controller's state; a newer one replaces one that still waits."""
        with self._condition:
            self._posterior = Posterior(self._options.model, state, self._clock())
            self._add(self._posterior)

    def find_decision(self, decision_id: str) -> SampledDecision | None:
        """A stored decision; None when it was not sampled or the store cannot be read. Reads the database."""
        try:
            return self._store.decision(decision_id)
        except StoreError as error:
            log.warning("decision not read: %s", error)
            return None

    def flush(self, deadline_seconds: float) -> bool:
        """Write everything recorded so far, at once and whatever the pause after a failure; True if it is stored."""
        with self._condition:
            self._tickets += 1
            ticket = self._tickets
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._served >= ticket or not self._thread.is_alive(), deadline_seconds)
            return self._served >= ticket and self._store_up

    def close(self, deadline_seconds: float) -> bool:
        """Write what waits and end the writer thread; True if everything is stored. What is not counts as dropped."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(deadline_seconds)
        with self._condition:
            left = self._queue.drop_all()
        if left:
            told = ", ".join(f"{kind} {count}" for kind, count in sorted(left.items()))
            log.warning("the store was not written to the end, and these rows are lost: %s", told)
        return not left and self._store_up and not self._thread.is_alive()

    def _audit(
        self, actor: str, action: str, route: str, language: str, reason: str, details: Mapping[str, Any]
    ) -> None:
        self._add(AuditEntry(self._clock(), actor, action, route, language, reason, details))

    def _sampled(self, stats: RequestStats) -> bool:
        # By the id and not by chance, so that replicas and repetitions agree.
        return zlib.crc32(stats.decision.decision_id.encode()) < self._options.sample_share * 2**32

    def _add(self, row: Row) -> None:
        with self._condition:
            self._queue.add(row)
            if self._awaited():
                self._condition.notify_all()

    def _run(self) -> None:
        """The writer thread: wait for rows, for somebody who wants them written, or for the next retry."""
        while True:
            with self._condition:
                self._condition.wait_for(self._awaited, self._pause())
                ticket, closing = self._tickets, self._closing
                if closing or ticket > self._served or self._window_is_over():
                    self._close_window()
            self._write_all()
            with self._condition:
                self._served = ticket
                self._condition.notify_all()
            if closing:
                return

    def _pause(self) -> float:
        if not self._failures:
            return self._options.flush_seconds
        doubled = self._options.retry_seconds * 2.0 ** min(self._failures - 1, 32)
        return min(doubled, self._options.longest_retry_seconds)

    def _awaited(self) -> bool:
        full = self._store_up and len(self._queue) >= self._options.batch_rows
        return self._closing or self._tickets > self._served or full

    def _window_is_over(self) -> bool:
        return self._clock() - self._window_started_at >= self._options.window_seconds

    def _close_window(self) -> None:
        now = self._clock()
        for row in self._counts.close(self._window_started_at, now):
            self._add(row)
        self._window_started_at = now

    def _write_all(self) -> None:
        """Write batches until nothing waits or the store fails."""
        while True:
            with self._condition:
                rows = self._queue.take(self._options.batch_rows)
            if not rows and self._store_up:
                return
            try:
                self._write(rows)
            except Exception as error:  # noqa: BLE001  logged: whatever the database does, the writer must outlive it
                self._put_back(rows, error)
                return
            if self._failures:
                log.warning("the store takes writes again")
            self._failures = 0
            self._store_up = True

    def _write(self, rows: list[Row]) -> None:
        """Write `rows`; after an exception the list holds those that are still to be written."""
        if not self._store_up and self._store.upgrade():
            rows[:0] = self._current_state()
        try:
            self._store.write(rows)
        except RowRejectedError:
            # One bad row must not keep the others out for ever, so each goes alone.
            while rows:
                self._write_alone(rows[0])
                rows.pop(0)

    def _write_alone(self, row: Row) -> None:
        try:
            self._store.write([row])
        except RowRejectedError as error:
            log.error("a %s was dropped: %s", type(row).__name__, error)
            with self._condition:
                self._queue.dropped += 1

    def _current_state(self) -> list[Row]:
        with self._condition:
            posterior = [self._posterior] if self._posterior else []
            return [*self._policies.values(), *self._pins.values(), *self._kill_switches.values(), *posterior]

    def _put_back(self, rows: list[Row], error: Exception) -> None:
        with self._condition:
            self._queue.put_back(rows)
            cause = str(error)
            if not self._failures:
                log.warning("serving goes on without the store, rows wait in memory: %s", cause)
            elif cause != self._cause:
                log.warning("the store is still not written, now for another reason: %s", cause)
            self._failures += 1
            self._cause = cause
            self._store_up = False
