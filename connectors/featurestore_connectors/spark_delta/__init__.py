"""The Spark engine: relations are DataFrames, tables are written by Delta for Spark."""

from __future__ import annotations

from featurestore_connectors.spark_delta.engine import SparkEngine
from featurestore_connectors.spark_delta.session import configure_session

__all__ = ["SparkEngine", "configure_session"]
