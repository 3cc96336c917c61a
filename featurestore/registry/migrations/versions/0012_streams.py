"""Where stream jobs stand: offsets by partition, and their last commit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "stream_offsets",
        sa.Column("job", sa.String(63), primary_key=True),
        sa.Column("topic", sa.String(255), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("end_offset", sa.BigInteger),
        sa.Column("lag", sa.BigInteger),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "stream_progress",
        sa.Column("job", sa.String(63), primary_key=True),
        sa.Column("topic_id", sa.String(64)),
        sa.Column("rows_per_second", sa.Float),
        sa.Column("bad_records", sa.BigInteger, nullable=False),
        sa.Column("last_commit", sa.BigInteger),
        sa.Column("delta_version", sa.BigInteger),
        sa.Column("looked", sa.BigInteger, nullable=False),
    )
