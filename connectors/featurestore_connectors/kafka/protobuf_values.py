"""Protobuf values in the wire format of schema registries: the header, message indexes, the message.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.arrow.proto_schemas import MessageType, ProtoSchema
from featurestore.arrow.proto_text import (
    MAX_MESSAGE_LEVELS,
    ProtoEnum,
    ProtoError,
    ProtoField,
    ProtoFile,
    ProtoMessage,
    parse_proto,
)
from featurestore_connectors.kafka.protobuf_messages import MessagePlan, import_library
from featurestore_connectors.kafka.record_values import Decoded, convert_column, read_each
from featurestore_connectors.kafka.schema_registry import RecordError, fetch_schema, split_header

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_MAX_VARINT_BYTES = 5


@dataclass(frozen=True)
class ProtobufValues:
    """Decoder of Protobuf records with the first message of the job's schema.

    Without a registry, the job's schema must be the writer's schema. With a registry, each record
    is read with the schema of its id.
    """

    schema: pa.Schema
    text: str
    registry: str | None = None

    def __post_init__(self) -> None:
        import_library()

    def decode(self, values: pa.Array) -> Decoded:
        rows, reasons = read_each(values, self._read)
        columns = {}
        for column in self.schema:
            cells = [None if row is None else row[column.name] for row in rows]
            columns[column.name] = convert_column(cells, column, reasons)
        return Decoded(columns, pa.array(reasons, pa.string()))

    def _read(self, value: bytes) -> Any:
        """Return the message in a value, as a dict of its fields."""
        number, content = split_header(value)
        indexes, start = read_indexes(content)
        key = ("plan", self.registry, self.text, number, indexes)
        plan = load_once(key, lambda: self._compile(number, indexes))
        return plan.read(content[start:])

    def _compile(self, number: int, indexes: tuple[int, ...]) -> MessagePlan:
        """Return the plan that reads a message of a schema as the job's message.

        Raises:
            RecordError: The schema has no such message, or it is another one.
            ProtoError: A schema is invalid, or the types of a field do not match.
        """
        job = load_once(("job", self.text), lambda: ProtoSchema([parse_proto(self.text)]))
        writer = job if self.registry is None else _registered(self.registry, number)
        candidates = _indexed_messages(writer, number, indexes)
        names = [_short_name(message) for message in candidates]
        if _short_name(job.message) not in names:
            raise RecordError(
                f"the value is the message {candidates[0].name}, not {job.message.name}, which is "
                "the first message of schema="
            )
        message = candidates[names.index(_short_name(job.message))]
        return MessagePlan((writer, message), (job, job.message))


def read_registered(value: bytes, registry: str) -> object:
    """Return the fields of a message, with the schema of the registry that wrote it."""
    number, content = split_header(value)
    indexes, start = read_indexes(content)
    schema = _registered(registry, number)
    message = _indexed_messages(schema, number, indexes)[0]
    key = ("fields", registry, number, message.name)
    plan = load_once(key, lambda: MessagePlan((schema, message), (schema, message)))
    return plan.read(content[start:])


def _indexed_messages(
    schema: ProtoSchema, number: int, indexes: Sequence[int]
) -> list[MessageType]:
    try:
        return schema.indexed_messages(indexes)
    except ProtoError as error:
        raise RecordError(f"schema {number}: {error}") from error


def _short_name(message: MessageType) -> str:
    return message.name.rpartition(".")[2]


def read_indexes(content: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message indexes before a message, and the position of the message.

    >>> read_indexes(bytes([0, 99])), read_indexes(bytes([4, 2, 0, 99]))
    (((0,), 1), ((1, 0), 3))
    """
    count, position = _read_zigzag(content, 0)
    if count == 0:  # the first message
        return (0,), position
    if not 0 < count <= MAX_MESSAGE_LEVELS:
        raise RecordError(f"the value has {count} message indexes")
    indexes = []
    for _ in range(count):
        index, position = _read_zigzag(content, position)
        indexes.append(index)
    return tuple(indexes), position


