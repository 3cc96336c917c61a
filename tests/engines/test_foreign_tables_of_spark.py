"""Tables as Spark makes them with the features of Delta.

Both engines read the same rows, or refuse by the same name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from featurestore.delta.log import list_log
from featurestore.errors import UnsupportedTable, VersionNotFound
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


def rows(engine: Engine, path: str, version: int | None = None) -> list[tuple[Any, ...]]:
    found = engine.stream(engine.read_table(path, version=version)).read_all().to_pydict()
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


@contextmanager
def setting(spark: Any, **settings: str) -> Iterator[None]:
    """Set settings of Delta's own for a while."""
    named = {f"spark.databricks.delta.{key.replace('__', '.')}": settings[key] for key in settings}
    for key, value in named.items():
        spark.conf.set(key, value)
    yield
    for key in named:
        spark.conf.unset(key)


CHANGES = (
    "INSERT INTO {table} VALUES (4, 4.5), (5, 5.5)",
    "DELETE FROM {table} WHERE id = 2",
    "UPDATE {table} SET x = -x WHERE id > 3",
    "INSERT INTO {table} VALUES (6, 6.5)",
    "OPTIMIZE {table}",
    "DELETE FROM {table} WHERE id = 6",
)


def compacted(spark: Any, path: Path) -> None:
    """Write the actions of commits 1 to 4 as one file, as Delta's log compaction does."""
    log = path / "_delta_log"
    latest: dict[str, dict[str, Any]] = {}
    for version in range(1, 5):
        for line in (log / f"{version:020d}.json").read_text().splitlines():
            for kind in ("add", "remove"):
                action = json.loads(line)
                if kind in action:
                    latest[action[kind]["path"]] = action
    lines = [json.dumps(action) for action in latest.values()]
    (log / f"{1:020d}.{4:020d}.compacted.json").write_text("\n".join(lines) + "\n")


def left_alone(spark: Any, path: Path) -> None:
    """Change nothing more of a table."""


@pytest.mark.parametrize(
    ("settings", "properties", "after", "checkpoint"),
    [
        pytest.param({}, "", compacted, "*.compacted.json", id="log compaction"),
        pytest.param(
            {"checkpoint__partSize": "2"},
            "'delta.checkpointInterval' = '4'",
            left_alone,
            f"{4:020d}.checkpoint.{2:010d}.*.parquet",
            id="checkpoint in parts",
        ),
        pytest.param(
            {"checkpointV2__topLevelFileFormat": "json"},
            "'delta.checkpointInterval' = '4', 'delta.checkpointPolicy' = 'v2'",
            left_alone,
            "*.checkpoint.*.json",
            id="v2 checkpoint in JSON",
        ),
        pytest.param(
            {"checkpointV2__topLevelFileFormat": "parquet"},
            "'delta.checkpointInterval' = '4', 'delta.checkpointPolicy' = 'v2'",
            left_alone,
            "*.checkpoint.*-*.parquet",
            id="v2 checkpoint in Parquet",
        ),
    ],
)
def test_every_version_is_read_alike_whatever_the_log_is_made_of(
    spark: Any,
    engines: list[Engine],
    tmp_path: Path,
    settings: dict[str, str],
    properties: str,
    after: Callable[[Any, Path], None],
    checkpoint: str,
) -> None:
    with setting(spark, **settings):
        path = made(spark, tmp_path / "table", properties, *CHANGES)
    after(spark, Path(path))
    log = Path(path, "_delta_log")
    assert list(log.glob(checkpoint)), sorted(each.name for each in log.iterdir())
    latest = list_log(path).latest
    expected = []
    for version in range(latest + 1):
        frame = spark.read.format("delta").option("versionAsOf", version).load(path)
        expected.append(sorted(map(tuple, frame.collect())))
    assert len({str(each) for each in expected}) >= 6
    for version in range(latest + 1):
        for engine in engines:
            assert rows(engine, path, version) == expected[version], (engine.name, version)
    if checkpoint.startswith("*.compacted"):
        return
    for version in range(3):
        (log / f"{version:020d}.json").unlink()  # as the clean-up of an old log leaves it
    moved = str(tmp_path / "cleaned")
    Path(path).rename(moved)
    for engine in engines:
        for version in range(4, latest + 1):
            assert rows(engine, moved, version) == expected[version], (engine.name, version)
        with pytest.raises(VersionNotFound, match=f"4 to {latest}"):
            rows(engine, moved, 2)
