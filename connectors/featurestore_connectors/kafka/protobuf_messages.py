"""Decoding of Protobuf messages with the schema that wrote them, to the values of another schema.

Fields are matched by number. The library decodes a message with a descriptor that is built here:
its names come from numbers, and its types are the widest of the same encoding, so that no value is
truncated, dropped or replaced before it is compared with the schema.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from featurestore.arrow.proto_schemas import (
    DATE_MESSAGE,
    DURATION_MESSAGE,
    SPECIAL_MESSAGES,
    TIMESTAMP_MESSAGE,
    EnumType,
    FieldType,
    MessageType,
    ProtoSchema,
    default_value,
)
from featurestore.arrow.proto_text import ProtoError, ProtoField
from featurestore.errors import missing_extra
from featurestore_connectors.kafka.schema_registry import RecordError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

# The types with which fields are decoded: the same encoding, with all bits of a value.
_WIRE_TYPES = {
    "double": "TYPE_DOUBLE",
    "float": "TYPE_FLOAT",
    "int32": "TYPE_INT64",
    "int64": "TYPE_INT64",
    "uint32": "TYPE_UINT64",
    "uint64": "TYPE_UINT64",
    "sint32": "TYPE_SINT64",
    "sint64": "TYPE_SINT64",
    "fixed32": "TYPE_FIXED32",
    "fixed64": "TYPE_FIXED64",
    "sfixed32": "TYPE_SFIXED32",
    "sfixed64": "TYPE_SFIXED64",
    "bool": "TYPE_UINT64",
    "string": "TYPE_BYTES",
    "bytes": "TYPE_BYTES",
}
_INTEGERS = frozenset(_WIRE_TYPES) - {"double", "float", "bool", "string", "bytes"}
_NANOS_PER_SECOND = 10**9
# The range of google.protobuf.Timestamp, the years 1 to 9999.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799

Converter = Callable[[Any], Any]
UnknownFields = Callable[["Message"], Any]


def import_library() -> Any:
    """Import and return the library's descriptors; raise MissingExtra if it is not installed."""
    try:
        from google.protobuf import descriptor_pb2
    except ImportError as error:
        raise missing_extra("protobuf", "kafka") from error
    return descriptor_pb2


class MessagePlan:
    """Reads messages of a writer's type as dicts of the fields of a reader's type.

    Raises:
        ProtoError: A field of both schemas has types that do not resolve.
    """

    def __init__(
        self, writer: tuple[ProtoSchema, MessageType], reader: tuple[ProtoSchema, MessageType]
    ) -> None:
        from google.protobuf import descriptor_pool, message, message_factory, unknown_fields

        compiler = _Compiler(writer[0], reader[0], unknown_fields.UnknownFieldSet)
        name, self._reader = compiler.message(writer[1], reader[1])
        pool = descriptor_pool.DescriptorPool()
        try:
            pool.Add(compiler.file)
        except TypeError as error:  # such as reserved numbers of fields
            raise ProtoError(str(error)) from error
        self._class = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        self._decode_error = message.DecodeError
        self._name = writer[1].name

    def read(self, content: bytes) -> object:
        """Return the fields of an encoded message."""
        try:
            decoded = self._class.FromString(content)
        except self._decode_error as error:
            raise RecordError(f"the value is not a message {self._name}: {error}") from error
        return self._reader(decoded)


@dataclass
class _MessageReader:
    """Converts decoded messages of a type to values, by the numbers of their fields."""

    list_unknown_fields: UnknownFields
    fields: dict[int, tuple[str, Converter]] = field(default_factory=dict)
    defaults: dict[str, object] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    finish: Converter | None = None

    def __call__(self, message: Message) -> Any:
        values = dict(self.defaults)
        for descriptor, value in message.ListFields():
            if descriptor.number not in self.fields:  # another member of a oneof
                continue
            name, converter = self.fields[descriptor.number]
            try:
                values[name] = converter(value)
            except RecordError as error:
                raise RecordError(f"{name}: {error}") from error
        for unknown in self.list_unknown_fields(message):
            # The library does not decode a field whose encoding is not that of its type.
            if unknown.field_number in self.fields:
                name, _ = self.fields[unknown.field_number]
                raise RecordError(f"{name} does not have the encoding of its type")
        return self._complete(values)

    def empty(self) -> object:
        """Return the value of a message without fields."""
        return self._complete(dict(self.defaults))

    def _complete(self, values: dict[str, Any]) -> object:
        for name in self.required:
            if values[name] is None:
                raise RecordError(f"{name} is required, and missing")
        return values if self.finish is None else self.finish(values)


