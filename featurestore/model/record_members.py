"""The functions that read a record from a JSON object and write it, made from its members.

``records`` finds the members by the annotations of a dataclass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from featurestore.model.codecs import Codec
from featurestore.model.json_object import (
    JsonDict,
    JsonObject,
    MalformedJson,
    check_format,
    wrong_value_error,
)


@dataclass(frozen=True)
class Layout:
    """The class options of a record."""

    format: int | None = None
    subject: str = ""
    keys: tuple[str, ...] = ()
    closed: bool = False
    oldest_format: int = 1


@dataclass(frozen=True)
class RecordMember:
    """A name of the JSON object of a record, and how its value is read and written.

    Attributes:
        key: The name, or a path such as "sample.rows".
        attribute: The attribute of the record.
        codec: Reads and writes the value.
        is_required: Whether the name must be present.
        is_omitted: Whether the name is not written if the value is the default.
        is_inline: Whether the value is a record whose names are among those of this record.
        default: The default of the attribute.
    """

    key: str
    attribute: str
    codec: Codec
    is_required: bool = True
    is_omitted: bool = False
    is_inline: bool = False
    default: Any = None


def make_reader(
    record_type: type, fields: Sequence[RecordMember], layout: Layout
) -> Callable[[Any], Any]:
    """Return the function that reads a record."""
    inlined = [(member.attribute, member.codec.read) for member in fields if member.is_inline]
    stored = [member for member in fields if not member.is_inline]
    readers = [(m.key, m.attribute, m.codec.types, m.codec.read) for m in stored]
    optional_keys = {member.key for member in stored if not member.is_required}
    parents = {member.key.partition(".")[0] for member in stored if "." in member.key}
    is_checked = layout.format is not None or layout.closed
    names = {"format", *layout.keys, *[member.key for member in stored]}

    def read(source: Any) -> Any:
        if type(source) is not dict and not isinstance(source, Mapping):
            raise wrong_value_error(source, "an object")
        if is_checked:
            _check_names(source, layout, names)
        data = _flatten(source, parents) if parents else source
        values, key = {}, ""
        try:
            for attribute, read_value in inlined:
                values[attribute] = read_value(data)
            for key, attribute, types, read_value in readers:
                if key in data:
                    value = data[key]
                    values[attribute] = value if type(value) in types else read_value(value)
                elif key not in optional_keys:
                    raise MalformedJson("is missing", "")
        except MalformedJson as error:
            raise error.within(key) from error.__cause__
        return record_type(**values)

    return read


def _check_names(data: Mapping[str, Any], layout: Layout, names: set[str]) -> None:
    """Check the format of an object, and that it has no unknown names if it is closed."""
    if layout.format is not None:
        number = data.get("format")
        if type(number) is not int or not layout.oldest_format <= number <= layout.format:
            number = JsonObject(data).number("format", minimum=layout.oldest_format)
            subject = layout.subject.format_map(defaultdict(lambda: None, data))
            check_format(number, layout.format, subject=subject)
    if layout.closed and not names.issuperset(data):
        raise MalformedJson("is an unknown name", min(set(data) - names))


def _flatten(data: Mapping[str, Any], parents: set[str]) -> Mapping[str, Any]:
    """Return an object with the values of the objects ``parents``, by path."""
    values = dict(data)
    for parent in parents:
        for name, value in JsonObject(data).object(parent).data.items():
            values[f"{parent}.{name}"] = value
    return values


def make_writer(written: Sequence[RecordMember], layout: Layout) -> Callable[[Any], JsonDict]:
    """Return the function that writes a record."""
    header: JsonDict = {} if layout.format is None else {"format": layout.format}
    values_of = attrgetter(*[member.attribute for member in written], "__class__")
    if not any(m.is_omitted or m.is_inline or "." in m.key for m in written):
        plain = [(member.key, member.codec.write) for member in written]

        def write_plain(record: Any) -> JsonDict:
            data = dict(header)
            for (key, write_value), value in zip(plain, values_of(record), strict=False):
                data[key] = value if write_value is None else write_value(value)
            return data

        return write_plain

    def write(record: Any) -> JsonDict:
        data = dict(header)
        for member, value in zip(written, values_of(record), strict=False):
            if member.is_omitted and value == member.default:
                continue
            json_value = value if member.codec.write is None else member.codec.write(value)
            parent, _, key = member.key.rpartition(".")
            if member.is_inline:
                data.update(json_value)
            else:
                (data.setdefault(parent, {}) if parent else data)[key] = json_value
        return data

    return write
