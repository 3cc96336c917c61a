"""When each feature group was last written, so that the newest can be listed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0012"


def upgrade() -> None:
    column = sa.Column("changed", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("featuregroups", column)
    op.execute("UPDATE featuregroups SET changed = created")
    op.create_index("ix_featuregroups_changed", "featuregroups", ["changed"])
