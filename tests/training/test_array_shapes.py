"""Array shapes are kept from the group through every format to the model."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.types import array_shape

if TYPE_CHECKING:
    from featurestore.store import FeatureStore
    from featurestore.training import TrainingDataset

ROWS = 200
SHAPES = {"embedding": (3,), "image": (4, 6), "frame": (2, 3, 1), "flag": (2,)}
DTYPES = {"embedding": "f4", "image": "u1", "frame": "f4", "flag": "?"}


def cells(name: str) -> Any:
    values = np.arange(ROWS * int(np.prod(SHAPES[name]))).reshape(ROWS, *SHAPES[name])
    if DTYPES[name] == "?":
        return values % 3 == 0
    return (values % 251).astype(DTYPES[name])


COLUMNS = {name: cells(name) for name in SHAPES}


def create_dataset(store: FeatureStore, data_format: str, **options: Any) -> TrainingDataset:
    frame = pd.DataFrame({"id": range(ROWS), "label": [number % 2 for number in range(ROWS)]})
    for name, values in COLUMNS.items():
        frame[name] = list(values)
    store.create_featuregroup(frame, "pictures", primary_key="id")
    features = store.get_features(
        [f"pictures.{name}" for name in (*SHAPES, "label")], include_keys=True
    )
    return store.create_training_dataset(
        features, "pictures", label="label", key="id", data_format=data_format, **options
    )


@pytest.mark.parametrize("data_format", ["tfrecord", "petastorm", "parquet", "csv"])
def test_array_shapes_preserved_in_every_format(
    empty_store: FeatureStore, data_format: str
) -> None:
    dataset = create_dataset(empty_store, data_format)
    kinds = {column.name: type_from_json(column.type) for column in dataset.manifest.columns}
    assert {name: array_shape(kinds[name]) for name in SHAPES} == SHAPES
    names = ["id", *SHAPES]
    ids = []
    for batch in dataset.reader("train", global_batch_size=20, columns=names).batches():
        for name, shape in SHAPES.items():
            assert batch[name].shape == (20, *shape)
            assert batch[name].dtype == np.dtype(DTYPES[name])
            np.testing.assert_array_equal(batch[name], COLUMNS[name][batch["id"]])
        ids += batch["id"].tolist()
    assert sorted(ids) == list(range(ROWS))
    frame = dataset.read("train").to_pandas().sort_values("id")
    np.testing.assert_array_equal(np.stack(frame["image"]), COLUMNS["image"])
    assert frame["frame"].iloc[0].shape == (2, 3, 1)
    assert {column.name: column.kind for column in dataset.statistics("train").columns}[
        "image"
    ] == "list"
    assert dataset.verify().ok


@pytest.mark.tensorflow
def test_array_shapes_static_in_tf_dataset(empty_store: FeatureStore) -> None:
    import tensorflow as tf

    dataset = create_dataset(empty_store, "tfrecord")
    spec, _ = dataset.reader("train", global_batch_size=20).tf_dataset().element_spec
    assert {name: tuple(spec[name].shape) for name in SHAPES} == {
        name: (20, *shape) for name, shape in SHAPES.items()
    }
    files = sorted(f"{dataset.path}/{shard.path}" for shard in dataset.manifest.splits[0].shards)
    feature_spec = dataset.tf_feature_spec()
    records = tf.data.TFRecordDataset(files).batch(ROWS)
    parsed = next(iter(records.map(lambda record: tf.io.parse_example(record, feature_spec))))
    order = parsed["id"].numpy()
    for name in SHAPES:
        np.testing.assert_array_equal(parsed[name].numpy(), COLUMNS[name][order])


def test_array_shapes_preserved_by_petastorm_reader(empty_store: FeatureStore) -> None:
    pytest.importorskip("petastorm")
    dataset = create_dataset(empty_store, "petastorm")
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with dataset.petastorm_reader("train") as reader:
            for batch in reader:
                for name, shape in SHAPES.items():
                    values = getattr(batch, name)
                    assert values.shape[1:] == shape
                    np.testing.assert_array_equal(values, COLUMNS[name][batch.id])
                count += len(batch.id)
    assert count == ROWS


def test_array_nulls_masked_in_shape(empty_store: FeatureStore) -> None:
    images = [None if row % 5 == 0 else COLUMNS["image"][row] for row in range(ROWS)]
    new_dataset = empty_store.create_training_dataset(
        {"id": range(ROWS), "image": images}, "gaps", key="id"
    )
    reader = new_dataset.reader(
        "train", global_batch_size=ROWS, columns=["id", "image"], nulls="mask"
    )
    batch = next(iter(reader.batches()))
    present = batch["id"] % 5 != 0
    np.testing.assert_array_equal(batch["image_present"], present)
    np.testing.assert_array_equal(batch["image"][present], COLUMNS["image"][batch["id"][present]])
    assert not batch["image"][~present].any()


def test_array_shapes_preserved_in_dataframes(empty_store: FeatureStore) -> None:
    create_dataset(empty_store, "parquet")
    frame = empty_store.get_featuregroup("pictures")
    images = frame.select("image").to_numpy()
    assert images.shape == (ROWS, 4, 6)
    assert frame.select("image", "frame").to_numpy().shape == (ROWS, 4 * 6 + 2 * 3 * 1)
    assert frame.to_polars()["frame"].dtype.shape == (2, 3, 1)
    again = empty_store.create_featuregroup(images, "again")
    assert array_shape(again.schema.field("col_0").type) == (4, 6)
