"""Values of every kind are stored equal, or refused with a hint that works when pasted."""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.arrow.types import feature_type
from featurestore.errors import InvalidName, OutOfRange, SchemaMismatch, UnsupportedType
from featurestore.ingest import to_reader
from featurestore.store import FeatureStore
from tests.ingest.pasting import pasted
from tests.ingest.value_kinds import (
    CELLS,
    DAY,
    DOCS,
    FINE,
    FORMS,
    KINDS,
    NOON,
    UTC_NOON,
    table,
)


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def arrived(df: Any, column: str) -> tuple[str, list[Any]]:
    table = to_reader(df).read_all()
    assert table.num_rows
    return str(table.schema.field(column).type), table[column].to_pylist()


def test_library_values_are_stored_or_refused(subtests: pytest.Subtests) -> None:
    for case in KINDS:
        with subtests.test(f"{case.library} {case.title}"):
            df = case.make()
            if df is None:
                pytest.skip("the installed release has no such type")
            if case.is_taken:
                assert arrived(df, case.column) == (case.type, list(case.values))
                continue
            with pytest.raises(UnsupportedType) as error:
                to_reader(df).read_all()
            _, values = arrived(pasted(case.make(), str(error.value.hint)), case.column)
            assert values == list(case.values)


def test_duckdb_relation_values_raise_same_error(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    for case in KINDS:
        if case.library != "duckdb" or case.is_taken:
            continue
        with subtests.test(case.title):
            with pytest.raises(UnsupportedType) as streamed:
                to_reader(case.make()).read_all()
            with pytest.raises(UnsupportedType) as adopted:
                empty_store.create_featuregroup(case.make(), "odd")
            assert str(adopted.value) == str(streamed.value)


@pytest.mark.parametrize("form", FORMS)
def test_cell_values_are_stored_or_refused(form: str, subtests: pytest.Subtests) -> None:
    column = "col_0" if form == "tuples" else "c"
    for case in CELLS:
        with subtests.test(case.title):
            if form == "polars" and case.title == "Enum":
                pytest.skip("polars cannot store them together with nulls")
            values = list(case.values)
            if case.is_taken:
                assert arrived(FORMS[form](case.cells), column) == (case.type, values)
                continue
            with pytest.raises(UnsupportedType) as error:
                to_reader(FORMS[form](case.cells)).read_all()
            _, after = arrived(pasted(FORMS[form](case.cells), str(error.value.hint)), column)
            assert after == values
            if form not in ("pandas", "polars"):
                continue
            chunks = iter([FORMS[form](["a"]), FORMS[form](case.cells)])
            with pytest.raises(UnsupportedType) as later:
                to_reader(chunks).read_all()
            assert later.value.message == error.value.message


def multi_index() -> pd.DataFrame:
    return pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("x", "mean"), ("x", "")]))


def pivot() -> pd.DataFrame:
    long = pd.DataFrame({"user": [1, 1], "item": [7, 8], "price": [1.5, 2.5]})
    return long.pivot_table(index="user", columns="item", values="price", aggfunc=["mean", "max"])


COLUMN_NAMES = {
    "numbers": (lambda: pd.DataFrame([[1, 2]]), ["col_0", "col_1"]),
    "MultiIndex": (multi_index, ["x_mean", "x"]),
    "pivot table": (pivot, ["user", "mean_7", "mean_8", "max_7", "max_8"]),
    "repeated": (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), ["a", "a_2"]),
    "repeated below an index": (
        lambda: pd.DataFrame([[1, 2]], columns=["a", "a"], index=pd.Index([5], name="id")),
        ["id", "a", "a_2"],
    ),
    "times": (lambda: pd.DataFrame([[1]], columns=[pd.Timestamp("2024-01-31")]), ["col_2024_01_31_00_00_00"]),
    "an index named 0": (lambda: pd.DataFrame({"a": [1]}, index=pd.Index([5], name=0)), ["index_0", "a"]),
    "an index named like a column": (
        lambda: pd.DataFrame({"a": [1]}, index=pd.Index([5], name="a")),
        ["index_a", "a"],
    ),
    "spaces in pandas": (lambda: pd.DataFrame({"wind speed": [1], "id": [2]}), ["wind_speed", "id"]),
    "spaces in polars": (lambda: pl.DataFrame({"wind speed": [1], "id": [2]}), ["wind_speed", "id"]),
    "spaces in Arrow": (lambda: pa.table({"wind speed": [1], "id": [2]}), ["wind_speed", "id"]),
    "repeated in Arrow": (lambda: pa.table([[1], [2]], ["a", "A"]), ["a", "A_2"]),
    "spaces in DuckDB": (lambda: duckdb.sql("SELECT 1 AS \"wind speed\", 2 AS id"), ["wind_speed", "id"]),
    "spaces in rows": (lambda: [{"wind speed": 1, "id": 2}], ["wind_speed", "id"]),
    "spaces in columns": (lambda: {"wind speed": [1], "id": [2]}, ["wind_speed", "id"]),
    "numbers in columns": (lambda: {0: [1], "id": [2]}, ["col_0", "id"]),
    "surrogates in columns": (lambda: {"a\ud800": [1], "id": [2]}, ["a", "id"]),
    "surrogates in pandas": (
        lambda: pd.DataFrame([[1, 2]], columns=pd.Index(["a\ud800", "id"], dtype=object)),
        ["a", "id"],
    ),
    "numbers in rows": (lambda: [{0: 1, "id": 2}], ["col_0", "id"]),
}  # fmt: skip


