"""Every kind of value of each library, with the expected type or hint.

The table of docs/reference/types.md is made of this one: ``python -m tests.ingest.value_kinds``.
"""
# ruff: noqa: E501  # one line a kind

from __future__ import annotations

import datetime as dt
import enum
import re
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import FeatureStoreError
from featurestore.ingest import to_reader

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "types.md"
BEGIN, END = "<!-- table: python -m tests.ingest.value_kinds -->", "<!-- end of table -->"
DAY, NOON = dt.date(2024, 1, 31), dt.datetime(2024, 1, 31, 12)
UTC_NOON = NOON.replace(tzinfo=dt.UTC)
UTC_DAY = dt.datetime(2024, 1, 31, tzinfo=dt.UTC)
FINE = pd.Timestamp("2024-01-31 12:00:00.000000800")
DATABASE = duckdb.connect()
DIGEST = bytes([1, 0, 2, 255])
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # numpy 2.5: the generic unit of NaT
    GENERIC_NAT = np.datetime64("NaT")
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Color(enum.Enum):
    """An enumeration."""

    RED = "red"


class Level(enum.IntEnum):
    """An enumeration of integers."""

    LOW = 1


@dataclass(frozen=True)
class ColumnCase:
    """Values of one kind in a column ``c``; ``is_taken`` if no hint is needed.

    ``make`` returns the dataframe, None where the installed release has no such type, which then
    takes ``documented`` for the docs. ``values`` are those that arrive, after the hint if need be.
    """

    library: str
    title: str
    make: Callable[[], Any]
    values: Sequence[Any]
    type: str = ""
    column: str = "c"
    documented: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether the values are accepted unchanged."""
        return bool(self.type)


@dataclass(frozen=True)
class Cells:
    """Python objects of one kind, as cells of any dataframe; ``values`` as in ``ColumnCase``."""

    title: str
    cells: Sequence[Any]
    values: Sequence[Any]
    type: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether the values are accepted unchanged."""
        return bool(self.type)


