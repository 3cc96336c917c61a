"""Numbers beyond float32 are refused by exports, matrices and weights; others are rounded to it."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore import FeatureStore
from featurestore.arrow.values import assign_rounded, largest_finite, rounds_to_infinity
from featurestore.errors import FeatureStoreError, InvalidArgument, UnsupportedType
from featurestore.training.dataset import TrainingDataset

LARGEST = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


def rounded(number: float) -> float | None:
    """Return the nearest float32, or None for a finite number beyond its range."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return None


@given(st.lists(st.floats() | st.floats(1e38, 1e39), min_size=1))
def test_range_is_that_of_packed_floats(numbers: list[float]) -> None:
    results = [rounded(number) for number in numbers]
    assert [rounds_to_infinity(number) for number in numbers] == [
        result is None for result in results
    ]
    finite = list(filter(math.isfinite, numbers))
    largest = largest_finite(pa.array([*numbers, None], pa.float64()))
    assert abs(largest or 0.0) == max(map(abs, finite), default=0.0)
    target = np.zeros(len(numbers), np.float32)
    too_large = assign_rounded(target, np.array(numbers))
    if None in results:
        assert too_large == numbers[results.index(None)]
    else:
        assert too_large is None
        assert repr(target.tolist()) == repr(results)


def table(**columns: Any) -> pa.Table:
    return pa.table({"id": [1, 2, 3, 4], "y": [0, 1, 0, 1], **columns})


def columns_of(number: float) -> dict[str, pa.Array]:
    """Return a number in columns of each shape."""
    return {
        "x": pa.array([0.1, None, number, math.inf]),
        "pair": pa.array([[0.1, 2.0], None, [0.5, number], [1.0, 2.0]], pa.list_(pa.float64(), 2)),
        "many": pa.array([[], None, [number, 0.1], [math.nan]], pa.list_(pa.float64())),
    }


def created(store: FeatureStore, rows: pa.Table, **options: Any) -> TrainingDataset:
    return store.create_training_dataset(rows, "d", label="y", key="id", progress=False, **options)


def test_tfrecord_export_refuses_infinite_float32(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    for number in (1e300, -1e39, math.nextafter(LARGEST, math.inf), LARGEST, 16_777_217.0):
        for name, column in columns_of(number).items():
            with subtests.test(number=number, column=name):
                rows = table(**{name: column})
                if rounded(number) is not None:
                    files = created(empty_store, rows).read("train").to_arrow().sort_by("id")
                    assert str(files[name].to_pylist()) == str(
                        [as_file(value) for value in column.to_pylist()]
                    )
                    continue
                with pytest.raises(UnsupportedType, match="infinity in float32") as refused:
                    created(empty_store, rows)
                assert f"{name}: {number!r}" in str(refused.value)
                options = eval(f"dict({str(refused.value.hint).split(' stores float64')[0]})")
                exact = created(empty_store, rows, **options).read("train").to_arrow().sort_by("id")
                assert str(exact[name].to_pylist()) == str(column.to_pylist())


def as_file(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(as_file, value))
    return None if value is None else rounded(value)


@pytest.mark.spark
def test_spark_export_refuses_infinite_float32(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "store", engine="spark") as store:
        for name, column in columns_of(-1e39).items():
            with pytest.raises(UnsupportedType, match=rf"{name}: -1e\+39 is infinity in float32"):
                created(store, table(**{name: column}))
        created(store, table(x=[0.1, None, LARGEST, math.nan]))


def test_matrix_rounds_numbers_and_refuses_infinity(empty_store: FeatureStore) -> None:
    integers = [2**24, 2**24 + 1, 2**53 + 1, -(2**62) - 1]
    rows = table(n=integers, u=pa.array([2**63] * 4, pa.uint64()), d=[0.1, 1e-50, LARGEST, 1 / 3])
    x, _, names = created(empty_store, rows, data_format="parquet").matrix("train")
    assert names == ("n", "u", "d")
    expected = [
        [rounded(value) for value in column]
        for column in (integers, [2.0**63] * 4, [0.1, 1e-50, LARGEST, 1 / 3])
    ]
    assert sorted(map(tuple, x.tolist())) == sorted(zip(*expected, strict=True))
    pair = columns_of(1e300)["pair"]
    dataset = created(empty_store, rows.append_column("pair", pair), data_format="parquet")
    with pytest.raises(InvalidArgument, match=r"input 'pair' has the value 1e\+300") as refused:
        dataset.matrix("train")
    code = str(refused.value.hint).split(", or scale")[0]
    x, _, names = eval(f"dataset.{code}", {"dataset": dataset, "split": "train"})
    assert names == ("n", "u", "d")


def test_weights_are_finite_in_float32(empty_store: FeatureStore) -> None:
    for data_format in ("parquet", "tfrecord", "csv"):
        with pytest.raises(FeatureStoreError, match=r"1e\+300"):
            created(
                empty_store, table(w=[1.0, 2.0, 1e300, 0.0]), weight="w", data_format=data_format
            )
    dataset = created(empty_store, table(w=[0.1, 2.0, LARGEST, 0.0]), weight="w")
    (batch,) = dataset.reader("train", global_batch_size=4, class_weights={0: 1, 1: 1}).batches()
    assert sorted(batch["w"].tolist()) == [0.0, rounded(0.1), 2.0, LARGEST]
    for weight in (1e300, 10**400, math.inf, math.nan, -1.0, True):
        with pytest.raises(InvalidArgument, match="not a valid weight"):
            dataset.reader("train", global_batch_size=4, class_weights={0: 1, 1: weight})


def test_float_classes_round_but_not_to_infinity(empty_store: FeatureStore) -> None:
    for data_format, label_type in (("tfrecord", pa.float64()), ("parquet", pa.float32())):
        rows = pa.table({"id": [1, 2], "y": pa.array([0.1, math.inf], label_type)})
        dataset = created(empty_store, rows, data_format=data_format)
        weights = {0.1: 2.0, math.inf: 3.0}
        (batch,) = dataset.reader("train", global_batch_size=2, class_weights=weights).batches()
        assert sorted(batch["sample_weight"].tolist()) == [2.0, 3.0]
        with pytest.raises(InvalidArgument, match=r"the class 1e\+300"):
            dataset.reader("train", global_batch_size=2, class_weights={0.1: 2.0, 1e300: 3.0})


def test_number_classes_fit_the_label(empty_store: FeatureStore) -> None:
    types = {
        pa.int8(): ([1, 1.0, np.int64(1)], [True, np.bool_(True), 1.5, 300]),
        pa.float64(): ([1, 1.0, np.float32(1)], [True, 2**53 + 1]),
    }
    for label_type, (equal, refused) in types.items():
        rows = pa.table({"id": [1, 2], "y": pa.array([0, 1], label_type)})
        dataset = created(empty_store, rows, data_format="parquet")
        for value in equal:
            weights = {0: 2.0, value: 3.0}
            (batch,) = dataset.reader("train", global_batch_size=2, class_weights=weights).batches()
            assert sorted(batch["sample_weight"].tolist()) == [2.0, 3.0]
        for value in refused:
            with pytest.raises(InvalidArgument, match="class_weights= has the class"):
                dataset.reader("train", global_batch_size=2, class_weights={0: 2.0, value: 3.0})
