"""Sources: databases by ADBC, DuckDB files, folders of files, Delta and Iceberg tables of others."""

from __future__ import annotations

from featurestore_connectors.sources.delta_table import DeltaSource
from featurestore_connectors.sources.duckdb_rows import DuckDBSource
from featurestore_connectors.sources.folder import FolderSource
from featurestore_connectors.sources.iceberg import IcebergSource
from featurestore_connectors.sources.postgres import PostgresSource
from featurestore_connectors.sources.sqlalchemy_database import SQLAlchemySource
from featurestore_connectors.sources.sqlite import SQLiteSource

__all__ = [
    "DeltaSource",
    "DuckDBSource",
    "FolderSource",
    "IcebergSource",
    "PostgresSource",
    "SQLAlchemySource",
    "SQLiteSource",
]
