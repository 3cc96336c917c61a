"""Each hint about dataframe input works exactly as pasted, for every object with the values."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from featurestore.errors import FeatureStoreError
from featurestore.ingest import to_reader
from tests.ingest.pasting import pasted
from tests.ingest.value_kinds import CELLS, FINE, FORMS, KINDS, UTC_NOON

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


def stored_after_hints(make: Callable[[], Any], column: str) -> list[Any]:
    """Return the values of a column; each error is followed by its hint, as a user pastes it."""
    df, lines = make(), []
    while len(lines) <= _MAX_LINES:
        try:
            return list(to_reader(df).read_all()[column].to_pylist())
        except FeatureStoreError as error:
            lines.append(str(error.hint))
        df = pasted(make(), *lines)  # a consumed iterator is created again
    raise AssertionError(lines)


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
    """Return a time of day for its forms: texts with and without microseconds, nanoseconds."""
    if value == 45_000_000_000_000:
        return datetime.time(12, 30)
    if value == str(FINE.to_datetime64()):  # numpy cells become texts
        return UTC_NOON
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
