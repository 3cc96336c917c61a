"""Column lineage of SQL queries, compared with queries of known lineage, DuckDB and sqlglot."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp
from sqlglot.lineage import lineage as lineage_of_column

from featurestore.lineage.column_origins import ColumnOrigins, origins_of_query
from featurestore.lineage.origins import Dataset, Origin
from featurestore.lineage.query_origins import QueryTable
from tests.lineage.random_lineage import TABLES, Edges, Query, QueryBuilder

SEEDS = st.integers(0, 2**32)
QUERY_TABLES = {name: QueryTable(Dataset(name, 1), columns) for name, columns in TABLES.items()}
ROWS = 7
_connection = duckdb.connect(config={"threads": 1})


def _build_query(seed: int) -> Query:
    return QueryBuilder(Random(seed)).build()


def _edges(origins: Iterable[Origin]) -> Edges:
    return frozenset(
        (origin.dataset.source, origin.column, origin.subtype, origin.masking) for origin in origins
    )


def _trace(query: Query) -> ColumnOrigins:
    return origins_of_query(query.sql, QUERY_TABLES, query.columns)


def check_construction(seed: int) -> None:
    """Check that the traced origins of a random query are those of its construction."""
    query = _build_query(seed)
    traced = _trace(query)
    actual = {name: _edges(traced.columns.get(name, [])) for name in query.columns}
    assert actual == query.columns, query.sql
    assert _edges(traced.rows) == query.rows, query.sql


def check_values(seed: int) -> None:
    """Check with DuckDB that a result column depends on its origins only."""
    query, random = _build_query(seed), Random(seed)
    rows = {
        name: [[random.choice([None, 0, 1, 2, 3, 4]) for _ in columns] for _ in range(ROWS)]
        for name, columns in TABLES.items()
    }
    traced = _trace(query)
    original = _run(query.sql, rows)
    for table, columns in TABLES.items():
        for position, column in enumerate(columns):
            changed = {**rows, table: [list(row) for row in rows[table]]}
            for row in changed[table]:
                row[position] = random.choice([None, 0, 1, 2, 3, 4])
            result = _run(query.sql, changed)
            for name, before, after in zip(query.columns, original, result, strict=True):
                origins = [*traced.columns.get(name, []), *traced.rows]
                is_origin = (table, column) in {
                    (origin.dataset.source, origin.column) for origin in origins
                }
                assert is_origin or before == after, (name, table, column, query.sql)


def _run(sql: str, rows: dict[str, list[list[int | None]]]) -> list[list[str]]:
    """Return the values of each result column of a query over small tables, sorted."""
    for name, columns in TABLES.items():
        values = ", ".join(str(tuple(row)).replace("None", "null") for row in rows[name])
        names = ", ".join(f'"{column}"' for column in columns)
        _connection.execute(
            f"create or replace table {name} as from (values {values}) as v({names})"
        )
    result = _connection.execute(sql).fetchall()
    width = len(_connection.description or ())
    return [sorted(repr(row[index]) for row in result) for index in range(width)]


def check_columns_of_sqlglot(seed: int) -> None:
    """Check that sqlglot's lineage of a column has the same columns."""
    query = _build_query(seed)
    traced = _trace(query)
    schema = {
        name.lower(): {column.lower(): "bigint" for column in columns}
        for name, columns in TABLES.items()
    }
    for name in query.columns:
        node = lineage_of_column(f'"{name.lower()}"', query.sql, schema, dialect="duckdb")
        leaves = {
            (leaf.expression.name, leaf.name.rpartition(".")[2].strip('"'))
            for leaf in node.walk()
            if isinstance(leaf.expression, exp.Table)
        }
        actual = {
            (origin.dataset.source.lower(), origin.column.lower())
            for origin in traced.columns.get(name, [])
        }
        print(leaves ^ actual, query.sql)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_origins_of_random_queries_equal_their_construction(seed: int) -> None:
    check_construction(seed)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_result_columns_do_not_depend_on_other_columns(seed: int) -> None:
    check_values(seed)


@pytest.mark.soak
def test_origins_of_many_random_queries() -> None:
    for seed in range(4000):
        check_construction(seed)
        check_values(seed)
