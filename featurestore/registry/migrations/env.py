"""How Alembic runs here: on the connection that the registry hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from featurestore.registry import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
