"""Rows hashed, counted and assigned in the JVM equal Python bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.hashing import row_hash, tie_hash
from featurestore.training.export import shard_plan, split_statistics
from featurestore.training.export.boundaries import (
    GROUP,
    HASH,
    HashSumAccumulator,
    HistogramAccumulator,
    to_sortable,
)
from featurestore.training.export.profiles import ProfileAccumulator
from tests.on_spark import on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from featurestore.store import FeatureStore

ROWS = 500
SEED = 12345


def nullable(values: list[Any], dtype: pa.DataType | None = None) -> pa.Array:
    """Return an array with null in every seventh position."""
    for index in range(3, len(values), 7):
        values[index] = None
    return pa.array(values, dtype)


def every_type() -> pa.Table:
    random = np.random.default_rng(SEED)
    columns = {}
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
    for dtype in integers:
        bounds = np.iinfo(dtype.to_pandas_dtype())
        drawn = random.integers(bounds.min, bounds.max, ROWS, endpoint=True, dtype=bounds.dtype)
        columns[str(dtype)] = nullable(drawn.tolist(), dtype)
    numbers = random.standard_normal(ROWS)
    numbers[:6] = [0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324]
    columns["f.64"] = nullable(numbers.tolist())
    floats = numbers.astype(np.float32)
    floats[6:8] = np.array([0x7FA00001, 0xFFC00002], np.uint32).view(np.float32)  # NaN, too
    columns["float32"] = pa.array(floats)
    columns["bool"] = nullable((numbers > 0).tolist())
    columns["te`xt"] = nullable(["é€x" * (index % 11) + str(index % 3) for index in range(ROWS)])
    columns["bytes"] = nullable([random.bytes(index % 30) for index in range(ROWS)])
    days = random.integers(-100_000, 100_000, ROWS).astype(np.int32)
    columns["date"] = pa.array(days).view(pa.date32())
    micros = pa.array(random.integers(-(10**15), 10**16, ROWS))
    columns["time"] = micros.cast(pa.timestamp("us", tz="UTC"))
    return pa.table(columns)


def test_jvm_row_hashes_equal_python(
    spark: SparkSession,
) -> None:
    from featurestore_connectors.spark_delta import SparkEngine, row_hashes

    rows = every_type()
    engine = SparkEngine(spark)
    driver_relation = engine.from_arrow(rows.to_reader())
    inputs = on_executors(driver_relation)
    key = rows.schema.names
    hashed = engine.with_row_hash(inputs, key, seed=SEED, name=HASH)
    assert hashed is not None
    actual = engine.stream(hashed).read_all()[HASH].to_numpy()
    assert np.array_equal(actual, to_sortable(row_hash(rows, columns=key, seed=SEED)))
    starts = [-(2**62), -5, 2**62]
    grouped = engine.with_range_number(
        hashed, HASH, starts=starts, numbers=[3, 0, 7, 1], name=GROUP
    )
    counts = engine.count_hashes(grouped, hashes=HASH, group=GROUP, columns=key)
    assert counts is not None
    assert counts.profiles == engine.aggregate(inputs, ProfileAccumulator(tuple(key)))
    histograms = engine.aggregate(grouped, HistogramAccumulator(counts.bits))
    assert {group: histogram.tolist() for group, histogram in counts.histograms.items()} == {
        group: histogram.tolist() for group, histogram in histograms.items()
    }
    assert set(histograms) == {3, 0, 7, 1}
    assert counts.hash_sums == engine.aggregate(grouped, HashSumAccumulator())
    tied = row_hashes.with_tie_hash(inputs, name="tie")
    assert tied is not None
    actual = engine.stream(tied).read_all()["tie"].to_numpy()
    assert np.array_equal(actual, to_sortable(tie_hash(rows)))
    lists = on_executors(engine.from_arrow(pa.table({"l": [[1], [2]]}).to_reader()))
    assert engine.with_row_hash(lists, ["l"], seed=0, name=HASH) is None
    assert row_hashes.with_tie_hash(lists, name="tie") is None
    assert engine.with_row_hash(driver_relation, key, seed=SEED, name=HASH) is None


def test_sql_functions_equal_python(spark: SparkSession) -> None:
    """SQL calls the functions by name, also in a session without the extension."""
    from pyspark.errors import PySparkException

    from featurestore_connectors.spark_delta import SparkEngine, row_hashes

    rows = every_type().select(["int64", "float32", "te`xt", "time"]).rename_columns(list("abcd"))
    session = spark.newSession()
    registry = session._jsparkSession.sessionState().functionRegistry()
    # Identifiers have other parts in each version of Spark.
    functions = registry.listFunction()
    identifiers = [functions.apply(index) for index in range(functions.size())]
    own_identifiers = [
        identifier
        for identifier in identifiers
        if identifier.funcName().startswith("featurestore_")
    ]
    assert own_identifiers
    assert all(registry.dropFunction(identifier) for identifier in own_identifiers)
    assert row_hashes.has_functions(session)
    frame = SparkEngine(session).from_arrow(rows.to_reader()).native
    hashes = frame.selectExpr(
        f"featurestore_row_hash({SEED}, a, b, c, d)",
        "featurestore_tie_hash('a', a, 'b', b, 'c', c, 'd', d)",
    )
    expected = [row_hash(rows, seed=SEED), tie_hash(rows)]
    for values, words in zip(zip(*hashes.collect(), strict=True), expected, strict=True):
        assert list(values) == to_sortable(words).tolist()
    with pytest.raises(PySparkException, match="DECIMAL"):
        frame.selectExpr("featurestore_row_hash(0, CAST(a AS DECIMAL(30, 2)))").collect()
    with pytest.raises(PySparkException, match="featurestore-tfrecord requires the option id"):
        frame.write.format("featurestore-tfrecord").mode("append").save()


def test_jvm_export_equals_python_and_duckdb(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one group, joined rows, and many rows with the same key."""
    from featurestore_connectors.spark_delta import row_hashes, shards

    rows = every_type().append_column("id", pa.array(np.arange(ROWS)))
    words = pa.array(["né" * (index * index % 97) for index in range(ROWS)])
    group = rows.drop(["f.64", "te`xt"]).append_column("words", words)
    with featurestore.connect(tmp_path, engine="duckdb") as store:
        store.create_featuregroup(group, "g", primary_key="id")
    labels = rows.select(["id", "bool"]).rename_columns(["id", "y"]).slice(100)
    labels = labels.append_column("pair", pa.array(np.arange(len(labels)) // 7))
    monkeypatch.setattr(split_statistics, "_MIN_SHARD_ROWS", 0)
    by_engine = _calls_of(row_hashes, "with_range_number", monkeypatch)
    by_jvm = _calls_of(shards, "write_in_jvm", monkeypatch)

    def export(store: FeatureStore, name: str) -> None:
        joined = store.get_features(["g.float32", "g.bytes"], labels=labels)
        splits = {"train": 0.7, "test": 0.3}
        datasets = {
            "one": store.create_training_dataset(
                store.get_featuregroup("g"), f"one_{name}", splits=splits, shards=3, label="date"
            ),
            "joined": store.create_training_dataset(
                joined, f"joined_{name}", splits=splits, shards=3
            ),
            "tied": store.create_training_dataset(
                joined, f"tied_{name}", splits=splits, shards=1, key="pair", label="float32"
            ),
        }
        for rows_of, dataset in datasets.items():
            manifest = dataset.manifest.to_json()
            shards = sorted(Path(dataset.path).glob("t*/*"))
            contents[name, rows_of] = [
                [(path.name, path.read_bytes()) for path in shards],
                [manifest[field] for field in ("splits", "layout", "prefixes")],
                [dataset.statistics(split).to_json()["columns"] for split in dataset.splits],
            ]

    contents: dict[tuple[str, str], Any] = {}
    with featurestore.connect(tmp_path, engine="duckdb") as store:
        export(store, "embedded")
    with featurestore.connect(tmp_path, engine="spark") as store:
        export(store, "jvm")
        before = len(by_engine)
        assert (len(by_jvm), before > 6) == (3, True)
        monkeypatch.setattr(row_hashes, "has_functions", lambda session: False)
        passes: list[object] = []
        monkeypatch.setattr(split_statistics, "count_splits", passes.append)
        export(store, "python")
        assert (len(by_jvm), len(by_engine), passes) == (3, before, [])
    assert contents["embedded", "one"][1][1]["kind"] == "variable"
    assert contents["embedded", "tied"][1][1]["kind"] == "fixed"
    for rows_of in ("one", "joined", "tied"):
        for name in ("jvm", "python"):
            assert contents[name, rows_of] == contents["embedded", rows_of], (name, rows_of)


def test_many_hash_boundaries_give_equal_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bins of 31 rows, a quarter of which may be fetched, are divided again."""
    from featurestore_connectors.spark_delta import row_hashes

    numbers = np.arange(ROWS)
    rows = pa.table({"id": numbers, "pair": numbers // 7, "word": (numbers % 3).astype(str)})
    with featurestore.connect(tmp_path, engine="duckdb") as store:
        store.create_featuregroup(rows, "g", primary_key="id")
    names = [(shard_plan, "_BITS"), (shard_plan, "_CLASS_BITS"), (row_hashes, "_BITS")]
    for module, name in names:
        monkeypatch.setattr(module, name, 4)
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()  # type: ignore[attr-defined]
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "tied": {"key": "pair", "split_by": "id"},
        "classes": {"stratify": "word", "key": "pair"},
    }
    contents: dict[tuple[str, str], Any] = {}
    jobs: dict[tuple[str, str], int] = {}

    def export(engine: str, variant: str, *names: str) -> None:
        with featurestore.connect(tmp_path, engine=engine) as store:
            for name in names:
                before = scheduler.numTotalJobs()
                dataset = store.create_training_dataset(
                    store.get_featuregroup("g"),
                    f"{name}_{variant}",
                    splits={"train": 0.7, "test": 0.3},
                    shards=3,
                    statistics=False,
                    **options[name],
                )
                jobs[variant, name] = scheduler.numTotalJobs() - before
                shards = sorted(Path(dataset.path).glob("t*/*"))
                contents[variant, name] = [(path.name, path.read_bytes()) for path in shards]

    export("duckdb", "embedded", *options)
    export("spark", "jvm", "plain")
    monkeypatch.setattr(shard_plan, "MAX_COUNTS", 32)
    export("duckdb", "refined", *options)
    export("spark", "refined_jvm", *options)
    monkeypatch.setattr(row_hashes, "has_functions", lambda session: False)
    export("spark", "refined_python", "plain")
    for variant, name in contents:
        assert contents[variant, name] == contents["embedded", name], (variant, name)
    assert jobs["jvm", "plain"] == 3
    assert jobs["refined_jvm", "plain"] == 4
    # Python counts these few rows; only range counts and shard writes are Spark jobs.
    assert jobs["refined_python", "plain"] == 2


def _calls_of(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the calls of a function."""
    plain, calls = getattr(module, name), []

    def noting(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        return plain(*arguments, **keywords)

    monkeypatch.setattr(module, name, noting)
    return calls
