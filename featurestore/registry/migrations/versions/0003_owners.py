"""Owners of writes instead of their processes; no stored paths.

Statistics lie beside the tables alone.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    _without_paths("featuregroups", "features", _create_featuregroups)
    _without_paths("training_datasets", "training_dataset_pins", _create_training_datasets)
    op.drop_table("statistics")
    # Whatever an older release left in flight: its process has ended.
    left = sa.table(
        "intents",
        sa.column("run_id"),
        sa.column("kind"),
        sa.column("name"),
        sa.column("version"),
        sa.column("created"),
    )
    rows = _rows(left)
    op.drop_table("intents")
    created = op.create_table(
        "intents",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_intents_name", "intents", ["kind", "name"])
    if created is not None and rows:
        op.bulk_insert(created, [{**row, "owner": "unknown"} for row in rows])
    op.create_table(
        "owners",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("seen", sa.BigInteger, nullable=False),
    )
    _states_without_lease_ends()
    # What a job with many windows behind it asks for before each of its runs.
    op.create_index("ix_runs_state", "runs", ["job", "state", "started"])
    op.create_index("ix_windows_end", "windows", ["job", "window_end"])


def _without_paths(parent: str, child: str, create: object) -> None:
    """Make two tables anew: old releases of SQLite cannot drop a column."""
    connection = op.get_bind()
    metadata = sa.MetaData()
    old = {name: sa.Table(name, metadata, autoload_with=connection) for name in (parent, child)}
    rows = {name: _rows(table) for name, table in old.items()}
    op.drop_table(child)
    op.drop_table(parent)
    create()  # type: ignore[operator]
    fresh = sa.MetaData()
    for name in (parent, child):
        table = sa.Table(name, fresh, autoload_with=connection)
        for row in rows[name]:
            row.pop("path", None)
        if rows[name]:
            op.bulk_insert(table, rows[name])
    if connection.dialect.name == "postgresql":
        # The rows came with their ids, of which the sequence knows nothing.
        connection.execute(
            sa.text(
                f"select setval(pg_get_serial_sequence('{parent}', 'id'), "
                f"coalesce((select max(id) from {parent}), 0) + 1, false)"
            )
        )


def _rows(table: sa.TableClause) -> list[dict[str, object]]:
    return [dict(row._mapping) for row in op.get_bind().execute(sa.select(table))]


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


def _states_without_lease_ends() -> None:
    old = sa.table(
        "job_states", sa.column("name"), sa.column("paused", sa.Boolean), sa.column("watermark")
    )
    rows = _rows(old)
    op.drop_table("job_states")
    created = op.create_table(
        "job_states",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("watermark", sa.BigInteger),
        sa.Column("lease_owner", sa.String(128)),
    )
    if created is not None and rows:
        op.bulk_insert(created, rows)
