"""The engine conformance suite on DuckDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from featurestore.plugins.engine import Engine
from featurestore.testing.engine_conformance import EngineConformance
from featurestore_connectors.duckdb_delta import DuckDBEngine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = DuckDBEngine()
    yield engine
    engine.close()


class TestDuckDB(EngineConformance):
    pass
