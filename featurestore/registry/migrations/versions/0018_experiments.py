"""Runs of experiments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "experiment_runs",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("parent", sa.String(64)),
        sa.Column("number", sa.Integer),
        sa.Column("dataset", sa.String(63)),
        sa.Column("dataset_version", sa.Integer),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_experiment_runs_name", "experiment_runs", ["name", "created"])
    op.create_index("ix_experiment_runs_parent", "experiment_runs", ["parent", "number"])
    op.create_index("ix_experiment_runs_dataset", "experiment_runs", ["dataset", "dataset_version"])
