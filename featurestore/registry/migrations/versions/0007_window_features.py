"""What aggregates over windows are made of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "window_features",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("feature", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("source_version", sa.Integer),
        sa.Column("source_column", sa.Text, nullable=False),
        sa.Column("function", sa.String(32), nullable=False),
        sa.Column("over_us", sa.BigInteger),
        sa.Column("offset_us", sa.BigInteger, nullable=False),
        sa.Column("condition", sa.Text),
    )
    op.create_index("ix_window_features_output", "window_features", ["kind", "name", "version"])
