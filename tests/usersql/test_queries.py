"""User queries: accepted queries, and protection of other tables and files."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from featurestore.errors import FeatureStoreError, InvalidSql
from featurestore.usersql import find_columns, parameters, query
from featurestore.usersql.functions import duckdb_functions
from featurestore_connectors.duckdb_delta import DuckDBEngine

TRIPS = pa.table({"id": pa.array([1, 2, 3]), "zone": ["a", "b", "a"]})


def test_query_for_duckdb_is_unchanged() -> None:
    text = "from trips select zone, arg_max(speed, t) group by all"
    assert query(f"  {text};  ", tables=["trips"], dialect="duckdb") == text


def test_query_is_duckdb_sql_for_both_engines() -> None:
    text = (
        "select * exclude (a), x::double as i from trips where seen >= $window_start and "
        "seen < $window_end and seen > $window_start"
    )
    assert parameters(text) == ("window_start", "window_end")
    for dialect in ("duckdb", "spark"):
        assert query(text, tables=["trips"], dialect=dialect) == text


def test_query_reading_only_its_tables_passes(subtests: pytest.Subtests) -> None:
    for text in (
        "with fast as (select * from trips) select * from fast join trips as t using (id), range(3)",
        "with recursive n as (select 1 as i union all select i + 1 from n where i < 3) from n",
        "select zone, sum(x) filter (where x > 1) over (partition by zone) from trips, unnest([1]) u(x)",
        "select * from (pivot trips on zone using count(*))",
        "select list_transform([1], x -> x + 1), {'a': 1}.a, quantile_cont(id, 0.5) from trips group by all",
        "select max(t.id) from trips t asof join trips u on t.zone = u.zone and t.id >= u.id",
    ):
        with subtests.test(text=text):
            assert query(text, tables=["trips"], dialect="duckdb") == text


ATTACKS = [
    "select 1; select 2",
    "insert into trips values (1)",
    "create table x as select 1",
    "copy trips to 'x.csv'",
    "attach 'x.db'",
    "pragma version",
    "set memory_limit = '1GB'",
    "install httpfs",
    "describe trips",
    "summarize trips",
    "summarize 'FILE'",
    "select * from (summarize 'FILE')",
    "select * from (describe 'FILE')",
    "select * from read_csv('FILE')",
    "select * from 'FILE'",
    'select * from "FILE"',
    "select * from lateral read_text('FILE')",
    "select * from trips, lateral read_text('FILE')",
    "select * from trips join lateral read_text('FILE') x on true",
    "select * from trips cross join lateral (select * from read_text('FILE')) x",
    "select (select content from read_text('FILE'))",
    "select * from trips where id in (select id from other)",
    "select * from (with \"FILE\" as (select 1) select 2) x, \"FILE\"",
    "with a as (select * from \"FILE\"), \"FILE\" as (select 1) select * from a",
    "select * from (with hidden as (from trips) from hidden) join hidden using (id)",
    "select * from query('select 1')",
    "select * from query_table(['FILE'])",
    "select * from glob('/*')",
    "select * from duckdb_settings()",
    "select * from parquet_metadata('FILE')",
    "select * from json_execute_serialized_sql('{}')",
    "select current_setting('temp_directory')",
    "select getvariable('x')",
    "select getenv('HOME')",
    "select * from main.trips",
    "select * from information_schema.tables",
    "select * from other",
    "pivot 'FILE' on a using count(*)",
    "select from where",
    "select java_method('java.lang.System', 'getenv')",
    "select reflect('java.lang.System', 'exit', 0)",
    "select try_reflect('java.lang.System', 'exit', 0)",
    "select id from trips where java_method('java.lang.System', 'getenv') is null",
    "select id from trips order by reflect('java.lang.System', 'exit', 0)",
    "select sum(try_reflect('java.lang.System', 'exit', 0)) over () from trips",
    "select list_transform([1], x -> reflect('java.lang.System', 'exit', x))",
]  # fmt: skip


def test_query_beyond_its_tables_raises(subtests: pytest.Subtests) -> None:
    for text, dialect in product(ATTACKS, ("duckdb", "spark")):
        with subtests.test(dialect, text=text), pytest.raises(InvalidSql):
            query(text, tables=["trips"], dialect=dialect)


def test_user_sql_file_access_raises_in_duckdb(
    engine: DuckDBEngine, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nsecret\n", encoding="utf-8")
    for text in ATTACKS:
        if "FILE" in text or "glob" in text:
            tables = {"trips": engine.from_arrow(TRIPS.to_reader())}
            with subtests.test(text=text), pytest.raises(FeatureStoreError):
                engine.user_sql(text.replace("FILE", str(secret)), tables=tables, parameters={})


def test_user_sql_python_variable_as_table_raises(engine: DuckDBEngine) -> None:
    hidden = TRIPS
    assert hidden.num_rows
    with pytest.raises(InvalidSql, match="hidden"):
        engine.user_sql("select * from hidden", tables={}, parameters={})


def test_user_sql_result_is_read_repeatedly(engine: DuckDBEngine) -> None:
    staged = engine.map_batches(engine.from_arrow(TRIPS.to_reader()), _same, schema=TRIPS.schema)
    relation = engine.user_sql("select 1 as one", tables={}, parameters={})
    assert engine.count(relation) == engine.count(relation) == 1
    zones = engine.user_sql(
        "select zone, count(*) as n, sum(id) as ids from trips group by zone order by zone",
        tables={"trips": staged},
        parameters={},
    )
    assert engine.stream(zones).read_all().to_pydict() == {
        "zone": ["a", "b"], "n": [2, 1], "ids": [4, 2],
    }  # fmt: skip


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


CLOCKS = ["now()", "current_timestamp", "current_date", "today()", "localtimestamp", "current_time",
          "get_current_timestamp()", "transaction_timestamp()"]  # fmt: skip


def test_query_clock_functions_raise_with_window_hint(subtests: pytest.Subtests) -> None:
    for call, dialect in product(CLOCKS, ("duckdb", "spark")):
        with subtests.test(call, dialect=dialect), pytest.raises(InvalidSql, match="window_end"):
            query(f"select {call} as t from trips", tables=["trips"], dialect=dialect)


def test_query_random_functions_raise(subtests: pytest.Subtests) -> None:
    for call in ("random()", "uuid()", "gen_random_uuid()", "nextval('s')"):
        with subtests.test(call), pytest.raises(InvalidSql, match="arguments alone"):
            query(f"select {call} as t from trips", tables=["trips"], dialect="duckdb")


def test_duckdb_functions_are_deterministic() -> None:
    # Functions of times with a zone depend on the setting TimeZone, which the engine fixes.
    rows = duckdb.sql(
        "select lower(function_name), bool_and(coalesce(stability, 'CONSISTENT') = 'CONSISTENT' "
        "or (len(parameters) > 0 and stability = 'CONSISTENT_WITHIN_QUERY' and regexp_matches("
        "array_to_string(parameter_types || [return_type], ' '), 'TIME ZONE|TIMESTAMPTZ'))) "
        "from duckdb_functions() where function_type in ('scalar', 'aggregate', 'macro') group by all"
    ).fetchall()
    stable = dict(rows)
    assert [name for name in duckdb_functions() if not stable.get(name, True)] == []
    assert len(duckdb_functions() & set(stable)) > 400


def test_query_duckdb_only_sql_raises_on_spark(subtests: pytest.Subtests) -> None:
    for text in (
        "select try_cast(zone as int) as i from trips",
        "select id ** 2 as i from trips",
        "select * from trips, range(3)",
        "select * from trips, unnest([1]) u(x)",
        "select * from trips where zone ilike 'A'",
        "select * from trips where zone ~ 'a'",
        "select * from (pivot trips on zone using count(*))",
        "select id // 2 as i from trips",
    ):
        with subtests.test(text=text):
            assert query(text, tables=["trips"], dialect="duckdb") == text
            with pytest.raises(InvalidSql, match="Hint: use Spark DataFrames"):
                query(text, tables=["trips"], dialect="spark")


def test_query_uncompared_function_raises_on_spark() -> None:
    text = "select median(id) as m from trips"
    assert query(text, tables=["trips"], dialect="duckdb") == text
    with pytest.raises(InvalidSql, match=r"(?s)median.*Hint:.*count"):
        query(text, tables=["trips"], dialect="spark")


def test_columns_read_returns_named_columns(subtests: pytest.Subtests) -> None:
    for text, columns in (
        ("select max(ID) as id from trips", ["id"]),
        ("select count(*) from trips where zone = 'a'", ["zone"]),
        ("select count(*) from trips", ["id"]),
        ("select t.zone from trips t join (select id from trips) using (id)", ["id", "zone"]),
        ("from trips", ["id", "zone", "fare"]),
        ("select trips from trips", ["id", "zone", "fare"]),
        ("select t from trips as t", ["id", "zone", "fare"]),
        ("select t.* from trips t", ["id", "zone", "fare"]),
        ("select columns('f.*') from trips", ["id", "zone", "fare"]),
        ("select 1 from trips natural join other", ["id", "zone", "fare"]),
        ("select count(distinct fare) from trips", ["fare"]),
    ):
        with subtests.test(text=text):
            assert find_columns(text, ["id", "zone", "fare"]) == columns


def test_query_errors_name_available_names() -> None:
    for text, message in (
        ("select * from trip", "Available: 'trips'.\nHint: did you mean trips?"),
        ("select * from read_csv('x')", "'read_csv'. Available: 'generate_series', 'range'"),
        ("select lenght(zone) as n from trips", "did you mean length()"),
    ):
        with pytest.raises(InvalidSql, match=re.escape(message)):
            query(text, tables=["trips"], dialect="duckdb")


def test_query_unknown_table_raises_with_known_tables() -> None:
    with pytest.raises(InvalidSql, match=r"'other'(.|\n)*'trips'"):
        query("select * from other", tables=["trips"], dialect="duckdb")
