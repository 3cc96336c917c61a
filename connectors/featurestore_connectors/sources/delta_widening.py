"""Files of Delta tables with types that the kernel does not widen to the types of the table.

The kernel casts integers to wider integers and to double, and float to double. Delta also allows
integers and decimals to become wider decimals, and dates to become times without a zone
(https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Type Widening"). Files that were
written before such a change are read as tables with the types of the files: a temporary log for
each set of types lists its files. The rows are cast to the types of the table afterwards.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.arrow.types import is_nested
from featurestore.delta import log
from featurestore.delta.datafile import file_path, parse_statistics
from featurestore.delta.snapshot import replay_log
from featurestore.delta.table_state import decimal_digits, type_name
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.threads import independent_tasks
from featurestore.storage import storage_for

_TYPE_CHANGES = "delta.typeChanges"
_INTEGERS = ("byte", "short", "integer", "long")
_TIMES = "timestamp_ntz"
_MAPPING = "delta.columnMapping."
_FIELD_ID = b"PARQUET:field_id"
_FOOTER_THREADS = 8
_PARQUET = {"provider": "parquet", "options": {}}
_VECTOR_IN_TABLE, _VECTOR_ABSOLUTE = "u", "p"
# The alphabet of Z85, which Delta uses for the names of deletion vectors
# (https://rfc.zeromq.org/spec/32).
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_UUID = 20


@dataclass(frozen=True)
class WidenedTable:
    """The files of a table version by their types: schemas as JSON, and add actions."""

    path: str
    folder: str | None
    protocol: JsonMapping
    metadata: JsonMapping
    adds_by_schema: Mapping[str, Sequence[JsonMapping]]
    has_new_partition_values: bool

    @property
    def needs_logs(self) -> bool:
        """Whether the kernel cannot read a file, or a partition value, with the table's own log."""
        types = set(self.adds_by_schema) - {self.metadata["schemaString"]}
        return bool(types) or self.has_new_partition_values

    def write_logs(self, directory: str) -> list[str]:
        """Write a table of one version for each set of types, and return their folders."""
        storage = storage_for(directory)
        folders = []
        for number, (schema, adds) in enumerate(self.adds_by_schema.items()):
            folder = os.path.join(directory, str(number))
            storage.make_directory(os.path.join(folder, log.LOG_FOLDER))
            changed = _changed_columns(self.metadata["schemaString"], schema)
            lines = [
                {"protocol": self.protocol},
                {"metaData": {**self.metadata, "schemaString": schema}},
                *({"add": self._absolute_add(add, changed)} for add in adds),
            ]
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            storage.write_new(log.commit_path(folder, 0), text.encode())
            folders.append(folder)
        return folders

    def _absolute_add(self, add: JsonMapping, changed: set[str]) -> JsonDict:
        """Return an add action for a log in another folder, without bounds of changed columns."""
        path = file_path(self.path, add["path"], folder=self.folder)
        action = _without_nulls(add)
        action.update(path=_file_url(path), dataChange=True)
        if add.get("stats"):
            action["stats"] = _statistics_without(add["stats"], changed)
        if add.get("deletionVector") is not None:
            action["deletionVector"] = _absolute_vector(
                self.path, add["deletionVector"], folder=self.folder
            )
        return action


def has_widened_columns(schema: pa.Schema, path: str, version: int) -> bool:
    """Return whether files of a version may have types that the kernel does not cast."""
    # Most tables have no column of these types, so their log is not read for it.
    if not any(map(_has_wide_type, schema.types)):
        return False
    metadata = replay_log(path, version).metadata or {}
    return _TYPE_CHANGES in str(metadata.get("schemaString"))


def _has_wide_type(dtype: pa.DataType) -> bool:
    if pat.is_decimal(dtype) or (pat.is_timestamp(dtype) and dtype.tz is None):
        return True
    if not is_nested(dtype) and not pat.is_map(dtype):
        return False
    return any(_has_wide_type(dtype.field(index).type) for index in range(dtype.num_fields))


