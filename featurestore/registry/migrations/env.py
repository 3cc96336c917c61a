"""The Alembic environment, which runs inside a transaction of the registry connection."""

from __future__ import annotations

from alembic import context

from featurestore.registry import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.metadata,
    # SQLite cannot alter most properties of a column; batch operations copy the table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
