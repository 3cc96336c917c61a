"""Null handling of readers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore import transform as t
from featurestore.errors import ColumnConflict, InvalidArgument, NullsInColumns
from featurestore.model.derived_names import PRESENT
from featurestore.readers.columns import SAMPLE_WEIGHT
from tests.readers.conftest import Example, plain
from tests.readers.test_reader_contract import open_example

WITH_NULLS = ["count", "flag", "ratio", "name", "vector", "moment", "day"]


def test_reader_columns_with_nulls_raise_with_all_names(example_with_nulls: Example) -> None:
    with pytest.raises(NullsInColumns) as caught:
        open_example(example_with_nulls)
    for name in WITH_NULLS:
        assert f"'{name}' ({example_with_nulls.table[name].null_count})" in str(caught.value)
    assert "'label'" not in str(caught.value)
    assert open_example(example_with_nulls, columns=["row_id", "label"]).steps_per_epoch == 16


@pytest.mark.parametrize("shuffle", [True, False])
def test_nulls_mask_adds_presence_columns(example_with_nulls: Example, shuffle: bool) -> None:
    reader = open_example(example_with_nulls, nulls="mask", remainder="pad", shuffle=shuffle)
    table = example_with_nulls.table
    for step, batch in enumerate(reader.batches()):
        assert [name for name in batch if name.endswith(PRESENT)] == [
            name + PRESENT for name in WITH_NULLS
        ]
        rows = reader.rows(0, step).tolist()
        for name in WITH_NULLS:
            present = [row >= 0 and table[name][row].is_valid for row in rows]
            assert batch[name + PRESENT].tolist() == present
            zero: Any = [0.0] * 4 if name == "vector" else reader_zero(reader, name)
            expected = [
                plain(table[name][row].as_py()) if valid else zero
                for row, valid in zip(rows, present, strict=True)
            ]
            assert batch[name].tolist() == expected


def reader_zero(reader: Any, name: str) -> Any:
    return next(column.zero for column in reader.columns if column.name == name)


def test_nulls_fill_values_leave_padding_unfilled(example_with_nulls: Example) -> None:
    fills = {
        "count": -1,
        "flag": True,
        "ratio": 0.5,
        "name": "none",
        "vector": 9.0,
        "moment": 7,
        "day": 3,
    }
    reader = open_example(example_with_nulls, nulls=fills, remainder="pad")
    table = example_with_nulls.table
    for step, batch in enumerate(reader.batches()):
        rows = reader.rows(0, step).tolist()
        for name, fill in fills.items():
            for row, value in zip(rows, batch[name].tolist(), strict=True):
                null = row >= 0 and not table[name][row].is_valid
                if null:
                    assert value == ([9.0] * 4 if name == "vector" else plain(fill))
                if row < 0:
                    assert value == ([0.0] * 4 if name == "vector" else reader_zero(reader, name))
        assert batch[SAMPLE_WEIGHT].sum() == sum(row >= 0 for row in rows)


def test_masks_never_replace_columns(empty_store: FeatureStore, subtests: Any) -> None:
    coupons = [None if row % 3 == 0 else row / 2 for row in range(30)]
    flags = [row % 2 for row in range(30)]
    labels = [row % 2 if row % 5 else None for row in range(30)]
    columns = {"id": list(range(30)), "coupon": coupons, "y": labels}
    for data_format in ("tfrecord", "parquet", "csv"):
        for name in ("coupon_present", "Coupon_Present"):
            with subtests.test(data_format=data_format, name=name):
                table = pa.table({**columns, name: flags, "y_present": flags})
                dataset = empty_store.create_training_dataset(
                    table, "d", label="y", key="id", data_format=data_format,
                    missing_labels="weight_zero", progress=False,
                )  # fmt: skip
                with pytest.raises(ColumnConflict, match="mask of column 'coupon'"):
                    dataset.reader("train", global_batch_size=30, nulls="mask")
                with pytest.raises(ColumnConflict, match="mask of column 'coupon'"):
                    dataset.keras_inputs(nulls="mask")
                for more in (
                    {
                        "nulls": {"coupon": -1.0},
                        "columns": ["id", "coupon", name, "y_present", "y"],
                    },
                    {"nulls": "mask", "columns": ["id", name, "y_present", "y"]},
                ):
                    (batch,) = dataset.reader("train", global_batch_size=30, **more).batches()
                    rows = batch["id"]
                    # The internal mask of a label never replaces the column y_present.
                    assert batch[name].tolist() == [flags[row] for row in rows]
                    assert batch["y_present"].tolist() == [flags[row] for row in rows]
                    weights = [float(labels[row] is not None) for row in rows]
                    assert batch["sample_weight"].tolist() == weights
                with pytest.raises(ColumnConflict, match="mask of column 'coupon'") as refused:
                    dataset.fit({"coupon": t.impute(0)})
                assert "coupon_present as coupon_present_2" in str(refused.value.hint)
                names = [f"{name}_2" if name == other else other for other in table.column_names]
                renamed = table.rename_columns(names)
                again = empty_store.create_training_dataset(
                    renamed, "d", label="y", key="id", data_format=data_format,
                    missing_labels="weight_zero", transformations={"coupon": t.impute(0)},
                    progress=False,
                )  # fmt: skip
                reader = again.reader("train", global_batch_size=30, nulls="mask")
                assert set(next(reader.batches())) == {
                    "coupon", "coupon_present", "y", f"{name}_2", "y_present", "sample_weight"
                }  # fmt: skip


@pytest.mark.parametrize(
    ("nulls", "message"),
    [
        ("keep", r"nulls='keep'"),
        ({"absent": 1}, r"not read: 'absent'"),
        ({"count": "text"}, r"'count': 'text'"),
        ({"count": 1.5}, r"'count': 1.5"),
        ({"name": 3}, r"'name': 3"),
        ({"vector": [1, 2]}, r"'vector'"),
    ],
)
def test_nulls_invalid_policies_raise(tfrecord: Example, nulls: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        open_example(tfrecord, nulls=nulls)