def read_types(path: str, version: int, *, folder: str | None) -> WidenedTable:
    """Read the footers of a version's files, and return the files by their types.

    Args:
        path: The folder of the table.
        version: The version.
        folder: A further folder whose files the table may have, as a shallow clone does.

    Raises:
        FeatureStoreError: A file is outside of the folders, or a file of the log is damaged.
        OSError: A data file cannot be read.
        pyarrow.ArrowException: A data file is not Parquet.
    """
    replay = replay_log(path, version)
    metadata = {**_without_nulls(replay.metadata or {}), "format": _PARQUET}
    fields = json.loads(metadata["schemaString"])["fields"]
    metadata["schemaString"] = _dump_schema(fields)
    by_id = is_mapped_by_id(metadata)
    partition_types = {
        _physical_name(field): field["type"]
        for field in fields
        if field["name"] in metadata.get("partitionColumns", ())
    }
    adds = [_with_partition_values(add, partition_types) for add in replay.adds.values()]
    has_new_values = any(
        new["partitionValues"] != (old.get("partitionValues") or {})
        for new, old in zip(adds, replay.adds.values(), strict=True)
    )
    paths = [file_path(path, add["path"], folder=folder) for add in adds]
    with independent_tasks(_FOOTER_THREADS, "featurestore-footers") as pool:
        schemas = pool.map(partial(_schema_of_file, fields, by_id=by_id), paths)
        adds_by_schema: dict[str, list[JsonMapping]] = {}
        for add, schema in zip(adds, schemas, strict=True):
            adds_by_schema.setdefault(schema, []).append(add)
    return WidenedTable(
        path,
        folder,
        _without_nulls(replay.protocol or {}),
        metadata,
        adds_by_schema,
        has_new_values,
    )


def _without_nulls(action: JsonMapping) -> JsonDict:
    """Return an action without null members, which those of checkpoints have."""
    return {name: value for name, value in action.items() if value is not None}


def _schema_of_file(fields: Sequence[JsonMapping], path: str, *, by_id: bool) -> str:
    """Return the table's schema with the types of a file that the kernel does not cast."""
    file_schema = parquet.read_schema(storage_for(path).open_ranges(path))
    return _dump_schema(_stored_fields(fields, file_schema, by_id=by_id))


def _dump_schema(fields: Iterable[JsonMapping]) -> str:
    return json.dumps({"type": "struct", "fields": [_without_changes(field) for field in fields]})


def _without_changes(field: JsonMapping) -> JsonDict:
    """Return a field without the changes of its type, which end with the type of the table."""
    metadata = dict(field.get("metadata") or {})
    metadata.pop(_TYPE_CHANGES, None)
    return {**field, "metadata": metadata}


def _stored_fields(
    fields: Sequence[JsonMapping], file_fields: Iterable[pa.Field], *, by_id: bool
) -> list[JsonDict]:
    """Return fields with their types in a file; fields that the file lacks are unchanged."""
    stored_types = {stored_key(field, by_id=by_id): field.type for field in file_fields}
    result = []
    for field in fields:
        key = column_key(field, by_id=by_id)
        dtype = field["type"]
        if key in stored_types:
            dtype = _stored_type(dtype, stored_types[key], by_id=by_id)
        result.append({**_without_changes(field), "type": dtype})
    return result


def stored_key(field: pa.Field, *, by_id: bool) -> str:
    """Return the name of a column in a file, or its field id."""
    return (field.metadata or {}).get(_FIELD_ID, b"").decode() if by_id else str(field.name)


def is_mapped_by_id(metadata: JsonMapping) -> bool:
    """Return whether the columns of files have the field ids of the schema."""
    return (metadata.get("configuration") or {}).get(f"{_MAPPING}mode") == "id"


def column_key(field: JsonMapping, *, by_id: bool) -> str:
    """Return the ``stored_key`` of a field of the schema."""
    if by_id:
        return str((field.get("metadata") or {}).get(f"{_MAPPING}id"))
    return _physical_name(field)


def _physical_name(field: JsonMapping) -> str:
    return str((field.get("metadata") or {}).get(f"{_MAPPING}physicalName", field["name"]))


