"""The shared suite of all engines, on the engine of Spark, and on both engines over the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from featurestore.plugins.engine import Engine
from featurestore.testing.engine_conformance import CrossEngineConformance, EngineConformance
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import SparkEngine

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def engine(spark: Any) -> Iterator[Engine]:
    engine = SparkEngine()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def other() -> Iterator[Engine]:
    engine = DuckDBEngine()
    yield engine
    engine.close()


class TestSpark(EngineConformance):
    pass


class TestSparkBesideDuckDB(CrossEngineConformance):
    pass
