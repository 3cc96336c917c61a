"""Renaming of source columns to feature names, by a mapping or to snake case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featurestore.model.names import RENAME, resolve_renames
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
    """A snapshot whose columns are renamed by options of the source or the query.

    A query may use either name of a column. Without renames, the original names are used.
    """

    def __init__(self, source: str, snapshot: SourceSnapshot, rename: str | None) -> None:
        self._source = source
        self._snapshot = snapshot
        self._rename = rename

    @property
    def identity(self) -> str:
        """The identity of the snapshot."""
        return self._snapshot.identity

    @property
    def server(self) -> str:
        """The server and its version."""
        return self._snapshot.server

    @property
    def bad_row_count(self) -> int:
        """The number of rows that have been skipped so far."""
        if isinstance(self._snapshot, QuarantiningSnapshot):
            return self._snapshot.bad_row_count
        return 0

    @property
    def bad_rows(self) -> Sequence[BadRow]:
        """The first skipped rows."""
        if isinstance(self._snapshot, QuarantiningSnapshot):
            return self._snapshot.bad_rows
        return ()

    @property
    def unread(self) -> Sequence[str]:
        """Files that belong to no table because their format is unknown."""
        if isinstance(self._snapshot, DescribedSnapshot):
            return self._snapshot.unread
        return ()

    def tables(self) -> Sequence[SourceTable]:
        """Return the tables."""
        return self._snapshot.tables()

    def query_of(self, table: SourceTable) -> SourceQuery:
        """Return the query for all rows of a table from ``tables``."""
        return self._snapshot.query_of(table)

    def names(self, query: SourceQuery) -> Sequence[str]:
        """Return the column names of a query after renaming."""
        inner, renames = self._original_query(query)
        return [renames.get(name, name) for name in self._snapshot.names(inner)]

    def schema(self, query: SourceQuery) -> pa.Schema:
        """Return the schema of a query with renamed columns."""
        inner, renames = self._original_query(query)
        return _rename_fields(self._snapshot.schema(inner), renames)

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        """Read the rows of a query with renamed columns."""
        inner, renames = self._original_query(query)
        reader = self._snapshot.read(inner)
        if not renames:
            return reader
        schema = _rename_fields(reader.schema, renames)
        batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in reader)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def stage(self, query: SourceQuery, engine: Engine, directory: str) -> Relation:
        """Stage the rows of a query with the engine's tasks, with renamed columns."""
        assert isinstance(self._snapshot, PartitionedSnapshot)
        inner, renames = self._original_query(query)
        rows = self._snapshot.stage(inner, engine, directory)
        if not renames:
            return rows
        return engine.select(rows, {renames.get(name, name): name for name in rows.schema.names})

    def description(self, query: SourceQuery) -> Mapping[str, Any] | None:
        """Return the dialect, types and files of a table, if the source infers them."""
        if not isinstance(self._snapshot, DescribedSnapshot):
            return None
        inner, renames = self._original_query(query)
        details = dict(self._snapshot.description(inner))
        columns = details["columns"].items()
        return {
            **details,
            "columns": {renames.get(name, name): type_name for name, type_name in columns},
        }

    def close(self) -> None:
        """Close the snapshot."""
        self._snapshot.close()

    def _original_query(self, query: SourceQuery) -> tuple[SourceQuery, dict[str, str]]:
        """Return the query with original names, and a mapping from original to new names."""
        options = {name: value for name, value in query.options.items() if name != RENAME}
        rename = query.options.get(RENAME, self._rename)
        inner = replace(query, options=options)
        if rename is None:
            return inner, {}
        # The names cost a request, so they are only read if columns are renamed.
        names = self._snapshot.names(replace(inner, columns=None, window=None))
        renames = resolve_renames(rename, names, owner=f"source {self._source!r}")
        originals = {new: old for old, new in renames.items()}
        columns, window = query.columns, query.window
        if columns is not None:
            columns = tuple(originals.get(name, name) for name in columns)
        if window is not None:
            window = replace(window, column=originals.get(window.column, window.column))
        return replace(inner, columns=columns, window=window), renames


def _rename_fields(schema: pa.Schema, renames: Mapping[str, str]) -> pa.Schema:
    return pa.schema([field.with_name(renames.get(field.name, field.name)) for field in schema])
