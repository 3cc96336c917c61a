"""Training datasets of a store: listed, healed, tagged, pinned."""

from __future__ import annotations

import os
from collections.abc import Callable

import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.errors import InvalidArgument, PinnedByTrainingDataset, TrainingDatasetNotFound
from featurestore.registry import tags, training_datasets
from featurestore.registry.training_datasets import KIND
from featurestore.training.catalog import clean_all
from featurestore.training.claim import claim_version

Example = Callable[..., pa.Table]


def test_a_finished_dataset_that_was_not_registered_is_found_again(
    duckdb_store: FeatureStore, example: Example
) -> None:
    made = duckdb_store.create_training_dataset(example(50), "d", key=["at"], tags={"team": "risk"})
    registry = duckdb_store.session.registry
    with registry.transaction() as connection:
        training_datasets.remove(connection, "d", 1)
    assert duckdb_store.get_training_dataset("d").manifest == made.manifest
    assert [each.name for each in duckdb_store.get_training_datasets()] == ["d"]
    with registry.reading() as connection:
        assert tags.of(connection, KIND, "d", 1) == {"team": "risk"}


def test_unknown_datasets_are_refused_with_what_there_is(
    duckdb_store: FeatureStore, example: Example
) -> None:
    duckdb_store.create_training_dataset(example(20), "known", key=["at"])
    with pytest.raises(TrainingDatasetNotFound, match="known"):
        duckdb_store.get_training_dataset("unknown")
    with pytest.raises(TrainingDatasetNotFound, match="1"):
        duckdb_store.get_training_dataset("known", version=3)


def test_clean_removes_what_killed_exports_left_and_nothing_else(
    duckdb_store: FeatureStore, example: Example
) -> None:
    made = duckdb_store.create_training_dataset(example(20), "d", key=["at"])
    parent = made.path.rsplit("/", 1)[0]
    running = claim_version(parent, None)
    dead = claim_version(parent, None)
    dead_directory = dead.directory

    os.close(dead.handle)  # as the operating system does when a process dies
    assert clean_all(duckdb_store.session) == [dead_directory]
    assert os.path.isdir(running.directory)
    assert made.verify().ok
    running.release(keep=False)


def test_a_group_that_a_dataset_pins_is_not_deleted(
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
def test_petastorms_own_reader_gives_each_worker_its_share(
    duckdb_store: FeatureStore, example: Example
) -> None:
    made = duckdb_store.create_training_dataset(
        example(1000), "p", data_format="petastorm", key=["at"], shards=2
    )
    rows = []
    for worker in range(2):
        with made.petastorm_reader("train", worker=worker, workers=2) as reader:
            mine = [value for batch in reader for value in batch.x.tolist()]
        assert abs(len(mine) - 500) <= 16
        rows += mine
    assert len(rows) == 1000
    other = duckdb_store.create_training_dataset(example(20), "t", key=["at"])
    with pytest.raises(InvalidArgument, match="petastorm"):
        other.petastorm_reader("train")
