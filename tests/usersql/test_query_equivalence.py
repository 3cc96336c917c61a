"""Queries on DuckDB and on Spark: every function and type of the table, and random queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from featurestore.errors import FeatureStoreError, InvalidSql
from featurestore.plugins.engine import Engine
from featurestore.usersql import query
from featurestore.usersql.spark_functions import query_functions
from featurestore_connectors.duckdb_delta import DuckDBEngine
from tests.usersql import random_selects
from tests.usersql.query_forms import (
    Form,
    aggregate_forms,
    batches,
    edge_table,
    results,
    scalar_forms,
)
from tests.usersql.sql_page import EQUAL, PAGE, REFUSED, REWRITTEN, Classifier, build_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::featurestore.model.times.NaiveTimeWarning"),
]

# Forms that Spark once computed differently; all other forms of the normal run are a sample.
ONCE_DIFFERENT = (
    "a_f32 = 0.1", "a_f32 * 0.5", "a_f32 * b_f32", "a_dec / 3", "avg(b_dec)", "avg(b_i64)",
    "extract(second from a_time)", "date_trunc('decade', a_time)", "a_day + interval 1 month",
    "substring(a_text, 0, 2)", "left(a_text, -1)", "year(a_day)", "length(a_text)",
)  # fmt: skip
REFUSED_FORMS = (
    "select max(a_struct) as x from edges",
    "select min(a_list) as x from edges",
    "select a_struct < b_struct as x from edges",
    "select greatest(a_list, b_list) as x from edges",
    "select a_wide * b_wide as x from edges",
    "select cast(a_f64 as ubigint) as x from edges",
    "select id, row_number() over (order by a_struct) as x from edges",
    "select id, median(id) over () as m, max(a_struct) over () as x from edges",
)
SPARK_ONLY_REFUSED = (
    "select id, lag(id, -1) over (order by id) as x from edges",
    "select cast(a_text as double) as x from edges where a_text = '1'",
    "select date_trunc('isoyear', a_time) as x from edges",
)
"""Forms that DuckDB runs and Spark refuses by name."""
GROUPED = (
    "select a_text as g, unnest(a_list) as x from edges where id < 40",
    "select a.id as g, b.a_text as t from edges a join edges b on a.b_text = b.a_text and a.id = b.id",
    "select a_text, sum(b_i8) as s, count(*) as n from edges group by all having n > 1",
    "select id, row_number() over (partition by a_text order by id) as r, "
    "lag(id) over (partition by b_text order by id) as l, lead(id, 2) over (order by id) as e, "
    "rank() over (order by a_text) as k, dense_rank() over (order by b_f64 desc) as d, "
    "rank() over (order by a_i64 desc nulls first) as j from edges",
)


def test_page_lists_every_form() -> None:
    assert PAGE.read_text(encoding="utf-8") == build_page(), "python -m tests.usersql.sql_page"
    called = {form.name for form in [*scalar_forms(), *aggregate_forms()]}
    windows = {"row_number", "rank", "dense_rank", "lag", "lead", "unnest"}
    assert query_functions() - called - windows == set()


def test_refused_forms_differ_and_hint_runs_on_both(
    engine: DuckDBEngine, subtests: pytest.Subtests
) -> None:
    """A job may move between engines, so both refuse the same forms."""
    classifier = Classifier()
    for text in REFUSED_FORMS[:6]:
        form = Form("", (), text.removeprefix("select ").removesuffix(" as x from edges"))
        word, hint = classifier.classify(form)
        with subtests.test(text):
            assert word == REFUSED
            assert classifier.classify(Form("", (), hint))[0] in (EQUAL, REWRITTEN)
            tables = {"edges": engine.from_arrow(edge_table(2).to_reader())}
            with pytest.raises(InvalidSql, match="differs between engines"):
                engine.user_sql(text, tables=tables, parameters={})


def run_query(engine: Engine, tables: dict[str, Any], text: str) -> pa.Table:
    """Return the rows of a query."""
    sql = query(text, tables=list(tables), dialect=engine.dialect)
    return engine.stream(engine.user_sql(sql, tables=tables, parameters={})).read_all()


def staged(engine: Engine, folder: Path, tables: dict[str, pa.Table]) -> dict[str, Any]:
    """Return relations that can be read several times."""
    return {
        name: engine.stage(engine.from_arrow(table.to_reader()), str(folder / name))
        for name, table in tables.items()
    }


class Comparison:
    """Runs forms and queries on both engines."""

    def __init__(self, spark_engine: Engine, engine: Engine, folder: Path) -> None:
        self._engines = {"duckdb": engine, "spark": spark_engine}
        self._folder = folder
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")

    def compare_forms(self, forms: Iterable[Form], size: int) -> list[str]:
        """Return the forms whose values or types differ."""
        table = edge_table(size)
        self._connection.register("edges", table)
        different = []
        for number, batch in enumerate(batches(forms, 60)):
            ok: dict[Form, Any] = {}
            typed_table, printed = table, []
            for index, form in enumerate(batch):
                form, rows = self._rows_without_error(form)
                printed.append(form)
                if rows is not None:
                    ok[form] = rows
                    typed_table = typed_table.append_column(f"ok_{index}", pa.array(rows))
            values = {
                name: results(printed, self._runner(engine, f"{number}-{name}", typed_table), ok)
                for name, engine in self._engines.items()
            }
            different += [
                f"{form.sql}: {values['duckdb'][form]} {values['spark'][form]}"
                for form in printed
                if values["duckdb"][form] != values["spark"][form]
            ]
        return different

    def _runner(self, engine: Engine, name: str, table: pa.Table) -> Callable[[str], pa.Table]:
        tables = staged(engine, self._folder / name, {"edges": table})
        return lambda text: run_query(engine, tables, text)

    def _rows_without_error(self, form: Form) -> tuple[Form, list[bool] | None]:
        """Return a form with a type that can be stored, and the rows that it can compute."""
        (dtype,) = self._connection.sql(f"select {form.sql} as x from edges").types
        limit = form.sql
        if str(dtype) == "HUGEINT":
            # Spark's integers of this type have 38 digits.
            limit = f"cast({form.sql} as decimal(38,0))"
            form = Form(form.name, form.types, f"cast({form.sql} as varchar)", form.is_aggregate)
        try:
            self._connection.execute(f"select {limit} as x from edges").fetchall()
            return form, None
        except duckdb.Error:
            rows = self._connection.execute(
                f"select try({limit}) is not null from edges order by id"
            ).fetchall()
            return form, [row for (row,) in rows]

    def compare_queries(self, texts: Iterable[str], tables: dict[str, pa.Table]) -> list[str]:
        """Return the queries whose rows or types differ."""
        relations = {
            name: staged(engine, self._folder / f"tables-{name}", tables)
            for name, engine in self._engines.items()
        }
        different = []
        for text in texts:
            outcomes = [
                _outcome(engine, relations[name], text) for name, engine in self._engines.items()
            ]
            if outcomes[0] != outcomes[1]:
                different.append(f"{text}\n{outcomes[0]}\n{outcomes[1]}")
        return different


def _outcome(engine: Engine, tables: dict[str, Any], text: str) -> tuple[Any, Any]:
    """Return the types and the sorted rows of a query, or its error."""
    try:
        table = run_query(engine, tables, text)
    except FeatureStoreError as error:
        return "error", str(error)
    rows = [[_rounded(cell) for cell in row.values()] for row in table.to_pylist()]
    return table.schema, sorted(map(repr, rows))


def _rounded(cell: Any) -> Any:
    """Return a float with ten digits: sums of floats depend on the order of the rows."""
    if not isinstance(cell, float):
        return cell
    return "NaN" if math.isnan(cell) else float(f"{cell:.10g}") + 0.0


@pytest.fixture
def comparison(spark: SparkSession, engine: DuckDBEngine, tmp_path: Path) -> Comparison:
    """Both engines."""
    from featurestore_connectors.spark_delta import SparkEngine

    return Comparison(SparkEngine(spark), engine, tmp_path)


def _accepted(forms: Iterable[Form]) -> list[Form]:
    classifier = Classifier()
    return [form for form in forms if classifier.classify(form)[0] in (EQUAL, REWRITTEN)]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("share", "size"), [(25, 6), pytest.param(1, 23, marks=pytest.mark.soak)]
)  # fmt: skip
def test_forms_equal_on_both_engines(comparison: Comparison, share: int, size: int) -> None:
    scalars = list(scalar_forms())
    forms = [form for form in scalars if form.sql in ONCE_DIFFERENT]
    forms += scalars[::share]
    assert comparison.compare_forms(_accepted(dict.fromkeys(forms)), size) == []
    aggregates = list(aggregate_forms())
    forms = [form for form in aggregates if form.sql in ONCE_DIFFERENT]
    forms += aggregates[:: min(share, 4)]
    assert comparison.compare_forms(_accepted(dict.fromkeys(forms)), size) == []


@pytest.mark.spark
def test_grouped_queries_equal_on_both_engines(comparison: Comparison) -> None:
    names = ("id", "a_text", "b_text", "a_list", "b_i8", "b_f64", "a_i64")
    assert comparison.compare_queries(GROUPED, {"edges": edge_table(6).select(names)}) == []


@pytest.mark.spark
@pytest.mark.parametrize("count", [8, pytest.param(1000, marks=pytest.mark.soak)])
def test_random_queries_equal_on_both_engines(comparison: Comparison, count: int) -> None:
    texts = [random_selects.SelectGenerator(seed).query() for seed in range(count)]
    assert comparison.compare_queries(texts, random_selects.tables()) == []


@pytest.mark.spark
def test_spark_refuses_forms_by_name(
    spark: SparkSession, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    from featurestore_connectors.spark_delta import SparkEngine

    engine = SparkEngine(spark)
    tables = staged(engine, tmp_path, {"edges": edge_table(2)})
    for text in (*REFUSED_FORMS, *SPARK_ONLY_REFUSED):
        with subtests.test(text), pytest.raises(InvalidSql, match="Hint: "):
            run_query(engine, tables, text)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        overflow = "select a_i64 + 9223372036854775807 as x from edges"
        with subtests.test("overflow without ANSI mode"), pytest.raises(FeatureStoreError):
            run_query(engine, tables, overflow)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
