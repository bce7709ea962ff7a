"""Between the plain values of `policies.records` and the rows of `policies.models`, both ways."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import ColumnElement, delete, func, insert, select
from sqlalchemy.orm import Session

from policies.models import (
    AuditRow,
    Base,
    ContextRow,
    DecisionRow,
    KillSwitchRow,
    PinRow,
    PolicyRow,
    PosteriorRow,
    RequestWindowRow,
    TelemetryWindowRow,
)
from policies.records import (
    AuditEntry,
    KillCleared,
    PinRemoved,
    Posterior,
    RequestWindow,
    Row,
    SampledDecision,
    TelemetryWindow,
)
from policies.types import (
    Arm,
    Context,
    Decision,
    Evidence,
    Interval,
    KillSwitch,
    LoadStep,
    Pin,
    Policy,
    PolicyState,
    Reason,
)


class RowWriter:
    """Writes values within one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._context_ids: dict[Context, int] = {}

    def write(self, row: Row) -> None:
        """Write one value; a policy or a decision that is there already is left as it is."""
        match row:
            case Policy():
                self._write_policy(row)
            case Pin():
                self.write(PinRemoved(row.route, row.language))
                self._insert(PinRow, flat(row))
            case PinRemoved():
                self._session.execute(delete(PinRow).where(PinRow.route == row.route, PinRow.language == row.language))
            case KillSwitch():
                self.write(KillCleared(row.route))
                self._insert(KillSwitchRow, flat(row))
            case KillCleared():
                self._session.execute(delete(KillSwitchRow).where(KillSwitchRow.route == row.route))
            case AuditEntry():
                self._insert(AuditRow, flat(row))
            case SampledDecision():
                self._write_decision(row)
            case TelemetryWindow():
                self._insert(TelemetryWindowRow, self._with_context_id(row))
            case RequestWindow():
                self._insert(RequestWindowRow, self._with_context_id(row))
            case Posterior():
                self._session.execute(delete(PosteriorRow).where(PosteriorRow.model == row.model))
                self._insert(PosteriorRow, flat(row))

    def _write_policy(self, policy: Policy) -> None:
        context_id = self._context_id(policy.context)
        known = select(PolicyRow.id).where(
            PolicyRow.context_id == context_id,
            PolicyRow.version == policy.version,
            PolicyRow.created_at == policy.created_at,
        )
        if self._session.scalar(known) is None:
            self._insert(
                PolicyRow,
                {
                    "context_id": context_id,
                    "version": policy.version,
                    "drafter": policy.arm.drafter,
                    "schedule": policy.arm.entries,
                    "state": policy.state.value,
                    "reason": policy.reason.value,
                    "evidence": asdict(policy.evidence),
                    "created_at": policy.created_at,
                },
            )

    def _write_decision(self, sampled: SampledDecision) -> None:
        decision = sampled.decision
        known = select(DecisionRow.decision_id).where(DecisionRow.decision_id == decision.decision_id)
        if self._session.scalar(known) is None:
            values = flat(sampled, "decision") | flat(decision, "context", "reason", "shadows")
            context_id = self._context_id(decision.context)
            self._insert(DecisionRow, values | {"context_id": context_id, "reason": decision.reason.value})

    def _with_context_id(self, row: TelemetryWindow | RequestWindow) -> dict[str, Any]:
        return flat(row, "context") | {"context_id": self._context_id(row.context)}

    def _context_id(self, context: Context) -> int:
        if context not in self._context_ids:
            found = self._session.scalar(select(ContextRow.id).where(*same_context(context)))
            if found is None:
                row = ContextRow(model=context.model, route=context.route, language=context.language)
                self._session.add(row)
                self._session.flush()
                found = row.id
            self._context_ids[context] = found
        return self._context_ids[context]

    def _insert(self, table: type[Base], values: Mapping[str, Any]) -> None:
        self._session.execute(insert(table).values(**values))


