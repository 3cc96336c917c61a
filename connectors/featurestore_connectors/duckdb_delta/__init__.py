"""The embedded engine: DuckDB queries on Delta tables, without a JVM."""

from __future__ import annotations

from featurestore_connectors.duckdb_delta.engine import DuckDBEngine

__all__ = ["DuckDBEngine"]
