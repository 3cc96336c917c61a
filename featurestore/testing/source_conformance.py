"""Conformance suite for sources.

A subclass implements writing test rows to a source:

    class TestOurs(SourceConformance):
        def source(self, rows, directory):
            ...
            return OurSource(SourceConfig("ours", uri)), SourceQuery(table="orders")
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from featurestore.errors import FeatureStoreError, SourceTableNotFound
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import Source, SourceConfig, SourceQuery

__all__ = ["SourceConformance"]

_START = datetime(2024, 1, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", tz="UTC")
_SECRET = "tr0ub4dor&3"


def _rows(count: int = 100) -> pa.Table:
    """Return hourly orders with nulls, quotes, and times with microseconds."""
    customers: list[str | None] = []
    totals: list[float | None] = []
    times = []
    for number in range(count):
        customers.append(None if number % 7 == 3 else f'o\'neill "{number}" ü')
        totals.append(None if number % 5 == 4 else number + 0.25)
        # Different microseconds detect sources that truncate times to milliseconds or seconds.
        times.append(_START + timedelta(hours=number, microseconds=number + 1))
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "customer": pa.array(customers, pa.string()),
            "total": pa.array(totals, pa.float64()),
            "created_at": pa.array(times, _TIME),
        }
    )


class SourceConformance:
    """Tests for one source."""

    def source(self, rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
        """Write ``rows`` to a source; return the source and the query for all rows.

        ``directory`` is an empty folder. The query of a source with more columns has the columns of
        ``rows``.
        """
        raise NotImplementedError

    def test_read_returns_written_rows(self, tmp_path: Path) -> None:
        assert self._read(_rows(), tmp_path).equals(_rows())

    def test_schema_equals_the_schema_of_read(self, tmp_path: Path) -> None:
        source, query = self.source(_rows(), tmp_path)
        snapshot = source.snapshot()
        assert snapshot.schema(query) == snapshot.read(query).schema == _rows().schema
        snapshot.close()

    def test_read_selects_columns_in_order(self, tmp_path: Path) -> None:
        table = self._read(_rows(), tmp_path, columns=("total", "id"))
        assert table.equals(_rows().select(["total", "id"]))

    @pytest.mark.parametrize("closed", ["left", "right"])
    def test_read_window_is_exact_to_the_microsecond(self, tmp_path: Path, closed: str) -> None:
        times = _rows().column("created_at").to_pylist()
        # The bounds are times of rows, so that the open and the closed end have different results.
        window = TimeRange("created_at", times[10], times[20], closed)  # type: ignore[arg-type]
        table = self._read(_rows(), tmp_path, columns=("id",), window=window)
        first = 10 if closed == "left" else 11
        assert table.column("id").to_pylist() == list(range(first, first + 10))

    def test_read_without_rows_keeps_schema(self, tmp_path: Path) -> None:
        window = TimeRange("created_at", _START - timedelta(days=2), _START - timedelta(days=1))
        table = self._read(_rows(), tmp_path, window=window)
        assert (table.num_rows, table.schema) == (0, _rows().schema)

    def test_snapshot_supports_two_open_reads(self, tmp_path: Path) -> None:
        source, query = self.source(_rows(), tmp_path)
        snapshot = source.snapshot()
        first, second = snapshot.read(query), snapshot.read(query)
        assert next(first).num_rows + first.read_all().num_rows == 100
        assert second.read_all().num_rows == 100
        # Closing a snapshot again is a no-op.
        snapshot.close()

    def test_read_unknown_column_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SourceTableNotFound, match=r"'dropped'.*'created_at'"):
            self._read(_rows(), tmp_path, columns=("id", "dropped"))

    def test_listed_tables_are_readable(self, tmp_path: Path) -> None:
        source, _ = self.source(_rows(), tmp_path)
        snapshot = source.snapshot()
        for table in snapshot.tables():
            assert table.readable
            assert snapshot.read(snapshot.query_of(table)).read_all().num_rows == 100
        assert snapshot.server
        assert snapshot.identity
        snapshot.close()
        snapshot.close()

    def test_invalid_query_raises_feature_store_error(self, tmp_path: Path) -> None:
        source, _ = self.source(_rows(), tmp_path)
        snapshot = source.snapshot()
        for query in (SourceQuery(table="no such"), SourceQuery(path="../elsewhere")):
            with pytest.raises(FeatureStoreError):
                snapshot.schema(query)
        snapshot.close()

    def test_repr_hides_the_secret(self) -> None:
        config = SourceConfig("shop", "kind://place", {}, lambda: _SECRET)
        assert _SECRET not in repr(config)

    def _read(
        self,
        rows: pa.Table,
        directory: Path,
        *,
        columns: tuple[str, ...] | None = None,
        window: TimeRange | None = None,
    ) -> pa.Table:
        """Write rows to a source, read them back, and sort them by id if it is selected."""
        source, query = self.source(rows, directory)
        snapshot = source.snapshot()
        try:
            read = snapshot.read(replace(query, columns=columns or query.columns, window=window))
            table = pa.Table.from_batches(list(read), schema=read.schema)
        finally:
            snapshot.close()
        return table.sort_by("id") if "id" in table.schema.names else table
