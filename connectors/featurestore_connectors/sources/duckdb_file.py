"""DuckDB files, opened for reading only; DuckDB itself keeps writers out meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.errors import InvalidArgument, SourceTableNotFound, did_you_mean, listing
from featurestore.model.source import SourceTable
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, SourceSnapshot
from featurestore_connectors.sources import duckdb_rows, locations, sqltext
from featurestore_connectors.sources.typed_columns import SourceColumn, TypedColumns

_TABLES = """
    SELECT CASE WHEN table_schema = 'main' THEN table_name ELSE table_schema || '.' || table_name END
    FROM information_schema.tables ORDER BY 1
"""


class DuckDBSource:
    """A DuckDB file."""

    def __init__(self, config: SourceConfig) -> None:
        if config.options:
            raise InvalidArgument(f"A DuckDB source has no options {listing(config.options)}.")
        self._config = config
        self._path = locations.local_path(config, prefix="duckdb")

    def snapshot(self, at: int | datetime | None = None) -> DuckDBSnapshot:
        """Open the file."""
        if at is not None:
            raise InvalidArgument(f"at={at!r}: a DuckDB file keeps no earlier versions.")
        return DuckDBSnapshot(self._config, locations.require_existing(self._config, self._path))


class DuckDBSnapshot(TypedColumns):
    """A connection that reads only."""

    def __init__(self, config: SourceConfig, path: str) -> None:
        import duckdb

        self._config = config
        self._connection = duckdb_rows.connect(config, path)
        # A query is for the tables of this file, and reaches no other file.
        self._connection.execute("SET GLOBAL enable_external_access = false")
        self.identity = locations.fingerprint(locations.statuses([path, f"{path}.wal"]))
        self.server = f"DuckDB {duckdb.__version__}"

    def tables(self) -> Sequence[SourceTable]:
        return [SourceTable(name) for (name,) in self._connection.execute(_TABLES).fetchall()]

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        return duckdb_rows.read(self._config, self._connection, self._from(query), query)

    def close(self) -> None:
        self._connection.close()

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        return duckdb_rows.columns_of(self._config, self._connection, self._from(query))

    def _from(self, query: SourceQuery) -> str:
        if query.sql is not None:
            return sqltext.subquery(query.sql)
        if query.table is None:
            raise InvalidArgument(
                f"A DuckDB source has no {query}.", hint="give table='orders', or sql='select ...'"
            )
        table_names = [each.name for each in self.tables()]
        if query.table not in table_names:
            raise SourceTableNotFound(
                f"Source {self._config.name!r} has no table {query.table!r}; "
                f"it has {listing(table_names, limit=50)}.",
                hint=did_you_mean(query.table, table_names, write="table={!r}"),
            )
        return sqltext.table_name(query.table)


if TYPE_CHECKING:
    _contract: type[Source] = DuckDBSource
    _snapshot: type[SourceSnapshot] = DuckDBSnapshot
