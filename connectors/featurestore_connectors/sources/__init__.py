"""Connectors for SQL databases, warehouses, DuckDB files, file folders, Delta and Iceberg tables."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Each source imports its own heavy libraries, so a source is imported on first use.
_EXPORTS = {
    "BigQuerySource": "warehouses",
    "DeltaSource": "delta_table",
    "DuckDBSource": "duckdb_rows",
    "FlightSQLSource": "warehouses",
    "FolderSource": "folder",
    "GlueSource": "glue",
    "IcebergSource": "iceberg",
    "LanceSource": "lance_table",
    "PostgresSource": "postgres",
    "SQLAlchemySource": "sqlalchemy_database",
    "SQLiteSource": "sqlite",
    "SnowflakeSource": "warehouses",
    "UnitySource": "unity",
}
__all__ = [
    "BigQuerySource",
    "DeltaSource",
    "DuckDBSource",
    "FlightSQLSource",
    "FolderSource",
    "GlueSource",
    "IcebergSource",
    "LanceSource",
    "PostgresSource",
    "SQLAlchemySource",
    "SQLiteSource",
    "SnowflakeSource",
    "UnitySource",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
