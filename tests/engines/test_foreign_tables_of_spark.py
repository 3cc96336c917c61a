"""Tables as Spark makes them with the features of Delta.

Both engines read the same rows, or refuse by the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from featurestore.errors import UnsupportedTable
from featurestore.plugins.engine import Engine
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import SparkEngine

pytestmark = pytest.mark.spark


@pytest.fixture
def engines(spark: Any) -> Iterator[list[Engine]]:
    engines: list[Engine] = [DuckDBEngine(threads=2), SparkEngine()]
    yield engines
    for engine in engines:
        engine.close()


def made(spark: Any, path: Path, properties: str, *statements: str) -> str:
    """Make a table of two columns with some properties, and change it."""
    table = f"delta.`{path}`"
    told = f"TBLPROPERTIES ({properties})" if properties else ""
    spark.sql(f"CREATE TABLE {table} (id INT, x DOUBLE) USING delta {told}")
    spark.sql(f"INSERT INTO {table} VALUES (1, 1.5), (2, 2.5), (3, 3.5)")
    for statement in statements:
        spark.sql(statement.format(table=table))
    return str(path)


def rows(engine: Engine, path: str) -> list[tuple[Any, ...]]:
    found = engine.stream(engine.read_table(path)).read_all().to_pydict()
    return sorted(zip(*found.values(), strict=True))


def test_both_engines_read_spark_s_tables_alike_or_refuse_them(
    spark: Any, engines: list[Engine], tmp_path: Path
) -> None:
    vectors = "'delta.enableDeletionVectors' = 'true'"
    upsert = "MERGE INTO {table} o USING (SELECT 9 AS id, 9.5D AS x) n ON o.id = n.id WHEN NOT MATCHED THEN INSERT *"
    read = {
        "vectors_unused": made(spark, tmp_path / "unused", vectors, upsert),
        "vectors_purged": made(
            spark,
            tmp_path / "purged",
            vectors,
            "DELETE FROM {table} WHERE id = 2",
            "REORG TABLE {table} APPLY (PURGE)",
        ),
        "widened": made(
            spark,
            tmp_path / "widened",
            "'delta.enableTypeWidening' = 'true'",
            "ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT",
            "INSERT INTO {table} VALUES (5000000000, 0.5)",
        ),
        "checkpoints": made(
            spark,
            tmp_path / "classic",
            "'delta.checkpointInterval' = '2'",
            *[upsert.replace("9", str(n)) for n in (7, 8, 9)],
        ),
        "v2_checkpoints": made(
            spark,
            tmp_path / "v2",
            "'delta.checkpointInterval' = '2', 'delta.checkpointPolicy' = 'v2'",
            *[upsert.replace("9", str(n)) for n in (7, 8, 9)],
        ),
    }
    for name, path in read.items():
        ours, sparks = (rows(engine, path) for engine in engines)
        assert (
            ours == sparks == sorted(map(tuple, spark.read.format("delta").load(path).collect()))
        ), name
    assert len(rows(engines[0], read["widened"])) == 4
    refused = {
        "deletion vectors": made(
            spark, tmp_path / "vectors", vectors, "DELETE FROM {table} WHERE id = 2"
        ),
        "column mapping": made(spark, tmp_path / "name", "'delta.columnMapping.mode' = 'name'"),
        r"column mapping \(delta.columnMapping.mode='id'\)": made(
            spark, tmp_path / "id", "'delta.columnMapping.mode' = 'id'"
        ),
    }
    for named, path in refused.items():
        for engine in engines:
            with pytest.raises(UnsupportedTable, match=named):
                engine.read_table(path)
