"""Protobuf schemas in their binary form, which some clients register: descriptors in base64."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from featurestore.arrow.proto_text import (
    MAX_MESSAGE_LEVELS,
    ProtoEnum,
    ProtoError,
    ProtoField,
    ProtoFile,
    ProtoMessage,
    parse_proto,
)


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


def _message(descriptor: Any, syntax: str, *, level: int) -> ProtoMessage:
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


def _field(field: Any, message: Any, entries: dict[str, Any], syntax: str) -> ProtoField:
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


def _type_name(field: Any) -> str:
    if field.type_name:
        return str(field.type_name)
    return str(field.Type.Name(field.type).removeprefix("TYPE_").lower())


def _default(field: Any) -> tuple[str, ...]:
    """Return the default of a field as tokens of the text format."""
    if not field.HasField("default_value"):
        return ()
    if field.type == field.TYPE_STRING:
        return (json.dumps(field.default_value, ensure_ascii=False),)
    if field.type == field.TYPE_BYTES:  # escaped as in the text format
        return (f'"{field.default_value}"',)
    return (field.default_value,)


def _enum(descriptor: Any) -> ProtoEnum:
    if not descriptor.value:
        raise ProtoError(f"the enum {descriptor.name} has no values")
    return ProtoEnum(
        descriptor.name, tuple((value.name, value.number) for value in descriptor.value)
    )