def test_invalid_names_raise_with_rename_hint(subtests: pytest.Subtests) -> None:
    for title, (make, expected) in COLUMN_NAMES.items():
        with subtests.test(title):
            with pytest.raises(InvalidName) as error:
                to_reader(make()).read_all()
            renamed = to_reader(pasted(make(), str(error.value.hint))).read_all()
            assert renamed.column_names == expected
            assert renamed.num_rows == 1


def test_later_chunk_error_has_same_hint(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    makers = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
    for library, make in makers.items():
        with subtests.test(library):
            group = empty_store.create_featuregroup(make({"n": [1, 2]}), f"numbers_of_{library}")
            for wrong in (make({"n": ["3"]}), make({"n": [2.5]})):
                with pytest.raises(SchemaMismatch) as first:
                    group.insert(iter([wrong]))
                with pytest.raises(SchemaMismatch) as later:
                    group.insert(iter([make({"n": [1]}), wrong]))
                hint = str(first.value.hint)
                if "2.5" in str(first.value):
                    # No line of code keeps the fraction.
                    assert hint.startswith("create the next version")
                    assert later.value.hint == "convert 'n' of the earlier rows to double"
                else:
                    assert str(later.value.hint) == hint.partition("  # or ")[0]
                    group.insert(pasted(iter([wrong]), hint))
            assert group.read().to_arrow()["n"].to_pylist() == [1, 2, 3]


def test_nanosecond_labels_do_not_match_later_features(
    empty_store: FeatureStore,
) -> None:
    features = [{"id": 1, "at": NOON, "x": 1.0}]
    group = empty_store.create_featuregroup(features, "g", primary_key="id", event_time="at")
    for labels in (
        [{"id": 1, "at": pd.Timestamp(UTC_NOON) - pd.Timedelta(800, "ns")}],
        pd.DataFrame({"id": [1], "at": pd.Series([FINE], dtype=object)}),
    ):
        with pytest.raises(UnsupportedType, match="finer than a microsecond"):
            empty_store.get_features([f"{group.name}.x"], labels=labels)
    days = [{"id": 1, "at": DAY}, {"id": 1, "at": datetime.datetime(2024, 1, 31, 23, 59)}]
    frame = empty_store.get_features([f"{group.name}.x"], labels=days).to_arrow()
    assert frame["x"].to_pylist() == [None, 1.0]


def test_documented_value_table_is_current() -> None:
    assert table() in DOCS.read_text(), "python -m tests.ingest.value_kinds writes it"


ACCEPTED = [cell for case in CELLS if case.is_taken for cell in case.cells]
REFUSED = [cell for case in CELLS if not case.is_taken for cell in case.cells]
ANY_CELLS = st.one_of(
    st.lists(st.sampled_from(ACCEPTED), min_size=1, max_size=3),
    st.lists(st.sampled_from(ACCEPTED + REFUSED), min_size=1, max_size=3),
    st.sampled_from(CELLS).flatmap(
        lambda case: st.lists(st.sampled_from(case.cells), min_size=1, max_size=4)
    ),
)
WRAPPED: dict[str, Any] = {
    "cells": lambda cell: cell,
    "lists": lambda cell: [cell],
    "tuples of dicts": lambda cell: ({"k": cell, "n": 1},),
    "dicts": lambda cell: {"k": cell},
}


def is_equal(value: Any, actual: Any) -> bool:
    """Return whether a stored value equals the input, by Python rules only."""
    if type(value).__name__ in ("NAType", "NaTType", "NoneType"):
        return actual is None
    if isinstance(value, np.ndarray) and value.dtype.kind == "M":
        value = value.astype("M8[us]")
    if isinstance(value, np.datetime64):
        return pd.isna(value) if actual is None else instant(value.item()) == instant(actual)
    if isinstance(value, np.generic | np.ndarray | pa.Scalar):
        value = value.as_py() if isinstance(value, pa.Scalar) else value.tolist()
    if isinstance(value, pd.Interval):
        value = {"left": value.left, "right": value.right}
    if isinstance(value, datetime.date):
        return instant(value) == instant(actual)
    if isinstance(value, dict):
        return actual.keys() >= value.keys() and all(
            is_equal(value[key], actual[key]) for key in value
        )
    if isinstance(value, list | tuple):
        return len(value) == len(actual) and all(map(is_equal, value, actual))
    if isinstance(value, bytes | bytearray):
        return bytes(value) == actual
    if isinstance(value, float) and math.isnan(value):
        return actual is None or math.isnan(actual)
    return isinstance(actual, bool) == isinstance(value, bool) and bool(value == actual)


def instant(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        zone = value.tzinfo or datetime.UTC
        return value.replace(tzinfo=zone).astimezone(datetime.UTC), getattr(value, "nanosecond", 0)
    return instant(datetime.datetime(value.year, value.month, value.day))


@settings(max_examples=100, deadline=None)
@given(ANY_CELLS, st.sampled_from(sorted(WRAPPED)), st.sampled_from(["pandas", "rows", "columns"]))
def test_random_cells_are_equal_or_refused(cells: list[Any], wrapped: str, form: str) -> None:
    given_cells = [WRAPPED[wrapped](cell) for cell in cells]
    try:
        table = to_reader(FORMS[form](given_cells)).read_all()
    except (UnsupportedType, InvalidName):
        return
    arrived_cells = table["c"].to_pylist()
    assert all(map(is_equal, given_cells, arrived_cells)), arrived_cells


@pytest.mark.spark
def test_spark_frame_errors_have_spark_hints(spark: Any, tmp_path: Any) -> None:
    import featurestore

    store = featurestore.connect(tmp_path, engine="spark")
    df = spark.sql("SELECT 1 AS id, map('a', 2) AS pairs, INTERVAL 1 DAY AS span")
    with pytest.raises(UnsupportedType) as error:
        store.create_featuregroup(df, "g", primary_key="id")
    group = store.create_featuregroup(pasted(df, str(error.value.hint)), "g", primary_key="id")
    (row,) = group.read().to_arrow().to_pylist()
    assert row["pairs"] == [{"key": "a", "value": 2}]
    assert row["span"] == 86_400_000_000


TEXTS = ["", "short", "longer than twelve bytes", "é" * 20]
ITEMS = {
    "int64": st.integers(-9, 9),
    "string": st.sampled_from(TEXTS),
    "binary": st.sampled_from([text.encode() for text in TEXTS]),
    "string_view": st.sampled_from(TEXTS),
    "binary_view": st.sampled_from([text.encode() for text in TEXTS]),
}


@st.composite
def encoded_arrays(draw: st.DrawFn) -> pa.Array:
    """Draw slices of view, run-end and dictionary arrays, nested and inside structs."""
    name = draw(st.sampled_from([name for name in ITEMS if hasattr(pa, name)]))
    dtype, item = getattr(pa, name)(), st.none() | ITEMS[name]
    views = [name for name in ("list_view", "large_list_view") if hasattr(pa, name)]
    form = draw(st.sampled_from(["scalars", "list_", *views]))
    if form in views:
        cells = draw(st.lists(st.none() | st.lists(item, max_size=3), min_size=1, max_size=6))
        array = list_views(cells, draw(st.permutations(range(len(cells)))), dtype, form)
    elif form == "list_":
        cells = draw(st.lists(st.none() | st.lists(item, max_size=3), min_size=1, max_size=6))
        array = pa.array(cells, pa.list_(dtype))
    else:
        array = pa.array(draw(st.lists(item, min_size=1, max_size=6)), dtype)
    for wrapper in draw(st.lists(st.sampled_from(["dictionary", "runs", "struct"]), max_size=2)):
        array = part_of(draw, array)
        rows = len(array)
        if wrapper == "dictionary" and rows:
            indices = draw(st.lists(st.none() | st.integers(0, rows - 1), max_size=6))
            array = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), array)
        elif wrapper == "runs" and rows:
            lengths = draw(st.lists(st.integers(1, 3), min_size=rows, max_size=rows))
            ends = np.cumsum(lengths).tolist()
            array = pa.RunEndEncodedArray.from_arrays(ends, array)
        elif wrapper == "struct":
            nulls = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
            mask = pa.array(nulls, pa.bool_())
            array = pa.StructArray.from_arrays([array], ["inner"], mask=mask)
    return part_of(draw, array)


