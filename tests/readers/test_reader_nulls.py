"""Null handling of readers."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore import transform as t
from featurestore.errors import ColumnConflict, InvalidArgument, NullsInColumns
from featurestore.model.names import PRESENT
from featurestore.readers import Reader, resume
from featurestore.readers.columns import SAMPLE_WEIGHT
from featurestore.training.dataset import TrainingDataset
from tests.readers.conftest import Example, plain
from tests.readers.example_datasets import ROW, make_dataset
from tests.readers.test_reader_contract import open_example
from tests.values.cases import REFUSED, TYPES, VALUES, fitted, value_of

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
                names = [f"{name}_2" if name == column else column for column in table.column_names]
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


FILLABLE = {
    name: column_type
    for name, column_type in TYPES.items()
    if name != "int64[]" and not name.startswith("struct")
}


def fill_by_rule(value: Any, column_type: pa.DataType) -> Any:
    """Return the Python value of a fill: a value of the column, or one in the form of readers."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if pa.types.is_date(column_type) and is_integer:
        is_in_range = -719_162 <= int(value) <= 2_932_896
        return dt.date(1970, 1, 1) + dt.timedelta(int(value)) if is_in_range else REFUSED
    if pa.types.is_timestamp(column_type) and is_integer:
        if abs(int(value)) > 10**17:
            return REFUSED
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=int(value))
    if pa.types.is_string(column_type) and isinstance(value, bytes):
        return value.decode()
    if pa.types.is_fixed_size_list(column_type):
        item = fitted(value, column_type.value_type)
        if item is not REFUSED:
            return [item] * column_type.list_size
        result = fitted(value, column_type)
        return REFUSED if result is not REFUSED and None in result else result
    return fitted(value, column_type)


def as_read(value: Any) -> Any:
    if isinstance(value, list):
        return value
    decimal_text = format(value, "f").encode() if type(value).__name__ == "Decimal" else value
    return plain(decimal_text)


@pytest.fixture(scope="module", params=["tfrecord", "parquet"])
def typed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A dataset with a column of nulls of each type that can be filled."""
    directory: Path = tmp_path_factory.mktemp("typed")
    columns = {f"c{number}": pa.nulls(4, kind) for number, kind in enumerate(FILLABLE.values())}
    table = pa.table({ROW: pa.array(range(4)), **columns})
    manifest = make_dataset(directory, table, data_format=request.param, shards=1)
    return Example(directory, manifest, table)


def fill_of(typed: Example, column: str, value: Any) -> Any:
    """Return the first value of a batch in which all values of a column are filled."""
    try:
        reader = open_example(
            typed, columns=[column], nulls={column: value}, global_batch_size=4, shuffle=False
        )
    except InvalidArgument:
        return REFUSED
    state = json.loads(json.dumps(reader.state(0, 0)))
    again, _, _ = resume(typed.path, typed.manifest, state)
    assert repr(again.columns) == repr(reader.columns)
    (batch,) = reader.batches()
    return batch[column].tolist()[0]


def test_fills_fit_by_the_rule_of_columns(typed: Example) -> None:
    different, count = [], 0
    for number, column_type in enumerate(FILLABLE.values()):
        for code in VALUES:
            expected = fill_by_rule(value_of(code), column_type)
            filled = fill_of(typed, f"c{number}", value_of(code))
            count += 1
            if filled is REFUSED or expected is REFUSED:
                if filled is not expected:
                    different.append((str(column_type), code, filled, expected))
            elif repr(filled) != repr(as_read(expected)):
                different.append((str(column_type), code, filled, expected))
    assert count > 1000
    assert different == []


def test_fills_of_float32_hint_the_nearest_number(typed: Example) -> None:
    column = f"c{list(FILLABLE).index('float')}"
    for value in (0.1, 1 / 3, 1e-50):
        with pytest.raises(InvalidArgument, match="which is float") as refused:
            open_example(typed, columns=[column], nulls={column: value})
        nulls = eval(f"dict({refused.value.hint})", {"np": np})["nulls"]
        assert fill_of(typed, column, nulls[column]) == float(np.float32(value))
    # The state of an earlier release has the number before rounding.
    reader = open_example(typed, columns=[column], nulls={column: 0.5}, global_batch_size=4)
    state = {**reader.state(0, 0), "nulls": {column: 0.1}}
    again, _, _ = resume(typed.path, typed.manifest, state)
    assert next(again.batches())[column].tolist() == [float(np.float32(0.1))] * 4


def test_frameworks_yield_exact_fills(typed: Example) -> None:
    fills = {
        "int8": -128, "int64": 2**53 + 1, "uint8": 255, "float": np.float32(0.1), "double": 1e300,
        "bool": True, "float[2]": [0.5, 2**24], "date": dt.date(1, 1, 1), "string": "é",
    }  # fmt: skip
    names = {f"c{list(FILLABLE).index(name)}": fill for name, fill in fills.items()}
    dataset = TrainingDataset.open(typed.path)
    reader: Reader = dataset.reader(
        "train", columns=list(names), nulls=names, global_batch_size=4, shuffle=False
    )
    expected = {
        column: as_read(fill_by_rule(fill, FILLABLE[name]))
        for (name, fill), column in zip(fills.items(), names, strict=True)
    }
    batches: list[Any] = [next(reader.batches())]
    with_tensorflow = pytest.importorskip("tensorflow")
    batches.append(next(iter(with_tensorflow.data.Dataset.as_numpy_iterator(reader.tf_dataset()))))
    for batch in batches:
        assert {column: np.asarray(batch[column]).tolist()[0] for column in names} == expected
