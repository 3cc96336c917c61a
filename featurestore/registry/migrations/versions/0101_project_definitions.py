"""The owner marks of projects."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"


def upgrade() -> None:
    op.create_table(
        "project_definitions",
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", "version"),
    )
    op.create_index("ix_project_definitions_project", "project_definitions", ["project"])
