"""Each hint about dataframe input works exactly as pasted, for every object with the values."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from featurestore.errors import FeatureStoreError, UnsupportedDataframe
from featurestore.ingest import to_reader
from featurestore.store import FeatureStore
from tests.ingest.pasting import MODULES, pasted
from tests.ingest.value_kinds import CELLS, FORMS, KINDS, UTC_NOON

# Some values need one line for each of their problems.
_MAX_LINES = 3


class ArrowStream:
    """An object of another library with rows as an Arrow stream."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._data.__arrow_c_stream__(requested_schema)


def generator(*frames: Any) -> Iterator[Any]:
    yield from frames


def read_after_hints(make: Callable[[], Any]) -> pa.Table:
    """Return the rows of an argument; each error is followed by its hint, as a user pastes it."""
    df, hints = make(), list[str]()
    while len(hints) <= _MAX_LINES:
        try:
            return to_reader(df).read_all()
        except FeatureStoreError as error:
            hints.append(str(error.hint))
        df = pasted(make(), *hints)  # a consumed iterator is created again
    raise AssertionError(hints)


def stored_after_hints(make: Callable[[], Any], column: str) -> list[Any]:
    return list(read_after_hints(make)[column].to_pylist())


ARROW: dict[str, Callable[[pa.Table], Any]] = {
    "record batch": lambda table: table.to_batches()[0],
    "reader": lambda table: table.to_reader(),
    "dataset": lambda table: ds.dataset(table),
    "foreign stream": ArrowStream,
    "columns": lambda table: {"c": table["c"]},
    "columns of arrays": lambda table: {"c": table["c"].combine_chunks()},
}
PANDAS: dict[str, Callable[[Any], Any]] = {
    "series": lambda df: df["c"],
    "index": lambda df: pd.Index(df["c"], name="c"),
    "series with a tuple name": lambda df: df["c"].rename(("c", "")),
    "series without a name": lambda df: df["c"].rename(None),
    "named index": lambda df: df.assign(other=1).set_index("c"),
    "columns": lambda df: {"c": df["c"]},
    "columns of indexes": lambda df: {"c": pd.Index(df["c"])},
    "columns of arrays": lambda df: {"c": df["c"].array},
}
POLARS: dict[str, Callable[[Any], Any]] = {
    "series": lambda df: df["c"],
    "lazy frame": lambda df: df.lazy(),
    "columns": lambda df: {"c": df["c"]},
}
NUMPY: dict[str, Callable[[Any], Any]] = {
    "array": lambda columns: columns["c"],
    "matrix": lambda columns: columns["c"].reshape(-1, 1),
    "numpy.matrix": lambda columns: np.matrix(columns["c"].reshape(-1, 1)),
    "records": lambda columns: np.array([(cell,) for cell in columns["c"]], [("c", columns["c"].dtype)]),
    "masked": lambda columns: {"c": np.ma.masked_array(columns["c"], columns["c"] != columns["c"])},
    "masked matrix": lambda columns: np.ma.masked_array(
        columns["c"].reshape(-1, 1), columns["c"].reshape(-1, 1) != columns["c"].reshape(-1, 1)
    ),
    "rows of arrays": lambda columns: [np.array([cell]) for cell in columns["c"]],
}  # fmt: skip
OBJECTS = {"pyarrow": ARROW, "pandas": PANDAS, "polars": POLARS, "numpy": NUMPY, "duckdb": {}}
WRAPPED: dict[str, Callable[[Any], Any]] = {
    "cells": lambda cell: cell,
    "lists": lambda cell: [cell, cell],
    "dicts": lambda cell: {"k": cell},
}
UNNAMED = (
    "array",
    "matrix",
    "numpy.matrix",
    "masked matrix",
    "rows of arrays",
    "series without a name",
)


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("library", OBJECTS)
def test_columns_are_stored_after_pasted_hints(library: str, subtests: pytest.Subtests) -> None:
    for case in KINDS:
        df = case.make() if case.library == library else None
        if df is None:
            continue
        objects: dict[str, Callable[[Any], Any]] = {"dataframe": lambda df: df}
        if case.column == "c" and has_form(df, library):
            objects |= OBJECTS[library]
        for title, build in objects.items():
            if title == "records" and df["c"].dtype.kind == "T":
                continue  # numpy has no such records
            column = "col_0" if title in UNNAMED else case.column
            with subtests.test(f"{case.title}, {title}"):
                check(
                    lambda b=build, c=case: b(c.make()), column, case.values, is_taken=case.is_taken
                )


