"""Runs the migrations on the connection, and in the transaction, that `policies.store` hands over."""

from alembic import context
from sqlalchemy import Connection

from policies.models import Base


def run() -> None:
    """Migrate `config.attributes["connection"]`; there is no offline mode."""
    connection = context.config.attributes["connection"]
    if not isinstance(connection, Connection):
        raise TypeError("config.attributes['connection'] must be a SQLAlchemy connection")
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


run()