class _Compiler:
    """Builds the descriptors and readers of messages of a writer's and a reader's schema."""

    def __init__(
        self,
        writer_schema: ProtoSchema,
        reader_schema: ProtoSchema,
        list_unknown_fields: UnknownFields,
    ) -> None:
        self._library = import_library()
        self._writer_schema = writer_schema
        self._reader_schema = reader_schema
        self._list_unknown_fields = list_unknown_fields
        # With proto2, the presence of each field is known.
        self.file = self._library.FileDescriptorProto(name="record.proto", syntax="proto2")
        self._messages: dict[tuple[str, str], tuple[str, _MessageReader]] = {}

    def message(self, writer: MessageType, reader: MessageType) -> tuple[str, _MessageReader]:
        """Return the name of the descriptor of a message, and its reader."""
        key = (writer.name, reader.name)
        if key not in self._messages:
            descriptor, message_reader = self._add_message()
            self._messages[key] = descriptor.name, message_reader
            sources = {declared.number: declared for declared in writer.fields}
            for declared in reader.fields:
                self._add_column(descriptor, message_reader, (reader, declared), (writer, sources))
            self._add_oneofs(descriptor, writer)
            message_reader.finish = _FINISHERS.get(reader.name)
        return self._messages[key]

    def _add_message(self) -> tuple[Any, _MessageReader]:
        descriptor = self.file.message_type.add(name=f"M{len(self.file.message_type)}")
        return descriptor, _MessageReader(self._list_unknown_fields)

    def _add_column(
        self,
        descriptor: Descriptor,
        message_reader: _MessageReader,
        reader: tuple[MessageType, ProtoField],
        writer: tuple[MessageType, Mapping[int, ProtoField]],
    ) -> None:
        """Add a field of the reader's message, with the writer's field of its number."""
        reader_message, declared = reader
        writer_message, sources = writer
        source = sources.get(declared.number)
        if declared.label == "required" or (source is not None and source.label == "required"):
            message_reader.required.append(declared.name)
        reader_type = self._reader_schema.field_type(reader_message, declared)
        if source is None:
            default = None
            if declared.default:
                default = self._scalar_converter(declared, reader_type, reader_type)(
                    default_value(declared, reader_type)
                )
            message_reader.defaults[declared.name] = default
            return
        if _cardinality(source) != _cardinality(declared):
            raise ProtoError(
                f"the field {declared.name!r} ({declared.number}) is {_cardinality(source)}, and "
                f"{_cardinality(declared)} in schema="
            )
        writer_type = self._writer_schema.field_type(writer_message, source)
        if declared.map_key is not None:
            converter = self._add_map(descriptor, source, declared, (writer_type, reader_type))
        else:
            converter = self._add_field(descriptor, source, declared, (writer_type, reader_type))
        default = None
        if _cardinality(declared) != "singular":
            default = []
        elif source.default or not writer_message.has_presence(source, writer_type):
            default = converter(default_value(source, writer_type))
        if declared.label == "repeated":
            converter = list if converter is _unchanged else partial(_each_value, converter)
        message_reader.fields[declared.number] = declared.name, converter
        message_reader.defaults[declared.name] = default

    def _add_field(
        self,
        descriptor: Descriptor,
        source: ProtoField,
        declared: ProtoField,
        types: tuple[FieldType, FieldType],
    ) -> Converter:
        """Add a field to a descriptor, and return the converter of its values."""
        writer_type, reader_type = types
        added = descriptor.field.add(name=f"f{source.number}", number=source.number)
        is_repeated = source.label == "repeated"
        added.label = added.LABEL_REPEATED if is_repeated else added.LABEL_OPTIONAL
        if not isinstance(writer_type, MessageType):
            added.type = _wire_type(added, writer_type)
            return self._scalar_converter(declared, writer_type, reader_type)
        is_special = {writer_type.name, _type_name(reader_type)} & SPECIAL_MESSAGES.keys()
        if not isinstance(reader_type, MessageType) or (
            is_special and writer_type.name != reader_type.name
        ):
            raise _mismatch(declared, writer_type, reader_type)
        added.type = added.TYPE_GROUP if source.is_group else added.TYPE_MESSAGE
        name, converter = self.message(writer_type, reader_type)
        added.type_name = f".{name}"
        return converter

    def _add_map(
        self,
        descriptor: Descriptor,
        source: ProtoField,
        declared: ProtoField,
        types: tuple[FieldType, FieldType],
    ) -> Converter:
        """Add a map, a repeated message with the fields key and value."""
        entry, entry_reader = self._add_message()
        added = descriptor.field.add(name=f"f{source.number}", number=source.number)
        added.label, added.type = added.LABEL_REPEATED, added.TYPE_MESSAGE
        added.type_name = f".{entry.name}"
        keys, values = [
            [ProtoField(name, number, type_name) for type_name in type_names]
            for name, number, type_names in (
                ("key", 1, (source.map_key or "", declared.map_key or "")),
                ("value", 2, (source.type_name, declared.type_name)),
            )
        ]
        key_types = source.map_key or "", declared.map_key or ""
        for (writer_field, reader_field), pair in ((keys, key_types), (values, types)):
            converter = self._add_field(entry, writer_field, reader_field, pair)
            entry_reader.fields[reader_field.number] = reader_field.name, converter
            # An absent key or value is the default of its type.
            entry_reader.defaults[reader_field.name] = None
            if not isinstance(converter, _MessageReader):
                default = converter(default_value(writer_field, pair[0]))
                entry_reader.defaults[reader_field.name] = default
        empty = converter.empty if isinstance(converter, _MessageReader) else None
        return partial(_map_entries, entry_reader, empty)

    def _scalar_converter(
        self, declared: ProtoField, writer_type: FieldType, reader_type: FieldType
    ) -> Converter:
        """Return the converter of decoded values of the writer's type."""
        if isinstance(writer_type, EnumType) and isinstance(reader_type, EnumType):
            return partial(_enum_name, reader_type.names, reader_type.name)
        same = writer_type == reader_type
        if same and writer_type in _CONVERTERS:
            return _CONVERTERS[str(writer_type)]
        are_integers = writer_type in _INTEGERS and reader_type in _INTEGERS
        is_wider = (writer_type, reader_type) == ("float", "double")
        if same or are_integers or is_wider:
            return _unchanged
        raise _mismatch(declared, writer_type, reader_type)

    def _add_oneofs(self, descriptor: Descriptor, writer: MessageType) -> None:
        """Add the members of each oneof that has columns: the last member in a record counts."""
        added = {field.number: field for field in descriptor.field}
        used = {member.oneof or "" for member in writer.fields if member.number in added}
        indexes = {name: index for index, name in enumerate(sorted(used - {""}))}
        for index in indexes.values():
            descriptor.oneof_decl.add(name=f"o{index}")
        for member in writer.fields:
            if member.oneof is None or member.oneof not in indexes:
                continue
            if member.number not in added:
                unread = descriptor.field.add(name=f"f{member.number}", number=member.number)
                unread.label = unread.LABEL_OPTIONAL
                unread.type = _wire_type(unread, self._writer_schema.field_type(writer, member))
                added[member.number] = unread
            added[member.number].oneof_index = indexes[member.oneof]


