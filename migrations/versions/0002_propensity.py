"""The probability with which a decision's drafter was given to its request.

Revision ID: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Of decisions stored before nothing else is known.
    op.add_column("decisions", sa.Column("propensity", sa.Double(), nullable=False, server_default=sa.text("1.0")))


def downgrade() -> None:
    with op.batch_alter_table("decisions") as decisions:
        decisions.drop_column("propensity")
