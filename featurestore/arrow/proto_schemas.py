"""Conversion of Protobuf schemas to Arrow schemas, with the names of types resolved.

=============================  =======================================================
type of a field                column type
=============================  =======================================================
int32, sint32, sfixed32        int32 (uint32, fixed32: uint32; the same for 64 bits)
bool, float, double            bool, float, double
string, bytes                  string, binary
enum                           string: the name of the value
message                        struct; null if the field is absent
repeated                       list
map                            list of structs with key and value, sorted by key
google.protobuf.Timestamp      timestamp[us, UTC]
google.protobuf.Duration       int64, in microseconds
google.protobuf.*Value         its value, or null
google.type.Date               date32
=============================  =======================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featurestore.arrow.column_names import check_feature_names
from featurestore.arrow.proto_text import (
    ProtoEnum,
    ProtoError,
    ProtoField,
    ProtoFile,
    ProtoMessage,
    parse_integer,
    parse_proto,
    unescape,
)
from featurestore.arrow.types import MAX_LEVELS, TIMESTAMP
from featurestore.errors import InvalidJob

SCALAR_TYPES: Mapping[str, pa.DataType] = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "sint32": pa.int32(),
    "sint64": pa.int64(),
    "fixed32": pa.uint32(),
    "fixed64": pa.uint64(),
    "sfixed32": pa.int32(),
    "sfixed64": pa.int64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
# Messages whose value is not a struct, with the types of their columns.
_WRAPPED = {
    f"google.protobuf.{name}Value": scalar
    for name, scalar in (
        ("Double", "double"),
        ("Float", "float"),
        ("Int64", "int64"),
        ("UInt64", "uint64"),
        ("Int32", "int32"),
        ("UInt32", "uint32"),
        ("Bool", "bool"),
        ("String", "string"),
        ("Bytes", "bytes"),
    )
}
TIMESTAMP_MESSAGE = "google.protobuf.Timestamp"
DURATION_MESSAGE = "google.protobuf.Duration"
DATE_MESSAGE = "google.type.Date"
SPECIAL_MESSAGES: Mapping[str, pa.DataType] = {
    **{name: SCALAR_TYPES[scalar] for name, scalar in _WRAPPED.items()},
    TIMESTAMP_MESSAGE: TIMESTAMP,
    DURATION_MESSAGE: pa.int64(),
    DATE_MESSAGE: pa.date32(),
}
# Messages may share types, so that a short text can declare many columns.
_MAX_COLUMNS = 10_000
# The length of texts of a schema in errors.
_MAX_SHOWN = 100
# Schemas may import these files without declaring them.
_KNOWN_FILES = (
    'syntax = "proto3"; package google.protobuf;'
    "message Timestamp { int64 seconds = 1; int32 nanos = 2; }"
    "message Duration { int64 seconds = 1; int32 nanos = 2; }"
    "message Empty {} message Any { string type_url = 1; bytes value = 2; }"
    "message FieldMask { repeated string paths = 1; }"
    "enum NullValue { NULL_VALUE = 0; }"
    "message ListValue { repeated Value values = 1; }"
    "message Struct { map<string, Value> fields = 1; }"
    "message Value { oneof kind { NullValue null_value = 1; double number_value = 2;"
    "string string_value = 3; bool bool_value = 4; Struct struct_value = 5;"
    "ListValue list_value = 6; } }"
    + "".join(
        f"message {name.rpartition('.')[2]} {{ {scalar} value = 1; }}"
        for name, scalar in _WRAPPED.items()
    ),
    'syntax = "proto3"; package google.type;'
    "message Date { int32 year = 1; int32 month = 2; int32 day = 3; }"
    "message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }"
    "message LatLng { double latitude = 1; double longitude = 2; }"
    "message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }"
    "message Decimal { string value = 1; }",
    'syntax = "proto3"; package confluent.type;'
    "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
)


@dataclass(frozen=True)
class EnumType:
    """An enum with its full name."""

    name: str
    declared: ProtoEnum

    @property
    def names(self) -> dict[int, str]:
        """The name of each number; of several names the first."""
        return {number: name for name, number in reversed(self.declared.values)}


@dataclass(frozen=True)
class MessageType:
    """A message with its full name and the syntax of its file."""

    name: str
    declared: ProtoMessage
    syntax: str

    @property
    def fields(self) -> tuple[ProtoField, ...]:
        return self.declared.fields

    def has_presence(self, declared: ProtoField, field_type: FieldType) -> bool:
        """Return whether an absent field differs from a field with the default of its type."""
        if declared.label == "repeated" or declared.map_key is not None:
            return False
        is_message = isinstance(field_type, MessageType)
        has_label = self.syntax == "proto2" or declared.label == "optional"
        return is_message or has_label or declared.oneof is not None


# A scalar type by its name, a message or an enum.
FieldType = str | MessageType | EnumType


@dataclass(frozen=True)
class ProtoSchema:
    """The types of a schema and of the files that it imports, by full name.

    ``files`` are the schema and its imports. The first message is the one that a job reads.
    """

    files: Sequence[ProtoFile]
    types: dict[str, MessageType | EnumType] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for file in (*self.files, *map(parse_proto, _KNOWN_FILES)):
            self._add_file(file)

    @property
    def message(self) -> MessageType:
        """The first message of the schema.

        Raises:
            ProtoError: The schema has no message.
        """
        return self.indexed_messages([0])[0]

    def indexed_messages(self, indexes: Sequence[int]) -> list[MessageType]:
        """Return the messages at a path of indexes of the wire format.

        Clients count nested messages in two ways: with the entry messages of maps, or without
        them (Java). Both are returned if they differ.

        Raises:
            ProtoError: The schema has no such message.
        """
        names = [
            _message_at(self.files[0], indexes, counts_entries=counts_entries)
            for counts_entries in (True, False)
        ]
        types = [self.types[name] for name in dict.fromkeys(names) if name is not None]
        messages = [message for message in types if isinstance(message, MessageType)]
        if not messages:
            raise ProtoError(f"the schema has no message at the indexes {list(indexes)}")
        return messages

    def field_type(self, message: MessageType, declared: ProtoField) -> FieldType:
        """Return the type of a field; names are searched from the innermost scope.

        Raises:
            ProtoError: No file declares the type.
        """
        name = declared.type_name
        if name in SCALAR_TYPES:
            return name
        if name.startswith("."):
            resolved = self.types.get(name[1:])
        else:
            resolved = self._search(name, message.name)
        if resolved is None:
            imports = ", ".join(self.files[0].imports)
            imported = f" (the schema imports {imports[:_MAX_SHOWN]})" if imports else ""
            raise ProtoError(
                f"the type {name!r} of the field {declared.name!r} is not declared{imported}"
            )
        return resolved

    def _search(self, name: str, scope: str) -> MessageType | EnumType | None:
        first, dot, _ = name.partition(".")
        while True:
            prefix = f"{scope}." if scope else ""
            is_scope = prefix + first in self.types or prefix + first in self.packages
            if is_scope and (dot or prefix + first in self.types):
                return self.types.get(prefix + name)
            if not scope:
                return None
            scope = scope.rpartition(".")[0]

    def _add_file(self, file: ProtoFile) -> None:
        names = file.package.split(".")
        self.packages.update(".".join(names[: count + 1]) for count in range(len(names)))
        self._add_types(file, file.package, file.syntax)

    def _add_types(self, parent: ProtoFile | ProtoMessage, scope: str, syntax: str) -> None:
        prefix = f"{scope}." if scope else ""
        for enum in parent.enums:
            self.types[prefix + enum.name] = EnumType(prefix + enum.name, enum)
        for message in parent.messages:
            name = prefix + message.name
            self.types[name] = MessageType(name, message, syntax)
            self._add_types(message, name, syntax)


def _message_at(file: ProtoFile, indexes: Sequence[int], *, counts_entries: bool) -> str | None:
    """Return the full name of the message at a path of indexes, or None."""
    nested: Sequence[ProtoMessage | None] = file.messages
    names = [file.package] if file.package else []
    for index in indexes:
        message = nested[index] if 0 <= index < len(nested) else None
        if message is None:
            return None
        names.append(message.name)
        nested = message.nested if counts_entries else message.messages
    return ".".join(names) if indexes else None


def schema_from_proto(text: str) -> pa.Schema:
    """Convert the first message of a Protobuf schema to an Arrow schema.

    Raises:
        InvalidJob: The text is not a schema, or a field cannot be converted to a column.

    >>> schema_from_proto('syntax = "proto3"; message Click { int64 id = 1; repeated string tags = 2; }')
    id: int64
    tags: list<item: string>
      child 0, item: string
    """
    try:
        schema = ProtoSchema([parse_proto(text)])
        columns = _ColumnTypes(schema)
        fields = columns.message_fields(schema.message, [], ())
    except ProtoError as error:
        raise InvalidJob(
            f"schema= is not a Protobuf schema: {error}",
            hint="""'syntax = "proto3"; message Click { int64 id = 1; }', with the messages of all imports""",
        ) from error
    if not fields:
        raise InvalidJob(
            f"schema=: the message {schema.message.name} has no fields.",
            hint="put the message of the records first",
        )
    return pa.schema(fields)


class _ColumnTypes:
    """The column types of messages, whose number is bounded."""

    def __init__(self, schema: ProtoSchema) -> None:
        self._schema = schema
        self._count = 0

    def message_fields(
        self, message: MessageType, path: list[str], ancestors: tuple[str, ...]
    ) -> list[pa.Field]:
        """Convert the fields of a message.

        ``path`` are the names of the fields above it, ``ancestors`` the messages of these fields.
        """
        if message.name in ancestors:
            raise _unsupported_error(path, f"a recursive message ({message.name})")
        if len(path) > MAX_LEVELS:
            raise _unsupported_error(path, f"nested deeper than {MAX_LEVELS} levels")
        if path:  # top-level columns may be renamed
            check_feature_names([declared.name for declared in message.fields])
        ancestors = (*ancestors, message.name)
        fields = []
        for declared in message.fields:
            self._count += 1
            field_path = [*path, declared.name]
            if self._count > _MAX_COLUMNS:
                raise _unsupported_error(field_path, f"one of more than {_MAX_COLUMNS:,} fields")
            field_type = self._schema.field_type(message, declared)
            value_type = self._value_type(field_type, field_path, ancestors)
            fields.append(pa.field(declared.name, _column_type(declared, value_type)))
        return fields

    def _value_type(
        self, field_type: FieldType, path: list[str], ancestors: tuple[str, ...]
    ) -> pa.DataType:
        if isinstance(field_type, str):
            return SCALAR_TYPES[field_type]
        if isinstance(field_type, EnumType):
            return pa.string()
        if field_type.name in SPECIAL_MESSAGES:
            return SPECIAL_MESSAGES[field_type.name]
        if not field_type.fields:
            raise _unsupported_error(path, f"a message without fields ({field_type.name})")
        return pa.struct(self.message_fields(field_type, path, ancestors))


def _column_type(declared: ProtoField, value_type: pa.DataType) -> pa.DataType:
    """Return the type of a column with values of a type."""
    if declared.map_key is not None:
        key = pa.field("key", SCALAR_TYPES[declared.map_key])
        value_type = pa.struct([key, pa.field("value", value_type)])
    elif declared.label != "repeated":
        return value_type
    return pa.list_(pa.field("item", value_type))


def _unsupported_error(path: list[str], description: str) -> InvalidJob:
    return InvalidJob(
        f"Field {'.'.join(path)!r} of the Protobuf schema is {description}, which cannot be a column.",
        hint="remove it from schema=: fields of records that are not in schema= are ignored",
    )


def default_value(declared: ProtoField, field_type: FieldType) -> Any:
    """Return the default of an absent field: as declared in proto2, else that of its type.

    Raises:
        ProtoError: The declared default does not have the type of the field.

    >>> default_value(ProtoField("n", 1, "int32", default=("-", "5")), "int32")
    -5
    """
    try:
        if isinstance(field_type, EnumType):
            return _enum_default(declared, field_type)
        return _scalar_default(declared, str(field_type))
    except (ValueError, KeyError) as error:
        raise ProtoError(
            f"the default {' '.join(declared.default)} of the field {declared.name!r} is not "
            f"{declared.type_name}"
        ) from error


def _enum_default(declared: ProtoField, enum: EnumType) -> int:
    if not declared.default:
        return enum.declared.values[0][1]
    return dict(enum.declared.values)[declared.default[0]]


def _scalar_default(declared: ProtoField, scalar: str) -> Any:
    tokens = declared.default
    if scalar in ("string", "bytes"):
        content = b"".join(map(unescape, tokens))
        return content.decode() if scalar == "string" else content
    if scalar == "bool":
        return {(): False, ("false",): False, ("true",): True}[tokens]
    digits = "".join(tokens) or "0"
    if scalar in ("float", "double"):
        return float(digits)
    sign, digits = (-1, digits[1:]) if digits.startswith("-") else (1, digits)
    return sign * parse_integer(digits)
