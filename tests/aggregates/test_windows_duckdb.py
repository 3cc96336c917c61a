"""Aggregates over windows on the embedded engine."""

from collections.abc import Iterator

import pytest

from featurestore.plugins.engine import Engine
from featurestore.testing.window_conformance import WindowConformance
from featurestore_connectors.duckdb_delta.engine import DuckDBEngine


class TestDuckDB(WindowConformance):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        engine = DuckDBEngine()
        yield engine
        engine.close()
