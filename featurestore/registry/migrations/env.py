"""The Alembic environment, which runs inside a transaction of the registry connection."""

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
