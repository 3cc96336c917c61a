"""Columns that a table gains: new nullable ones at the end."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from featurestore.delta.deltalog import TableState
from featurestore.model.types import storage_schema
from featurestore_connectors.duckdb_delta import commits


def wider(schema: pa.Schema, added: pa.Schema | None) -> pa.Schema:
    """Return a schema of storage types with the storage types of the columns that it lacks."""
    for field in storage_schema(added or pa.schema([])):
        schema = schema if field.name in schema.names else schema.append(field)
    return schema


def metadata_with(state: TableState, added: pa.Schema | None) -> dict[str, Any] | None:
    """Return the metadata that a table needs to hold more columns, None when it has them all."""
    schema = wider(state.schema, added)
    return (
        None
        if schema.names == state.schema.names
        else commits.changed_metadata(state, schema=schema)
    )
