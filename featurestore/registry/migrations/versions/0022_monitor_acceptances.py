"""Windows of monitors that a person accepted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.create_table(
        "monitor_acceptances",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("monitor", sa.String(63), nullable=False),
        sa.Column("window_start", sa.BigInteger),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("subjects", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_monitor_acceptances_monitor", "monitor_acceptances", ["monitor", "until"])