def check(
    make: Callable[[], Any], column: str, values: Sequence[Any], *, is_taken: bool = False
) -> None:
    """Check an argument and, if hints are necessary, an iterator of two such arguments."""
    assert list(map(meaning, stored_after_hints(make, column))) == list(map(meaning, values))
    if is_taken:
        return
    df = make()
    is_typed = isinstance(df, dict) and not isinstance(df["c"], list | np.ndarray)
    is_named = isinstance(df, list) and isinstance(df[0], dict)
    # Other dicts and lists are rows of an iterator.
    if not isinstance(df, dict | list) or is_typed or is_named:
        stored = stored_after_hints(lambda: generator(make(), make()), column)
        assert list(map(meaning, stored)) == 2 * list(map(meaning, values))


def meaning(value: Any) -> Any:
    """Return a time of day for its texts, with and without fractions of a second."""
    try:
        return datetime.time.fromisoformat(value)
    except (TypeError, ValueError):
        return value


def has_form(df: Any, library: str) -> bool:
    """Return whether a case is a dataframe of its library, or a dict of arrays for numpy."""
    if library == "numpy":
        is_masked = isinstance(df, dict) and isinstance(df["c"], np.ma.MaskedArray)
        return isinstance(df, dict) and df["c"].ndim == 1 and not is_masked
    return not isinstance(df, dict) and hasattr(df, "columns")


@pytest.mark.parametrize("form", ["pandas", "rows"])
def test_cells_are_stored_after_pasted_hints(form: str, subtests: pytest.Subtests) -> None:
    for case in CELLS:
        for title, wrap in WRAPPED.items():
            with subtests.test(f"{case.title}, {title}"):
                check(
                    lambda c=case, w=wrap: FORMS[form]([w(cell) for cell in c.cells]),
                    "c",
                    [wrap(value) for value in case.values],
                    is_taken=case.is_taken,
                )


LEFT = pd.DataFrame({"c": pd.arrays.IntervalArray.from_breaks([0, 1], closed="left")})
RIGHT = pd.DataFrame({"c": [pd.Interval(0, 1)]})
# Arguments that are not dataframes, and the rows that they have after the hints.
ARGUMENTS: dict[str, tuple[Callable[[], Any], list[dict[str, Any]]]] = {
    "chunked array": (lambda: pa.chunked_array([[1]]), [{"col_0": 1}]),
    "array": (lambda: pa.array([1]), [{"col_0": 1}]),
    "chunked array of structs": (lambda: pa.chunked_array([[{"a": 1}]]), [{"a": 1}]),
    "chunked array of structs and null": (
        lambda: pa.chunked_array([[{"a": 1}, None]]),
        [{"col_0": {"a": 1}}, {"col_0": None}],
    ),
    "foreign array": (lambda: ArrowStream(pa.chunked_array([[1]])), [{"col_0": 1}]),
    "pandas array": (lambda: pd.array([1, None], dtype="Int64"), [{"col_0": 1}, {"col_0": None}]),
    "MultiIndex": (lambda: pd.MultiIndex.from_tuples([(1, "x")]), [{"col_0": 1, "col_1": "x"}]),
    "lazy frame": (lambda: pl.LazyFrame({"a": [1]}), [{"a": 1}]),
    "one dimension": (lambda: np.array([1]), [{"col_0": 1}]),
    "one row": (lambda: {"a": 1, "b": "x"}, [{"a": 1, "b": "x"}]),
    "columns of iterators": (lambda: {"a": iter([1]), "b": iter("x")}, [{"a": 1, "b": "x"}]),
    "iterator of dicts": (lambda: generator({"a": 1}, {"a": 2}), [{"a": 1}, {"a": 2}]),
    "iterator of tuples": (lambda: generator((1, "x")), [{"col_0": 1, "col_1": "x"}]),
    "iterator of chunks of tuples": (
        lambda: generator([(1, "x")], [(2, "y")]),
        [{"col_0": 1, "col_1": "x"}, {"col_0": 2, "col_1": "y"}],
    ),
    "iterator of rows of one time": (
        lambda: generator({"t": pd.Timestamp(UTC_NOON)}),
        [{"t": UTC_NOON}],
    ),
    "iterator of columns": (lambda: generator({"a": pa.array([1])}), [{"a": 1}]),
    "intervals of two sides": (
        lambda: generator(LEFT, RIGHT),
        [
            {"c": {"left": 0, "right": 1, "closed": "left"}},
            {"c": {"left": 0, "right": 1, "closed": "right"}},
        ],
    ),
    "rows of times": (
        lambda: [np.array(["2024-01-31T12"], "M8[ns]")],
        [{"col_0": UTC_NOON}],
    ),
}  # fmt: skip


