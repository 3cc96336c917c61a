"""What monitors found, alert channels, incidents, and messages on their way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "monitor_results",
        sa.Column("monitor", sa.String(63), primary_key=True),
        sa.Column("window_start", sa.BigInteger, primary_key=True),
        sa.Column("window_end", sa.BigInteger, primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("report", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_monitor_results_end", "monitor_results", ["monitor", "window_end"])
    op.create_table(
        "alert_channels",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("secret", sa.Text),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("job", sa.String(63), nullable=False),
        sa.Column("family", sa.String(32), nullable=False),
        sa.Column("began", sa.BigInteger, nullable=False),
        sa.Column("reminded", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
    )
    op.create_index("ix_incidents_job", "incidents", ["job", "ended"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("channel", sa.String(63), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_try", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(128)),
        sa.Column("delivered", sa.BigInteger),
        sa.Column("error", sa.Text),
    )
    op.create_index("ix_outbox_next_try", "outbox", ["delivered", "next_try"])
