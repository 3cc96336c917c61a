"""Delta tables written by hand, to cover logs of other writers without running them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

_TYPES = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.string(): "string",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def schema_string(*fields: tuple[str, Any]) -> str:
    """Return the Delta JSON of a schema."""
    return table_schema(
        [{"name": name, "type": dtype, "nullable": True, "metadata": {}} for name, dtype in fields]
    )


def table_schema(fields: list[dict[str, Any]]) -> str:
    """Return the Delta JSON of a schema of fields with metadata."""
    return json.dumps({"type": "struct", "fields": fields})


def protocol(*features: str, reader: int = 3) -> dict[str, Any]:
    """Return a protocol action with named reader features."""
    if not features:
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    actual = {"minReaderVersion": reader, "minWriterVersion": 7}
    listed = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {**actual, **listed}}


def metadata(
    rows: pa.Schema | str, *, partition_by: tuple[str, ...] = (), **configuration: str
) -> dict[str, Any]:
    """Return the metadata action of a table."""
    text = rows
    if isinstance(rows, pa.Schema):
        text = schema_string(*((field.name, _TYPES[field.type]) for field in rows))
    actual = {"id": "hand-made", "format": {"provider": "parquet", "options": {}}}
    return {
        "metaData": {
            **actual,
            "schemaString": text,
            "partitionColumns": list(partition_by),
            "configuration": {
                name.replace("__", "."): value for name, value in configuration.items()
            },
        }
    }


def add(table: Path, name: str, rows: pa.Table, **fields: Any) -> dict[str, Any]:
    """Write a data file and return the action that adds it."""
    file = table / name
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(rows, file)
    stats = json.dumps({"numRecords": rows.num_rows, **fields.pop("stats", {})})
    action = {"path": name, "size": file.stat().st_size, "partitionValues": {}, "dataChange": True}
    return {"add": {**action, "modificationTime": 1, "stats": stats, **fields}}


def commit(table: Path, version: int, *actions: dict[str, Any]) -> Path:
    """Write a commit."""
    file = table / "_delta_log" / f"{version:020d}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(action, ensure_ascii=False) for action in actions]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