def test_arguments_are_stored_after_pasted_hints(subtests: pytest.Subtests) -> None:
    for title, (make, rows) in ARGUMENTS.items():
        if title == "foreign array" and not hasattr(pa.ChunkedArray, "__arrow_c_stream__"):
            continue  # an older pyarrow
        with subtests.test(title):
            assert read_after_hints(make).to_pylist() == rows


def test_file_names_are_read_after_pasted_hints(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows = pd.DataFrame({"a": [1, 2]})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    (tmp_path / "folder").mkdir()
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.to_parquet(tmp_path / "folder" / "part.parquet")
    for name in ("rows.csv", "rows.jsonl", "rows.parquet", "folder"):
        with subtests.test(name):
            path = tmp_path / name
            with pytest.raises(UnsupportedDataframe) as refused:
                to_reader(path)
            names = dict(MODULES)
            exec(str(refused.value.hint), names)
            df = names.get("df", names.get("rows"))
            assert to_reader(df).read_all()["a"].to_pylist() == [1, 2]


def frames_of(table: pa.Table) -> dict[str, Callable[[], Any]]:
    """Return the objects with the rows of a table, for calls of a store."""
    df = pd.DataFrame({name: table[name].to_pandas() for name in table.column_names})
    first, last = table.slice(0, 1), table.slice(1)
    return {
        "pandas": lambda: generator(df[:1], df[1:]),
        "named index": lambda: df.set_index("key"),
        "polars": lambda: generator(pl.from_arrow(first), pl.from_arrow(last)),
        "tables": lambda: generator(first, last),
        "reader": lambda: table.to_reader(max_chunksize=1),
        "record batch": lambda: table.to_batches()[0],
        "rows": lambda: generator(first.to_pylist(), last.to_pylist()),
    }


@pytest.mark.parametrize("call", ["time", "labels", "insert", "export"])
def test_calls_succeed_after_pasted_hints(
    empty_store: FeatureStore, call: str, subtests: pytest.Subtests
) -> None:
    table = pa.table({"key": ["1", "1"], "at": ["2024-01-31T12:00:00+00:00"] * 2})
    empty_store.create_featuregroup([{"key": 1, "x": 0.5}], "numbers", primary_key="key")
    empty_store.create_featuregroup(pa.table({"key": [1], "at": [UTC_NOON]}), "times")
    calls: dict[str, Callable[[Any, str], Any]] = {
        "time": lambda df, name: empty_store.create_featuregroup(df, name, event_time="at"),
        "labels": lambda df, _: empty_store.get_features(["numbers.x"], labels=df),
        "insert": lambda df, _: empty_store.insert_into_featuregroup(df, "times"),
        "export": lambda df, name: empty_store.create_training_dataset(
            df, name, data_format="csv", progress=False, statistics=False
        ),
    }
    if call == "export":  # durations have no feature type
        table = table.set_column(1, "at", pa.array([7, 8], pa.duration("us")))
    for number, (title, make) in enumerate(frames_of(table).items()):
        with subtests.test(title):
            hints: list[str] = []
            while True:
                try:
                    calls[call](pasted(make(), *hints), f"{call}_{number}")
                    break
                except FeatureStoreError as error:
                    hints.append(str(error.hint))
                assert len(hints) <= _MAX_LINES
            assert hints
