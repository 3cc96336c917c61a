"""The shared suite of all engines, on the engine of Spark, and on both engines over the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from featurestore.plugins.engine import Engine, Relation
from featurestore.testing.engine_conformance import CrossEngineConformance, EngineConformance
from featurestore.testing.relation_conformance import RelationConformance
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
    def given(self, engine: Engine, table: pa.Table) -> Relation:
        place = next(self._stages)
        engine.stage(engine.from_arrow(table.to_reader()), place)
        return engine.read_files([place], schema=table.schema)


class TestSparkWithHeldRows(RelationConformance):
    """Relations of small streams, which the driver answers by itself where it can."""


class TestSparkBesideDuckDB(CrossEngineConformance):
    pass
