"""The origins of derived objects."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    op.create_table(
        "origins",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("creation", sa.Integer, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("sealed", sa.Boolean, nullable=False),
        sa.UniqueConstraint("kind", "name", "version", "creation", name="uq_origins_creation"),
    )
    op.create_table(
        "origin_edges",
        sa.Column("derived", sa.String(128), nullable=False),
        sa.Column("origin", sa.String(128), nullable=False),
        sa.PrimaryKeyConstraint("derived", "origin"),
    )
    op.create_index("ix_origin_edges_origin", "origin_edges", ["origin"])
