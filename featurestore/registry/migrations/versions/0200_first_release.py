"""The tables of the first release, which ``create_tables`` creates."""

from __future__ import annotations

revision = "0200"
down_revision = None


def upgrade() -> None:
    """Do nothing: no earlier revision was released."""
