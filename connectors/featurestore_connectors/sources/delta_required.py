"""Required columns of Delta tables: a file without their values is refused.

The Delta kernel returns nulls for a column that a file lacks, also if the schema does not allow them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from featurestore.delta.datafile import file_path
from featurestore.delta.replay import Replay
from featurestore.delta.snapshot import replay_log
from featurestore.errors import InvalidSourceFile
from featurestore.storage import files
from featurestore.storage.location import remove_owner
from featurestore_connectors.sources.delta_widening import column_key, is_mapped_by_id, stored_key


@dataclass(frozen=True)
class TableFiles:
    """A version of a table.

    Attributes:
        source: The name of the source, for errors.
        path: The folder of the table.
        version: The version.
        folder: A further folder whose files the table may have, as a shallow clone does.
    """

    source: str
    path: str
    version: int
    folder: str | None

    @cached_property
    def replay(self) -> Replay:
        """The actions of the log."""
        return replay_log(self.path, self.version)

    @cached_property
    def required_fields(self) -> dict[str, Mapping[str, Any]]:
        """The top-level fields of the schema that have no nulls, by name."""
        fields = json.loads((self.replay.metadata or {})["schemaString"])["fields"]
        return {field["name"]: field for field in fields if not field["nullable"]}


def check_required(
    batches: Iterator[pa.RecordBatch], table: TableFiles
) -> Iterator[pa.RecordBatch]:
    """Yield batches, and refuse a null in a required column that a file lacks.

    The log is read, once, only if a column has nulls, and files only for a required one.

    Raises:
        InvalidSourceFile: The message has the file and the column.
    """
    checked: set[str] = set()
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count and name not in checked:
                checked.add(name)
                _check_column(name, table)
        yield batch


def _check_column(name: str, table: TableFiles) -> None:
    """Refuse a required column without values in a file or in the partition values of a file."""
    field = table.required_fields.get(name)
    if field is None:
        return
    metadata = table.replay.metadata or {}
    by_id = is_mapped_by_id(metadata)
    is_partition = name in metadata.get("partitionColumns", ())
    key = column_key(field, by_id=by_id and not is_partition)
    for add in table.replay.adds.values():
        if is_partition:
            lacks_values = not (add.get("partitionValues") or {}).get(key)
        else:
            lacks_values = not _has_column(add, key, table, by_id=by_id)
        if lacks_values:
            raise InvalidSourceFile(
                f"Source {table.source!r}, version {table.version} of {remove_owner(table.path)}: the "
                f"file {add['path']} lacks the required column {name!r}.",
                hint="omit the column with columns=[...], or rewrite the file",
            )


def _has_column(add: Mapping[str, Any], key: str, table: TableFiles, *, by_id: bool) -> bool:
    path = file_path(table.path, add["path"], folder=table.folder)
    schema = parquet.read_schema(files.open_ranges(path))
    return any(stored_key(field, by_id=by_id) == key for field in schema)
