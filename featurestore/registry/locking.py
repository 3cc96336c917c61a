"""What one transaction at a time may do, by name."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection


def lock(connection: Connection, subject: str) -> None:
    """Let no other transaction pass here with the same subject until this one ends.

    A transaction of SQLite excludes every other one by itself.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(subject))))
