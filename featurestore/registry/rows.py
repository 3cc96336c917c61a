"""Helpers for registry rows: parse errors, times, locks, upserts and the store location."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from featurestore.errors import RegistryDamaged
from featurestore.model.times import from_micros, to_micros

# The execution option of a connection that contains the store directory.
LOCATION = "featurestore_location"
# A value may be a tuple of three.
_VALUES_AT_ONCE = 5000
T = TypeVar("T")


@contextmanager
def translate_parse_errors(subject: str) -> Iterator[None]:
    """Raise RegistryDamaged for an error in the block, which parses a row.

    Raises:
        RegistryDamaged: A value is missing or has an invalid type or format.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RegistryDamaged(
            f"The registry entry of {subject} cannot be read: {type(error).__name__}: {error}",
            hint="rebuild the registry from the tables: featurestore registry rebuild",
        ) from error


def location_of(connection: Connection) -> str:
    """Return the directory of the store to which a registry connection belongs."""
    location: str = connection.get_execution_options()[LOCATION]
    return location


def to_time(micros: int | None) -> datetime | None:
    """Convert a column value to a time; None stays None."""
    return None if micros is None else from_micros(micros)


def to_column(time: datetime | None) -> int | None:
    """Convert a time to a column value; None stays None."""
    return None if time is None else to_micros(time)


def lock(connection: Connection, subject: str) -> None:
    """Lock a subject until the end of the transaction; wait if another transaction locked it.

    SQLite allows only one write transaction at a time, so no lock is needed there.
    """
    if connection.dialect.name == "postgresql":
        # Each store of a database has a schema, but all share the locks of the database. hashtext
        # returns 32 bits: two subjects may share a lock, which only makes them wait.
        key = sa.func.hashtext(sa.func.concat(sa.func.current_schema(), "/", subject))
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def is_version(
    table: sa.Table, object_kind: str, name: str, version: int
) -> sa.ColumnElement[bool]:
    """Return the condition that a row belongs to a version of an object."""
    columns = table.c
    return sa.and_(columns.kind == object_kind, columns.name == name, columns.version == version)


def split_values(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield values in lists that a statement can compare with columns.

    Databases bound the number of values in a statement: SQLite by 32,766, Postgres by 65,535.
    """
    remaining = iter(values)
    while some_values := list(islice(remaining, _VALUES_AT_ONCE)):
        yield some_values


def existing_values(
    connection: Connection, column: sa.ColumnElement[T], values: Iterable[T]
) -> set[T]:
    """Return the values that a column contains."""
    return {
        value
        for some_values in split_values(values)
        for value in connection.execute(
            sa.select(column).where(column.in_(some_values)).distinct()
        ).scalars()
    }


def select_distinct(
    identifier: sa.ColumnElement[Any],
    columns: Sequence[sa.ColumnElement[Any]],
    *conditions: sa.ColumnElement[bool],
    limit: int | None = None,
) -> sa.Select[Any]:
    """Return a query for the distinct values of columns, which takes one step per result.

    ``select distinct`` reads all rows. This query instead searches an index of the columns for the
    first row after each result.

    Args:
        identifier: The primary key of the table.
        columns: Columns without nulls in the selected rows.
        *conditions: Conditions on the rows.
        limit: The maximum number of results.
    """
    table = identifier.table.alias("step")
    first = sa.select(identifier).where(*conditions).order_by(*columns).limit(1)
    # Postgres requires the same type, with its length, in both parts of a recursive query.
    start = sa.cast(first.scalar_subquery(), identifier.type)
    results = sa.select(start.label("id"), sa.literal(1).label("number")).cte(
        "results", recursive=True
    )
    # SQLite searches an index with one comparison of rows only by its first column, so each column
    # has a subquery: the next row with equal columns before it. The first one that exists counts.
    following = []
    for position in reversed(range(len(columns))):
        last = [table.c[column.name] for column in columns]
        is_next = [column == last[number] for number, column in enumerate(columns[:position])]
        is_next.append(columns[position] > last[position])
        query = sa.select(identifier).where(*is_next, *conditions).order_by(*columns).limit(1)
        following.append(query.correlate(table).scalar_subquery())
    next_id = sa.cast(sa.func.coalesce(*following, sa.null()), identifier.type)
    step = (
        sa.select(next_id, results.c.number + 1)
        .select_from(results)
        .join(table, table.c[identifier.name] == results.c.id)
    )
    if limit is not None:
        step = step.where(results.c.number < limit)
    results = results.union_all(step)
    return sa.select(*columns).join(results, results.c.id == identifier).order_by(*columns)


def insert_missing(
    connection: Connection, table: sa.Table, table_rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert rows, except those whose primary key already exists."""
    if table_rows:
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        connection.execute(insert(table).on_conflict_do_nothing(), list(table_rows))


def put_row(
    connection: Connection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Insert a row, or update the row with the same primary key."""
    # A single statement: between an update without effect and an insert, another transaction of
    # Postgres may insert the same row. SQLAlchemy has no upsert that works in both databases.
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table).values(**key, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=values))
