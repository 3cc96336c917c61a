"""Descriptions of features."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    column = sa.Column("description", sa.Text, nullable=False, server_default="")
    op.add_column("features", column)
