"""Renaming of dataframe columns, by the dataframe's own library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from featurestore.arrow.column_lines import quoted
from featurestore.arrow.column_names import snake_case_names
from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.ingest import library_of, open_stream
from featurestore.model.renames import SNAKE_CASE, check_rename
from featurestore.retrieval import FeatureFrame


def renamed_frame(df: object, rename: Mapping[str, str] | str | None) -> object:
    """Return a dataframe argument with other names of columns; the frame itself is not changed.

    Raises:
        InvalidArgument: A name is not a column, or the frame is one of the store.

    >>> renamed_frame([{"Country Name": "Peru", "id": 1}], "snake_case")
    [{'country_name': 'Peru', 'id': 1}]
    """
    text = check_rename(rename)
    if text is None:
        return df
    if isinstance(df, FeatureFrame):
        raise InvalidArgument(
            "rename= is for dataframes of other libraries.",
            hint="read_source(name, rename={'Country Name': 'country_name'}) for a source",
        )
    library, frame = library_of(df), _untyped(df)
    if library == "pandas" and hasattr(df, "columns"):
        return _pandas(df, text)
    if library == "polars" and hasattr(df, "columns"):
        return frame.rename(_renames(text, frame.columns))
    if library == "pyspark":
        return frame.withColumnsRenamed(_renames(text, frame.columns))
    if library.endswith("duckdb") and hasattr(df, "project"):
        renames = _renames(text, frame.columns)
        columns = [f"{quoted(name)} AS {quoted(renames.get(name, name))}" for name in frame.columns]
        return frame.project(", ".join(columns))
    if isinstance(df, Mapping):
        renames = _renames(text, list(map(str, df)))
        return {renames.get(name, name): column for name, column in df.items()}
    if isinstance(df, list | tuple) and all(isinstance(row, Mapping) for row in df):
        renames = _renames(text, list(dict.fromkeys(str(name) for row in df for name in row)))
        return [_renamed_row(row, renames) for row in df]
    return _stream(open_stream(df), text)


def _untyped(df: Any) -> Any:
    return df


def _pandas(df: Any, text: str) -> object:
    indexes = [name for name in df.index.names if name is not None]
    renames = _renames(text, list(map(str, [*indexes, *df.columns])))
    frame = df.rename(columns=lambda name: renames.get(str(name), name))
    if indexes:
        frame.index = frame.index.set_names(
            [renames.get(str(name), name) for name in frame.index.names]
        )
    return frame


def _renamed_row(row: Mapping[str, Any], renames: Mapping[str, str]) -> dict[str, Any]:
    return {renames.get(name, name): value for name, value in row.items()}


def _stream(reader: pa.RecordBatchReader, text: str) -> pa.RecordBatchReader:
    renames = _renames(text, reader.schema.names)
    fields = [field.with_name(renames.get(field.name, field.name)) for field in reader.schema]
    schema = pa.schema(fields)
    batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in reader)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _renames(text: str, names: Sequence[str]) -> dict[str, str]:
    if text == SNAKE_CASE:
        return snake_case_names(names)
    renames: dict[str, str] = json.loads(text)
    absent = [name for name in renames if name not in names]
    if absent:
        raise InvalidArgument(
            f"rename: the dataframe has no columns {listing(absent)}; it has "
            f"{listing(names, limit=50)}.",
            hint=did_you_mean(absent[0], names, write="rename={{{!r}: '...'}}"),
        )
    return renames
