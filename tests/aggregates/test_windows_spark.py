"""Aggregates over windows on Spark: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from featurestore.plugins.engine import Engine
from featurestore.testing.window_conformance import WindowConformance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


@pytest.fixture(scope="module")
def writer() -> Iterator[Engine]:
    from featurestore_connectors.duckdb_delta import DuckDBEngine

    writer = DuckDBEngine()
    yield writer
    writer.close()


class TestSpark(WindowConformance):
    @pytest.fixture
    def engine(self, spark: SparkSession) -> Engine:
        from featurestore_connectors.spark_delta import SparkEngine

        return SparkEngine(spark)

    @pytest.fixture
    def writer(self, writer: Engine) -> Engine:
        return writer
