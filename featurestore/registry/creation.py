"""The tables of a new registry, made at once and not by one migration after the other.

A test holds them equal to what the migrations make.
"""

from __future__ import annotations

from functools import cache

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.registry import search_documents, tables

# Where Alembic writes which revision a database has, under the name of its key.
_revisions = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def create_tables(connection: Connection, revision: str) -> None:
    """Make every table in an empty database, and stamp it with the newest revision."""
    for statement in _statements(connection.dialect.name):
        connection.exec_driver_sql(statement)
    search_documents.create_index(connection)
    connection.execute(_revisions.insert().values(version_num=revision))


@cache
def _statements(dialect: str) -> list[str]:
    """Return what makes the tables; a process that opens many stores compiles it once."""
    statements: list[str] = []

    def collect(statement: sa.ExecutableDDLElement, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=recorder.dialect)))

    recorder = sa.create_mock_engine(f"{dialect}://", collect)
    for metadata in (tables.metadata, _revisions.metadata):
        metadata.create_all(recorder, checkfirst=False)
    return statements
