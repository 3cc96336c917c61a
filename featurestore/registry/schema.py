"""The schema of a registry database: its missing parts, and their repair.

Another program, an edited migration or a partly restored backup may have removed a table, a column
or an index. Without this check, the first query that needs it would fail much later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.registry import search_documents, tables

# The table, and its primary key constraint, in which Alembic stores the database revision.
revision_table = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
# Both queries return rows (table, columns, index): a row without index for each column of a table,
# and a row for each index; ``columns`` are those whose combination must be unique, or null.
# Reflection by SQLAlchemy would take several statements per table, and every connection to a store
# runs this check.
_SQLITE = """
select m.name, c.name, null from sqlite_master m, pragma_table_info(m.name) c where m.type = 'table'
union all
select m.name, group_concat(c.name, ' '), '' from sqlite_master m, pragma_table_info(m.name) c
where m.type = 'table' and c.pk > 0 group by m.name
union all
select m.name, case when l."unique" and not l.partial then
  (select group_concat(i.name, ' ') from pragma_index_info(l.name) i) end, l.name
from sqlite_master m, pragma_index_list(m.name) l where m.type = 'table'
"""
_POSTGRES = """
select t.relname, a.attname, null from pg_class t join pg_attribute a on a.attrelid = t.oid
where t.relnamespace = current_schema()::regnamespace and t.relkind = 'r' and a.attnum > 0
and not a.attisdropped
union all
select t.relname, case when x.indisunique and x.indpred is null then
  (select string_agg(a.attname, ' ') from pg_attribute a
   where a.attrelid = t.oid and a.attnum = any(x.indkey)) end, i.relname
from pg_index x join pg_class t on t.oid = x.indrelid join pg_class i on i.oid = x.indexrelid
where t.relnamespace = current_schema()::regnamespace and t.relkind = 'r' and x.indisvalid
"""


@dataclass(frozen=True)
class _TableParts:
    """The names of columns and indexes of a table, and the sorted columns of unique constraints."""

    columns: frozenset[str]
    indexes: frozenset[str]
    uniques: frozenset[tuple[str, ...]]


def has_tables(connection: Connection) -> bool:
    """Return whether the database contains a table of a registry."""
    existing = _existing_parts(connection)
    return any(table.name in existing for table in tables.metadata.sorted_tables)


def missing_parts(connection: Connection) -> list[str]:
    """Return the tables, columns and indexes that a database lacks, such as "column tags.value"."""
    existing = _existing_parts(connection)
    missing = []
    for name, expected in _expected_parts().items():
        actual = existing.get(name)
        if actual is None:
            missing.append(f"table {name}")
            continue
        missing += [
            f"column {name}.{column}" for column in sorted(expected.columns - actual.columns)
        ]
        missing += [f"index {index}" for index in sorted(expected.indexes - actual.indexes)]
        missing += [
            f"uniqueness of {name} by {', '.join(names)}"
            for names in sorted(expected.uniques - actual.uniques)
        ]
    return missing


@dataclass(frozen=True)
class Repair:
    """The missing parts that were created, and the tables that had rows which were not retained."""

    created: tuple[str, ...] = ()
    emptied: frozenset[str] = frozenset()


def repair(connection: Connection) -> Repair:
    """Create the missing parts of a registry.

    A table without one of its columns, constraints or indexes is created again with its rows, unless
    its rows have no value for a required column, or refer to a table without rows.
    """
    missing = missing_parts(connection)
    if not missing:
        return Repair()
    existing = _existing_parts(connection)
    recreated: set[str] = set()
    emptied: set[str] = set()
    rows_by_table: dict[str, list[dict[str, Any]]] = {}
    for table in (*tables.metadata.sorted_tables, revision_table):
        parents = {key.column.table.name for key in table.foreign_keys}
        actual = existing.get(table.name)
        is_intact = actual is not None and _has_all(actual, _expected_parts()[table.name])
        # Dropping a table drops the constraints of the tables that refer to it, or their rows.
        if is_intact and not parents & recreated:
            continue
        recreated.add(table.name)
        rows = None
        if actual is not None and not parents & emptied:
            rows = _read_rows(connection, table, actual.columns)
        if rows is None:
            emptied.add(table.name)
        rows_by_table[table.name] = rows or []
    for table in reversed(tables.metadata.sorted_tables):
        if table.name in recreated and table.name in existing:
            table.drop(connection)
    for table in (*tables.metadata.sorted_tables, revision_table):
        table.create(connection, checkfirst=True)
        if rows_by_table.get(table.name):
            connection.execute(table.insert(), rows_by_table[table.name])
    # The index of a damaged table no longer matches it; a rebuild fills both again.
    search_documents.create_index(connection)
    return Repair(tuple(missing), frozenset(emptied))


def _has_all(actual: _TableParts, expected: _TableParts) -> bool:
    return (
        expected.columns <= actual.columns
        and expected.indexes <= actual.indexes
        and expected.uniques <= actual.uniques
    )


def _read_rows(
    connection: Connection, table: sa.Table, existing_columns: Iterable[str]
) -> list[dict[str, Any]] | None:
    """Return the rows of a damaged table for a new one, None if they lack a required column."""
    shared = [column for column in table.columns if column.name in set(existing_columns)]
    required = [
        column
        for column in table.columns
        if column not in shared and not column.nullable and column.server_default is None
    ]
    if required or not shared:
        return None
    rows = [dict(row._mapping) for row in connection.execute(sa.select(*shared))]
    for names in _unique_columns(table):
        # Without its unique index, a table may contain several rows with the same key.
        rows = list({tuple(row.get(name) for name in names): row for row in rows}.values())
    return rows


@cache
def _expected_parts() -> Mapping[str, _TableParts]:
    return {
        table.name: _TableParts(
            frozenset(column.name for column in table.columns),
            frozenset(str(index.name) for index in table.indexes),
            frozenset(tuple(sorted(names)) for names in _unique_columns(table)),
        )
        for table in (*tables.metadata.sorted_tables, revision_table)
    }


def _unique_columns(table: sa.Table) -> list[Sequence[str]]:
    """Return the column names of the primary key and of each unique constraint of a table."""
    constraints = [
        constraint
        for constraint in table.constraints
        if isinstance(constraint, sa.PrimaryKeyConstraint | sa.UniqueConstraint)
    ]
    return [[column.name for column in constraint.columns] for constraint in constraints]


def _existing_parts(connection: Connection) -> dict[str, _TableParts]:
    statement = _SQLITE if connection.dialect.name == "sqlite" else _POSTGRES
    columns: dict[str, set[str]] = {}
    indexes: dict[str, set[str]] = {}
    uniques: dict[str, set[tuple[str, ...]]] = {}
    for table, names, index in connection.exec_driver_sql(statement):
        if index is None:
            columns.setdefault(table, set()).add(names)
            continue
        indexes.setdefault(table, set()).add(index)
        if names is not None:
            uniques.setdefault(table, set()).add(tuple(sorted(names.split(" "))))
    return {
        name: _TableParts(
            frozenset(of_table),
            frozenset(indexes.get(name, ())),
            frozenset(uniques.get(name, ())),
        )
        for name, of_table in columns.items()
    }
