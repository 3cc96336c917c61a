"""SQL sources: one sequence of tables, columns and rows for all databases, with hooks for dialects.

A source opens snapshots of its current state. A snapshot describes the columns of a table or query,
selects the needed columns, filters by the window, and casts the rows to feature types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Generic, TypeVar

import pyarrow as pa

from featurestore.errors import InvalidArgument, listing
from featurestore.model.source import SourceTable
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore_connectors.sources import locations, sqltext, typed_columns
from featurestore_connectors.sources.typed_columns import SourceColumn, TypedColumns

SnapshotT = TypeVar("SnapshotT", bound="SQLSnapshot")


class SQLSource(ABC, Generic[SnapshotT]):
    """A database that SQL reads, in its current state.

    Subclasses set the texts of refusals, which may contain the ``{name}`` of the source.
    """

    # How the error for options begins; None if the source has options.
    _options_owner: ClassVar[str | None]
    _options_hint: ClassVar[str | None] = None
    _no_versions: ClassVar[str]
    _versions_hint: ClassVar[str | None] = None

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        if config.options and self._options_owner is not None:
            owner = self._options_owner.format(name=config.name)
            raise InvalidArgument(
                f"{owner} has no options {listing(config.options)}.", hint=self._options_hint
            )

    def snapshot(self, at: int | datetime | None = None) -> SnapshotT:
        """Connect and return a consistent snapshot of the current state."""
        if at is not None:
            reason = self._no_versions.format(name=self._config.name)
            raise InvalidArgument(f"at={at!r}: {reason}.", hint=self._versions_hint)
        return self._connect()

    @abstractmethod
    def _connect(self) -> SnapshotT:
        """Return a snapshot with a new connection."""


class DatabaseFile(SQLSource[SnapshotT]):
    """A database in one file, opened read-only."""

    # The scheme of its URIs.
    _scheme: ClassVar[str]

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._path = locations.local_path(config, prefix=self._scheme)

    def _connect(self) -> SnapshotT:
        return self._open(locations.require_existing(self._config, self._path))

    @abstractmethod
    def _open(self, path: str) -> SnapshotT:
        """Return a snapshot of an existing file."""


@dataclass(frozen=True)
class Selection:
    """The columns of a table or query, those that a query selects, and the column of its window."""

    query: SourceQuery
    all_columns: Sequence[SourceColumn]
    columns: Sequence[SourceColumn]
    time_column: SourceColumn | None


class SQLSnapshot(TypedColumns):
    """A consistent state of a database.

    A dialect implements ``_table_names``, ``_columns``, ``_time_literal`` and ``_rows``, and overrides
    how it quotes identifiers and names tables.
    """

    # The source in errors about queries.
    _noun: str
    # Whether users pass SQL to this source, for the hints.
    _has_sql: ClassVar[bool] = True

    def __init__(self, config: SourceConfig, *, secret: str | None = None) -> None:
        self._config = config
        self._secret = secret

    def tables(self) -> Sequence[SourceTable]:
        """Return the tables and views."""
        return [SourceTable(name) for name in self._table_names()]

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        """Stream the rows of a query in feature types."""
        selection = self._select(query)
        schema = typed_columns.schema_of(selection.columns)
        batches = typed_columns.cast_batches(self._rows(selection), schema, has_sql=self._has_sql)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _select(self, query: SourceQuery) -> Selection:
        all_columns = self._columns(query)
        columns = typed_columns.select_columns(all_columns, query)
        time_column = None
        if query.window is not None:
            time_column = {column.name: column for column in all_columns}[query.window.column]
        return Selection(query, all_columns, columns, time_column)

    @abstractmethod
    def _table_names(self) -> Sequence[str]:
        """Return the names of the tables and views."""

    @abstractmethod
    def _time_literal(self, value: datetime, column: SourceColumn) -> str:
        """Return a time as SQL that the database compares with a column."""

    @abstractmethod
    def _rows(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a selection."""

    def _statement(self, selection: Selection) -> str:
        """Return the SELECT of a selection; the numbers of array axes are its last columns."""
        columns = selection.columns
        expressions = [f"{column.expression} AS {self._quote(column.name)}" for column in columns]
        expressions += [column.axes for column in columns if column.axes is not None]
        source, condition = self._from_item(selection.query), self._window_condition(selection)
        return sqltext.select(expressions, source=source, condition=condition)

    def _window_condition(self, selection: Selection) -> str | None:
        """Return the SQL condition of a window; None without a window."""
        window, time_column = selection.query.window, selection.time_column
        if window is None or time_column is None:
            return None
        start = self._time_literal(window.start, time_column)
        end = self._time_literal(window.end, time_column)
        return sqltext.within(window, column=self._quote(window.column), start=start, end=end)

    def _from_item(self, query: SourceQuery) -> str:
        """Return the table or subquery of a query as SQL."""
        if query.table is not None:
            return self._table_item(query.table)
        if query.sql is not None:
            # The line break ends a line comment at the end of the query.
            return f"(\n{query.sql.strip().rstrip(';')}\n) AS {self._quote('query')}"
        raise typed_columns.invalid_query_error(self._noun, query)

    def _table_item(self, table: str) -> str:
        """Return the name of a table as SQL."""
        return sqltext.table_name(table)

    def _quote(self, name: str) -> str:
        """Quote an identifier."""
        return sqltext.quote(name)
