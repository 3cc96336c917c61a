"""What tests are given that run on Spark, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from featurestore.plugins.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# For tests of ``store`` whose code for Spark others reach as well: on Spark they run in `make soak`.
spark_in_soak = pytest.mark.parametrize(
    "engine_name", ["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.soak])]
)


class OnSpark:
    """The fixtures of a shared suite of retrieval: the embedded engine writes the tables."""

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
