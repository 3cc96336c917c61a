"""Rows hashed, counted and assigned by Spark itself: as Python does it, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.hashing import row_hash
from featurestore.plugins.engine import Relation
from featurestore.training.export import pipeline, split_statistics
from featurestore.training.export.assignment import SHARD
from featurestore.training.export.boundaries import HashSumAccumulator, HistogramAccumulator
from featurestore.training.export.hash_columns import GROUP, HASH, to_sortable
from featurestore.training.export.profiles import ProfileAccumulator
from tests.on_spark import on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 500
SEED = 12345


def nullable(values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return an array in which every seventh value is null."""
    for index in range(3, len(values), 7):
        values[index] = None
    return pa.array(values, kind)


def every_type() -> pa.Table:
    random = np.random.default_rng(SEED)
    columns = {}
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
    for kind in integers:
        bounds = np.iinfo(kind.to_pandas_dtype())
        drawn = random.integers(bounds.min, bounds.max, ROWS, endpoint=True, dtype=bounds.dtype)
        columns[str(kind)] = nullable(drawn.tolist(), kind)
    numbers = random.standard_normal(ROWS)
    numbers[:6] = [0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324]
    columns["f.64"] = nullable(numbers.tolist())
    columns["float32"] = pa.array(numbers.astype(np.float32))
    columns["bool"] = nullable((numbers > 0).tolist())
    columns["te`xt"] = nullable(["é€x" * (index % 11) + str(index % 3) for index in range(ROWS)])
    columns["bytes"] = nullable([random.bytes(index % 30) for index in range(ROWS)])
    days = random.integers(-100_000, 100_000, ROWS).astype(np.int32)
    columns["date"] = pa.array(days).view(pa.date32())
    micros = pa.array(random.integers(-(10**15), 10**16, ROWS))
    columns["time"] = micros.cast(pa.timestamp("us", tz="UTC"))
    return pa.table(columns)


def test_functions_of_the_jvm_give_the_row_hash_and_the_counts_of_every_type(
    spark: SparkSession,
) -> None:
    from featurestore_connectors.spark_delta import SparkEngine

    rows = every_type()
    engine = SparkEngine(spark)
    held = engine.from_arrow(rows.to_reader())
    given = on_executors(held)
    key = rows.schema.names
    hashed = engine.with_row_hash(given, key, seed=SEED, name=HASH)
    assert hashed is not None
    found = engine.stream(hashed).read_all()[HASH].to_numpy()
    assert np.array_equal(found, to_sortable(row_hash(rows, columns=key, seed=SEED)))
    starts = [-(2**62), -5, 2**62]
    grouped = engine.with_range_number(
        hashed, HASH, starts=starts, numbers=[3, 0, 7, 1], name=GROUP
    )
    counts = engine.count_hashes(grouped, hashes=HASH, group=GROUP, columns=key)
    assert counts is not None
    assert counts.profiles == engine.aggregate(given, ProfileAccumulator(tuple(key)))
    histograms = engine.aggregate(grouped, HistogramAccumulator(counts.bits))
    assert {group: counted.tolist() for group, counted in counts.histograms.items()} == {
        group: counted.tolist() for group, counted in histograms.items()
    }
    assert set(histograms) == {3, 0, 7, 1}
    assert counts.hash_sums == engine.aggregate(grouped, HashSumAccumulator())
    lists = on_executors(engine.from_arrow(pa.table({"l": [[1], [2]]}).to_reader()))
    assert engine.with_row_hash(lists, ["l"], seed=0, name=HASH) is None
    assert engine.with_row_hash(held, key, seed=SEED, name=HASH) is None


def test_exports_that_spark_hashes_are_those_of_python_and_of_the_embedded_engine(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one group and joined ones; statistics are counted by the writers, in no other pass."""
    from featurestore_connectors.spark_delta import row_hashes

    rows = every_type().append_column("id", pa.array(np.arange(ROWS)))
    with featurestore.connect(tmp_path, engine="duckdb") as store:
        store.create_featuregroup(rows.drop(["f.64", "te`xt"]), "g", primary_key="id")
    labels = rows.select(["id", "bool"]).rename_columns(["id", "y"]).slice(100)
    monkeypatch.setattr(split_statistics, "_FEWEST_SHARD_ROWS", 0)
    passes: list[object] = []
    monkeypatch.setattr(pipeline, "count_splits", passes.append)
    by_engine: list[Relation] = []
    plain = row_hashes.with_range_number

    def with_shard(given: Relation, of: str, **ranges: Any) -> Relation:
        if ranges["name"] == SHARD:
            by_engine.append(given)
        return plain(given, of, **ranges)

    monkeypatch.setattr(row_hashes, "with_range_number", with_shard)
    written, statistics = {}, {}
    for name, engine in {"a": "duckdb", "b": "spark", "c": "spark"}.items():
        if name == "c":
            assert len(by_engine) == 2
            monkeypatch.setattr(row_hashes, "_has_functions", lambda session: False)
        with featurestore.connect(tmp_path, engine=engine) as store:
            joined = store.get_features(["g.float32", "g.bytes"], labels=labels)
            frames = {"one": store.get_featuregroup("g"), "joined": joined}
            if name == "c":
                del frames["one"]  # Python hashes both in the same way
            for rows_of, frame in frames.items():
                made = store.create_training_dataset(
                    frame, f"{rows_of}_{name}", splits={"train": 0.7, "test": 0.3}, shards=3
                )
                shards = sorted(Path(made.path).glob("t*/*"))
                written[name, rows_of] = [(path.name, path.read_bytes()) for path in shards]
                found = [made.statistics(split).to_json() for split in made.splits]
                statistics[name, rows_of] = [each["columns"] for each in found]
    for rows_of in ("one", "joined"):
        assert len(written["a", rows_of]) == 6
        assert written["a", rows_of] == written["b", rows_of]
        assert statistics["a", rows_of] == statistics["b", rows_of]
    assert written["a", "joined"] == written["c", "joined"]
    assert not passes
