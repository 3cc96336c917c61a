"""Indexes in the order of the lists that pages show, and of the edges of the lineage graph."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"

_INDEXES = {
    "ix_lineage_edges": (
        "lineage",
        ["kind", "name", "version", "job", "source", "source_version"],
        None,
    ),
    "ix_lineage_readers": (
        "lineage",
        ["source", "kind", "name", "version", "job", "source_version"],
        None,
    ),
    "ix_lineage_job": (
        "lineage",
        ["job", "kind", "name", "version", "source", "source_version"],
        None,
    ),
    "ix_training_datasets_created": ("training_datasets", ["created"], None),
    "ix_validation_reports_failed": (
        "validation_reports",
        ["kind", "id"],
        sa.column("success", sa.Boolean).is_(False),
    ),
    "ix_incidents_open": ("incidents", ["began"], sa.column("ended").is_(None)),
    "ix_experiment_runs_created": ("experiment_runs", ["created", "id"], None),
    "ix_experiment_runs_reads": (
        "experiment_runs",
        ["name", "dataset", "dataset_version"],
        None,
    ),
    "ix_experiment_runs_readers": (
        "experiment_runs",
        ["dataset", "dataset_version", "name"],
        None,
    ),
    "ix_experiment_runs_trials": (
        "experiment_runs",
        ["parent", "number"],
        sa.column("parent").is_not(None),
    ),
    "ix_experiment_runs_top": (
        "experiment_runs",
        ["created", "id"],
        sa.column("parent").is_(None),
    ),
    "ix_experiment_runs_top_name": (
        "experiment_runs",
        ["name", "created", "id"],
        sa.column("parent").is_(None),
    ),
    "ix_experiment_runs_top_dataset": (
        "experiment_runs",
        ["dataset", "created", "id"],
        sa.column("parent").is_(None),
    ),
    "ix_experiment_runs_top_version": (
        "experiment_runs",
        ["dataset", "dataset_version", "created", "id"],
        sa.column("parent").is_(None),
    ),
}


def upgrade() -> None:
    # The new indexes replace these.
    op.drop_index("ix_lineage_output", "lineage")
    op.drop_index("ix_experiment_runs_parent", "experiment_runs")
    op.drop_index("ix_experiment_runs_dataset", "experiment_runs")
    for name, (table, columns, condition) in _INDEXES.items():
        op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
