"""Iceberg metadata of a Delta table, which describes the same data files.

``<table>/_iceberg/metadata`` contains one metadata file per published Delta version, named
``v<Delta version + 1>.metadata.json``, and ``version-hint.text``. Delta's clients ignore folders
with this prefix, and the Delta protocol of the table does not change. Each metadata file has one
snapshot, and lists all its data files, so that a commit which was not published is repaired by the
next one. The data files have no field ids, so clients match columns by name.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import storage_type
from featurestore.delta.log import latest_version
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import InvalidArgument, UnsupportedType, listing, missing_extra
from featurestore.storage import files, storage_for

if TYPE_CHECKING:
    from pyiceberg.io import OutputFile
    from pyiceberg.schema import Schema

FOLDER = "_iceberg"
_HINT = "version-hint.text"
_MOST_DIGITS = 19
_FORMAT_VERSION: Literal[2] = 2
# The value of tables without partition fields, whose ids start at 1000.
_LAST_PARTITION_ID = 999
# Ids of nested fields: the id of the column times this number, plus a counter. The ids of other
# columns do not change when a column is added.
_NESTED_IDS = 1000


def check_schema(schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
    """Check that Iceberg clients can read a group, and that pyiceberg is installed.

    Raises:
        MissingExtra: pyiceberg is not installed.
        InvalidArgument: The group is partitioned.
        UnsupportedType: The message lists all unsupported columns.
    """
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise missing_extra("pyiceberg", "iceberg") from error
    if partition_by:
        # Delta's data files do not contain partition columns. The values in the manifest are not
        # sufficient: pyiceberg 0.12 returns no rows for a filter on one that is not selected.
        raise InvalidArgument(
            f"iceberg=True does not support partition_by={list(partition_by)}: Iceberg clients read "
            "partition columns from the data files, which do not contain them.",
            hint="leave out partition_by= or iceberg=True",
        )
    unsupported_columns = []
    for field in schema:
        try:
            _iceberg_type(storage_type(field.type), iter(range(1, 10**6)))
        except UnsupportedType:
            unsupported_columns.append(f"{field.name} ({field.type})")
    if unsupported_columns:
        raise UnsupportedType(
            f"iceberg=True does not support {listing(unsupported_columns, limit=50)}.",
            hint="cast or drop these columns, or leave out iceberg=True",
        )


def publish(path: str) -> int:
    """Write the Iceberg metadata of a table's latest Delta version, and return that version.

    Concurrent calls and repeated calls are allowed. A client reads the rows of the previous
    published version until the hint is replaced, which is the last step.
    """
    while True:
        snapshot = read_snapshot(path)
        _write_metadata(snapshot)
        folder = _metadata_folder(snapshot.path)
        storage_for(folder).write_atomically(
            os.path.join(folder, _HINT), str(_metadata_number(snapshot.version)).encode()
        )
        # Another process may have published a later version before this hint was written.
        if latest_version(path) == snapshot.version:
            return snapshot.version


def current_metadata(path: str) -> str:
    """Return the path of the latest metadata file; publish the table if it has none."""
    storage = storage_for(path)
    hint = os.path.join(_metadata_folder(path), _HINT)
    # The hint is untrusted: any other text than a number is replaced.
    number = _parse_number(storage.read_bytes(hint)) if storage.exists(hint) else None
    if number is None:
        number = _metadata_number(publish(path))
    return os.path.join(_metadata_folder(path), f"v{number}.metadata.json")


def remove_old_metadata(path: str, *, version: int) -> None:
    """Remove the metadata of all Delta versions before ``version``."""
    storage = storage_for(path)
    folder = _metadata_folder(path)
    for name in storage.list_directory(folder):
        number = _parse_number(name.removeprefix("v").split(".")[0].split("-")[0].encode())
        if number is not None and number < _metadata_number(version):
            with suppress(FileNotFoundError):
                storage.remove(os.path.join(folder, name), below=path)


def _parse_number(text: bytes) -> int | None:
    """Return the number of a metadata file, None if the text is not a number of Iceberg."""
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else None


def _metadata_folder(path: str) -> str:
    return os.path.join(path, FOLDER, "metadata")


def _metadata_number(version: int) -> int:
    # Iceberg counts metadata files and sequence numbers from 1, Delta versions from 0.
    return version + 1


def _write_metadata(snapshot: Snapshot) -> None:
    """Write manifest, manifest list and metadata file of a snapshot, in this order."""
    from pyiceberg.manifest import write_manifest, write_manifest_list
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

    number = _metadata_number(snapshot.version)
    folder = _metadata_folder(snapshot.path)
    storage = storage_for(folder)
    storage.make_directory(folder)
    schema = _iceberg_schema(snapshot.schema)

    manifest_file = _memory_file(os.path.join(folder, f"v{number}-manifest.avro"))
    with write_manifest(
        _FORMAT_VERSION, UNPARTITIONED_PARTITION_SPEC, schema, manifest_file, number, "deflate"
    ) as manifest_writer:
        for entry in _manifest_entries(snapshot, number):
            manifest_writer.add_entry(entry)
    manifest = manifest_writer.to_manifest_file()
    storage.write_atomically(manifest_file.location, manifest_file.data)

    list_file = _memory_file(os.path.join(folder, f"v{number}-manifest-list.avro"))
    with write_manifest_list(
        _FORMAT_VERSION, list_file, number, None, number, "deflate"
    ) as list_writer:
        list_writer.add_manifests([manifest])
    storage.write_atomically(list_file.location, list_file.data)

    modified = max((file.modified for file in snapshot.files), default=0)
    document = {
        "format-version": _FORMAT_VERSION,
        "table-uuid": snapshot.table_id,
        "location": os.path.join(snapshot.path, FOLDER),
        "last-sequence-number": number,
        "last-updated-ms": modified,
        "last-column-id": schema.highest_field_id,
        "current-schema-id": 0,
        "schemas": [json.loads(schema.model_dump_json())],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": _LAST_PARTITION_ID,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {
            "schema.name-mapping.default": schema.name_mapping.model_dump_json(),
            "featurestore.delta-version": str(snapshot.version),
        },
        "current-snapshot-id": number,
        "refs": {"main": {"snapshot-id": number, "type": "branch"}},
        "snapshots": [
            {
                "snapshot-id": number,
                "sequence-number": number,
                "timestamp-ms": modified,
                "manifest-list": list_file.location,
                "schema-id": 0,
                "summary": {
                    "operation": "append",
                    "total-data-files": str(len(snapshot.files)),
                    "total-records": str(snapshot.rows),
                },
            }
        ],
    }
    files.replace_json(os.path.join(folder, f"v{number}.metadata.json"), document)


def _manifest_entries(snapshot: Snapshot, number: int) -> Sequence[Any]:
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestEntry,
        ManifestEntryStatus,
    )
    from pyiceberg.typedef import Record

    entries = []
    for file in snapshot.files:
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=file.rows,
            file_size_in_bytes=file.bytes,
            sort_order_id=None,
            spec_id=0,
        )
        entries.append(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=data_file
            )
        )
    return entries


def _iceberg_schema(schema: pa.Schema) -> Schema:
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    fields = []
    for number, field in enumerate(schema, 1):
        nested_ids = iter(range(number * _NESTED_IDS + 1, (number + 1) * _NESTED_IDS))
        dtype = _iceberg_type(field.type, nested_ids)
        fields.append(NestedField(number, field.name, dtype, required=False))
    return Schema(*fields, schema_id=0)


def _iceberg_type(dtype: pa.DataType, ids: Any) -> Any:
    """Return the Iceberg type of a storage type; ``ids`` yields the ids of nested fields."""
    from pyiceberg import types

    if pat.is_list(dtype) or pat.is_large_list(dtype) or pat.is_fixed_size_list(dtype):
        number = next(ids)
        return types.ListType(number, _iceberg_type(dtype.value_type, ids), element_required=False)
    if pat.is_struct(dtype):
        numbered_fields = [(next(ids), field) for field in dtype]
        return types.StructType(
            *(
                types.NestedField(
                    number, field.name, _iceberg_type(field.type, ids), required=False
                )
                for number, field in numbered_fields
            )
        )
    if pat.is_decimal(dtype):
        return types.DecimalType(dtype.precision, dtype.scale)
    if pat.is_timestamp(dtype):
        return types.TimestampType() if dtype.tz is None else types.TimestamptzType()
    simple_types = (
        (pat.is_boolean, types.BooleanType),
        (pat.is_int64, types.LongType),
        (pat.is_signed_integer, types.IntegerType),
        (pat.is_float32, types.FloatType),
        (pat.is_float64, types.DoubleType),
        (pat.is_date32, types.DateType),
        (pat.is_string, types.StringType),
        (pat.is_binary, types.BinaryType),
    )
    for is_kind, iceberg_type in simple_types:
        if is_kind(dtype):
            return iceberg_type()
    raise UnsupportedType(f"Iceberg has no type for {dtype}.")


def _memory_file(location: str) -> Any:
    """Return an output file of pyiceberg whose bytes are in ``data`` after it is closed."""
    from pyiceberg.io import OutputFile

    class MemoryFile(OutputFile):
        data = b""

        def __len__(self) -> int:
            return len(self.data)

        def exists(self) -> bool:
            return False

        def to_input_file(self) -> Any:
            raise NotImplementedError

        def create(self, overwrite: bool = False) -> Any:
            del overwrite
            output = io.BytesIO()
            close = output.close

            def keep_and_close() -> None:
                if not output.closed:
                    self.data = output.getvalue()
                close()

            output.close = keep_and_close  # type: ignore[method-assign]
            return output

    file: OutputFile = MemoryFile(location)
    return file
