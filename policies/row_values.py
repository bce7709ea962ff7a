"""From the rows of `policies.models` to plain values, each row by itself.

What is stored may be damaged, edited by hand, or written by another version. Such a row is left out, with one sentence
in the log that names its table, its key and the column: it must not cost what the other rows say.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import func, select
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
from policies.quoting import clipped
from policies.records import AuditEntry, RequestWindow, SampledDecision, TelemetryWindow
from policies.types import (
    MAX_BLOCK_LENGTH,
    MAX_VERSION,
    UNKNOWN_LENGTH,
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

_log = logging.getLogger(__name__)
_LARGEST = 1e300
"""Of numbers: far above all that is counted or measured, and sums of them are still numbers."""
_LARGEST_INTEGER = (1 << 63) - 1

_Row = TypeVar("_Row", bound=Base)
_Value = TypeVar("_Value")


class _DamagedError(Exception):
    """A row cannot be read; the message says which column holds what."""


def newest_policies(session: Session, model: str) -> tuple[Policy, ...]:
    """The policy written last for each context of `model`."""
    newest = select(func.max(PolicyRow.id)).group_by(PolicyRow.context_id)
    query = select(PolicyRow).join(PolicyRow.context).where(ContextRow.model == model, PolicyRow.id.in_(newest))
    return tuple(policies(session.scalars(query.order_by(ContextRow.route, ContextRow.language))))


def policies(rows: Iterable[PolicyRow]) -> list[Policy]:
    """The values of rows."""
    return _values(rows, _policy)


def pins(rows: Iterable[PinRow]) -> tuple[Pin, ...]:
    """The values of rows."""
    return tuple(_values(rows, lambda row: Pin(**_named(row, Pin))))


def kill_switches(rows: Iterable[KillSwitchRow]) -> tuple[KillSwitch, ...]:
    """The values of rows."""
    return tuple(_values(rows, lambda row: KillSwitch(**_named(row, KillSwitch))))


def posterior(row: PosteriorRow | None) -> Mapping[str, Any]:
    """The state of a row; empty where there is none. What is in it is judged by who saved it."""
    states = _values([] if row is None else [row], lambda row: _json(row, "state", dict))
    return states[0] if states else {}


def audit_entries(rows: Iterable[AuditRow]) -> list[AuditEntry]:
    """The values of rows."""
    return _values(
        rows, lambda row: AuditEntry(**_named(row, AuditEntry, "details"), details=_json(row, "details", dict))
    )


def decisions(rows: Iterable[DecisionRow]) -> list[SampledDecision]:
    """The values of rows."""
    return _values(rows, _decision)


def telemetry_windows(rows: Iterable[TelemetryWindowRow]) -> list[TelemetryWindow]:
    """The values of rows."""
    return _values(rows, _telemetry_window)


def request_windows(rows: Iterable[RequestWindowRow]) -> list[RequestWindow]:
    """The values of rows."""
    return _values(rows, _request_window)


def _values(rows: Iterable[_Row], value_of: Callable[[_Row], _Value]) -> list[_Value]:
    """The values of the rows that can be read."""
    values = []
    for row in rows:
        try:
            values.append(value_of(row))
        except _DamagedError as error:
            key = ", ".join(f"{column.name} {getattr(row, column.name)!r}" for column in row.__table__.primary_key)
            _log.warning(
                "the row of table %s with %s is left out, since %s; correct it or delete it",
                row.__tablename__,
                clipped(key),
                error,
            )
    return values


def _context(row: ContextRow) -> Context:
    return Context(**_named(row, Context))


def _policy(row: PolicyRow) -> Policy:
    version = _column(row, "version")
    if not 0 <= version <= MAX_VERSION:
        raise _damaged(row, "version")
    return Policy(
        context=_context(row.context),
        version=version,
        arm=Arm(_column(row, "drafter"), _schedule(row)),
        state=_member(row, "state", PolicyState),
        reason=_member(row, "reason", Reason),
        evidence=_evidence(row),
        created_at=_column(row, "created_at"),
    )


def _schedule(row: PolicyRow) -> tuple[LoadStep, ...]:
    steps = []
    for entry in _json(row, "schedule", list):
        if not _are(entry, int, int, int, str):
            raise _damaged(row, "schedule")
        step = LoadStep(*entry)
        if not (0 <= step.load_low <= step.load_high and UNKNOWN_LENGTH <= step.block_length <= MAX_BLOCK_LENGTH):
            raise _damaged(row, "schedule")
        steps.append(step)
    return tuple(steps)


def _evidence(row: PolicyRow) -> Evidence:
    stored = _json(row, "evidence", dict)
    speedup, survival, predicted = (stored.get(name) for name in ("speedup", "survival", "predicted_speedup"))
    bounds = None if speedup is None else _members(speedup, "estimate", "low", "high")
    if not (
        {"cycles", "requests", "survival", "speedup", "predicted_speedup", "note"} <= stored.keys()
        and _are(_members(stored, "cycles", "requests", "note"), int, int, str)
        and (bounds is None or _are(bounds, float, float, float))
        and isinstance(survival, list)
        and _are(survival, *[float] * len(survival))
        and isinstance(predicted, list)
        and all(_are(entry, int, float) for entry in predicted)
    ):
        raise _damaged(row, "evidence")
    return Evidence(
        cycles=stored["cycles"],
        requests=stored["requests"],
        survival=tuple(survival),
        speedup=None if bounds is None else Interval(*bounds),
        predicted_speedup=tuple((load, gain) for load, gain in predicted),
        note=stored["note"],
    )


def _decision(row: DecisionRow) -> SampledDecision:
    named = _named(row, Decision, "context", "reason", "shadows")
    return SampledDecision(
        decision=Decision(**named, context=_context(row.context), reason=_member(row, "reason", Reason)),
        **_named(row, SampledDecision, "decision"),
    )


def _telemetry_window(row: TelemetryWindowRow) -> TelemetryWindow:
    blocks = []
    for entry in _json(row, "blocks", list):
        if not _are(entry, int, int, int, int, str, int):
            raise _damaged(row, "blocks")
        requested, proposed, verified, accepted, end, count = entry
        blocks.append((requested, proposed, verified, accepted, end, count))
    named = _named(row, TelemetryWindow, "context", "blocks")
    return TelemetryWindow(**named, context=_context(row.context), blocks=tuple(blocks))


def _request_window(row: RequestWindowRow) -> RequestWindow:
    rejected_at = _json(row, "rejected_at", list)
    if not _are(rejected_at, *[int] * len(rejected_at)):
        raise _damaged(row, "rejected_at")
    named = _named(row, RequestWindow, "context", "rejected_at")
    return RequestWindow(**named, context=_context(row.context), rejected_at=tuple(rejected_at))


def _named(row: Base, kind: type[Any], *without: str) -> dict[str, Any]:
    """The columns of `row` that are fields of the dataclass `kind`."""
    return {field.name: _column(row, field.name) for field in fields(kind) if field.name not in without}


def _column(row: Base, name: str) -> Any:
    """A column's value, if it is of the column's type: SQLite holds anything in any column."""
    column, value = row.__table__.columns[name], getattr(row, name)
    if not (value is None and column.nullable) and not _is(value, column.type.python_type):
        raise _damaged(row, name)
    return value


def _json(row: Base, name: str, kind: type[_Value]) -> _Value:
    value = getattr(row, name)
    if not isinstance(value, kind):
        raise _damaged(row, name)
    return value


def _member(row: Base, name: str, kind: Callable[[str], _Value]) -> _Value:
    try:
        return kind(_column(row, name))
    except ValueError as error:  # a newer version may know more of them
        raise _damaged(row, name) from error


def _members(of: object, *names: str) -> list[Any]:
    """The members of a JSON object by these names; nothing of what is no object."""
    return [of.get(name) for name in names] if isinstance(of, dict) else []


def _are(values: object, *kinds: type[Any]) -> bool:
    """Whether `values` is a list of so many values, each of its kind."""
    return (
        isinstance(values, list)
        and len(values) == len(kinds)
        and all(_is(value, kind) for value, kind in zip(values, kinds, strict=True))
    )


def _is(value: object, kind: type[Any]) -> bool:
    if isinstance(value, bool) or kind is bool:
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST
    if kind is int:
        return isinstance(value, int) and abs(value) <= _LARGEST_INTEGER
    return isinstance(value, kind)


def _damaged(row: Base, name: str) -> _DamagedError:
    value = getattr(row, name)
    held = "JSON of another form" if isinstance(value, list | dict) else clipped(repr(value))
    return _DamagedError(f"column {name} of {row.__tablename__} holds {held}, which this version cannot read")