def _cardinality(declared: ProtoField) -> str:
    if declared.map_key is not None:
        return "a map"
    return "repeated" if declared.label == "repeated" else "singular"


def _wire_type(descriptor: Descriptor, field_type: FieldType) -> Any:
    """Return the type with which values of a field are decoded; messages are not decoded."""
    if isinstance(field_type, MessageType):
        return descriptor.TYPE_BYTES
    name = "TYPE_INT64" if isinstance(field_type, EnumType) else _WIRE_TYPES[field_type]
    return getattr(descriptor, name)


def _type_name(field_type: FieldType) -> str:
    """Return the name of a type, for messages."""
    return field_type if isinstance(field_type, str) else field_type.name


def _mismatch(declared: ProtoField, writer_type: FieldType, reader_type: FieldType) -> ProtoError:
    return ProtoError(
        f"the field {declared.name!r} ({declared.number}) is {_type_name(writer_type)}, and "
        f"{_type_name(reader_type)} in schema="
    )


def _unchanged(value: object) -> object:
    return value


def to_bool(value: int) -> bool:
    """Return a boolean, which is encoded as a number."""
    if value not in (0, 1):
        raise RecordError(f"{value} is not a boolean")
    return bool(value)


def to_text(value: bytes | str) -> str:
    """Return the text of a string, which is decoded as bytes."""
    if isinstance(value, str):  # a default
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RecordError("the value is not UTF-8 text") from None


