"""Indexes in the order of lists and lineage, numbers of features, and experiments of models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"

_INDEXES = {
    "ix_featuregroups_features": ("featuregroups", ["name", "version", "features"], None),
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
    "ix_models_experiment": ("models", ["experiment", "name", "version"], None),
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
    _add_numbers_of_features()
    _add_experiments_of_models()
    # The new indexes replace these.
    op.drop_index("ix_lineage_output", "lineage")
    op.drop_index("ix_experiment_runs_parent", "experiment_runs")
    op.drop_index("ix_experiment_runs_dataset", "experiment_runs")
    for name, (table, columns, condition) in _INDEXES.items():
        op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)


def _add_numbers_of_features() -> None:
    """Store the number of features of each group version."""
    number = sa.Column("features", sa.Integer, nullable=False, server_default="0")
    op.add_column("featuregroups", number)
    op.execute(
        "update featuregroups set features = (select count(*) from features "
        "where features.featuregroup_id = featuregroups.id and features.role = 'feature')"
    )


def _add_experiments_of_models() -> None:
    """Store the experiment of each model, which its run names."""
    op.add_column("models", sa.Column("experiment", sa.String(63)))
    op.execute(
        "update models set experiment = "
        "(select name from experiment_runs where experiment_runs.id = models.run)"
    )
