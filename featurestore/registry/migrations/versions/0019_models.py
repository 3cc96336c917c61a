"""Registered models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("run", sa.String(64)),
        sa.Column("dataset", sa.String(63), nullable=False),
        sa.Column("dataset_version", sa.Integer, nullable=False),
    )
    op.create_index("ix_models_dataset", "models", ["dataset", "dataset_version"])
    op.create_index("ix_models_run", "models", ["run"])
