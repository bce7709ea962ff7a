"""The tables. Times are Unix seconds; no table holds a prompt, a completion, a token id or a hash of them."""

from typing import Any

from sqlalchemy import JSON, Double, ForeignKey, Index, MetaData, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """Constraints have names, so that a later migration can alter them on any database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {float: Double, dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012  read by the base class


class ContextRow(Base):
    """(model, route, language), the key of a policy."""

    __tablename__ = "contexts"
    __table_args__ = (UniqueConstraint("model", "route", "language"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    model: Mapped[str]
    route: Mapped[str]
    language: Mapped[str]


class PolicyRow(Base):
    """One version of a context's policy; never updated."""

    __tablename__ = "policies"
    __table_args__ = (
        # The time belongs to the key: after a crash the posterior, and with it the counter, may be older than the rows.
        UniqueConstraint("context_id", "version", "created_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    context_id: Mapped[int] = mapped_column(ForeignKey("contexts.id"))
    version: Mapped[int]
    drafter: Mapped[str]
    schedule: Mapped[list[Any]]
    """[[load_low, load_high, block_length], ...]."""
    state: Mapped[str]
    reason: Mapped[str]
    evidence: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    context: Mapped[ContextRow] = relationship(lazy="joined", innerjoin=True)


class PinRow(Base):
    """A pin in force; its history is in the audit."""

    __tablename__ = "pins"

    route: Mapped[str] = mapped_column(primary_key=True)
    language: Mapped[str] = mapped_column(primary_key=True)
    drafter: Mapped[str]
    block_length: Mapped[int]
    reason: Mapped[str]
    actor: Mapped[str]
    created_at: Mapped[float]
    expires_at: Mapped[float]
    exempt_from_switchback: Mapped[bool]


class KillSwitchRow(Base):
    """A kill switch in force; its history is in the audit."""

    __tablename__ = "kill_switches"

    route: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str]
    actor: Mapped[str]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]


class DecisionRow(Base):
    """A sampled decision, or one whose request failed."""

    __tablename__ = "decisions"
    __table_args__ = (Index(None, "created_at"),)

    decision_id: Mapped[str] = mapped_column(primary_key=True)
    context_id: Mapped[int] = mapped_column(ForeignKey("contexts.id"))
    drafter: Mapped[str]
    cap: Mapped[int]
    forced: Mapped[bool]
    reason: Mapped[str]
    policy_version: Mapped[int]
    propensity: Mapped[float]
    """1 for decisions stored before this column was."""
    created_at: Mapped[float]
    finish: Mapped[str]
    output_tokens: Mapped[int]
    proposed: Mapped[int]
    verified: Mapped[int]
    accepted: Mapped[int]
    ttft_seconds: Mapped[float]
    tpot_seconds: Mapped[float | None]
    context: Mapped[ContextRow] = relationship(lazy="joined", innerjoin=True)


class TelemetryWindowRow(Base):
    """See `policies.records.TelemetryWindow`."""

    __tablename__ = "telemetry_windows"
    __table_args__ = (Index(None, "started_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    writer: Mapped[str]
    started_at: Mapped[float]
    ended_at: Mapped[float]
    context_id: Mapped[int] = mapped_column(ForeignKey("contexts.id"))
    drafter: Mapped[str]
    plain: Mapped[bool]
    cycles: Mapped[int]
    load_sum: Mapped[int]
    requested: Mapped[int]
    proposed: Mapped[int]
    verified: Mapped[int]
    accepted: Mapped[int]
    emitted: Mapped[int]
    draft_seconds: Mapped[float]
    verify_seconds: Mapped[float]
    blocks: Mapped[list[Any]]
    context: Mapped[ContextRow] = relationship(lazy="joined", innerjoin=True)


class RequestWindowRow(Base):
    """See `policies.records.RequestWindow`."""

    __tablename__ = "request_windows"
    __table_args__ = (Index(None, "started_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    writer: Mapped[str]
    started_at: Mapped[float]
    ended_at: Mapped[float]
    context_id: Mapped[int] = mapped_column(ForeignKey("contexts.id"))
    drafter: Mapped[str]
    output_length: Mapped[str]
    requests: Mapped[int]
    cancelled: Mapped[int]
    errors: Mapped[int]
    looped: Mapped[int]
    prompt_tokens: Mapped[int]
    output_tokens: Mapped[int]
    queue_seconds: Mapped[float]
    ttft_seconds: Mapped[float]
    ttft_requests: Mapped[int]
    decode_seconds: Mapped[float]
    decode_tokens: Mapped[int]
    cycles: Mapped[int]
    proposed: Mapped[int]
    verified: Mapped[int]
    accepted: Mapped[int]
    rejected_at: Mapped[list[Any]]
    draft_seconds: Mapped[float]
    verify_seconds: Mapped[float]
    context: Mapped[ContextRow] = relationship(lazy="joined", innerjoin=True)


class AuditRow(Base):
    """Who changed what, when and why; append-only."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "created_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    created_at: Mapped[float]
    actor: Mapped[str]
    action: Mapped[str]
    route: Mapped[str]
    language: Mapped[str]
    reason: Mapped[str]
    details: Mapped[dict[str, Any]]


class PosteriorRow(Base):
    """The controller's state of one model."""

    __tablename__ = "posteriors"

    model: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[dict[str, Any]]
    saved_at: Mapped[float]
