"""Exports are byte-identical for equal rows, on both engines.

On either engine, from any number of partitions, with any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.model.manifest import MissingLabels
from featurestore.retrieval import FeatureFrame
from featurestore.training.dataset import TrainingDataset
from featurestore_connectors.duckdb_delta import DuckDBEngine

ROWS = 1500
# Layouts: fixed width, with room for lists, with an offset index, compressed,
# row groups, row groups by number, text.
WAYS = {
    "tfrecord": {"data_format": "tfrecord"},
    "lists": {"data_format": "tfrecord", "max_lengths": {"many": 3}},
    "variable": {"data_format": "tfrecord"},
    "gzip": {"data_format": "tfrecord", "compression": "GZIP"},
    "parquet": {"data_format": "parquet"},
    "petastorm": {"data_format": "petastorm"},
    "csv": {"data_format": "csv"},
}
PARTITIONS = (1, 2, 7)
# Every format from most partition counts, and one format from few partitions; the
# other pairs take minutes.
SHORT = {
    ("tfrecord", 2),
    ("tfrecord", 7),
    ("lists", 7),
    ("variable", 7),
    ("petastorm", 7),
    ("csv", 7),
}


def marks_of(way: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.petastorm] if way == "petastorm" else []


PAIRS = [
    pytest.param(
        way,
        partitions,
        marks=[*marks_of(way), *([] if (way, partitions) in SHORT else [pytest.mark.soak])],
    )
    for way in WAYS
    for partitions in PARTITIONS
]
WITH_LISTS = ("lists", "variable")


def table(*, ragged: bool = False) -> pa.Table:
    """Return rows of many types with nulls, NaN, negative zeros and duplicate keys."""
    rng = np.random.default_rng(11)
    floats = rng.normal(size=ROWS)
    floats[::50], floats[1::50], floats[2::50] = np.nan, -0.0, 0.0
    start = datetime(2024, 1, 1, tzinfo=UTC)
    columns = {
        "user": pa.array(rng.integers(0, 200, ROWS)),
        "at": pa.array(
            [start + timedelta(minutes=int(n) % 50) for n in range(ROWS)], pa.timestamp("us", "UTC")
        ),
        "small": pa.array(rng.integers(0, 255, ROWS), pa.uint8()),
        "n": pa.array(rng.integers(-(2**40), 2**40, ROWS), mask=rng.random(ROWS) < 0.1),
        "x": pa.array(floats.astype(np.float32)),
        "d": pa.array(floats, mask=rng.random(ROWS) < 0.1),
        "word": pa.array([None if n % 11 == 0 else f"wörd {n % 7:04d}" for n in range(ROWS)]),
        "flag": pa.array(rng.random(ROWS) < 0.5, mask=rng.random(ROWS) < 0.1),
        "vector": pa.array(
            rng.normal(size=(ROWS, 3)).astype(np.float32).tolist(), pa.list_(pa.float32(), 3)
        ),
        "label": pa.array((rng.random(ROWS) < 0.2).astype(np.int64)),
    }
    if ragged:
        columns["many"] = pa.array([list(range(n % 4)) for n in range(ROWS)], pa.list_(pa.int64()))
    return pa.table(columns)


def export(store: FeatureStore, data: object, name: str, **arguments: Any) -> TrainingDataset:
    dataset = store.create_training_dataset(
        data,
        name,
        label="label",
        key=["user", "at"],
        splits={"train": 0.75, "test": 0.25},
        stratify="label" if arguments["data_format"] == "csv" else None,
        seed=4,
        shards=3,
        statistics=False,
        **arguments,
    )
    assert dataset.num_rows("train") + dataset.num_rows("test") == ROWS
    return dataset


def hashes(dataset: TrainingDataset) -> dict[str, str]:
    result = {}
    for split in dataset.manifest.splits:
        for shard in split.shards:
            result[shard.path] = shard.sha256
            result |= {side.path: side.sha256 for side in shard.sidecars}
    return result | {file.path: file.sha256 for file in dataset.manifest.files}


def in_partitions(store: FeatureStore, rows: pa.Table, partitions: int) -> FeatureFrame:
    """Return rows of a Spark store, shuffled over a number of partitions."""
    engine = store.session.engine
    shuffled = rows.take(pa.array(np.random.default_rng(partitions).permutation(rows.num_rows)))
    inputs = engine.from_arrow(
        pa.RecordBatchReader.from_batches(shuffled.schema, shuffled.to_batches())
    )
    spread = replace(inputs, native=inputs.native.repartition(partitions, "n"))
    assert spread.native.rdd.getNumPartitions() == partitions
    return FeatureFrame(store.session, spread)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    with featurestore.connect(
        tmp_path_factory.mktemp("embedded") / "store", engine="duckdb"
    ) as store:
        yield store


@pytest.fixture
def expected(embedded: FeatureStore, way: str) -> TrainingDataset:
    """The dataset of the embedded engine."""
    if any(way == dataset.name for dataset in embedded.get_training_datasets()):
        return embedded.get_training_dataset(way)
    return export(embedded, table(ragged=way in WITH_LISTS), way, **WAYS[way])


@pytest.fixture(scope="module")
def cluster(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    with featurestore.connect(tmp_path_factory.mktemp("spark") / "store", engine="spark") as store:
        yield store


@pytest.mark.spark
@pytest.mark.parametrize(("way", "partitions"), PAIRS)
def test_spark_export_equals_duckdb_bytes_for_any_partitions(
    way: str, partitions: int, expected: TrainingDataset, cluster: FeatureStore
) -> None:
    frame = in_partitions(cluster, table(ragged=way in WITH_LISTS), partitions)
    dataset = export(cluster, frame, f"{way}_{partitions}", **WAYS[way])
    assert hashes(dataset) == hashes(expected)
    assert dataset.manifest.content_hash == expected.manifest.content_hash
    assert dataset.manifest.layout.get("kind") == {
        "tfrecord": "fixed",
        "lists": "fixed",
        "variable": "variable",
        "gzip": "fixed",
    }.get(way)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("way", [pytest.param(way, marks=marks_of(way)) for way in WAYS])
def test_export_bytes_independent_of_threads_and_input_order(
    way: str, threads: int, expected: TrainingDataset, tmp_path: Path
) -> None:
    rows = table(ragged=way in WITH_LISTS)
    shuffled = rows.take(pa.array(np.random.default_rng(threads).permutation(ROWS)))
    with featurestore.connect(tmp_path / "store", engine=DuckDBEngine(threads=threads)) as store:
        dataset = export(store, shuffled, "d", **WAYS[way])
    assert hashes(dataset) == hashes(expected)
    assert dataset.manifest.content_hash == expected.manifest.content_hash


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:the label 'number':featurestore.errors.DataWarning")
def test_spark_handles_missing_labels_as_duckdb(
    embedded: FeatureStore, cluster: FeatureStore, subtests: Any
) -> None:
    rows = table()
    texts = [("null", "NaN", None, "a")[n % 4] for n in range(ROWS)]
    numbers = [(-0.0, 0.0, None, 1.5, float("nan"))[n % 5] for n in range(ROWS)]
    rows = rows.append_column("text", pa.array(texts)).append_column("number", pa.array(numbers))
    shuffled = in_partitions(cluster, rows, 7)
    for data_format in ("tfrecord", "csv"):
        for policy in ("drop", "weight_zero"):
            with subtests.test(data_format=data_format, policy=policy):
                arguments = {
                    "label": ["text", "number"],
                    "key": ["user", "at"],
                    "splits": {"train": 0.75, "test": 0.25},
                    "shards": 3,
                    "statistics": False,
                    "data_format": data_format,
                    "missing_labels": policy,
                }
                name = f"missing_{policy}_{data_format}"
                expected = embedded.create_training_dataset(rows, name, **arguments)
                dataset = cluster.create_training_dataset(shuffled, name, **arguments)
                assert hashes(dataset) == hashes(expected)
                assert dataset.manifest.content_hash == expected.manifest.content_hash
                missing = sum(
                    text is None or number is None
                    for text, number in zip(texts, numbers, strict=True)
                )
                assert dataset.manifest.missing_labels == MissingLabels(policy, missing)
                assert expected.manifest.missing_labels == MissingLabels(policy, missing)
                for split in dataset.manifest.splits:
                    assert set(split.label_counts["text"]) == {"null", "NaN", "a"}
                    assert set(split.label_counts["number"]) == {"0.0", "1.5", "nan"}


@pytest.mark.spark
def test_engines_recompute_datasets_of_each_other(spark: Any, tmp_path: Path) -> None:
    location = tmp_path / "store"
    rows = table(ragged=True)
    with (
        featurestore.connect(location, engine="duckdb") as embedded,
        featurestore.connect(location, engine="spark") as spark_store,
    ):
        embedded.create_featuregroup(
            rows.select(["user", "at", "label"]).slice(0, 0), "events", validation="off"
        )
        for start in range(0, ROWS, ROWS // 7 + 1):  # one file of the table each
            batch = rows.select(["user", "at", "label"]).slice(start, ROWS // 7 + 1)
            embedded.insert_into_featuregroup(batch, "events", validation="off")
        facts = rows.slice(0, 200).select(["user", "at", "x", "n", "vector", "many"])
        embedded.create_featuregroup(
            facts, "facts", primary_key="user", event_time="at", validation="off"
        )
        datasets = []
        for store in (embedded, spark_store):
            frame = store.get_features(
                ["facts.x", "facts.n", "facts.vector", "facts.many"],
                labels="events",
                label_time="at",
            )
            lengths = {"many": 3}
            datasets.append(
                store.create_training_dataset(
                    frame, "d", label="label", shards=3, statistics=False, max_lengths=lengths
                )
            )
        assert datasets[0].manifest.layout["kind"] == "fixed"
        assert datasets[0].manifest.content_hash == datasets[1].manifest.content_hash
        assert datasets[0].manifest.plan_hash == datasets[1].manifest.plan_hash
        for store, version in ((embedded, 2), (spark_store, 1)):
            report = store.get_training_dataset("d", version=version).verify(recompute=True)
            assert report.ok, str(report)
