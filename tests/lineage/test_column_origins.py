"""Column lineage of SQL queries, compared with queries of known lineage, DuckDB and sqlglot."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp
from sqlglot.lineage import lineage as lineage_of_column

from featurestore.lineage.column_origins import ColumnOrigins, origins_of_query
from featurestore.lineage.origins import Dataset, OriginColumn
from featurestore.lineage.query_origins import QueryTable, trace_query
from featurestore.usersql.queries import REPEATABLE, SUMS, VARYING
from tests.lineage.random_lineage import TABLES, Edges, Query, QueryBuilder

SEEDS = st.integers(0, 2**32)
QUERY_TABLES = {name: QueryTable(Dataset(name, 1), columns) for name, columns in TABLES.items()}
ROWS = 7
_connection = duckdb.connect(config={"threads": 1})


def _build_query(seed: int) -> Query:
    return QueryBuilder(Random(seed)).build()


def _edges(origins: Iterable[OriginColumn]) -> Edges:
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
    """Check that the columns in sqlglot's lineage are origins of the column or of the rows.

    For sqlglot, the second query of EXCEPT and the inner side of USING are sources of the values.
    """
    query = _build_query(seed)
    traced = _trace(query)
    schema = {
        name.lower(): {column.lower(): "bigint" for column in columns}
        for name, columns in TABLES.items()
    }
    nodes = lineage_of_column(None, query.sql, schema, dialect="duckdb")
    for name, node in zip(query.columns, nodes.values(), strict=True):
        origins = [*traced.columns.get(name, []), *traced.rows]
        columns = {(origin.dataset.source.lower(), origin.column.lower()) for origin in origins}
        for leaf in node.walk():
            table = leaf.expression
            if isinstance(table, exp.Table):
                column = exp.to_column(leaf.name, dialect="duckdb").name
                assert (table.name, column) in columns, (name, query.sql)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_origins_of_random_queries_equal_their_construction(seed: int) -> None:
    check_construction(seed)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_result_columns_do_not_depend_on_other_columns(seed: int) -> None:
    check_values(seed)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_columns_of_sqlglot_are_origins(seed: int) -> None:
    check_columns_of_sqlglot(seed)


@pytest.mark.soak
def test_origins_of_many_random_queries() -> None:
    for seed in range(1500):
        check_construction(seed)
        check_values(seed)
        check_columns_of_sqlglot(seed)


# Columns of trips and zones below: "zone.column" with the letter of the subtype; * is masking.
_LETTERS = {
    "I": "IDENTITY", "T": "TRANSFORMATION", "A": "AGGREGATION", "J": "JOIN", "F": "FILTER",
    "G": "GROUP_BY", "S": "SORT", "W": "WINDOW", "C": "CONDITIONAL",
}  # fmt: skip
_TRIPS = QueryTable(Dataset("trips", 1), ["Id", "Zone", "fare", "at", "tip total", "xs", "s"])
_ZONES = QueryTable(Dataset("zones", 1), ["zone", "a.b", "Size"])
# The query, the origins of its first column, and those of its rows.
QUERIES = {
    # An alias equal to an input column; names in another case.
    "select FARE + 1 as fare from trips where fare > 2": ("T fare", "F fare"),
    "select fare as id, id as fare from trips order by id": ("I fare", "S fare"),
    "select zone as id, max(fare) as fare from trips group by zone having fare > 2": (
        "I Zone", "F fare, G Zone",
    ),
    "select fare * 2 as d, d + 1 as e from trips where d > 3": ("T fare", "F fare"),
    # Quoted names with spaces and points, qualified stars, structs, rows.
    'select "TIP total" as x, z."a.b" from trips, zones z where z."A.B" = 1': (
        "I tip total", "F a.b",
    ),
    "select z.* exclude (size) from trips t join zones z using (zone)": ("I zone", "J Zone, J zone"),
    "select * replace (fare + 1 as id) from trips": ("T fare", ""),
    "select (s.part).x as x from trips": ("T s", ""),
    "select zones as x from zones": ("T zone, T a.b, T Size", ""),
    "select columns('fa.*') from trips": ("T Id, T Zone, T fare, T at, T tip total, T xs, T s", ""),
    # Joins.
    "select zone from trips left join zones using (zone)": ("I Zone", "J Zone, J zone"),
    "select zone from trips right join zones using (zone)": ("I zone", "J Zone, J zone"),
    "select zone from trips full join zones using (zone)": ("I Zone, I zone", "J Zone, J zone"),
    "select size from trips natural join zones": ("I Size", "J Zone, J zone"),
    "select b.fare from trips a asof join trips b on a.zone = b.zone and a.at >= b.at": (
        "I fare", "J Zone, J at",
    ),
    "select id from trips where not exists (select 1 from zones where zones.zone = trips.zone)": (
        "I Id", "F Zone, F zone",
    ),
    "select l.size from trips t, lateral (select size from zones z where z.zone = t.zone) l": (
        "I Size", "F Zone, F zone",
    ),
    "select x.v from trips, unnest(xs) as x(v)": ("T xs", "J xs"),
    "select unnest(xs) as v from trips": ("T xs", "J xs"),
    # Conditions and windows.
    "select case zone when 1 then fare else 0 end as x from trips": ("T fare, C Zone", ""),
    "select if(fare > 1, id, null) as x from trips": ("T Id, C fare", ""),
    "select nullif(fare, id) as x from trips": ("T fare, C fare, C Id", ""),
    "select ifnull(fare, 0) as x from trips": ("T fare, C fare", ""),
    "select sum(fare) over w as x from trips window w as (partition by zone order by at)": (
        "A fare, W Zone, W at", "",
    ),
    "select lag(fare ignore nulls) over (order by at) as x from trips": ("T fare, W at", ""),
    "select count(*) over (partition by zone) as x from trips": ("W Zone", ""),
    "select id from trips qualify row_number() over (partition by zone order by at) = 1": (
        "I Id", "F Zone, F at",
    ),
    # Aggregates and masking.
    "select count(fare) as x from trips": ("A* fare", ""),
    "select count(*) as x from trips": ("", ""),
    "select md5(zone::varchar) as x from trips": ("T* Zone", ""),
    "select max(case when fare > 1 then md5(zone::varchar) end) as x from trips": (
        "A* Zone, C fare", "",
    ),
    "select sum(fare) filter (where id > 2) as x from trips": ("A fare, F Id", ""),
    "select arg_max(fare, at) as x from trips": ("A fare, S at", ""),
    "select string_agg(zone, ',' order by at) as x from trips": ("A Zone, S at", ""),
    "select quantile_cont(0.5) within group (order by fare) as x from trips": ("A fare", ""),
    "select sum(fare) as x, zone, id + 1 as y from trips group by all": ("A fare", "G Zone, G Id"),
    "select sum(fare) as x from trips group by rollup (zone)": ("A fare", "G Zone"),
    "select distinct on (zone) fare from trips order by zone, at": ("I fare", "G Zone, S Zone, S at"),
    "select id as x, zone from trips order by all": ("I Id", "S Id, S Zone"),
    # Set operations and common table expressions.
    "select id from trips union all by name select 1 as x, size as id from zones": (
        "I Id, I Size", "",
    ),
    "select id, zone from trips except select size, zone from zones": (
        "I Id", "G Id, G Zone, F Size, F zone",
    ),
    "with r(a) as (select fare from trips) select a + 1 as x from r": ("T fare", ""),
    "with recursive r as (select id as a, fare as b from trips union all "
    "select b, size from r join zones on zone = a where b < 9) select a from r": (
        "I Id, I fare, I Size", "J zone, J Id, J fare, J Size, F fare, F Size",
    ),
    "select \"9\" as x from trips pivot (sum(fare) for zone in (9) group by id)": (
        "A fare, C Zone", "G Id",
    ),
    "select v from zones unpivot (v for n in (zone, size))": ("T zone, T Size", ""),
    # No columns.
    "select $window_end as x from trips where at < $window_end": ("", "F at"),
    "select 1 as x from range(3)": ("", ""),
}  # fmt: skip


def _parse_origins(text: str) -> set[tuple[str, str, bool]]:
    """Parse "A* fare, C Zone" to subtypes, columns and masking."""
    pairs = [pair.split(" ", 1) for pair in text.split(", ") if pair]
    return {(name, _LETTERS[letters[0]], letters.endswith("*")) for letters, name in pairs}


def test_origins_of_sql_forms(subtests: pytest.Subtests) -> None:
    tables = {"trips": _TRIPS, "zones": _ZONES}
    for sql, (column, rows) in QUERIES.items():
        with subtests.test(sql):
            query = trace_query(sql, tables)
            first = next(iter(query.columns.values()))
            for origins, expected in ((first, column), (query.rows, rows)):
                actual = {(origin.column, origin.subtype, origin.masking) for origin in origins}
                assert actual == _parse_origins(expected)


def test_aggregates_of_duckdb_are_aggregations(subtests: pytest.Subtests) -> None:
    names = REPEATABLE | SUMS | VARYING
    query = "select distinct function_name from duckdb_functions() where function_type = $kind"
    aggregates = {
        name for (name,) in duckdb.execute(query, {"kind": "aggregate"}).fetchall()
    } & names - {"count_star"}
    assert len(aggregates) > 60
    for name in sorted(aggregates):
        with subtests.test(name):
            arguments = "fare, at" if re.match("corr|covar|regr|arg|.*_by|lttb", name) else "fare"
            query = f"select {name}({arguments}) as x from trips"
            origins = origins_of_query(query, {"trips": _TRIPS}, ["x"]).columns["x"]
            assert origins[0].subtype == "AGGREGATION"
            assert {origin.column for origin in origins} == set(arguments.split(", "))


def test_queries_that_cannot_be_traced_have_no_origins() -> None:
    for sql in (
        "select from where",
        "insert into t values (1)",
        "pivot trips on zone using sum(id)",
    ):
        assert origins_of_query(sql, {"trips": _TRIPS}, ["x"]) == ColumnOrigins()


def test_tables_with_unknown_columns_have_named_origins() -> None:
    unknown = {"trips": QueryTable(Dataset("/data/trips"), [], "at")}
    origins = origins_of_query("select fare as x from trips where id > 1", unknown, ["x"])
    assert [origin.column for origin in origins.columns["x"]] == ["fare"]
    assert {(origin.column, origin.subtype) for origin in origins.rows} == {
        ("id", "FILTER"),
        ("at", "FILTER"),
    }
