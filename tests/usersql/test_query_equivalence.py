"""Every function allowed in queries on Spark, over edge values and groups, on both engines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from featurestore.plugins.engine import Engine
from featurestore.usersql import query
from featurestore.usersql.functions import SPARK_QUERY_FUNCTIONS
from tests.usersql.edge_values import TABLE, plain_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

_TIMES = ("year", "quarter", "month", "day", "dayofmonth", "dayofyear")
_CALLS = [
    *(f"{name}(a_{column})" for name in _TIMES for column in ("date", "timestamp")),
    *(f"{name}(a_timestamp)" for name in ("hour", "minute", "second")),
    *(f"date_trunc('{unit}', a_timestamp)" for unit in ("hour", "day", "week", "month", "year")),
    *(f"{name}(a_string, b_string)" for name in ("starts_with", "ends_with", "contains", "strpos")),
    *(f"{name}(a_string)" for name in ("length", "char_length")),
    *(f"{name}(a_string, 2)" for name in ("left", "right", "substring", "substr")),
    *(f"{name}(a_{column}, b_{column})" for name in ("coalesce", "ifnull", "nullif", "greatest", "least")
      for column in ("integer", "number", "string", "date", "timestamp", "decimal", "boolean")),
    "replace(a_string, b_string, 'x')",
    "substring(a_string, 1, 2)",
    "abs(id - 5)",
    "abs(a_number)",
    "case when a_integer > 0 then b_string else 'none' end",
    "id + id * 2 - 1",
    "a_number + b_number * 0.5",
    "a_timestamp + interval 1 hour",
    "a_string || b_string",
    "a_string like 'a%'",
    "a_integer::double",
    "a_date::timestamptz",
    "a_timestamp::date",
    "extract(month from a_timestamp)",
]  # fmt: skip
_GROUPED = [
    "select a_string as g, count(*) as n, count(b_integer) as c, count(distinct b_string) as d "
    "from edges group by 1",
    "select a_string as g, sum(b_small) as s, avg(b_small) as m, sum(b_decimal) as t from edges group by 1",
    "select a_string as g, min(b_number) as a, max(b_number) as b, min(b_string) as c, max(b_string) as d, "
    "min(b_timestamp) as e, max(b_date) as f from edges group by all",
    "select a_string as g, sum(b_small) filter (where b_small > 0) as f from edges group by all",
    "select id as g, row_number() over (partition by a_string order by id) as r, "
    "lag(id) over (partition by b_string order by id) as l, lead(id, 2) over (order by id) as e, "
    "rank() over (order by a_string) as k, dense_rank() over (order by b_number desc) as d, "
    "rank() over (order by a_integer desc nulls first) as j from edges",
    "select id as g, unnest(a_list) as x from edges where id < 3",
    "select a.id as g, b.a_string as t from edges a join edges b on a.b_string = b.a_string and a.id = b.id",
]  # fmt: skip


def _results(engine: Engine, folder: Path) -> dict[str, Any]:
    """Return the engine's result of each call and query in a fixed order."""
    edges = engine.stage(engine.from_arrow(TABLE.to_reader()), str(folder))

    def rows(text: str) -> dict[str, list[Any]]:
        sql = query(text, tables=["edges"], dialect=engine.dialect)
        relation = engine.user_sql(sql, tables={"edges": edges}, parameters={})
        table = engine.stream(relation).read_all()
        return {name: plain_values(table.column(name)) for name in table.column_names}

    calls = ", ".join(f"{call} as e{number}" for number, call in enumerate(_CALLS))
    by_row = rows(f"select id, {calls} from edges")
    order = sorted(range(TABLE.num_rows), key=by_row["id"].__getitem__)
    results: dict[str, Any] = {}
    for number, call in enumerate(_CALLS):
        results[call] = [by_row[f"e{number}"][row] for row in order]
    for text in _GROUPED:
        columns = rows(text)
        results[text] = sorted(map(repr, zip(*columns.values(), strict=True)))
    return results


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the embedded engine."""
    from featurestore_connectors.duckdb_delta import DuckDBEngine

    engine = DuckDBEngine()
    try:
        return _results(engine, tmp_path_factory.mktemp("edges"))
    finally:
        engine.close()


def test_spark_query_functions_are_all_compared() -> None:
    called = set(re.findall(r"([a-z_]+)\(", " ".join([*_CALLS, *_GROUPED])))
    assert called >= SPARK_QUERY_FUNCTIONS


@pytest.mark.spark
def test_queries_equal_on_duckdb_and_spark(
    spark: SparkSession, embedded: dict[str, Any], tmp_path: Path
) -> None:
    from featurestore_connectors.spark_delta import SparkEngine

    different = {}
    for text, values in _results(SparkEngine(spark), tmp_path).items():
        if values != embedded[text]:
            pairs = zip(values, embedded[text], strict=False)
            different[text] = next((pair for pair in pairs if pair[0] != pair[1]), "rows")
    assert different == {}
