"""Helpers for tests that also run on Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from featurestore.delta.log import latest_version
from featurestore.plugins.engine import Engine, Relation, TableWrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Tests end before the C2 compiler, the parallel collector or bytecode verification pay off
# for Spark's classes. Without C2, Java reserves 48 MB for compiled code, which Spark fills
# after a hundred tests; from then on methods are evicted and compiled again.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:-UsePerfData "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# Compiling or adaptively planning a query for ten rows costs more than it saves.
INTERPRETED_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
# For tests of ``store`` whose Spark code other tests cover: on Spark they run in `make soak`.
spark_in_soak = pytest.mark.parametrize(
    "engine_name", ["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.soak])]
)


def on_engines(
    arguments: str, cases: Iterable[Any], *, spark: Collection[Any] = ()
) -> pytest.MarkDecorator:
    """Run ``store`` tests for all cases on DuckDB, and for a few of them on Spark.

    The other cases run on Spark in ``make soak``, since Spark takes a second for each.

    Args:
        arguments: The name of the argument, or names separated by commas.
        cases: A value or a tuple of values for each case.
        spark: The cases that always run on Spark.
    """
    parameters = []
    for engine, every_run in (("duckdb", None), ("spark", spark)):
        for case in cases:
            marks = [] if every_run is None else [pytest.mark.spark]
            if every_run is not None and case not in every_run:
                marks.append(pytest.mark.soak)
            values = case if "," in arguments else (case,)
            parameters.append(pytest.param(engine, *values, marks=marks))
    return pytest.mark.parametrize(("engine_name", *arguments.split(",")), parameters)


# JVM packages and classes that pyspark and the engine use by short name. py4j searches such a name in every
# jar and imported package at each use, which is a tenth of the JVM's time.
_NAMES = ("PythonUtils", "PythonSQLUtils", "PythonRDD", "Thread", "java", "scala", "org")
_NAMES += ("featurestore", "SimplePythonFunction", "ArrowIteratorServer", "JavaSparkContext")
# Classes used by their full name.
_CLASSES = ("org.apache.spark.sql.classic.SparkSession", "org.apache.spark.sql.functions")
_CLASSES += ("org.apache.spark.util.Utils",)


def look_names_up_once(session: SparkSession) -> None:
    """Cache the JVM classes and packages of a session by name."""
    machine = session._jvm
    for name in (*_NAMES, *_CLASSES):
        setattr(machine, name, getattr(machine, name))
    # py4j uses it twelve times per exception.
    py4j = machine.py4j
    py4j.reflection = py4j.reflection
    py4j.reflection.TypeUtil = py4j.reflection.TypeUtil
    machine.py4j = py4j


def on_executors(relation: Relation) -> Relation:
    """Return rows held by the driver as a plain Spark relation."""
    return Relation(relation.engine, relation.native, relation.schema)


@contextmanager
def counted_fetches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the row counts of all ``collect`` calls in the block; other fetches are refused."""
    from pyspark.sql.classic.dataframe import DataFrame

    fetched: list[int] = []
    collect = DataFrame.collect

    def collect_and_count(frame: Any) -> Any:
        rows = collect(frame)
        fetched.append(len(rows))
        return rows

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows were fetched")

    with monkeypatch.context() as patched:
        patched.setattr(DataFrame, "collect", collect_and_count)
        for name in ("toPandas", "toArrow", "toLocalIterator", "take", "head"):
            patched.setattr(DataFrame, name, refused)
        yield fetched


# Tables with several concurrent writers.
APPENDED = pa.schema([("k", pa.int64()), ("by", pa.string())])
Append = Callable[[str, int], None]
"""Appends a row in one commit, of a writer and with a number."""


def appending(engine: Engine, path: str) -> Append:
    """Return a function that appends to a table with an engine of this process."""

    def append(writer: str, number: int) -> None:
        rows = pa.table({"k": [number], "by": [writer]}, APPENDED)
        commit = engine.write(path, engine.from_arrow(rows.to_reader()), TableWrite("append"))
        assert commit is not None

    return append


def assert_appends_at_once_all_land(
    path: str, writers: Mapping[str, Append], *, times: Mapping[str, int]
) -> None:
    """Append concurrently to an empty table, and check that each commit exists once."""
    from featurestore_connectors.duckdb_delta import DuckDBEngine

    def append_all(name: str) -> None:
        for number in range(times[name]):
            writers[name](name, number)

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(append_all, writers))
    reader = DuckDBEngine()
    rows = reader.stream(reader.read_table(path)).read_all()
    reader.close()
    assert Counter(rows["by"].to_pylist()) == Counter(times)
    assert len({tuple(row.values()) for row in rows.to_pylist()}) == sum(times.values())
    assert latest_version(path) == sum(times.values())


class OnSpark:
    """Fixtures of the retrieval conformance suite; the embedded engine writes the tables."""

    cases_at_once = 150

    @pytest.fixture
    def engine(self, spark_engine: Engine) -> Engine:
        return spark_engine

    @pytest.fixture
    def writer(self) -> Iterator[Engine]:
        from featurestore_connectors.duckdb_delta import DuckDBEngine

        writer = DuckDBEngine()
        yield writer
        writer.close()
