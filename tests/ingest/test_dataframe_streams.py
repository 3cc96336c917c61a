"""Every kind of dataframe argument becomes an Arrow stream of feature types.

What cannot is refused in one message.
"""

from __future__ import annotations

import datetime as dt
from collections import namedtuple
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import InvalidName, OutOfRange, UnsupportedDataframe, UnsupportedType
from featurestore.ingest import to_reader
from featurestore.model.times import NaiveTimeWarning

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
ROWS = [{"id": 1, "name": "a", "x": 0.5}, {"id": 2, "name": None, "x": 1.5}]
TABLE = pa.Table.from_pylist(ROWS)


def read(df: Any, **options: Any) -> pa.Table:
    return to_reader(df, **options).read_all()


class Capsule:
    """An object with the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TABLE.to_reader().__arrow_c_stream__(requested_schema)


Point = namedtuple("Point", ["id", "name", "x"])

KINDS = {
    "table": lambda: TABLE,
    "record batch": lambda: TABLE.to_batches()[0],
    "reader": lambda: TABLE.to_reader(),
    "pandas": lambda: TABLE.to_pandas(),
    "polars": lambda: pl.from_arrow(TABLE),
    "capsule": Capsule,
    "dicts": lambda: ROWS,
    "dict of columns": lambda: TABLE.to_pydict(),
    "dict of series": lambda: {
        "id": pd.Series([1, 2]),
        "name": ["a", None],
        "x": np.array([0.5, 1.5]),
    },
    "named tuples": lambda: [Point(*row.values()) for row in ROWS],
    "batches one by one": lambda: iter(TABLE.to_batches(max_chunksize=1)),
    "dataframes one by one": lambda: (TABLE.slice(start, 1).to_pandas() for start in range(2)),
    "duckdb": lambda: duckdb.connect().from_arrow(TABLE),
}


def test_dataframe_kinds_are_read_as_equal_rows(subtests: pytest.Subtests) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())])
    for frame_type, make in KINDS.items():
        with subtests.test(frame_type):
            actual = read(make())
            assert actual.to_pylist() == ROWS
            assert actual.schema == schema


def test_matrix_has_numbered_columns() -> None:
    actual = read(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert actual.schema == pa.schema([(f"col_{i}", pa.float32()) for i in range(3)])
    assert actual.to_pydict() == {"col_0": [0, 3], "col_1": [1, 4], "col_2": [2, 5]}


def test_masked_matrix_has_nulls() -> None:
    actual = read(np.ma.masked_equal(np.array([[1, 2], [3, 2]]), 2))
    assert actual["col_1"].to_pylist() == [None, None]


def test_rows_without_names_have_numbered_columns() -> None:
    assert read([[1, "a"], [2, "b"]]).to_pydict() == {"col_0": [1, 2], "col_1": ["a", "b"]}


def test_dicts_with_missing_keys_have_nulls() -> None:
    assert read([{"a": 1}, {"a": 2, "b": 3}]).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": 3}]


def test_pandas_named_index_becomes_columns() -> None:
    frame = pd.DataFrame({"x": [1, 2]}, index=[7, 8])
    assert read(frame).column_names == ["x"]
    assert read(frame.rename_axis("id")).to_pydict() == {"id": [7, 8], "x": [1, 2]}
    grouped = pd.DataFrame({"a": [1, 1], "b": [2, 3], "x": [4.0, 5.0]}).groupby(["a", "b"]).mean()
    assert read(grouped).column_names == ["a", "b", "x"]


def test_input_dataframe_is_not_modified() -> None:
    frame = pd.DataFrame(
        {"t": pd.to_datetime(["2024-01-01"]), "x": [1]}, index=pd.Index([3], name="id")
    )
    before = frame.copy(deep=True)
    with pytest.warns(NaiveTimeWarning):
        read(frame)
    pd.testing.assert_frame_equal(frame, before)
    array = np.ones((2, 2))
    read(array)
    assert (array == 1).all()


def test_iterator_is_read_batch_by_batch() -> None:
    numbers = []

    def batches() -> Any:
        for number in range(10):
            numbers.append(number)
            yield pa.RecordBatch.from_pydict({"x": [number]})

    reader = to_reader(batches())
    reader.read_next_batch()
    assert len(numbers) <= 2


def test_unsupported_dataframe_raises(subtests: pytest.Subtests) -> None:
    unsupported: dict[str, tuple[Any, str]] = {
        "number": (3, "int is not a dataframe"),
        "file name": ("rows.csv", "is a file name, not a dataframe"),
        "empty list": ([], "no columns"),
        "list of numbers": ([1, 2], "list of int"),
        "rows of unequal lengths": ([[1], [1, 2]], "different lengths: 1, 2"),
        "one dimension": (np.arange(3), "two dimensions"),
        "empty dict": ({}, "empty dict"),
        "dict of scalars": (
            {"a": 1, "b": "x"},
            r"these are not: 'a', 'b'.\nHint: df = \[df\]",
        ),
        "dict with a scalar": ({"a": [1], "b": 2}, "these are not: 'b'"),
        "columns of unequal lengths": ({"a": [1], "b": [1, 2]}, "'a' has 1, 'b' has 2"),
        "matrix without columns": (np.zeros((2, 0)), "no columns"),
        "lazy frame": (pl.LazyFrame({"a": [1]}), "LazyFrame"),
        "empty iterator": (iter([]), "iterator is empty"),
        "iterator of rows": (iter([{"a": 1}]), "iterator of dict"),
    }
    for title, (df, message) in unsupported.items():
        with subtests.test(title), pytest.raises(UnsupportedDataframe, match=message):
            read(df)


def test_column_names_not_strings_raise(subtests: pytest.Subtests) -> None:
    tuples = pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")])
    for title, columns in {"numbers": [0, 1], "tuples": tuples}.items():
        with (
            subtests.test(title),
            pytest.raises(InvalidName, match="must be valid UTF-8 strings"),
        ):
            read(pd.DataFrame([[1, 2]], columns=columns))


def test_invalid_column_names_raise_with_rename_hint() -> None:
    with pytest.raises(
        InvalidName, match=r"rename\(df, \{'wind speed': 'wind_speed', '2nd': 'f_2nd'\}\)"
    ):
        read(pd.DataFrame({"wind speed": [1], "2nd": [2], "fine": [3]}))
    with pytest.raises(InvalidName, match="unique ignoring case"):
        read(pa.table({"a": [1], "A": [2]}))
    with pytest.raises(InvalidName, match=r"rename\(df, \['a', 'a_2'\]\)"):
        read(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_naive_times_are_utc_with_one_warning() -> None:
    table = pa.table(
        {
            "t": pa.array([NOON.replace(tzinfo=None)] * 3),
            "u": pa.array([dt.datetime(2024, 1, 1)] * 3),
        }
    )
    with pytest.warns(NaiveTimeWarning, match="'t', 'u'") as caught:
        actual = read(table)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert actual["t"].to_pylist() == [NOON] * 3


def test_times_of_other_zones_are_converted_to_utc() -> None:
    frame = pd.DataFrame(
        {"t": pd.to_datetime(["2024-01-01 13:00"]).tz_localize("Europe/Stockholm")}
    )
    actual = read(frame)
    assert actual.schema.field("t").type == TIMESTAMP
    assert actual["t"].to_pylist() == [NOON]


def test_nanoseconds_losing_precision_raise() -> None:
    fits = pa.table({"t": pa.array([1_000], pa.timestamp("ns", "UTC"))})
    assert read(fits)["t"].cast(pa.int64()).to_pylist() == [1]
    with pytest.raises(UnsupportedType, match=r"Column 't'.*lose data(.|\n)*inexact='round'"):
        read(pa.table({"t": pa.array([1_001], pa.timestamp("ns", "UTC"))}))
    with pytest.raises(OutOfRange, match=r"Row 0 has .* in 't', outside of the years 1 to 9999"):
        read(pa.table({"t": pa.array([9_000_000_000_000_000], pa.timestamp("s", "UTC"))}))


RECORD = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
CONVERSIONS = [
    (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
    (pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), pa.list_(pa.string()), [["a"]]),
    (pa.array(["x"], pa.large_string()), pa.string(), ["x"]),
    (pa.array([b"x"], pa.large_binary()), pa.binary(), [b"x"]),
    (pa.array([b"xy"], pa.binary(2)), pa.binary(), [b"xy"]),
    (pa.array(np.array([0.5, 1.5], np.float16)), pa.float32(), [0.5, 1.5]),
    (pa.array([[np.float16(0.5)]], pa.list_(pa.float16())), pa.list_(pa.float32()), [[0.5]]),
    (pa.array([[np.float16(0.5)] * 2], pa.list_(pa.float16(), 2)), pa.list_(pa.float32(), 2), [[0.5, 0.5]]),
    (pa.array([dt.date(2024, 1, 1)], pa.date64()), pa.date32(), [dt.date(2024, 1, 1)]),
    (pa.array([[1, 2]], pa.large_list(pa.int32())), pa.list_(pa.int32()), [[1, 2]]),
    (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.list_(pa.int8(), 2), [[1, 2], None]),
    (pa.array([2**64 - 1], pa.uint64()), pa.uint64(), [2**64 - 1]),
    (pa.array([Decimal("1.20")]), pa.decimal128(3, 2), [Decimal("1.20")]),
    (pa.array([{"a": 1, "b": ["x"]}]), RECORD, [{"a": 1, "b": ["x"]}]),
    (pa.array([], pa.int32()), pa.int32(), []),
]  # fmt: skip


def test_types_become_feature_types(subtests: pytest.Subtests) -> None:
    for array, dtype, values in CONVERSIONS:
        with subtests.test(str(array.type)):
            actual = read(pa.table({"c": array}))
            assert actual.schema.field("c").type == dtype
            assert actual["c"].to_pylist() == values


def test_unsupported_columns_are_listed_in_one_error() -> None:
    table = pa.table(
        {
            "fine": [1],
            "span": pa.array([1], pa.duration("us")),
            "clock": pa.array([1], pa.time64("us")),
            "pairs": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
            "huge": pa.array([Decimal(1)], pa.decimal256(50, 0)),
        }
    )
    with pytest.raises(UnsupportedType) as error:
        read(table)
    assert all(f"{name}:" in error.value.message for name in ("span", "clock", "pairs", "huge"))
    assert "fine" not in error.value.message


def test_null_columns_take_group_types() -> None:
    like = pa.schema([("a", pa.list_(pa.string())), ("b", pa.int64()), ("c", pa.int16())])
    labels = read(
        pa.table(
            {"a": pa.nulls(2), "b": pa.array([1, 2], pa.int8()), "c": pa.array([1, 2], pa.int64())}
        ),
        like=like,
    )
    assert labels.schema == pa.schema(
        [("a", pa.list_(pa.string())), ("b", pa.int64()), ("c", pa.int64())]
    )


def test_mixed_column_values_raise() -> None:
    with pytest.raises(UnsupportedType, match="Column 'a'"):
        read(pd.DataFrame({"a": [1, "x"]}))
    with pytest.raises(UnsupportedType, match="Column 'a'"):
        read([{"a": 1}, {"a": "x"}])


def test_iterator_decimals_take_group_scale(subtests: pytest.Subtests) -> None:
    group = pa.schema([("price", pa.decimal128(7, 3))])
    for texts in (("1.5", "1.25"), ("1.5", "123.5"), ("1.25", "1.5"), ("12345.5", "0.125")):
        with subtests.test(", ".join(texts)):
            tables = [pa.table({"price": [Decimal(text)]}) for text in texts]
            rows = to_reader(iter(tables), like=group).read_all()
            assert rows.column("price").to_pylist() == [Decimal(text) for text in texts]
