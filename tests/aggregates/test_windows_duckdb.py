"""Aggregates over windows on the embedded engine."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from featurestore.testing.window_conformance import WindowConformance
from featurestore_connectors.duckdb_delta import windows


class TestDuckDB(WindowConformance):
    pass


class TestDuckDBWhereRowsMaySpill(TestDuckDB):
    @pytest.fixture(autouse=True)
    def few_rows_may_spill(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        passed: list[int] = []

        def counting(batch: pa.RecordBatch) -> pa.RecordBatch:
            passed.append(batch.num_rows)
            return batch

        monkeypatch.setattr(windows, "_SPILLED_ROWS", 1)
        monkeypatch.setattr(windows, "_identity", counting)
        yield
        assert passed
