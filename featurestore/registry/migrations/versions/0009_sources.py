"""Sources, and what was read of them in lineage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "sources",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("spec", sa.Text, nullable=False),
    )
    op.add_column("lineage", sa.Column("detail", sa.Text))
