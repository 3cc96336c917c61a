"""Users, tokens, roles, private groups, sign-ins and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.String(127), primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("password", sa.Text),
        sa.Column("issuer", sa.String(255)),
        sa.Column("subject", sa.String(255)),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("issuer", "subject", name="uq_users_identity"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column(
            "username",
            sa.String(127),
            sa.ForeignKey("users.name", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.UniqueConstraint("hash", name="uq_tokens_hash"),
    )
    op.create_index("ix_tokens_username", "tokens", ["username"])
    op.create_table(
        "group_roles",
        sa.Column("featuregroup", sa.String(63), primary_key=True),
        sa.Column(
            "username",
            sa.String(127),
            sa.ForeignKey("users.name", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("role", sa.String(16), nullable=False),
    )
    op.create_index("ix_group_roles_username", "group_roles", ["username"])
    op.create_table(
        "private_groups",
        sa.Column("featuregroup", sa.String(63), primary_key=True),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "sign_ins",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column(
            "username",
            sa.String(127),
            sa.ForeignKey("users.name", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("expires", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_sign_ins_username", "sign_ins", ["username"])
    op.create_table(
        "failed_sign_ins",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("who", sa.String(191), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_failed_sign_ins_who", "failed_sign_ins", ["who", "at"])
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("who", sa.String(127), nullable=False),
        sa.Column("how", sa.String(191), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_index("ix_audit_log_at", "audit_log", ["at"])
