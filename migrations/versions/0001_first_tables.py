"""Everything that the first version stores.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = (
    "CREATE TRIGGER audit_rows_stay BEFORE DELETE ON audit "
    "BEGIN SELECT RAISE(ABORT, 'audit rows are never deleted'); END",
    "CREATE TRIGGER audit_rows_never_change BEFORE UPDATE ON audit "
    "BEGIN SELECT RAISE(ABORT, 'audit rows are never changed'); END",
)
"""In SQLite's words; another database needs its own."""


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("language", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_created_at", "audit", ["created_at"], unique=False)
    op.create_table(
        "contexts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("language", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_contexts"),
        sa.UniqueConstraint("model", "route", "language", name="uq_contexts_model_route_language"),
    )
    op.create_table(
        "kill_switches",
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("route", name="pk_kill_switches"),
    )
    op.create_table(
        "pins",
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("language", sa.String(), nullable=False),
        sa.Column("drafter", sa.String(), nullable=False),
        sa.Column("block_length", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("exempt_from_switchback", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("route", "language", name="pk_pins"),
    )
    op.create_table(
        "posteriors",
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("saved_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("model", name="pk_posteriors"),
    )
    op.create_table(
        "decisions",
        sa.Column("decision_id", sa.String(), nullable=False),
        sa.Column("context_id", sa.Integer(), nullable=False),
        sa.Column("drafter", sa.String(), nullable=False),
        sa.Column("cap", sa.Integer(), nullable=False),
        sa.Column("forced", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finish", sa.String(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("proposed", sa.Integer(), nullable=False),
        sa.Column("verified", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("ttft_seconds", sa.Double(), nullable=False),
        sa.Column("tpot_seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["context_id"], ["contexts.id"], name="fk_decisions_context_id_contexts"),
        sa.PrimaryKeyConstraint("decision_id", name="pk_decisions"),
    )
    op.create_index("ix_decisions_created_at", "decisions", ["created_at"], unique=False)
    op.create_table(
        "policies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("context_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("drafter", sa.String(), nullable=False),
        sa.Column("schedule", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["context_id"], ["contexts.id"], name="fk_policies_context_id_contexts"),
        sa.PrimaryKeyConstraint("id", name="pk_policies"),
        sa.UniqueConstraint("context_id", "version", "created_at", name="uq_policies_context_id_version_created_at"),
    )
    op.create_table(
        "request_windows",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("writer", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("context_id", sa.Integer(), nullable=False),
        sa.Column("drafter", sa.String(), nullable=False),
        sa.Column("output_length", sa.String(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("cancelled", sa.Integer(), nullable=False),
        sa.Column("errors", sa.Integer(), nullable=False),
        sa.Column("looped", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("queue_seconds", sa.Double(), nullable=False),
        sa.Column("ttft_seconds", sa.Double(), nullable=False),
        sa.Column("ttft_requests", sa.Integer(), nullable=False),
        sa.Column("decode_seconds", sa.Double(), nullable=False),
        sa.Column("decode_tokens", sa.Integer(), nullable=False),
        sa.Column("cycles", sa.Integer(), nullable=False),
        sa.Column("proposed", sa.Integer(), nullable=False),
        sa.Column("verified", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("rejected_at", sa.JSON(), nullable=False),
        sa.Column("draft_seconds", sa.Double(), nullable=False),
        sa.Column("verify_seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["context_id"], ["contexts.id"], name="fk_request_windows_context_id_contexts"),
        sa.PrimaryKeyConstraint("id", name="pk_request_windows"),
    )
    op.create_index("ix_request_windows_started_at", "request_windows", ["started_at"], unique=False)
    op.create_table(
        "telemetry_windows",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("writer", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("context_id", sa.Integer(), nullable=False),
        sa.Column("drafter", sa.String(), nullable=False),
        sa.Column("plain", sa.Boolean(), nullable=False),
        sa.Column("cycles", sa.Integer(), nullable=False),
        sa.Column("load_sum", sa.Integer(), nullable=False),
        sa.Column("requested", sa.Integer(), nullable=False),
        sa.Column("proposed", sa.Integer(), nullable=False),
        sa.Column("verified", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("emitted", sa.Integer(), nullable=False),
        sa.Column("draft_seconds", sa.Double(), nullable=False),
        sa.Column("verify_seconds", sa.Double(), nullable=False),
        sa.Column("blocks", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["context_id"], ["contexts.id"], name="fk_telemetry_windows_context_id_contexts"),
        sa.PrimaryKeyConstraint("id", name="pk_telemetry_windows"),
    )
    op.create_index("ix_telemetry_windows_started_at", "telemetry_windows", ["started_at"], unique=False)
    if op.get_bind().dialect.name == "sqlite":
        for statement in APPEND_ONLY:
            op.execute(statement)


def downgrade() -> None:
    op.drop_index("ix_telemetry_windows_started_at", table_name="telemetry_windows")
    op.drop_table("telemetry_windows")
    op.drop_index("ix_request_windows_started_at", table_name="request_windows")
    op.drop_table("request_windows")
    op.drop_table("policies")
    op.drop_index("ix_decisions_created_at", table_name="decisions")
    op.drop_table("decisions")
    op.drop_table("posteriors")
    op.drop_table("pins")
    op.drop_table("kill_switches")
    op.drop_table("contexts")
    op.drop_index("ix_audit_created_at", table_name="audit")
    op.drop_table("audit")