def _read_zigzag(content: bytes, position: int) -> tuple[int, int]:
    """Return a signed integer of variable length, and the position after it."""
    number = 0
    for count, byte in enumerate(content[position : position + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position + count + 1
    raise RecordError("the value ends within its message indexes")


# Schemas and plans, or the errors of those that cannot be read; the schema of an id does not change.
_loaded: dict[object, Any] = {}


def load_once(key: object, load: Callable[[], Any]) -> Any:
    """Return the result for a key, which is computed once, or raise its RecordError again."""
    if key not in _loaded:
        try:
            _loaded[key] = load()
        except ProtoError as error:
            _loaded[key] = RecordError(f"the schema of the value cannot be read: {error}")
        except RecursionError:
            _loaded[key] = RecordError("the schema of the value is nested too deeply")
    loaded = _loaded[key]
    if isinstance(loaded, RecordError):
        raise loaded
    return loaded


def _registered(registry: str, number: int) -> ProtoSchema:
    """Return a schema of the registry, with those that it imports."""

    def load() -> ProtoSchema:
        schema = fetch_schema(registry, number, schema_type="PROTOBUF")
        return ProtoSchema([parse_registered(text) for text in (schema.text, *schema.imports)])

    schema: ProtoSchema = load_once(("writer", registry, number), load)
    return schema


def parse_registered(text: str) -> ProtoFile:
    """Parse a schema of a registry: text, or the base64 of a descriptor.

    Raises:
        ProtoError: The text is neither.

    >>> parse_registered('syntax = "proto3"; message A { }').messages[0].name
    'A'
    """
    from google.protobuf import descriptor_pb2, message

    try:
        content = base64.b64decode(text, validate=True)
        file = descriptor_pb2.FileDescriptorProto.FromString(content)
    except (binascii.Error, ValueError, message.DecodeError):
        return parse_proto(text)
    if file.syntax not in ("", "proto2", "proto3"):
        raise ProtoError(f"syntax {file.syntax!r} is not supported, only proto2 and proto3")
    return ProtoFile(
        syntax=file.syntax or "proto2",
        package=file.package,
        imports=tuple(file.dependency),
        messages=tuple(_message(nested, file.syntax, level=1) for nested in file.message_type),
        enums=tuple(map(_enum, file.enum_type)),
    )


def _message(descriptor: Descriptor, syntax: str, *, level: int) -> ProtoMessage:
    if level > MAX_MESSAGE_LEVELS:
        raise ProtoError(f"messages are nested deeper than {MAX_MESSAGE_LEVELS} levels")
    nested = [
        None if inner.options.map_entry else _message(inner, syntax, level=level + 1)
        for inner in descriptor.nested_type
    ]
    entries = {inner.name: inner for inner in descriptor.nested_type if inner.options.map_entry}
    return ProtoMessage(
        name=descriptor.name,
        fields=tuple(_field(field, descriptor, entries, syntax) for field in descriptor.field),
        nested=tuple(nested),
        enums=tuple(map(_enum, descriptor.enum_type)),
    )


def _field(
    field: FieldDescriptor, message: Descriptor, entries: dict[str, Descriptor], syntax: str
) -> ProtoField:
    label, map_key, value = "", None, field
    if field.label == field.LABEL_REPEATED:
        label = "repeated"
        entry = entries.get(field.type_name.rpartition(".")[2])
        if entry is not None:
            label, map_key, value = "", _type_name(entry.field[0]), entry.field[1]
    elif field.label == field.LABEL_REQUIRED:
        label = "required"
    elif field.proto3_optional or (syntax != "proto3" and not field.HasField("oneof_index")):
        label = "optional"
    oneof = None
    if field.HasField("oneof_index") and not field.proto3_optional:
        oneof = message.oneof_decl[field.oneof_index].name
    return ProtoField(
        name=field.name,
        number=field.number,
        type_name=_type_name(value),
        label=label,
        oneof=oneof,
        default=_default(field),
        map_key=map_key,
        is_group=field.type == field.TYPE_GROUP,
    )


def _type_name(field: FieldDescriptor) -> str:
    if field.type_name:
        return str(field.type_name)
    return str(field.Type.Name(field.type).removeprefix("TYPE_").lower())


def _default(field: FieldDescriptor) -> tuple[str, ...]:
    """Return the default of a field as tokens of the text format."""
    if not field.HasField("default_value"):
        return ()
    if field.type == field.TYPE_STRING:
        return (json.dumps(field.default_value, ensure_ascii=False),)
    if field.type == field.TYPE_BYTES:  # escaped as in the text format
        return (f'"{field.default_value}"',)
    return (field.default_value,)


def _enum(descriptor: Descriptor) -> ProtoEnum:
    if not descriptor.value:
        raise ProtoError(f"the enum {descriptor.name} has no values")
    return ProtoEnum(
        descriptor.name, tuple((value.name, value.number) for value in descriptor.value)
    )