def part_of(draw: st.DrawFn, array: pa.Array) -> pa.Array:
    start = draw(st.integers(0, len(array)))
    return array.slice(start, draw(st.integers(0, len(array) - start)))


def list_views(cells: list[Any], order: list[int], dtype: pa.DataType, form: str) -> pa.Array:
    """Return list views with values in any order, some unused or under a null."""
    offsets, sizes, values = [0] * len(cells), [0] * len(cells), [None]
    for row in order:
        items = [None, None] if cells[row] is None else cells[row]
        offsets[row], sizes[row] = len(values), len(items)
        values += [*items, None]
    large = form == "large_list_view"
    numbers = pa.int64() if large else pa.int32()
    return (pa.LargeListViewArray if large else pa.ListViewArray).from_arrays(
        pa.array(offsets, numbers),
        pa.array(sizes, numbers),
        pa.array(values, dtype),
        mask=pa.array([cell is None for cell in cells]),
    )


@settings(max_examples=200, deadline=None)
@given(encoded_arrays())
def test_view_run_end_and_dictionary_arrays_keep_values(array: pa.Array) -> None:
    table = to_reader(pa.table({"c": array})).read_all()
    table.validate(full=True)
    assert table.schema.types == [feature_type(array.type)]
    assert table["c"].to_pylist() == array.to_pylist()


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="the installed release has no such type")
def test_runs_of_dictionaries_of_views_keep_values() -> None:
    texts = pa.array(["a", None], pa.string_view())
    dictionary = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int32()), texts)
    runs = pa.RunEndEncodedArray.from_arrays([2, 3, 5], dictionary)
    rows = to_reader(pa.table({"c": runs})).read_all()
    assert rows["c"].to_pylist() == [None, None, None, "a", "a"]


