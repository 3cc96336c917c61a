"""What a search looks through, with an index of trigrams where the database can have one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from featurestore.registry import search_documents

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "search_documents",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("field", sa.String(32), nullable=False),
        sa.Column("indexed", sa.Boolean, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.UniqueConstraint("kind", "name", "version", "field", name="uq_search_documents_field"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_search_documents_indexed", "search_documents", ["indexed"])
    search_documents.create_index(op.get_bind())
    search_documents.rebuild(op.get_bind())
