"""Splits as matrices, and class weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore import transform as t
from featurestore.errors import ColumnConflict, InvalidArgument, UnsupportedType


def table(rows: int = 30, **more: Any) -> pa.Table:
    random = np.random.default_rng(0)
    pixels = pa.array(random.random(rows * 4).astype(np.float32))
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "age": pa.array(random.integers(0, 9, rows), mask=np.arange(rows) % 7 == 0),
            "member": random.random(rows) < 0.5,
            "image": pa.FixedSizeListArray.from_arrays(pixels, 4),
            "y": pa.array([number % 3 == 0 for number in range(rows)]),
            **more,
        }
    )


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet", "petastorm"])
def test_matrix_contains_inputs_in_row_order(empty_store: FeatureStore, data_format: str) -> None:
    dataset = empty_store.create_training_dataset(
        table(),
        "pixels",
        label="y",
        key="id",
        data_format=data_format,
        splits={"train": 0.7, "test": 0.3},
    )
    for split in dataset.splits:
        x, y, names = dataset.matrix(split)
        rows = dataset.read(split).to_arrow()
        assert names == ("age", "member", "image_0", "image_1", "image_2", "image_3")
        assert (x.dtype, x.shape) == (np.dtype(np.float32), (rows.num_rows, 6))
        age = rows.column("age").to_pandas().to_numpy(np.float32)
        assert np.array_equal(x[:, 0], age, equal_nan=True)
        assert np.isnan(x[:, 0]).any()
        assert x[:, 2:].tolist() == np.array(rows.column("image").to_pylist()).tolist()
        assert y is not None
        assert y.tolist() == rows.column("y").to_pylist()


def test_matrix_equals_reader_values(empty_store: FeatureStore) -> None:
    words = pa.array(["a", "b", None] * 10)
    dataset = empty_store.create_training_dataset(
        table(city=words),
        "coded",
        label="y",
        key="id",
        transformations={
            "age": t.impute(0) | t.standardize(),
            "city": t.one_hot(),
            "member": t.cast("float32"),
        },
        splits={"train": 0.7, "test": 0.3},
    )
    for split in dataset.splits:
        rows = dataset.manifest.split(split).rows
        (batch,) = dataset.reader(split, global_batch_size=rows, nulls="mask").batches()
        x, y, names = dataset.matrix(split)
        arrays = [
            batch[name].reshape(rows, -1).astype(np.float32)
            for name in ("age", "member", "image", "city")
        ]
        np.testing.assert_array_equal(x, np.concatenate(arrays, axis=1))
        np.testing.assert_array_equal(y, batch["y"])
        assert names[-2:] == ("city_0", "city_1")
        raw_matrix = dataset.matrix(split, columns=["age"], transformed=False)
        assert np.isnan(raw_matrix.x).sum() == dataset.read(split).to_arrow()["age"].null_count


def test_matrix_names_are_distinct(empty_store: FeatureStore) -> None:
    data = table(city=pa.array(["a", "b", None] * 10), city_0=pa.array([1, 2, 3] * 10))
    dataset = empty_store.create_training_dataset(
        data, "coded", label="y", key="id", transformations={"city": t.one_hot()}
    )
    with pytest.raises(ColumnConflict, match=r"element 0 of column 'city'.*'city_0'") as refused:
        dataset.matrix("train")
    line = str(refused.value.hint).split(", or ")[0]
    matrix = eval(f"dataset.{line}", {"dataset": dataset, "split": "train"})
    assert matrix.names[-2:] == ("city_0", "city_1")
    assert matrix.x.shape[1] == len(set(matrix.names))


def test_matrix_with_named_columns_and_several_labels(empty_store: FeatureStore) -> None:
    dataset = empty_store.create_training_dataset(table(), "two", label=["y", "member"], key="id")
    x, y, names = dataset.matrix("train", columns=["id", "age"])
    assert (names, x.shape) == (("id", "age"), (30, 2))
    assert y is not None
    assert y.shape == (30, 2)
    assert sorted(x[:, 0].tolist()) == list(range(30))


def test_matrix_non_numeric_columns_raise_with_names(empty_store: FeatureStore) -> None:
    words = pa.array(["a", "b", "c"] * 10)
    dataset = empty_store.create_training_dataset(table(city=words), "words", label="y", key="id")
    with pytest.raises(UnsupportedType, match=r"city \(string\)") as refused:
        dataset.matrix("train")
    assert "columns=['age', 'member', 'image']" in str(refused.value)
    with pytest.raises(InvalidArgument, match="unknown column 'agee'"):
        dataset.matrix("train", columns=["agee"])


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        (pa.array([True, False, False, False]), {0: 4 / 6, 1: 2.0}),
        (pa.array([7, 7, 9, 7]), {7: 4 / 6, 9: 2.0}),
        (pa.array([1.0, 1.0, 0.0, 1.0]), {0.0: 2.0, 1.0: 4 / 6}),
        (pa.array(["cat", "dog", "dog", "dog"]), {"cat": 2.0, "dog": 4 / 6}),
    ],
)
def test_class_weights_are_keyed_by_transformed_values(
    empty_store: FeatureStore, label: pa.Array, classes: dict[Any, float]
) -> None:
    data = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "y": label})
    dataset = empty_store.create_training_dataset(data, "classes", label="y")
    assert dataset.class_weights == pytest.approx(classes)
    assert list(map(type, dataset.class_weights)) == list(map(type, classes))


def test_class_weights_without_classes_raise(empty_store: FeatureStore) -> None:
    dataset = empty_store.create_training_dataset(pa.table({"x": [1.0, 2.0]}), "alone")
    with pytest.raises(InvalidArgument, match="has no label"):
        _ = dataset.class_weights
