"""Tables written by Spark with features that the store does not write.

Both engines read them alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.errors import UnsupportedTable, UnsupportedType
from featurestore.model.times import NaiveTimeWarning
from featurestore.plugins.engine import Engine, TableWrite
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import SparkEngine
from tests.deltalog.hand_made import add, commit, metadata, protocol

pytestmark = pytest.mark.spark

ROWS = "SELECT cast(id AS int) AS id, cast(id AS string) AS `a``b.c` FROM range(4)"
VECTORS = {"enableDeletionVectors": "true"}


@pytest.fixture(scope="module")
def engines(spark: Any) -> Iterator[list[Engine]]:
    engines: list[Engine] = [SparkEngine(spark), DuckDBEngine()]
    yield engines
    for engine in engines:
        engine.close()


def read(engine: Engine, path: Path, **options: Any) -> list[dict[str, Any]]:
    rows = engine.stream(engine.read_table(str(path), **options)).read_all()
    return sorted(rows.to_pylist(), key=str)


def make(spark: Any, path: Path, *statements: str, **properties: str) -> Path:
    """Create a table with ``ROWS``, then run statements with ``{t}`` as its name."""
    spark = spark.newSession()  # Delta stores the last commit in the session
    table = f"delta.`{path}`"
    options = ", ".join(f"'delta.{name}' = '{value}'" for name, value in properties.items())
    having = f"TBLPROPERTIES ({options})" if options else ""
    spark.sql(f"CREATE TABLE {table} USING delta {having} AS {ROWS}")
    for statement in statements:
        spark.sql(statement.format(t=table))
    return path


@pytest.mark.parametrize(
    ("properties", "statements", "uses"),
    [
        (VECTORS, ["DELETE FROM {t} WHERE id = 1"], "deletion vectors"),
        ({"columnMapping.mode": "name"}, ["ALTER TABLE {t} RENAME COLUMN id TO k"], "column mapping"),
        ({"columnMapping.mode": "id"}, [], r"column mapping \(delta.columnMapping.mode='id'\)"),
    ],
)  # fmt: skip
def test_unsupported_tables_are_refused_by_both_engines(
    engines: list[Engine],
    spark: Any,
    tmp_path: Path,
    properties: dict[str, str],
    statements: list[str],
    uses: str,
) -> None:
    path = make(spark, tmp_path / "t", *statements, **properties)
    for engine in engines:
        with pytest.raises(UnsupportedTable, match=uses):
            read(engine, path)
        rows = engine.from_arrow(pa.table({"id": [9]}).to_reader())
        with pytest.raises(UnsupportedTable):
            engine.write(str(path), rows, TableWrite("append"))


@pytest.mark.parametrize(
    ("properties", "statements"),
    [
        pytest.param(VECTORS, ["INSERT INTO {t} VALUES (9, 'x')"], marks=pytest.mark.soak),
        (VECTORS, ["DELETE FROM {t} WHERE id = 2", "REORG TABLE {t} APPLY (PURGE)"]),
        (
            {"enableTypeWidening": "true"},
            [
                "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
                "INSERT INTO {t} VALUES (5000000000, 'x')",
            ],
        ),
        ({"checkpointPolicy": "v2", "checkpointInterval": "1"}, ["DELETE FROM {t} WHERE id > 1"]),
        # Classic checkpoints are covered by the conformance suite.
        pytest.param(
            {"checkpointInterval": "1"},
            ["UPDATE {t} SET id = id + 10 WHERE id = 3"],
            marks=pytest.mark.soak,
        ),
    ],
)
def test_supported_foreign_tables_equal_spark(
    engines: list[Engine],
    spark: Any,
    tmp_path: Path,
    properties: dict[str, str],
    statements: list[str],
) -> None:
    path = make(spark, tmp_path / "t", *statements, **properties)
    spark_rows = spark.read.format("delta").load(str(path)).collect()
    expected = sorted((row.asDict() for row in spark_rows), key=str)
    assert [read(engine, path) for engine in engines] == [expected, expected]


def test_columns_of_unsupported_types_are_not_dropped(
    engines: list[Engine], spark: Any, tmp_path: Path
) -> None:
    path = make(spark, tmp_path / "t", "ALTER TABLE {t} ADD COLUMN nothing void")
    folder = tmp_path / "files"
    folder.mkdir()
    parquet.write_table(pa.table({"id": [1], "nothing": pa.nulls(1)}), folder / "a.parquet")
    for engine in engines:
        with pytest.raises(UnsupportedType, match=r"'nothing' \(null\)"):
            read(engine, path)
        assert len(read(engine, path, columns=["id"])) == 4
    spark_engine, duckdb_engine = engines
    with pytest.raises(UnsupportedType, match=r"'nothing' \(null\)"):
        spark_engine.read_files([str(folder)])  # Spark would take them for integers
    relation = duckdb_engine.read_files([str(folder)])
    assert relation.schema.field("nothing").type == pa.null()
    assert duckdb_engine.stream(relation).read_all().to_pylist() == [{"id": 1, "nothing": None}]


def test_partition_folder_with_colon_is_read(engines: list[Engine], tmp_path: Path) -> None:
    in_log, expected = "at=12%3A30/part-0.parquet", [{"id": 1, "at": "12:30"}]
    path = tmp_path / "t"
    schema = pa.schema([("id", pa.int64()), ("at", pa.string())])
    commit(path, 0, protocol(), metadata(schema, partition_by=("at",)))
    rows = pa.table({"id": pa.array([1], pa.int64())})
    added = add(path, "at=12:30/part-0.parquet", rows, partitionValues={"at": "12:30"})
    commit(path, 1, {"add": {**added["add"], "path": in_log}})
    assert [read(engine, path) for engine in engines] == [expected, expected]
    # Delta requires URI paths; an invalid URI is read here, and refused by Spark with its
    # name.
    commit(path, 2, {"remove": {"path": in_log, "dataChange": True}}, added)
    assert read(engines[1], path) == expected
    with pytest.raises(UnsupportedTable, match=r"not a URI: .*at=12:30/part-0\.parquet"):
        read(engines[0], path)


def test_unusual_column_names_are_supported(engines: list[Engine], spark: Any) -> None:
    query = "SELECT 1 AS `k``.1`, timestamp_ntz'2020-01-01 00:00:00' AS `t``.2` FROM range(2)"
    engine = engines[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NaiveTimeWarning)
        relation = engine.adopt(spark.sql(query))
    assert relation is not None
    count, examples = engine.duplicates(relation, ["k`.1"])
    assert (count, examples) == (1, [{"k`.1": 1, "n": 2}])
    assert engine.count(engine.last_per_key(relation, ["k`.1"])) == 1
    renamed = engine.select(relation, {"t": "t`.2"})
    assert engine.stream(renamed).read_all()["t"][0].as_py().year == 2020