def _stored_type(
    declared: str | JsonMapping, file_type: pa.DataType, *, by_id: bool
) -> str | JsonMapping:
    """Return the type of the log for the type of a file, or ``declared`` if the kernel casts it."""
    if isinstance(declared, str):
        name = type_name(file_type)
        return name if name is not None and _is_not_cast(name, declared) else declared
    if declared["type"] == "struct" and pat.is_struct(file_type):
        members = [file_type.field(index) for index in range(file_type.num_fields)]
        return {**declared, "fields": _stored_fields(declared["fields"], members, by_id=by_id)}
    if declared["type"] == "array" and pat.is_list(file_type):
        element = _stored_type(declared["elementType"], file_type.value_type, by_id=by_id)
        return {**declared, "elementType": element}
    if declared["type"] == "map" and pat.is_map(file_type):
        return {
            **declared,
            "keyType": _stored_type(declared["keyType"], file_type.key_type, by_id=by_id),
            "valueType": _stored_type(declared["valueType"], file_type.item_type, by_id=by_id),
        }
    return declared


def _is_not_cast(file_type: str, declared: str) -> bool:
    """Return whether Delta widens a type to another one, and the kernel does not.

    >>> _is_not_cast("date", "timestamp_ntz"), _is_not_cast("integer", "long")
    (True, False)
    """
    if decimal_digits(declared) is not None:
        return file_type != declared and (
            file_type in _INTEGERS or decimal_digits(file_type) is not None
        )
    return (file_type, declared) == ("date", _TIMES)


def _changed_columns(table_schema: str, schema: str) -> set[str]:
    """Return the columns whose types in some files differ from those of the table."""
    pairs = zip(json.loads(table_schema)["fields"], json.loads(schema)["fields"], strict=True)
    return {
        _physical_name(field) for field, file_field in pairs if field["type"] != file_field["type"]
    }


def _with_partition_values(add: JsonMapping, partition_types: JsonMapping) -> JsonDict:
    """Return an add action whose partition values are written as those of the table's types."""
    values = dict(add.get("partitionValues") or {})
    for name, dtype in partition_types.items():
        if values.get(name):
            values[name] = _to_partition_value(values[name], dtype)
    return {**add, "partitionValues": values}


def _to_partition_value(text: str, dtype: str) -> str:
    """Return a partition value of a narrower type as a value of a type in the log.

    >>> _to_partition_value("7", "decimal(14,3)"), _to_partition_value("2024-05-01", "timestamp_ntz")
    ('7.000', '2024-05-01 00:00:00')
    """
    digits = decimal_digits(dtype)
    if digits is not None:
        precision, scale = digits
        step = Decimal(1).scaleb(-scale)
        try:
            return f"{Decimal(text).quantize(step, context=Context(prec=precision)):f}"
        except InvalidOperation:  # the error of the kernel names the value
            return text
    if dtype == _TIMES and len(text) == len("2024-05-01"):
        return f"{text} 00:00:00"
    return text


def _statistics_without(text: str, columns: set[str]) -> str:
    """Return the statistics of a file without bounds of some columns, which may have other types."""
    statistics = dict(parse_statistics(text))
    for name, values in statistics.items():
        if isinstance(values, Mapping):
            statistics[name] = {key: values[key] for key in values if key not in columns}
    return json.dumps(statistics)


def _file_url(path: str) -> str:
    return f"file://{quote(path)}"


def _absolute_vector(path: str, vector: JsonMapping, *, folder: str | None) -> JsonDict:
    """Return the descriptor of a deletion vector with an absolute path."""
    descriptor = _without_nulls(vector)
    if descriptor.get("storageType") == _VECTOR_IN_TABLE:
        text = str(descriptor["pathOrInlineDv"])
        prefix, name = text[:-_Z85_UUID], f"deletion_vector_{_decode_uuid(text[-_Z85_UUID:])}.bin"
        file = file_path(path, os.path.join(prefix, name), folder=folder)
        descriptor["pathOrInlineDv"] = _file_url(file)
        descriptor["storageType"] = _VECTOR_ABSOLUTE
    return descriptor


def _decode_uuid(text: str) -> UUID:
    """Decode a UUID in Z85, in which five characters are four bytes.

    >>> _decode_uuid("00000000000000000001")
    UUID('00000000-0000-0000-0000-000000000001')
    """
    data = b""
    for start in range(0, len(text), 5):
        number = 0
        for character in text[start : start + 5]:
            number = number * len(_Z85) + _Z85.index(character)
        data += number.to_bytes(4, "big")
    return UUID(bytes=data)