CELLS = [
    Cells("bool", [True, None], [True, None], "bool"),
    Cells("int", [1, None, -(2**63)], [1, None, -(2**63)], "int64"),
    Cells("int from `2**63` to `2**64 - 1`", [2**63, None], [2**63, None], "uint64"),
    Cells("int of more than 64 bits", [2**70, None], [str(2**70), None]),
    Cells("float", [0.5, 1.5], [0.5, 1.5], "double"),
    Cells("int with float", [1, 0.5, None], [1.0, 0.5, None], "double"),
    Cells("int beyond `2**53` with float", [2**53 + 1, 0.5], [str(2**53 + 1), "0.5"]),
    Cells("bool with number", [True, 1.5, None], ["true", "1.5", None]),
    Cells("complex", [1 + 2j, None], [[1.0, 2.0], None]),
    Cells("str", ["a\0b", None], ["a\0b", None], "string"),
    Cells("str with lone surrogates", ["a\ud800", None], [b"a\xed\xa0\x80", None]),
    Cells("bytes, bytearray", [DIGEST, None, bytearray(b"a")], [DIGEST, None, b"a"], "binary"),
    Cells("str with bytes", ["a", DIGEST, None], [b"a", DIGEST, None]),
    Cells("str with number", [1, "x", None], ["1", "x", None]),
    Cells("date", [DAY, None], [DAY, None], "date32[day]"),
    Cells("datetime", [NOON, None], [UTC_NOON, None], "timestamp[us, tz=UTC]"),
    Cells("datetime with a zone", [UTC_NOON, None], [UTC_NOON, None], "timestamp[us, tz=UTC]"),
    Cells("date with datetime", [DAY, NOON, None], [UTC_DAY, UTC_NOON, None], "timestamp[us, tz=UTC]"),
    Cells("time", [dt.time(12, 30, 0, 5), None], ["12:30:00.000005", None]),
    Cells("timedelta", [dt.timedelta(microseconds=7), None], [7, None]),
    Cells("Fraction", [Fraction(1, 3), None], [[1, 3], None]),
    Cells("Decimal", [Decimal("1.50"), None], [Decimal("1.50"), None], "decimal128(3, 2)"),
    Cells("UUID", [ID, None], [str(ID), None]),
    Cells("path", [PurePosixPath("a/b"), None], ["a/b", None]),
    Cells("Enum", [Color.RED, None], ["red", None]),
    Cells("IntEnum", [Level.LOW, None], [1, None], "int64"),
    Cells("set, frozenset", [{2, 1}, None], [[1, 2], None]),
    Cells("range", [range(2), None], [[0, 1], None]),
    Cells("list of numbers of one length", [[1, 2], None], [[1, 2], None], "fixed_size_list<item: int64>[2]"),
    Cells("list of other lengths", [[1], [2, 3]], [[1], [2, 3]], "list<item: int64>"),
    Cells("list with a number", [[1], 2, None], [[1], [2], None]),
    Cells("list of complex", [[1j, 2], None], [[[0.0, 1.0], [2.0, 0.0]], None]),
    Cells("list of date and datetime", [[DAY, NOON], None], [[UTC_DAY, UTC_NOON], None], "list<item: timestamp[us, tz=UTC]>"),
    Cells("dict", [{"a": 1}, None], [{"a": 1}, None], "struct<a: int64>"),
    Cells("dict of date, then datetime", [{"a": DAY}, {"a": NOON}], [{"a": UTC_DAY}, {"a": UTC_NOON}], "struct<a: timestamp[us, tz=UTC]>"),
    Cells("dict with a time", [{"a": dt.time(1)}, None], [{"a": "01:00:00"}, None]),
    Cells("dict with other keys than str", [{1: "x"}, None], [[{"key": 1, "value": "x"}], None]),
    Cells("OrderedDict", [OrderedDict(a=1)], [{"a": 1}], "struct<a: int64>"),
    Cells("numpy.int8, numpy.float32 alone", [np.float32(0.5), None], [0.5, None], "float"),
    Cells("numpy scalars mixed", [np.uint8(1), np.int64(-1), 2], [1, -1, 2], "int64"),
    Cells("numpy.longdouble", [np.longdouble(0.5), None], [0.5, None], "double"),
    Cells("numpy.longdouble of more digits", [np.longdouble(1) / 3, None], [str(np.longdouble(1) / 3), None]),
    Cells("numpy.str_, numpy.bytes_", [np.bytes_(DIGEST), None], [DIGEST, None], "binary"),
    Cells("numpy.datetime64 of any unit", [np.datetime64("2024-01-31T12", "h"), GENERIC_NAT], [UTC_NOON, None], "timestamp[us, tz=UTC]"),
    Cells("numpy.datetime64 of days", [np.datetime64("2024-01-31"), None], [DAY, None], "date32[day]"),
    Cells("numpy.timedelta64", [np.timedelta64(7, "s"), None], [7, None]),
    Cells("numpy array of one shape", [np.ones((2, 2), np.float32), None], [[[1.0, 1.0]] * 2, None], "fixed_size_list<item: fixed_size_list<item: float>[2]>[2]"),
    Cells("numpy arrays of datetime64", [np.array(["2024-01-31T12"], "M8[h]"), np.array([], "M8[h]")], [[UTC_NOON], []], "list<item: timestamp[us, tz=UTC]>"),
    Cells("numpy arrays finer than 1 us", [np.array([FINE.to_datetime64()]), None], [[FINE.value], None]),
    Cells("numpy arrays of bytes", [np.array([DIGEST]), None], [[DIGEST], None], "list<item: binary>"),
    Cells("numpy arrays of complex", [np.array([1j]), None], [[[0.0, 1.0]], None]),
    Cells("numpy arrays of timedelta64", [np.array([7, "NaT"], "m8[s]"), None], [[7, None], None]),
    Cells("numpy arrays of longdouble", [np.array([0.5], "g"), None], [[0.5], None], "fixed_size_list<item: double>[1]"),
    Cells("numpy.void", [np.void(DIGEST), None], [DIGEST, None]),
    Cells("pandas.NA, NaT with values", ["a", pd.NA, pd.NaT], ["a", None, None], "string"),
    Cells("NaN with other values than numbers", ["a", float("nan")], ["a", None], "string"),
    Cells("pandas.Timestamp", [pd.Timestamp(UTC_NOON), pd.NaT], [UTC_NOON, None], "timestamp[us, tz=UTC]"),
    Cells("pandas.Timestamp with nanoseconds", [FINE, None], [FINE.value, None]),
    Cells("list of Timestamps with nanoseconds", [[FINE], None], [[FINE.value], None]),
    Cells("dict with such a Timestamp", [{"a": FINE}, None], [{"a": FINE.value}, None]),
    Cells("pandas.Timedelta", [pd.Timedelta(7, "ns"), None], [7, None]),
    Cells("pandas.Period", [pd.Period("2024-01", "M"), None], [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None]),
    Cells("pandas.Interval", [pd.Interval(0, 1), None], [{"left": 0, "right": 1}, None], "struct<left: int64, right: int64>"),
    Cells("pandas.Interval closed on different sides", [pd.Interval(0, 1, "left"), pd.Interval(0, 1), None], [{"left": 0, "right": 1, "closed": "left"}, {"left": 0, "right": 1, "closed": "right"}, None]),
    Cells("list of Timedeltas with NaT", [[pd.Timedelta(7, "ns"), pd.NaT], None], [[7, None], None]),
    Cells("pyarrow scalars", [pa.scalar(1), None], [1, None], "int64"),
]  # fmt: skip