def same_context(context: Context) -> tuple[ColumnElement[bool], ...]:
    """The condition that a row of `contexts` is `context`."""
    return (
        ContextRow.model == context.model,
        ContextRow.route == context.route,
        ContextRow.language == context.language,
    )


def flat(value: Any, *without: str) -> dict[str, Any]:
    """A dataclass's fields by name, not recursing, less those in `without`."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name not in without}


def newest_policies(session: Session, model: str) -> tuple[Policy, ...]:
    """The policy written last for each context of `model`."""
    newest = select(func.max(PolicyRow.id)).group_by(PolicyRow.context_id)
    query = select(PolicyRow).join(PolicyRow.context).where(ContextRow.model == model, PolicyRow.id.in_(newest))
    return tuple(policy_of(row) for row in session.scalars(query.order_by(ContextRow.route, ContextRow.language)))


def context_of(row: ContextRow) -> Context:
    """The value of a row."""
    return Context(row.model, row.route, row.language)


def policy_of(row: PolicyRow) -> Policy:
    """The value of a row."""
    return Policy(
        context=context_of(row.context),
        version=row.version,
        arm=Arm(row.drafter, tuple(LoadStep(*entry) for entry in row.schedule)),
        state=PolicyState(row.state),
        reason=Reason(row.reason),
        evidence=_evidence(row.evidence),
        created_at=row.created_at,
    )


def pins(rows: Iterable[PinRow]) -> tuple[Pin, ...]:
    """The values of rows."""
    return tuple(Pin(**_named(row, Pin)) for row in rows)


def kill_switches(rows: Iterable[KillSwitchRow]) -> tuple[KillSwitch, ...]:
    """The values of rows."""
    return tuple(KillSwitch(**_named(row, KillSwitch)) for row in rows)


def audit_entries(rows: Iterable[AuditRow]) -> list[AuditEntry]:
    """The values of rows."""
    return [AuditEntry(**_named(row, AuditEntry)) for row in rows]


def decision_of(row: DecisionRow) -> SampledDecision:
    """The value of a row."""
    named = _named(row, Decision, "context", "reason", "shadows")
    return SampledDecision(
        decision=Decision(**named, context=context_of(row.context), reason=Reason(row.reason)),
        **_named(row, SampledDecision, "decision"),
    )


def telemetry_windows(rows: Iterable[TelemetryWindowRow]) -> list[TelemetryWindow]:
    """The values of rows."""
    return [
        TelemetryWindow(
            **_named(row, TelemetryWindow, "context", "blocks"),
            context=context_of(row.context),
            blocks=tuple(_block(entry) for entry in row.blocks),
        )
        for row in rows
    ]


def request_windows(rows: Iterable[RequestWindowRow]) -> list[RequestWindow]:
    """The values of rows."""
    return [
        RequestWindow(
            **_named(row, RequestWindow, "context", "rejected_at"),
            context=context_of(row.context),
            rejected_at=tuple(row.rejected_at),
        )
        for row in rows
    ]


def _named(row: Base, kind: type[Any], *without: str) -> dict[str, Any]:
    """The columns of `row` that are fields of the dataclass `kind`."""
    return {field.name: getattr(row, field.name) for field in fields(kind) if field.name not in without}


def _block(entry: Sequence[Any]) -> tuple[int, int, int, int, str, int]:
    requested, proposed, verified, accepted, end, count = entry
    return requested, proposed, verified, accepted, end, count


def _evidence(stored: Mapping[str, Any]) -> Evidence:
    speedup = stored["speedup"]
    return Evidence(
        cycles=stored["cycles"],
        requests=stored["requests"],
        survival=tuple(stored["survival"]),
        speedup=None if speedup is None else Interval(**speedup),
        predicted_speedup=tuple((load, gain) for load, gain in stored["predicted_speedup"]),
        note=stored["note"],
    )
