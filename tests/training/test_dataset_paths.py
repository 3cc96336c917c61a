"""Paths for other programs, printed summaries, and dataframe schemas."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from featurestore.errors import DatasetDamaged, InvalidArgument, InvalidSplit
from featurestore.recovery.rebuild import rebuild
from featurestore.storage import revisions
from featurestore.storage.manifests import ANNOTATIONS_FILE
from featurestore.training.dataset import TrainingDataset
from tests.flights import planes

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

SPLITS = {"train": 0.75, "test": 0.25}


def rows(count: int = 100) -> list[dict[str, Any]]:
    return [{"id": n, "x": float(n % 7)} for n in range(count)]


def export(store: FeatureStore, **options: Any) -> TrainingDataset:
    return store.create_training_dataset(rows(), "d", progress=False, key="id", **options)


def test_path_of_split_is_readable_by_pyarrow(empty_store: FeatureStore) -> None:
    dataset = export(empty_store, data_format="parquet", splits=SPLITS)
    for split in dataset.splits:
        read = pq.read_table(dataset.path_of(split))
        assert read.num_rows == dataset.num_rows(split)
        assert len(list(Path(dataset.path_of(split)).glob("*.parquet"))) > 0
        assert dataset.url_of(split) == f"file://{dataset.path_of(split)}"
    with pytest.raises(InvalidSplit, match="'train', 'test'"):
        dataset.path_of("valid")


@pytest.mark.petastorm
@pytest.mark.filterwarnings("ignore")
def test_petastorm_opens_url_of_split_but_not_parent_directory(empty_store: FeatureStore) -> None:
    petastorm = pytest.importorskip("petastorm")
    dataset = export(empty_store, data_format="petastorm")
    with petastorm.make_reader(
        dataset.url_of("train"), reader_pool_type="dummy", num_epochs=1
    ) as reader:
        assert sorted(row.id for row in reader) == list(range(100))
    # DuckDB and Spark expect no files above the directories with rows.
    with pytest.raises(ValueError, match="intermediate directory"):
        petastorm.make_reader(Path(dataset.path).as_uri(), reader_pool_type="dummy")


def test_missing_dataset_statistics_are_computed_on_demand(empty_store: FeatureStore) -> None:
    dataset = export(empty_store, splits=SPLITS)
    bare = export(empty_store, splits=SPLITS, statistics=False)
    assert not bare.manifest.statistics
    for split in bare.splits:
        actual, expected = bare.statistics(split), dataset.statistics(split)
        assert actual.rows == expected.rows == bare.num_rows(split)
        assert actual.column("x").mean == expected.column("x").mean
        assert actual.column("x").quantiles == expected.column("x").quantiles
    frame = empty_store.visualize_training_dataset_descriptive_stats("d", version=2)
    assert "x" in frame.index


def test_tags_and_descriptions_are_editable_after_export(flights_copy: FeatureStore) -> None:
    dataset = flights_copy.get_training_dataset("late_flights")
    manifest = Path(dataset.path, "manifest.json").read_bytes()
    assert (dataset.description, dataset.tags) == ("Departures of one day", {"team": "sky"})
    flights_copy.add_training_dataset_tag("late_flights", "owner", "ops")
    flights_copy.remove_training_dataset_tag("late_flights", "team")
    flights_copy.update_training_dataset("late_flights", description="second")
    assert flights_copy.get_training_dataset_tags("late_flights") == {"owner": "ops"}
    assert (dataset.description, dataset.tags) == ("second", {"owner": "ops"})
    reopened_dataset = TrainingDataset.open(dataset.path)
    assert (reopened_dataset.description, reopened_dataset.tags) == ("second", {"owner": "ops"})
    assert Path(dataset.path, "manifest.json").read_bytes() == manifest
    assert dataset.verify().ok
    with pytest.raises(InvalidArgument, match=r"no tag 'team'\. Available: 'owner'"):
        flights_copy.remove_training_dataset_tag("late_flights", "team")
    with pytest.raises(InvalidArgument, match="not a pair of strings"):
        flights_copy.add_training_dataset_tag("late_flights", "owner", 1)  # type: ignore[arg-type]


def test_rebuilt_registry_restores_tags_and_descriptions(flights_copy: FeatureStore) -> None:
    from featurestore.registry import artifacts, training_datasets

    dataset = flights_copy.get_training_dataset("late_flights")
    flights_copy.add_training_dataset_tag("late_flights", "owner", "ops")
    flights_copy.update_training_dataset("late_flights", description="later")
    session = flights_copy.session
    with session.registry.transaction() as connection:
        training_datasets.remove(connection, "late_flights", 1)
    rebuild(session.location)
    with session.registry.reading() as connection:
        assert training_datasets.get(connection, "late_flights").description == "later"
        tags = artifacts.tags_of(connection, training_datasets.KIND, "late_flights", 1)
        assert tags == {"owner": "ops", "team": "sky"}
    *_, newest = revisions.paths(os.path.join(dataset.path, ANNOTATIONS_FILE))
    Path(newest).write_text('{"content": {"description": 1}, "changes": []}')
    with pytest.raises(DatasetDamaged, match=os.path.basename(newest)):
        _ = dataset.tags


def test_featuregroup_partitions_are_read_from_log(store: FeatureStore) -> None:
    days = [date(2024, 1, 2), date(2024, 1, 1), None]
    table = [{"day": days[n % 3], "zone": n % 2, "x": float(n)} for n in range(12)]
    store.create_featuregroup(table, "g", partition_by=["day", "zone"])
    actual = store.get_featuregroup_partitions("g")
    assert actual[0] == {"day": date(2024, 1, 1), "zone": 0}
    assert len(actual) == 6
    assert {partition["day"] for partition in actual} == set(days)
    store.delete_from_featuregroup("g", "day = '2024-01-01'")
    assert len(store.get_featuregroup_partitions("g")) == 4
    store.create_featuregroup(table, "h")
    assert store.get_featuregroup_partitions("h") == []


@pytest.mark.tensorflow
def test_record_schema_of_dataframe_equals_that_of_dataset(empty_store: FeatureStore) -> None:
    table = [
        {"id": n, "x": None if n == 3 else float(n), "word": "w" * n, "items": [1] * n}
        for n in range(5)
    ]
    table_of_vectors = np.arange(6.0).reshape(3, 2)
    for df in (table, table_of_vectors):
        dataset = empty_store.create_training_dataset(df, "d", progress=False)
        assert empty_store.get_dataframe_tf_record_schema(df) == dataset.tf_feature_spec()


def test_python_dataframe_type_returns_dicts(flights_store: FeatureStore) -> None:
    rows = flights_store.get_featuregroup("planes", dataframe_type="python")
    assert rows == planes().to_pylist()