_CONVERTERS: Mapping[str, Converter] = {"bool": to_bool, "string": to_text}


def _enum_name(names: Mapping[int, str], enum: str, number: int) -> str:
    if number not in names:
        raise RecordError(f"{number} is not a value of the enum {enum} in schema=")
    return names[number]


def _each_value(converter: Converter, values: Iterable[object]) -> list[object]:
    return [converter(value) for value in values]


def _map_entries(
    reader: _MessageReader, empty: Callable[[], object] | None, entries: Any
) -> list[dict[str, Any]]:
    """Return the entries of a map, sorted by key; the last entry of a key counts.

    ``empty`` returns the value of an entry without one, if the values are messages.
    """
    values = {entry["key"]: entry["value"] for entry in map(reader, entries)}
    if empty is not None:
        values = {key: empty() if value is None else value for key, value in values.items()}
    return [{"key": key, "value": values[key]} for key in sorted(values)]


def timestamp_micros(fields: Mapping[str, int]) -> int:
    """Return the microseconds of a Timestamp since 1970."""
    if not 0 <= fields["nanos"] < _NANOS_PER_SECOND:
        raise RecordError(f"{fields['nanos']} nanoseconds are not in a second")
    if not _FIRST_SECOND <= fields["seconds"] <= _LAST_SECOND:
        raise RecordError(f"{fields['seconds']} seconds are before year 1 or after year 9999")
    return _to_micros(fields)


def duration_micros(fields: Mapping[str, int]) -> int:
    """Return the microseconds of a Duration."""
    seconds, nanos = fields["seconds"], fields["nanos"]
    if abs(nanos) >= _NANOS_PER_SECOND or seconds * nanos < 0:
        raise RecordError(f"{seconds} seconds and {nanos} nanoseconds are not a duration")
    return _to_micros(fields)


def _to_micros(fields: Mapping[str, int]) -> int:
    micros, finer = divmod(fields["seconds"] * _NANOS_PER_SECOND + fields["nanos"], 1000)
    if finer:
        raise RecordError(f"{fields['nanos']} nanoseconds are finer than microseconds")
    return micros


def to_date(fields: Mapping[str, int]) -> date:
    """Return a date of all three parts."""
    try:
        return date(fields["year"], fields["month"], fields["day"])
    except (ValueError, OverflowError) as error:
        raise RecordError(f"{dict(fields)} is not a date") from error


_FINISHERS: Mapping[str, Converter] = {
    **dict.fromkeys(SPECIAL_MESSAGES, itemgetter("value")),
    TIMESTAMP_MESSAGE: timestamp_micros,
    DURATION_MESSAGE: duration_micros,
    DATE_MESSAGE: to_date,
}
