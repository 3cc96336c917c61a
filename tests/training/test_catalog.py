"""Training datasets of a store: lists, repair, tags and pins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.errors import InvalidArgument, PinnedByTrainingDataset, TrainingDatasetNotFound
from featurestore.recovery import datasets, liveness
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import artifacts, intents
from featurestore.registry.training_datasets import KIND
from featurestore.training.catalog import clean_all

Example = Callable[..., pa.Table]


def test_unregistered_finished_dataset_is_recovered(
    duckdb_store: FeatureStore, example: Example
) -> None:
    dataset = duckdb_store.create_training_dataset(
        example(50), "d", key=["at"], tags={"team": "risk"}
    )
    registry = duckdb_store.session.registry
    with registry.transaction() as connection:
        datasets.unregister(connection, "d", 1)
    leave_dead(duckdb_store, "export", 1)
    again = featurestore.connect(duckdb_store.location)
    assert again.get_training_dataset("d").manifest == dataset.manifest
    assert [dataset.name for dataset in again.get_training_datasets()] == ["d"]
    with registry.reading() as connection:
        assert artifacts.tags_of(connection, KIND, "d", 1) == {"team": "risk"}


def leave_dead(store: FeatureStore, operation: str, version: int) -> None:
    """Record the intent of a dead process of this machine."""
    owner = liveness.owner_of_this_process(store.location)
    dead = f"{owner.rpartition('.')[0]}.00000000"
    with store.session.registry.transaction() as connection:
        intents.begin(
            connection,
            run_id=f"run{version}",
            kind=operation,
            name="d",
            version=version,
            owner=dead,
        )


def test_get_training_dataset_unknown_raises_with_alternatives(
    duckdb_store: FeatureStore, example: Example
) -> None:
    duckdb_store.create_training_dataset(example(20), "known", key=["at"])
    with pytest.raises(TrainingDatasetNotFound, match="known"):
        duckdb_store.get_training_dataset("unknown")
    with pytest.raises(TrainingDatasetNotFound, match="1"):
        duckdb_store.get_training_dataset("known", version=3)


def test_clean_removes_only_leftovers_of_killed_exports(
    duckdb_store: FeatureStore, example: Example
) -> None:
    dataset = duckdb_store.create_training_dataset(example(20), "d", key=["at"])
    session = duckdb_store.session
    dead = Path(session.training_dataset_path("d", 7))
    dead.mkdir()
    leave_dead(duckdb_store, "export", 7)
    unknown = Path(session.training_dataset_path("d", 8))
    unknown.mkdir()
    with in_flight(session, kind="export", name="d", version=9) as running:
        unknown.mkdir(exist_ok=True)
        dead.mkdir(exist_ok=True)
        assert clean_all(session) == [
            "export of d version 7: removed, because it had no manifest yet",
            str(unknown),
        ]
        assert Path(session.training_dataset_path("d", running.version)).is_dir()
        assert dataset.verify().ok


def test_killed_dataset_deletion_is_completed(duckdb_store: FeatureStore, example: Example) -> None:
    dataset = duckdb_store.create_training_dataset(example(20), "d", key=["at"])
    leave_dead(duckdb_store, "remove", 1)
    again = featurestore.connect(duckdb_store.location)
    assert again.get_training_datasets() == []
    assert not Path(dataset.path).exists()


def test_delete_featuregroup_pinned_by_dataset_raises(
    duckdb_store: FeatureStore, example: Example
) -> None:
    duckdb_store.create_featuregroup(example(50), "facts", primary_key=["user", "at"])
    dataset = duckdb_store.create_training_dataset(
        duckdb_store.get_featuregroup("facts"), "d", label="label"
    )
    duckdb_store.insert_into_featuregroup(example(20, seed=9), "facts", mode="overwrite")
    duckdb_store.vacuum_featuregroup("facts", retain="0s")
    assert dataset.verify(recompute=True).ok, "vacuum keeps what a dataset pins"
    with pytest.raises(PinnedByTrainingDataset):
        duckdb_store.delete_featuregroup("facts", version=1)
    duckdb_store.delete_training_dataset("d", version=1)
    duckdb_store.delete_featuregroup("facts", version=1)


@pytest.mark.filterwarnings("ignore")  # petastorm uses what pyarrow has deprecated
def test_petastorm_reader_divides_rows_between_workers(
    duckdb_store: FeatureStore, example: Example
) -> None:
    dataset = duckdb_store.create_training_dataset(
        example(1000), "p", data_format="petastorm", key=["at"], shards=2
    )
    rows = []
    for worker in range(2):
        with dataset.petastorm_reader("train", worker=worker, workers=2) as reader:
            values = [value for batch in reader for value in batch.x.tolist()]
        assert abs(len(values) - 500) <= 16
        rows += values
    assert len(rows) == 1000
    tfrecord_dataset = duckdb_store.create_training_dataset(example(20), "t", key=["at"])
    with pytest.raises(InvalidArgument, match="petastorm"):
        tfrecord_dataset.petastorm_reader("train")
