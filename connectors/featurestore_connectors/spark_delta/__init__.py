"""The Spark engine: relations are DataFrames, and Delta for Spark writes the tables."""

from __future__ import annotations

from featurestore_connectors.spark_delta.engine import SparkEngine
from featurestore_connectors.spark_delta.session import configure_session

__all__ = ["SparkEngine", "configure_session"]
