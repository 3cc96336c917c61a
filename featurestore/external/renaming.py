"""Columns of sources under names of features: a mapping, or snake case for all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.model.names import snake_case_names
from featurestore.model.renames import RENAME, SNAKE_CASE
from featurestore.model.source import SourceTable
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.source import (
    BadRow,
    DescribedSnapshot,
    PartitionedSnapshot,
    QuarantiningSnapshot,
    SourceQuery,
    SourceSnapshot,
)


class RenamedSnapshot:
    """A snapshot whose columns have the names that its source, or the query, gives them.

    A query may name a column by either name. One that renames nothing goes through as it is.
    """

    def __init__(self, source: str, snapshot: SourceSnapshot, rename: str | None) -> None:
        self._source = source
        self._snapshot = snapshot
        self._rename = rename

    @property
    def identity(self) -> str:
        """What tells this state from others."""
        return self._snapshot.identity

    @property
    def server(self) -> str:
        """What answered, with its version."""
        return self._snapshot.server

    @property
    def bad_row_count(self) -> int:
        """How many rows its reads left out so far."""
        if isinstance(self._snapshot, QuarantiningSnapshot):
            return self._snapshot.bad_row_count
        return 0

    @property
    def bad_rows(self) -> Sequence[BadRow]:
        """The first of these rows."""
        if isinstance(self._snapshot, QuarantiningSnapshot):
            return self._snapshot.bad_rows
        return ()

    @property
    def unread(self) -> Sequence[str]:
        """Files that no table has, because they are of no known format."""
        if isinstance(self._snapshot, DescribedSnapshot):
            return self._snapshot.unread
        return ()

    def tables(self) -> Sequence[SourceTable]:
        """Return the tables that there are."""
        return self._snapshot.tables()

    def query_of(self, table: SourceTable) -> SourceQuery:
        """Return the query for all rows of one of ``tables``."""
        return self._snapshot.query_of(table)

    def names(self, query: SourceQuery) -> Sequence[str]:
        """Return the columns that a query gives, under their new names."""
        inner, renames = self._translated(query)
        return [renames.get(name, name) for name in self._snapshot.names(inner)]

    def schema(self, query: SourceQuery) -> pa.Schema:
        """Return the types of the columns, under their new names."""
        inner, renames = self._translated(query)
        return _renamed(self._snapshot.schema(inner), renames)

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        """Return the rows, their columns under their new names."""
        inner, renames = self._translated(query)
        reader = self._snapshot.read(inner)
        if not renames:
            return reader
        schema = _renamed(reader.schema, renames)
        return pa.RecordBatchReader.from_batches(schema, _batches(reader, schema))

    def stage(self, query: SourceQuery, engine: Engine, directory: str) -> Relation:
        """Have the tasks of an engine write the rows; return them under their new names."""
        assert isinstance(self._snapshot, PartitionedSnapshot)
        inner, renames = self._translated(query)
        rows = self._snapshot.stage(inner, engine, directory)
        if not renames:
            return rows
        return engine.select(rows, {renames.get(name, name): name for name in rows.schema.names})

    def description(self, query: SourceQuery) -> Mapping[str, Any] | None:
        """Return dialect, types and files of a table, where the source decides them."""
        if not isinstance(self._snapshot, DescribedSnapshot):
            return None
        inner, renames = self._translated(query)
        described = dict(self._snapshot.description(inner))
        columns = described["columns"].items()
        return {**described, "columns": {renames.get(name, name): kind for name, kind in columns}}

    def close(self) -> None:
        """End the snapshot."""
        self._snapshot.close()

    def _translated(self, query: SourceQuery) -> tuple[SourceQuery, dict[str, str]]:
        """Return the query in the names of the source, and the new name of each of its columns."""
        options = {name: value for name, value in query.options.items() if name != RENAME}
        rename = query.options.get(RENAME, self._rename)
        inner = replace(query, options=options)
        if rename is None:
            return inner, {}
        names = self._snapshot.names(replace(inner, columns=None, window=None))
        renames = self._renames(rename, names)
        originals = {new: old for old, new in renames.items()}
        columns, window = query.columns, query.window
        if columns is not None:
            columns = tuple(originals.get(name, name) for name in columns)
        if window is not None:
            window = replace(window, column=originals.get(window.column, window.column))
        return replace(inner, columns=columns, window=window), renames

    def _renames(self, rename: str, names: Sequence[str]) -> dict[str, str]:
        if rename == SNAKE_CASE:
            return snake_case_names(names)
        renames: dict[str, str] = json.loads(rename)
        absent = [name for name in renames if name not in names]
        if absent:
            raise InvalidArgument(
                f"rename: source {self._source!r} has no columns {listing(absent)}; it has "
                f"{listing(names, limit=50)}.",
                hint=did_you_mean(absent[0], names, write="rename={{{!r}: '...'}}"),
            )
        return renames


def _renamed(schema: pa.Schema, renames: Mapping[str, str]) -> pa.Schema:
    return pa.schema([field.with_name(renames.get(field.name, field.name)) for field in schema])


def _batches(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
