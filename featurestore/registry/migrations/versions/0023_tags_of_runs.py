"""Tags whose names are ids of runs, which have up to 64 letters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    with op.batch_alter_table("tags") as table:
        table.alter_column(
            "name",
            existing_type=sa.String(63),
            existing_nullable=False,
            type_=sa.String(64),
        )
