"""What a shared suite of retrieval is given on Spark: the embedded engine writes the tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from featurestore.plugins.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OnSpark:
    cases_at_once = 150

    @pytest.fixture
    def engine(self, spark: SparkSession) -> Engine:
        from featurestore_connectors.spark_delta import SparkEngine

        return SparkEngine(spark)

    @pytest.fixture
    def writer(self) -> Iterator[Engine]:
        from featurestore_connectors.duckdb_delta import DuckDBEngine

        writer = DuckDBEngine()
        yield writer
        writer.close()