def pandas_column(*values: Any, dtype: Any = None) -> Callable[[], Any]:
    """Return a function that creates a pandas frame with these cells."""
    return lambda: pd.DataFrame({"c": pd.Series(list(values), dtype=dtype)})


def polars_column(values: Sequence[Any], dtype: Any) -> Callable[[], Any]:
    """Return a function that creates a polars frame with these cells."""
    return lambda: pl.DataFrame({"c": pl.Series(values, dtype=dtype)})


def arrow_column(values: Sequence[Any], dtype: pa.DataType | None) -> Callable[[], Any]:
    """Return a function that creates an Arrow table with these cells."""
    return lambda: None if dtype is None else pa.table({"c": pa.array(values, dtype)})


def duckdb_column(expression: str) -> Callable[[], Any]:
    """Return a function that creates a DuckDB relation with an expression and null."""
    return lambda: DATABASE.cursor().sql(
        f"SELECT {expression} AS c UNION ALL SELECT NULL"  # of this module
    )


def numpy_column(values: Any, dtype: Any) -> Callable[[], Any]:
    """Return a function that creates a dict with an array."""
    return lambda: {"c": np.array(values, dtype=dtype)}


def arrow_type(name: str, *arguments: Any) -> pa.DataType | None:
    """Return a type that older pyarrow releases lack, or null."""
    maker = getattr(pa, name, None)
    return None if maker is None else maker(*arguments)


