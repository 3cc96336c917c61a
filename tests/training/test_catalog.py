"""Training datasets of a store: lists, repair, tags and pins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.errors import InvalidArgument, PinnedByTrainingDataset, TrainingDatasetNotFound
from featurestore.recovery import liveness
from featurestore.recovery.datasets import DATASETS
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import artifacts, intents
from featurestore.registry.training_datasets import KIND
from featurestore.training.catalog import clean_all
from tests.flights import planes

Example = Callable[..., pa.Table]


def test_unregistered_finished_dataset_is_recovered(flights_copy: FeatureStore) -> None:
    dataset = flights_copy.get_training_dataset("late_flights")
    registry = flights_copy.session.registry
    with registry.transaction() as connection:
        DATASETS.unregister(connection, "late_flights", 1)
    leave_dead(flights_copy, "export", 1)
    again = featurestore.connect(flights_copy.location)
    assert again.get_training_dataset("late_flights").manifest == dataset.manifest
    assert [dataset.name for dataset in again.get_training_datasets()] == ["late_flights"]
    with registry.reading() as connection:
        assert artifacts.tags_of(connection, KIND, "late_flights", 1) == {"team": "sky"}


def leave_dead(store: FeatureStore, operation: str, version: int) -> None:
    """Record the intent of a dead process of this machine."""
    owner = liveness.owner_of_this_process(store.location)
    dead = f"{owner.rpartition('.')[0]}.00000000"
    with store.session.registry.transaction() as connection:
        intents.begin(
            connection,
            run_id=f"run{version}",
            kind=operation,
            name="late_flights",
            version=version,
            owner=dead,
        )


def test_get_training_dataset_unknown_raises_with_alternatives(flights_store: FeatureStore) -> None:
    with pytest.raises(TrainingDatasetNotFound, match="late_flights"):
        flights_store.get_training_dataset("unknown")
    with pytest.raises(TrainingDatasetNotFound, match="1"):
        flights_store.get_training_dataset("late_flights", version=3)


def test_clean_removes_only_leftovers_of_killed_exports(flights_copy: FeatureStore) -> None:
    dataset = flights_copy.get_training_dataset("late_flights")
    session = flights_copy.session
    dead = Path(session.training_dataset_path("late_flights", 7))
    dead.mkdir()
    leave_dead(flights_copy, "export", 7)
    unknown = Path(session.training_dataset_path("late_flights", 8))
    unknown.mkdir()
    with in_flight(session, operation="export", name="late_flights", version=9) as running:
        unknown.mkdir(exist_ok=True)
        dead.mkdir(exist_ok=True)
        assert clean_all(session) == [
            "export of late_flights version 7: removed, because it had no manifest yet",
            str(unknown),
        ]
        running_path = session.training_dataset_path("late_flights", running.version)
        assert Path(running_path).is_dir()
        assert dataset.verify().ok


def test_killed_dataset_deletion_is_completed(flights_copy: FeatureStore) -> None:
    dataset = flights_copy.get_training_dataset("late_flights")
    leave_dead(flights_copy, "remove", 1)
    again = featurestore.connect(flights_copy.location)
    assert again.get_training_datasets() == []
    assert not Path(dataset.path).exists()


def test_delete_featuregroup_pinned_by_dataset_raises(flights_copy: FeatureStore) -> None:
    flights_copy.delete_feature_view("late_flights", version=1)
    flights_copy.insert_into_featuregroup(planes().slice(0, 1), "planes", mode="overwrite")
    flights_copy.vacuum_featuregroup("planes", retain="0s")
    dataset = flights_copy.get_training_dataset("late_flights")
    assert dataset.verify(recompute=True).ok, "vacuum keeps what a dataset pins"
    with pytest.raises(PinnedByTrainingDataset):
        flights_copy.delete_featuregroup("planes", version=1)
    flights_copy.delete_training_dataset("late_flights", version=1)
    flights_copy.delete_featuregroup("planes", version=1)


@pytest.mark.filterwarnings("ignore")  # petastorm uses what pyarrow has deprecated
def test_petastorm_reader_divides_rows_between_workers(
    empty_store: FeatureStore, example: Example
) -> None:
    dataset = empty_store.create_training_dataset(
        example(1000), "p", data_format="petastorm", key=["at"], shards=2
    )
    rows = []
    for worker in range(2):
        with dataset.petastorm_reader("train", worker=worker, workers=2) as reader:
            values = [value for batch in reader for value in batch.x.tolist()]
        assert abs(len(values) - 500) <= 16
        rows += values
    assert len(rows) == 1000
    tfrecord_dataset = empty_store.create_training_dataset(example(20), "t", key=["at"])
    with pytest.raises(InvalidArgument, match="petastorm"):
        tfrecord_dataset.petastorm_reader("train")
