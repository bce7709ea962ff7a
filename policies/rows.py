"""From the plain values of `policies.records` to the rows of `policies.models`; `policies.row_values` reads them."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, select
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
from policies.types import Context, KillSwitch, Pin, Policy


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