NANOS = pa.timestamp("ns", "UTC")
# Two values of which the second one does not fit the column.
UNFIT = {
    "nanoseconds": pa.array([10**9, 1]).cast(NANOS),
    "year 30000": pa.array([0, 10**12]).cast(pa.timestamp("s", "UTC")),
    "array of nanoseconds": pa.array([[10**9], [1]]).cast(pa.list_(NANOS)),
}


def encoded(values: pa.Array, rows: list[int | None]) -> dict[str, tuple[pa.Array, Any]]:
    """Return columns with the values of these rows, and the form of their cells."""
    dictionary = pa.DictionaryArray.from_arrays(pa.array([1, *rows], pa.int8()), values).slice(1)
    lists = pa.ListArray.from_arrays(range(len(rows) + 1), dictionary)
    all_rows = values.take(pa.array([1, *rows, 1], pa.int8()))
    runs = pa.RunEndEncodedArray.from_arrays(range(2, 2 + len(all_rows)), all_rows)
    dictionary_runs = pa.RunEndEncodedArray.from_arrays(range(1, 1 + len(rows)), dictionary)
    return {
        "dictionary": (dictionary, lambda value: value),
        "lists of a dictionary": (lists, lambda value: [value]),
        "structs with half floats": (
            pa.StructArray.from_arrays(
                [pa.array([np.float16(0.5)] * len(rows)), dictionary], ["h", "f"]
            ),
            lambda value: {"h": 0.5, "f": value},
        ),
        "slice of runs": (runs.slice(2, len(rows)), lambda value: value),
        "runs of a dictionary": (dictionary_runs, lambda value: value),
    }


def test_values_that_no_row_has_need_not_fit(subtests: pytest.Subtests) -> None:
    for title, values in UNFIT.items():
        (fitting,) = to_reader(pa.table({"c": values.slice(0, 1)})).read_all()["c"].to_pylist()
        for encoding, (column, cell) in encoded(values, [0, None, 0]).items():
            with subtests.test(f"{title} in {encoding}"):
                cells = to_reader(pa.table({"c": column})).read_all()["c"].to_pylist()
                assert cells == [cell(fitting), cell(None), cell(fitting)]
        for encoding, (column, _) in encoded(values, [0, 1]).items():
            with (
                subtests.test(f"{title} in a row of {encoding}"),
                pytest.raises((UnsupportedType, OutOfRange)),
            ):
                to_reader(pa.table({"c": column})).read_all()


def test_unused_categories_of_pandas_need_not_fit() -> None:
    fine = pd.Timestamp("2024-01-31 00:00:00.000000001", tz="UTC")
    midnight = pd.Timestamp("2024-01-31", tz="UTC")
    column = pd.Categorical([midnight, None], categories=[midnight, fine])
    assert arrived(pd.DataFrame({"c": column}), "c")[1] == [midnight.to_pydatetime(), None]
    with pytest.raises(UnsupportedType):
        to_reader(pd.DataFrame({"c": pd.Categorical([fine, None])})).read_all()
