"""``featurestore.cast`` and ``rename`` take every form of dataframe, and are exact."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.arrow.types import integer_range
from featurestore.errors import (
    InvalidArgument,
    InvalidName,
    SchemaMismatch,
    UnsupportedDataframe,
    UnsupportedType,
)
from featurestore.ingest import to_reader
from featurestore.store import FeatureStore
from tests.ingest.pasting import pasted

NOON = dt.datetime(2024, 1, 31, 12, tzinfo=dt.UTC)
Row = namedtuple("Row", ["n", "other"])


class ArrowStream:
    """An object of another library with rows as an Arrow stream."""

    def __init__(self, data: pa.Table) -> None:
        self._data = data

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._data.__arrow_c_stream__(requested_schema)


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)


# A table with the columns n and other as each form of dataframe.
FORMS: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "record batch": lambda table: table.combine_chunks().to_batches()[0],
    "reader": lambda table: table.to_reader(max_chunksize=1),
    "arrow dataset": ds.dataset,
    "foreign stream": ArrowStream,
    "pandas": pandas_frame,
    "pandas with a named index": lambda table: pandas_frame(table).set_index("n"),
    "polars": pl.from_arrow,
    "duckdb": lambda table: duckdb.connect().from_arrow(table),
    "rows": lambda table: table.to_pylist(),
    "named tuples": lambda table: [Row(**row) for row in table.to_pylist()],
    "columns": lambda table: table.to_pydict(),
    "columns of arrays": lambda table: dict(zip(table.column_names, table.columns, strict=True)),
    "iterator of tables": lambda table: iter([table.slice(0, 1), table.slice(1)]),
    "iterator of rows": lambda table: iter([table.to_pylist()]),
    "iterator of pandas": lambda table: iter([pandas_frame(table)]),
}
ONE_COLUMN: dict[str, Callable[[pa.Array], Any]] = {
    "tuples": lambda array: [(cell,) for cell in array.to_pylist()],
    "matrix": lambda array: array.to_numpy(zero_copy_only=False).reshape(-1, 1),
    "masked": lambda array: np.ma.masked_array(
        array.fill_null(0).to_numpy(zero_copy_only=False).reshape(-1, 1),
        np.asarray(array.is_null()).reshape(-1, 1),
    ),
    "series": lambda array: pd.Series(array.to_pandas(types_mapper=pd.ArrowDtype)),
    "index": lambda array: pd.Index(array.to_pandas(types_mapper=pd.ArrowDtype)),
}
INTEGERS = [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()]
TYPES = [*INTEGERS, pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.bool_(), pa.string()]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int64": st.sampled_from([0, 1, -1, 127, 128, 300, 2**24 + 1, 2**53 + 1, -(2**63), 2**63 - 1]),
    "uint64": st.sampled_from([0, 1, 255, 256, 2**53, 2**64 - 1]),
    "double": st.sampled_from([0.0, 1.0, 2.5, -1.0, 0.1, 1e300, 2.0**63, 1.25, 300.0]),
    "decimal128(38, 2)": st.sampled_from(
        [Decimal("0.00"), Decimal("1.50"), Decimal("128.00"), Decimal(10**20), Decimal("-0.25")]
    ),
    "bool": st.booleans(),
    "string": st.sampled_from(["1", "007", "x", "1.5", "-300", "true", "1e3", "2.25", ""]),
}
SOURCES = {
    name: pa.decimal128(38, 2) if "decimal" in name else pa.type_for_alias(name) for name in VALUES
}


def converted(value: Any, target: pa.DataType) -> Any:
    """Return the equal of a value by Python rules; raise ValueError if it has none."""
    if value is None:
        return None
    if pa.types.is_string(target):
        if isinstance(value, bool):
            return "true" if value else "false"
        return (
            pa.array([value]).cast(pa.string())[0].as_py()
            if isinstance(value, float)
            else str(value)
        )
    if pa.types.is_boolean(target):
        if isinstance(value, str):
            return {"true": True, "1": True, "0": False}[value]
        if value not in (0, 1):
            raise ValueError(value)
        return bool(value)
    if isinstance(value, str):
        if pa.types.is_integer(target) and not value.lstrip("+-").isdecimal():
            raise ValueError(value)
        if not pa.types.is_integer(target) and value == "true":
            raise ValueError(value)
    number = Decimal(value)
    if pa.types.is_integer(target):
        low, high = integer_range(target)
        if number != int(number) or not low <= number <= high:
            raise ValueError(value)
        return int(number)
    if pa.types.is_decimal(target):
        scaled = number.scaleb(target.scale)
        if scaled != int(scaled) or abs(scaled) >= 10**target.precision:
            raise ValueError(value)
        return number
    nearest = float(np.float32(value)) if pa.types.is_float32(target) else float(number)
    if not isinstance(value, str) and (
        nearest != number or abs(number) > exact_limit(target, value)
    ):
        raise ValueError(value)
    return nearest


def exact_limit(target: pa.DataType, value: Any) -> float:
    """Return the limit of integers in floats; floats and decimals have none."""
    if type(value) is not int:
        return math.inf
    return 2**24 if pa.types.is_float32(target) else 2**53


def result_of(form: str, table: pa.Table, target: pa.DataType, **options: Any) -> Any:
    """Return the values after a cast, or the error."""
    try:
        df = featurestore.cast(FORMS[form](table), {"n": target}, **options)
        result = to_reader(df).read_all()
    except SchemaMismatch as error:
        return error
    assert result["other"].to_pylist() == table["other"].to_pylist()
    assert result.schema.field("n").type == target
    return result["n"].to_pylist()


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.sampled_from(sorted(FORMS)),
    st.sampled_from(sorted(SOURCES)),
    st.sampled_from(TYPES),
)
def test_cast_equals_python_conversion_or_raises(
    data: st.DataObject, form: str, source: str, target: pa.DataType
) -> None:
    values = [*data.draw(st.lists(st.none() | VALUES[source], min_size=1, max_size=3)), None]
    table = pa.table(
        {"n": pa.array(values, SOURCES[source]), "other": pa.array(range(len(values)))}
    )
    expected, failed_row = [], None
    for row, value in enumerate(table["n"].to_pylist()):
        try:
            expected.append(converted(value, target))
        except (ValueError, KeyError, ArithmeticError):
            expected.append(None)
            failed_row = row if failed_row is None else failed_row
    result = result_of(form, table, target)
    if failed_row is None:
        assert result == expected
        return
    assert isinstance(result, SchemaMismatch), result
    assert "Column 'n', row " in result.message
    if "iterator" not in form:
        assert f"row {failed_row}: " in result.message
    assert result_of(form, table, target, inexact="null") == expected


def test_cast_takes_columns_without_names(subtests: pytest.Subtests) -> None:
    for form, build in ONE_COLUMN.items():
        with subtests.test(form):
            values = pa.array([1, 2]) if form == "matrix" else pa.array([1, None, 2])
            table = featurestore.cast(build(values), {"col_0": "string"})
            assert table["col_0"].to_pylist() == [
                value and str(value) for value in values.to_pylist()
            ]
            with pytest.raises(SchemaMismatch, match="Column 'col_0', row 0: 1"):
                featurestore.cast(build(values), {"col_0": "timestamp[YYYYMMDD]"})


# Inferred structs have sorted fields in older releases of pyarrow.
REVERSED = pa.struct({"b": pa.int64(), "a": pa.int64()})
# Values, the target, the rule, and the values after the cast; None if one has no equal.
CASTS: list[tuple[list[Any] | pa.Array, Any, str, list[Any] | None]] = [
    ([1.0, 2.6, None, 0.5], "int64", "round", [1, 3, None, 0]),
    ([127.0, 127.6], "int8", "round", None),
    ([127.0, 127.6, 2.0**63, math.inf, math.nan], "int8", "null", [127, None, None, None, None]),
    ([0.1], "float32", "error", None),
    ([0.1], "float32", "round", [np.float32(0.1).item()]),
    ([1e300], "float32", "round", None),
    ([2**53 + 1], "double", "round", [2.0**53]),
    (["1.5", "x", None], "float64", "null", [1.5, None, None]),
    ([0.125], "decimal(5, 2)", "error", None),
    ([0.125], "decimal(5, 2)", "round", [Decimal("0.12")]),
    ([Decimal("1.255")], "decimal(5, 2)", "round", [Decimal("1.26")]),
    ([[1.0, 2.5], None], "list<int64>", "round", [[1, 2], None]),
    ([[0.1, 0.2]], "float32[2]", "round", [[np.float32(0.1).item(), np.float32(0.2).item()]]),
    ([20240131, None], "timestamp[YYYYMMDD]", "error", [NOON.replace(hour=0), None]),
    ([20240230], "timestamp[YYYYMMDD]", "error", None),
    ([2024.0], "timestamp[YYYY]", "error", [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    ([45322.5], "timestamp[Excel]", "error", [NOON]),
    ([1706702400], "timestamp[s]", "error", [NOON]),
    ([1706702400.25], "timestamp[s]", "error", [NOON + dt.timedelta(milliseconds=250)]),
    ([1706702400000000800], "timestamp[ns]", "error", None),
    ([1706702400000000800], "timestamp[ns]", "round", [NOON]),
    (["31/01/2024 12:00"], "timestamp[%d/%m/%Y %H:%M]", "error", [NOON]),
    (["31/13/2024", None], "timestamp[%d/%m/%Y]", "null", [None, None]),
    (["2024-01-31T12:00:00Z"], "timestamp", "error", [NOON]),
    ([NOON.date()], "timestamp", "error", [NOON.replace(hour=0)]),
    ([NOON], "date32", "error", None),
    ([NOON], "date32", "round", [NOON.date()]),
    ([NOON.replace(hour=0)], "date", "error", [NOON.date()]),
    ([True, None], "int8", "error", [1, None]),
    ([{"a": 1, "b": {2, 1}}, None], "string", "error", ['{"a": 1, "b": [1, 2]}', None]),
    (pa.array([{"b": 1, "a": 2}], REVERSED), "string", "error", ['{"b": 1, "a": 2}']),
    ([(1, 2)], "string", "error", ["[1, 2]"]),
    ([b"\xff"], "string", "error", None),
    ([b"a", "b"], "binary", "error", [b"a", b"b"]),
    ([{"a": 1}], "struct<a: int8, b: string>", "error", [{"a": 1, "b": None}]),
    ([{"c": 1}], "struct<a: int8>", "error", None),
    (pa.array([7], pa.duration("s")), "int64", "error", [7]),
    (pa.array(["1", "2", "1"]).dictionary_encode(), "int64", "error", [1, 2, 1]),
]


def test_cast_values_and_rules(subtests: pytest.Subtests) -> None:
    for values, target, rule, expected in CASTS:
        for form in ("columns", "table"):
            with subtests.test(f"{values} to {target}, {rule}, {form}"):
                df: Any = {"c": values}
                if form == "table":
                    try:
                        df = pa.table(df)
                    except (pa.ArrowInvalid, pa.ArrowTypeError):
                        continue  # sets, and bytes with strings
                if expected is None:
                    with pytest.raises(SchemaMismatch, match=r"Column 'c', row [01]: ") as refused:
                        featurestore.cast(df, {"c": target}, inexact=rule)
                    assert str(refused.value.hint).startswith("df = featurestore.cast(df, {'c': ")
                    continue
                table = featurestore.cast(df, {"c": target}, inexact=rule)
                assert table["c"].to_pylist() == expected


def test_cast_streams_are_lazy_and_read_once() -> None:
    reads: list[int] = []

    def frames() -> Iterator[pa.Table]:
        for number in range(3):
            reads.append(number)
            yield pa.table({"n": [str(number)]})

    cast = featurestore.cast(frames(), {"n": "int64"})
    assert reads == []
    assert to_reader(cast).read_all()["n"].to_pylist() == [0, 1, 2]
    assert reads == [0, 1, 2]
    schema = pa.schema([("n", pa.string())])
    batches = (batch for table in frames() for batch in table.to_batches())
    reader = featurestore.cast(pa.RecordBatchReader.from_batches(schema, batches), {"n": "int64"})
    assert len(reads) == 3
    assert reader.read_all()["n"].to_pylist() == [0, 1, 2]


def test_casts_of_relations_run_no_query_until_they_are_read() -> None:
    connection = duckdb.connect()
    relation = connection.sql("SELECT range::VARCHAR AS n FROM range(300000)")
    reader = featurestore.cast(relation, {"n": "int64"})
    assert connection.sql("SELECT 1").fetchall() == [(1,)]
    assert reader.read_all()["n"].to_pylist() == list(range(300_000))
    large = connection.sql("SELECT 'x' AS n FROM range(300000)")
    with pytest.raises(SchemaMismatch, match="row 0: 'x'") as caught:
        featurestore.cast(large, {"n": "int64"}).read_all()
    assert caught.value.__traceback__ is not None  # which holds the frames of the stream
    assert connection.sql("SELECT 1").fetchall() == [(1,)]
    error = connection.sql("SELECT error('of the query') AS n")
    reader = featurestore.cast(error, {"n": "string"})
    with pytest.raises(duckdb.Error, match="of the query"):
        reader.read_all()


def test_cast_refuses_unknown_types_columns_and_rules() -> None:
    with pytest.raises(UnsupportedType, match="unknown type 'int65'"):
        featurestore.cast({"a": [1]}, {"a": "int65"})
    with pytest.raises(UnsupportedType, match="duration"):
        featurestore.cast({"a": [1]}, {"a": pa.duration("s")})
    with pytest.raises(SchemaMismatch, match="no column 'b'"):
        featurestore.cast({"a": [1]}, {"b": "int64"})
    with pytest.raises(InvalidArgument, match="inexact='floor'"):
        featurestore.cast({"a": [1]}, {"a": "int64"}, inexact="floor")
    with pytest.raises(InvalidArgument, match="does not contain a year"):
        featurestore.cast({"a": ["x"]}, {"a": "timestamp[%H:%M]"})
    not_a_dict: Any = ["a"]
    with pytest.raises(InvalidArgument, match="is not a dict of types"):
        featurestore.cast({"a": [1]}, not_a_dict)
    invalid_renames: list[Any] = ["ab", None, {"a", "b"}, {"a": None}, [1]]
    for renames in invalid_renames:
        with pytest.raises(InvalidArgument, match="is neither a dict of new names nor a list"):
            featurestore.rename({"a": [1]}, renames)


def test_cast_columns_with_other_names_than_strings() -> None:
    names: list[Any] = [1, ("a", "b")]
    for name in names:
        frame = featurestore.cast(pd.DataFrame({name: ["1"]}), {name: "int64"})
        assert frame[name].tolist() == [1]
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    for df in (frame, pa.table([pa.array([1]), pa.array([2])], ["a", "a"])):
        with pytest.raises(InvalidName, match="has 2 columns 'a'") as caught:
            featurestore.cast(df, {"a": "string"})
        assert to_reader(pasted(df, str(caught.value.hint))).read_all().column_names == ["a", "a_2"]


def test_cast_refuses_iterators_of_rows() -> None:
    rows = [{"v": [1, 2]}, {"v": [3, 4]}]
    conversions: list[Callable[[Any], Any]] = [
        lambda df: featurestore.cast(df, {"v": "float32[2]"}),
        lambda df: featurestore.rename(df, {"v": "w"}),
    ]
    for convert in conversions:
        with pytest.raises(UnsupportedDataframe, match="An iterator of dict") as caught:
            list(convert(iter(rows)))
        assert str(caught.value.hint).startswith("df = list(df)")


def test_cut_times_are_never_later() -> None:
    fine = pd.Timestamp("1960-01-01 00:00:00.000000999")
    cut = dt.datetime(1960, 1, 1, tzinfo=dt.UTC)
    texts = ["1960-01-01T00:00:00.0000009", "1960-01-01T00:00:00.0000005Z"]
    for cells in ([fine], [fine.to_datetime64()], [fine, cut], texts, pd.Series([fine])):
        column = featurestore.cast({"t": cells}, {"t": "timestamp"}, inexact="round")["t"]
        assert set(column.to_pylist()) == {cut}, cells
    nested = featurestore.cast({"t": [[fine]]}, {"t": "list<timestamp>"}, inexact="round")
    assert nested["t"].to_pylist() == [[cut]]
    hour = dt.datetime(1960, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=13)))
    days = featurestore.cast({"t": [[hour]]}, {"t": "list<date>"}, inexact="round")
    assert days["t"].to_pylist() == [[dt.date(1959, 12, 31)]]
    micros = featurestore.cast({"t": [-1.5]}, {"t": "timestamp[us]"}, inexact="round")
    assert micros["t"].cast("int64").to_pylist() == [-2]
    far = {"t": [np.datetime64(10**17, "s")]}  # numpy would wrap the microseconds
    for rule in ("error", "round"):
        with pytest.raises(SchemaMismatch, match="row 0"):
            featurestore.cast(far, {"t": "timestamp"}, inexact=rule)
    far_times = pa.table({"t": pa.array([0, 2**50], pa.timestamp("s"))})
    with pytest.raises(SchemaMismatch, match=r"row 1: .*out of range"):
        featurestore.cast(far_times, {"t": "timestamp"})


def test_omitting_many_values_is_fast() -> None:
    halves = np.arange(200_000) / 2
    start = time.monotonic()
    column = featurestore.cast({"n": halves}, {"n": "int64"}, inexact="null")["n"]
    times = featurestore.cast({"t": halves.view("M8[ns]")}, {"t": "timestamp"}, inexact="null")
    assert time.monotonic() - start < 10  # 40 s with one cast a row
    assert column.to_pylist() == [n // 2 if n % 2 == 0 else None for n in range(200_000)]
    assert times["t"].null_count > 0
    edges = [0.0, 2.0**63, math.nan, math.inf, None, -1.0]
    column = featurestore.cast({"n": edges}, {"n": "int64"}, inexact="null")["n"]
    assert column.to_pylist() == [0, None, None, None, None, -1]


def test_rounded_numbers_of_objects_stay_in_range() -> None:
    for values, target in (
        ([[1e300]], "list<float32>"),
        ([Decimal("1e400"), 1.5], "float64"),
        ([1e30], "decimal(38, 10)"),
        ([float("inf")], "decimal(38, 10)"),
    ):
        with pytest.raises(SchemaMismatch, match="row 0"):
            featurestore.cast({"c": values}, {"c": target}, inexact="round")
    wide = featurestore.cast({"c": [1e20, 0.1]}, {"c": "decimal(38, 10)"}, inexact="round")
    assert wide["c"].to_pylist() == [Decimal(10**20), Decimal("0.1")]


def test_cast_and_rename_take_frames_of_a_store(flights_store: FeatureStore) -> None:
    frame = flights_store.sql("SELECT 1 AS n")
    assert to_reader(featurestore.cast(frame, {"n": "string"})).read_all()["n"].to_pylist() == ["1"]
    assert to_reader(featurestore.rename(frame, {"n": "m"})).read_all().column_names == ["m"]


def test_rename_takes_every_form(subtests: pytest.Subtests) -> None:
    table = pa.table({"n": [1, 2], "other": [3, 4]})
    for (form, build), renames in product(FORMS.items(), ({"n": "m"}, ["m", "other"])):
        with subtests.test(f"{form}, {renames}"):
            result = to_reader(featurestore.rename(build(table), renames)).read_all()
            assert result.to_pydict() == {"m": [1, 2], "other": [3, 4]}
            invalid_names: list[Any] = [{"n": "other"}, {"x": "y"}, ["a", "b", "c"], ["a", "a"]]
            for invalid in invalid_names:
                with pytest.raises(InvalidName):
                    to_reader(featurestore.rename(build(table), invalid)).read_all()
