"""The tables of the first release.

Revisions before this one belonged to no release; a registry that has one is rebuilt from the
tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = None


def upgrade() -> None:
    _create_featuregroups()
    _create_tags()
    _create_lineage()
    _create_training_datasets()
    _create_validation_reports()
    _create_writes_in_flight()
    _create_jobs()
    _create_runs()


def _create_featuregroups() -> None:
    op.create_table(
        "featuregroups",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("table_id", sa.String(64), nullable=False),
        sa.Column("delta_version", sa.BigInteger, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False, server_default=""),
        sa.Column("job", sa.String(63)),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("name", "version", name="uq_featuregroups_name_version"),
    )
    op.create_table(
        "features",
        sa.Column(
            "featuregroup_id",
            sa.Integer,
            sa.ForeignKey("featuregroups.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
    )
    op.create_index("ix_features_name", "features", ["name"])


def _create_tags() -> None:
    op.create_table(
        "tags",
        sa.Column("kind", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def _create_lineage() -> None:
    op.create_table(
        "lineage",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("delta_version", sa.BigInteger),
        sa.Column("job", sa.String(63)),
        sa.Column("run_id", sa.String(64)),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("source_version", sa.Integer),
        sa.Column("source_delta_version", sa.BigInteger),
    )
    op.create_index("ix_lineage_output", "lineage", ["kind", "name", "version"])
    op.create_index("ix_lineage_source", "lineage", ["source", "source_version"])


def _create_training_datasets() -> None:
    op.create_table(
        "training_datasets",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("manifest_hash", sa.String(64), nullable=False),
        sa.Column("format", sa.String(63), nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("description", sa.Text, nullable=False, server_default=""),
        sa.Column("run_id", sa.String(64)),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("name", "version", name="uq_training_datasets_name_version"),
    )
    op.create_table(
        "training_dataset_pins",
        sa.Column(
            "training_dataset_id",
            sa.Integer,
            sa.ForeignKey("training_datasets.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("featuregroup", sa.String(63), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("delta_version", sa.BigInteger, primary_key=True),
        sa.Column("table_id", sa.String(64)),
    )
    op.create_index("ix_pins_featuregroup", "training_dataset_pins", ["featuregroup", "version"])


def _create_validation_reports() -> None:
    op.create_table(
        "validation_reports",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("delta_version", sa.BigInteger),
        sa.Column("run_id", sa.String(64)),
        sa.Column("policy", sa.String(16), nullable=False),
        sa.Column("success", sa.Boolean, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("report", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_validation_reports_name", "validation_reports", ["kind", "name", "version"])


def _create_writes_in_flight() -> None:
    op.create_table(
        "intents",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_intents_name", "intents", ["kind", "name"])
    op.create_table(
        "owners",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("seen", sa.BigInteger, nullable=False),
    )


def _create_jobs() -> None:
    op.create_table(
        "job_definitions",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("registered", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "job_states",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("watermark", sa.BigInteger),
        sa.Column("lease_owner", sa.String(128)),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("job", sa.String(63), nullable=False),
        sa.Column("job_version", sa.Integer, nullable=False),
        sa.Column("window_start", sa.BigInteger, nullable=False),
        sa.Column("window_end", sa.BigInteger, nullable=False),
        sa.Column("windows", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("transaction_app", sa.Text),
        sa.Column("transaction_number", sa.BigInteger),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("rows", sa.BigInteger),
        sa.Column("delta_version", sa.BigInteger),
        sa.Column("memory", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("hint", sa.Text),
        sa.Column("log", sa.Text),
    )
    op.create_index("ix_runs_job", "runs", ["job", "started"])
    op.create_index("ix_runs_state", "runs", ["job", "state", "started"])
    op.create_table(
        "windows",
        sa.Column("job", sa.String(63), primary_key=True),
        sa.Column("window_start", sa.BigInteger, primary_key=True),
        sa.Column("window_end", sa.BigInteger, primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("target_version", sa.Integer),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("updated", sa.BigInteger, nullable=False),
        sa.Column("inputs", sa.Text, nullable=False),
    )
    op.create_index("ix_windows_state", "windows", ["job", "state", "window_start"])
    op.create_index("ix_windows_end", "windows", ["job", "window_end"])