TIME, CLOCK = "timestamp[us, tz=UTC]", dt.time(12, 30)
FINE_NS = FINE.value
FLOOR = [UTC_NOON, None]
KINDS = [
    # -- numpy ---------------------------------------------------------------------------------
    ColumnCase("numpy", "`>i4` and other byte orders", numpy_column([1, 2], ">i4"), [1, 2], "int32"),
    ColumnCase("numpy", "float16", numpy_column([0.5], "f2"), [0.5], "float"),
    ColumnCase("numpy", "longdouble", numpy_column([0.5], "g"), [0.5], "double"),
    ColumnCase("numpy", "complex64, complex128", numpy_column([1 + 2j], "c16"), [[1.0, 2.0]]),
    ColumnCase("numpy", "`S` with NUL", numpy_column([DIGEST, b"a"], "S4"), [DIGEST, b"a"], "binary"),
    ColumnCase("numpy", "`U` with NUL", numpy_column(["a\0b", "c"], "U"), ["a\0b", "c"], "string"),
    ColumnCase("numpy", "object", numpy_column(["a", None], object), ["a", None], "string"),
    ColumnCase("numpy", "StringDType", lambda: _string_dtype(), ["a\0b", "c"], "string", documented="string"),
    *(
        ColumnCase("numpy", f"datetime64[{unit}]", numpy_column(["2024-01-01", "NaT"], f"M8[{unit}]"), [dt.date(2024, 1, 1), None], "date32[day]")
        for unit in ("Y", "M", "D")
    ),
    ColumnCase("numpy", "datetime64[W]", numpy_column(["2024-01-04", "NaT"], "M8[W]"), [dt.date(2024, 1, 4), None], "date32[day]"),
    *(
        ColumnCase("numpy", f"datetime64[{unit}]", numpy_column(["2024-01-31T12", "NaT"], f"M8[{unit}]"), FLOOR, TIME)
        for unit in ("h", "m", "s", "ms", "us", "ns", "20s")
    ),
    ColumnCase("numpy", "datetime64[ps]", numpy_column(["1970-01-02", "NaT"], "M8[ps]"), [dt.datetime(1970, 1, 2, tzinfo=dt.UTC), None], TIME),
    ColumnCase("numpy", "datetime64[ns] finer than 1 us", numpy_column([FINE.to_datetime64(), "NaT"], "M8[ns]"), [FINE_NS, None]),
    ColumnCase("numpy", "timedelta64", numpy_column([7, "NaT"], "m8[s]"), [7, None]),
    ColumnCase("numpy", "structured array", lambda: np.array([(1, b"a\0b")], [("c", ">i8"), ("d", "S3")]), [1], "int64"),
    ColumnCase("numpy", "structured array with records", lambda: np.array([((1, 2),)], [("c", [("x", "u1"), ("y", "u1")])]), [b"\x01\x02"]),
    ColumnCase("numpy", "masked array", lambda: {"c": np.ma.masked_equal(np.array([1, 2], ">i4"), 2)}, [1, None], "int32"),
    ColumnCase("numpy", "masked images", lambda: {"c": np.ma.masked_equal(np.array([[[1, 2]]], "f4"), 2)}, [[[1.0, None]]], "list<item: list<item: double>>"),
    ColumnCase("numpy", "images of complex", lambda: np.ones((1, 2, 1), complex), [[[[1.0, 0.0]], [[1.0, 0.0]]]], column="col_0"),
    ColumnCase("numpy", "matrix of objects", lambda: np.array([[1, "a"], [2, None]], object), ["a", None], "string", column="col_1"),
    ColumnCase("numpy", "numpy.matrix", lambda: np.matrix([[1, 2], [3, 4]]), [1, 3], "int64", column="col_0"),
    ColumnCase("numpy", "matrix of datetime64[ns] finer than 1 us", lambda: np.array([[FINE.to_datetime64()]]), [FINE_NS], column="col_0"),
    ColumnCase("numpy", "matrix of complex", lambda: np.array([[1j], [2]]), [[0.0, 1.0], [2.0, 0.0]], column="col_0"),
    # -- pandas --------------------------------------------------------------------------------
    ColumnCase("pandas", "Int64 and other nullable numbers", pandas_column(1, None, dtype="Int64"), [1, None], "int64"),
    ColumnCase("pandas", "boolean", pandas_column(True, None, dtype="boolean"), [True, None], "bool"),
    ColumnCase("pandas", "string, str", pandas_column("a\0b", None, dtype="string"), ["a\0b", None], "string"),
    ColumnCase("pandas", "category", pandas_column("a", None, dtype="category"), ["a", None], "string"),
    ColumnCase("pandas", "category of date and datetime", lambda: pd.DataFrame({"c": pd.Categorical([0, 1], [0, 1]).rename_categories([DAY, NOON])}), [UTC_DAY, UTC_NOON], TIME),
    ColumnCase("pandas", "category of intervals (`pd.cut`)", lambda: pd.DataFrame({"c": pd.cut([1, 3], [0, 2, 4])}), [{"left": 0, "right": 2}, {"left": 2, "right": 4}], "struct<left: int64, right: int64>"),
    ColumnCase("pandas", "Sparse", lambda: pd.DataFrame({"c": pd.arrays.SparseArray([0, 5, 0])}), [0, 5, 0], "int64"),
    ColumnCase("pandas", "datetime64[s, ms, us, ns]", pandas_column(NOON, None, dtype="M8[ns]"), FLOOR, TIME),
    ColumnCase("pandas", "datetime64[ns] finer than 1 us", pandas_column(FINE, None, dtype="M8[ns]"), [FINE_NS, None]),
    ColumnCase("pandas", "datetime64 with a zone", pandas_column(UTC_NOON, None, dtype="datetime64[us, UTC]"), FLOOR, TIME),
    ColumnCase("pandas", "timedelta64", pandas_column(pd.Timedelta(7, "ns"), None, dtype="m8[ns]"), [7, None]),
    ColumnCase("pandas", "period", pandas_column("2024-01", None, dtype="period[M]"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None]),
    ColumnCase("pandas", "interval", lambda: pd.DataFrame({"c": pd.arrays.IntervalArray.from_breaks([0, 1])}), [{"left": 0, "right": 1}], "struct<left: int64, right: int64>"),
    ColumnCase("pandas", "complex", pandas_column(1 + 2j, dtype="complex128"), [[1.0, 2.0]]),
    ColumnCase("pandas", "big-endian numbers", lambda: pd.DataFrame({"c": np.array([1, 2], ">i8")}), [1, 2], "int64"),
    ColumnCase("pandas", "longdouble", lambda: pd.DataFrame({"c": np.array([0.5], "g")}), [0.5], "double"),
    ColumnCase("pandas", "ArrowDtype", pandas_column(1, None, dtype=pd.ArrowDtype(pa.int8())), [1, None], "int8"),
    ColumnCase("pandas", "ArrowDtype of times of day", pandas_column(CLOCK, None, dtype=pd.ArrowDtype(pa.time64("us"))), ["12:30:00.000000", None]),
    ColumnCase("pandas", "ArrowDtype of durations", pandas_column(dt.timedelta(1), None, dtype=pd.ArrowDtype(pa.duration("s"))), [86400, None]),
    ColumnCase("pandas", "ArrowDtype of maps", pandas_column([("a", 1)], None, dtype=pd.ArrowDtype(pa.map_(pa.string(), pa.int8()))), [[{"key": "a", "value": 1}], None]),
    ColumnCase("pandas", "ArrowDtype of lists of durations", pandas_column([dt.timedelta(0, 7)], None, dtype=pd.ArrowDtype(pa.list_(pa.duration("s")))), [[7], None]),
    ColumnCase("pandas", "PeriodIndex", lambda: pd.period_range("2024-01", periods=1, freq="M", name="c"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    ColumnCase("pandas", "TimedeltaIndex", lambda: pd.to_timedelta([7], "ns"), [7], column="col_0"),
    ColumnCase("pandas", "Series", lambda: pd.Series([1, 2], name="c"), [1, 2], "int64"),
    ColumnCase("pandas", "PeriodIndex in a dict", lambda: {"c": pd.period_range("2024-01", periods=1, freq="M")}, [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    ColumnCase("pandas", "IntervalIndex in a dict", lambda: {"c": pd.interval_range(0, 1)}, [{"left": 0, "right": 1}], "struct<left: int64, right: int64>"),
    ColumnCase("pandas", "TimedeltaIndex in a dict", lambda: {"c": pd.to_timedelta([7], "ns")}, [7]),
    ColumnCase("pandas", "SparseArray in a dict", lambda: {"c": pd.arrays.SparseArray([0, 5])}, [0, 5], "int64"),
    ColumnCase("pandas", "MultiIndex in a dict", lambda: {"c": pd.MultiIndex.from_tuples([(1, 2)])}, [[1, 2]], "fixed_size_list<item: int64>[2]"),
    # -- polars --------------------------------------------------------------------------------
    ColumnCase("polars", "Int8 to Int64, UInt8 to UInt64", polars_column([1, None], pl.UInt64), [1, None], "uint64"),
    ColumnCase("polars", "Int128 within 64 bits", polars_column([1, None], pl.Int128), [1, None], "int64"),
    ColumnCase("polars", "Int128 beyond 64 bits", polars_column([2**100, None], pl.Int128), [str(2**100), None]),
    ColumnCase("polars", "String, Categorical, Enum", polars_column(["a", None], pl.Enum(["a"])), ["a", None], "string"),
    ColumnCase("polars", "Object of texts", polars_column(["a", None], pl.Object), ["a", None], "string"),
    ColumnCase("polars", "Object of UUIDs", polars_column([ID, None], pl.Object), [str(ID), None]),
    ColumnCase("polars", "Date", polars_column([DAY, None], pl.Date), [DAY, None], "date32[day]"),
    ColumnCase("polars", "Datetime", polars_column([NOON, None], pl.Datetime("ns")), FLOOR, TIME),
    ColumnCase("polars", "Datetime(ns) finer than 1 us", lambda: pl.DataFrame({"c": pl.Series([FINE_NS, None]).cast(pl.Datetime("ns"))}), [FINE_NS, None]),
    ColumnCase("polars", "Time", polars_column([CLOCK, None], pl.Time), ["12:30:00.000000000", None]),
    ColumnCase("polars", "Duration", polars_column([dt.timedelta(seconds=1), None], pl.Duration("ns")), [10**9, None]),
    ColumnCase("polars", "List(Duration)", polars_column([[dt.timedelta(seconds=1)], None], pl.List(pl.Duration("ms"))), [[1000], None]),
    ColumnCase("polars", "Decimal", polars_column([Decimal("1.5"), None], pl.Decimal(4, 1)), [Decimal("1.5"), None], "decimal128(4, 1)"),
    ColumnCase("polars", "Binary", polars_column([DIGEST, None], pl.Binary), [DIGEST, None], "binary"),
    ColumnCase("polars", "List", polars_column([[1], None], pl.List(pl.Int8)), [[1], None], "list<item: int8>"),
    ColumnCase("polars", "Array", polars_column([[1, 2], None], pl.Array(pl.Int8, 2)), [[1, 2], None], "fixed_size_list<item: int8>[2]"),
    ColumnCase("polars", "Struct", polars_column([{"a": 1}], pl.Struct({"a": pl.Int8})), [{"a": 1}], "struct<a: int8>"),
    ColumnCase("polars", "Float16", polars_column([0.5, None], pl.Float16), [0.5, None], "float"),
    # -- pyarrow -------------------------------------------------------------------------------
    ColumnCase("pyarrow", "string, large_string, string_view", arrow_column(["a\0b", None], pa.large_string()), ["a\0b", None], "string"),
    ColumnCase("pyarrow", "binary, large_binary, binary(n)", arrow_column([DIGEST, None], pa.binary(4)), [DIGEST, None], "binary"),
    ColumnCase("pyarrow", "float16", arrow_column([np.float16(0.5), None], pa.float16()), [0.5, None], "float"),
    ColumnCase("pyarrow", "dictionary", lambda: pa.table({"c": pa.array(["a", None]).dictionary_encode()}), ["a", None], "string"),
    ColumnCase("pyarrow", "list_view", arrow_column([[1], None], arrow_type("list_view", pa.int8())), [[1], None], "list<item: int8>", documented="list<item: int8>"),
    ColumnCase("pyarrow", "run_end_encoded", lambda: pa.table({"c": pc.run_end_encode(pa.array([1, 1, None]))}), [1, 1, None], "int64"),
    ColumnCase("pyarrow", "date32, date64", arrow_column([DAY, None], pa.date64()), [DAY, None], "date32[day]"),
    ColumnCase("pyarrow", "timestamp", arrow_column([NOON, None], pa.timestamp("s")), FLOOR, TIME),
    ColumnCase("pyarrow", "timestamp[ns] finer than 1 us", arrow_column([FINE_NS, None], pa.timestamp("ns")), [FINE_NS, None]),
    ColumnCase("pyarrow", "time32, time64", arrow_column([CLOCK, None], pa.time64("us")), ["12:30:00.000000", None]),
    ColumnCase("pyarrow", "duration", arrow_column([7, None], pa.duration("ns")), [7, None]),
    ColumnCase("pyarrow", "list of durations", arrow_column([[dt.timedelta(0, 0, 7)], None], pa.list_(pa.duration("us"))), [[7], None]),
    ColumnCase("pyarrow", "month_day_nano_interval", arrow_column([(1, 2, 3), None], pa.month_day_nano_interval()), [[1, 2, 3], None]),
    ColumnCase("pyarrow", "map", arrow_column([[("a", 1)], None], pa.map_(pa.string(), pa.int32())), [[{"key": "a", "value": 1}], None]),
    ColumnCase("pyarrow", "struct with a time", arrow_column([{"a": CLOCK}, None], pa.struct([("a", pa.time32("s"))])), [{"a": "12:30:00"}, None]),
    ColumnCase("pyarrow", "union", lambda: pa.table({"c": pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([5])])}), ["5"]),
    ColumnCase("pyarrow", "decimal128", arrow_column([Decimal("1.5"), None], pa.decimal128(4, 1)), [Decimal("1.5"), None], "decimal128(4, 1)"),
    ColumnCase("pyarrow", "decimal256 of at most 38 digits", arrow_column([Decimal("1.5"), None], pa.decimal256(4, 1)), [Decimal("1.5"), None], "decimal128(4, 1)"),
    ColumnCase("pyarrow", "decimal256 of more digits", arrow_column([Decimal(10**50), None], pa.decimal256(60, 0)), [str(10**50), None]),
    ColumnCase("pyarrow", "decimal32, decimal64", arrow_column([Decimal("1.5"), None], arrow_type("decimal64", 4, 1)), [Decimal("1.5"), None], "decimal128(4, 1)", documented="decimal128(4, 1)"),
    ColumnCase("pyarrow", "bool8", lambda: _extension("bool8", [1, None], pa.int8()), [True, None], "bool", documented="bool"),
    ColumnCase("pyarrow", "uuid", lambda: _extension("uuid", [ID.bytes, None], pa.binary(16)), [ID.bytes, None], "binary", documented="binary"),
    ColumnCase("pyarrow", "fixed_shape_tensor", lambda: pa.table({"c": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((1, 2, 1)))}), [[[1.0], [1.0]]], "fixed_size_list<item: fixed_size_list<item: double>[1]>[2]"),
    ColumnCase("pyarrow", "pandas.period", lambda: pa.table({"c": pa.array(pd.period_range("2024-01", periods=1, freq="M"))}), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    # -- DuckDB --------------------------------------------------------------------------------
    ColumnCase("duckdb", "UTINYINT to UBIGINT, TINYINT to BIGINT", duckdb_column("1::UBIGINT"), [1, None], "uint64"),
    ColumnCase("duckdb", "HUGEINT within 64 bits, as sums are", duckdb_column("1::HUGEINT"), [1, None], "int64"),
    ColumnCase("duckdb", "UHUGEINT within 64 bits", duckdb_column("1::UHUGEINT"), [1, None], "int64"),
    ColumnCase("duckdb", "HUGEINT beyond 64 bits", duckdb_column(f"{2**100}::HUGEINT"), [str(2**100), None]),
    ColumnCase("duckdb", "UHUGEINT beyond 64 bits", duckdb_column(f"{2**128 - 1}::UHUGEINT"), [str(2**128 - 1), None]),
    ColumnCase("duckdb", "BIGNUM", duckdb_column(f"'{10**40}'::BIGNUM"), [str(10**40), None]),
    ColumnCase("duckdb", "DECIMAL", duckdb_column("1.5::DECIMAL(4, 1)"), [Decimal("1.5"), None], "decimal128(4, 1)"),
    ColumnCase("duckdb", "VARCHAR, ENUM, JSON, UUID", duckdb_column(f"'{ID}'::UUID"), [str(ID), None], "string"),
    ColumnCase("duckdb", "BLOB", duckdb_column("'a'::BLOB"), [b"a", None], "binary"),
    ColumnCase("duckdb", "BIT", duckdb_column("'0101'::BIT"), ["0101", None]),
    ColumnCase("duckdb", "BIT[]", duckdb_column("['0101'::BIT]"), [["0101"], None]),
    ColumnCase("duckdb", "STRUCT with BIT", duckdb_column("{'a': '01'::BIT}"), [{"a": "01"}, None]),
    ColumnCase("duckdb", "DATE", duckdb_column("DATE '2024-01-31'"), [DAY, None], "date32[day]"),
    ColumnCase("duckdb", "TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_S, _MS, _NS", duckdb_column("'2024-01-31 12:00'::TIMESTAMP_NS"), FLOOR, TIME),
    ColumnCase("duckdb", "TIMESTAMP_NS finer than 1 us", duckdb_column(f"make_timestamp_ns({FINE_NS})"), [FINE_NS, None]),
    ColumnCase("duckdb", "TIME", duckdb_column("TIME '12:30'"), ["12:30:00", None]),
    ColumnCase("duckdb", "TIMETZ", duckdb_column("'12:30:00+02'::TIMETZ"), ["12:30:00+02", None]),
    ColumnCase("duckdb", "INTERVAL", duckdb_column("INTERVAL 1 MONTH"), ["1 month", None]),
    ColumnCase("duckdb", "MAP", duckdb_column("MAP {'a': 1}"), [[{"key": "a", "value": 1}], None]),
    ColumnCase("duckdb", "UNION", duckdb_column("union_value(a := 5)"), ["5", None]),
    ColumnCase("duckdb", "VARIANT", duckdb_column("5::VARIANT"), ["5", None]),
    ColumnCase("duckdb", "LIST", duckdb_column("[1, 2]"), [[1, 2], None], "list<item: int32>"),
    ColumnCase("duckdb", "ARRAY", duckdb_column("[1, 2]::INTEGER[2]"), [[1, 2], None], "fixed_size_list<item: int32>[2]"),
    ColumnCase("duckdb", "STRUCT", duckdb_column("{'a': 1}"), [{"a": 1}, None], "struct<a: int32>"),
]  # fmt: skip


def _string_dtype() -> Any:
    dtypes = getattr(np, "dtypes", None)
    if not hasattr(dtypes, "StringDType"):
        return None
    return {"c": np.array(["a\0b", "c"], dtype=dtypes.StringDType())}


def _extension(name: str, values: Sequence[Any], storage: pa.DataType) -> Any:
    dtype = arrow_type(name)
    if dtype is None:
        return None
    return pa.table({"c": pa.ExtensionArray.from_storage(dtype, pa.array(values, storage))})


FORMS = {
    "pandas": lambda cells: pd.DataFrame({"c": pd.Series(list(cells), dtype=object)}),
    "polars": lambda cells: pl.DataFrame({"c": pl.Series(list(cells), dtype=pl.Object)}),
    "rows": lambda cells: [{"c": cell} for cell in cells],
    "tuples": lambda cells: [(cell,) for cell in cells],
    "columns": lambda cells: {"c": list(cells)},
}
_HEADINGS = {
    "cells": "Python objects, in rows, dicts, and object columns of pandas and polars",
    "numpy": "numpy",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "pyarrow",
    "duckdb": "DuckDB",
}


def documented_rows(library: str) -> Iterator[tuple[str, str]]:
    """Yield each kind of a library and its documented line; None if it cannot be created here."""
    if library == "cells":
        for cells in CELLS:
            yield cells.title, _line(cells.title, cells.type, FORMS["rows"](cells.cells))
        return
    for case in KINDS:
        if case.library == library:
            df = None if case.documented else case.make()
            yield case.title, _line(case.title, case.documented or case.type, df)


def table() -> str:
    """Return the table of the docs."""
    lines = []
    for library, heading in _HEADINGS.items():
        lines += [f"## {heading}", "", "| given | becomes, or what to type |", "| --- | --- |"]
        lines += [line for _, line in documented_rows(library)] + [""]
    return "\n".join(lines)


def _line(title: str, type_name: str, df: Any) -> str:
    if type_name:
        return f"| {title} | `{_short(type_name)}` |"
    try:
        to_reader(df).read_all()
    except FeatureStoreError as error:
        # A Markdown cell must not contain the column separator.
        hint = str(error.hint).replace("|", "\\|")
        return f"| {title} | `{hint}` |"
    raise AssertionError(f"{title} is taken, though the table says that it is refused")


def _short(type_name: str) -> str:
    before = ""
    while before != type_name:
        before = type_name
        type_name = re.sub(r"fixed_size_list<item: ([^<>]*(?:<[^<>]*>)?)>", r"\1", type_name)
        type_name = re.sub(r"(?<!_)list<item: ([^<>]*(?:<[^<>]*>)?)>", r"\1[]", type_name)
    return type_name.replace("timestamp[us, tz=UTC]", "timestamp").replace("date32[day]", "date")


def main() -> None:
    """Write the table into the docs."""
    text = DOCS.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    DOCS.write_text(f"{before}{BEGIN}\n\n{table()}\n{END}{after}")


if __name__ == "__main__":
    main()
