"""Records: dataclasses whose stored JSON is derived from their annotations.

A class that inherits from ``Record`` has ``to_json`` and ``from_json``. They are derived once, on
first use. Dataclasses in annotations need no base class.

The JSON of a field by its annotation:

===============================  ===============================================================
``str``, ``bool``, ``float``     A string, a boolean, a number (integers stay integers)
``int``                          An integer from 0 to 2**63 - 1, or in a ``Range``
``X | None``                     null, or X
``str | int | float``, ...       A string or a number; also with ``bool``
``Literal["a", "b"]``            One of these strings
``tuple[X, ...]``, ``list[X]``   An array, also of ``Sequence[X]``, which is read as a tuple
``tuple[X, Y]``                  An array of exactly these elements
``frozenset[str]``               A sorted array
``Mapping[str, X]``              An object, which is read as a dict
``Any``, ``object``              Any JSON value, not copied; ``Mapping[str, Any]``: any object
``timedelta``                    The text of ``format_duration``; ``MICROSECONDS``: an integer
``datetime``                     ISO 8601, read as UTC
``pa.Schema``                    The JSON of ``schema_to_json``
a dataclass                      An object; if the class has own methods, these read and write it
===============================  ===============================================================

``Annotated[X, ...]`` changes the codec of X:

- ``Range(minimum, maximum)``: the range of an integer;
- ``Valid(is_valid, "a SHA-256")``: a check of the value that was read, and its name in errors;
- ``Checked(function)``: a function that raises FeatureStoreError, such as ``check_name``;
- ``AS_ARRAY``: a dataclass as an array of its fields;
- a ``codecs.Codec``: reads and writes the value instead.

null is not checked if X may be None.

For a field also (not for an element of an array):

- ``Key("min")``: the name in JSON; ``Key("sample.rows")``: a name in the object ``sample``;
- ``INLINE``: the names of a nested record are among those of the record;
- ``OMIT_DEFAULT``: not written if the value equals the default, which is read if it is missing;
  null is refused;
- ``DEFAULT_IF_MISSING``: always written, but missing in JSON of earlier releases.

All other fields must be present, also those that may be null. The class options:

- ``format=2``: the format, written first as ``format``; a newer one raises FormatTooNew, with the
  text ``subject="The run {id!r}"``, in which names of the JSON are replaced; an older one than
  ``oldest_format=2`` is refused;
- ``keys=("name", "ok", ...)``: the attributes that are stored, in the order of the JSON, instead of
  all fields in order. A property is written and not read;
- ``closed=True``: unknown names in the JSON are refused. By default, they are ignored.

A subclass of a record states its options again.

``check_json`` checks or completes a record that was read. A class that needs more overrides
``to_json`` or ``from_json``, and calls the method of ``Record`` in it.

>>> @dataclass(frozen=True)
... class Shard(Record):
...     path: str
...     rows: int
...     sidecars: Annotated[tuple[str, ...], OMIT_DEFAULT] = ()
>>> Shard("train/0", 4).to_json()
{'path': 'train/0', 'rows': 4}
>>> Shard.from_json({"path": "train/0", "rows": 4}) == Shard("train/0", 4)
True
>>> Shard.from_json({"path": "train/0", "rows": -1})
Traceback (most recent call last):
featurestore.model.json_object.MalformedJson: rows is -1, not an integer from 0 to
9223372036854775807
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, reduce
from operator import or_
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from featurestore.model import codecs
from featurestore.model.codecs import MICROSECONDS, Codec
from featurestore.model.json_object import (
    MAX_INT64,
    JsonDict,
    JsonMapping,
    JsonObject,
    MalformedJson,
)
from featurestore.model.record_members import Layout, RecordMember, make_reader, make_writer

__all__ = [
    "AS_ARRAY",
    "DEFAULT_IF_MISSING",
    "INLINE",
    "MICROSECONDS",
    "OMIT_DEFAULT",
    "Checked",
    "Codec",
    "FeatureType",
    "Key",
    "Range",
    "Record",
    "TimeText",
    "Valid",
    "Version",
    "codec_of",
    "members",
]

RecordT = TypeVar("RecordT", bound="Record")


@dataclass(frozen=True)
class Range:
    """The range of an integer."""

    minimum: int = 0
    maximum: int = MAX_INT64


@dataclass(frozen=True)
class Valid:
    """A check of a value that was read, and what a valid value is called in errors."""

    is_valid: Callable[[Any], Any]
    expected: str


@dataclass(frozen=True)
class Checked:
    """A function that raises FeatureStoreError for an invalid value."""

    check: Callable[[Any], object]


@dataclass(frozen=True)
class Key:
    """The name of a field in JSON."""

    name: str


@dataclass(frozen=True)
class _Marker:
    """A marker in ``Annotated``."""

    name: str


AS_ARRAY = _Marker("AS_ARRAY")
INLINE = _Marker("INLINE")
OMIT_DEFAULT = _Marker("OMIT_DEFAULT")
DEFAULT_IF_MISSING = _Marker("DEFAULT_IF_MISSING")


def _is_feature_type(data: Any) -> bool:
    from featurestore.arrow.schemas import type_from_json  # imports pyarrow

    type_from_json(data)
    return True


def _is_time(text: str) -> bool:
    return not text or datetime.fromisoformat(text) is not None


# A version of an object, a feature type as JSON, and a time, or "" if it is unknown.
Version = Annotated[int, Range(minimum=1)]
FeatureType = Annotated[Any, Valid(_is_feature_type, "a feature type")]
TimeText = Annotated[str, Valid(_is_time, "an ISO 8601 time")]


class Record:
    """The base of dataclasses that are stored as JSON objects; see the module."""

    _json_layout: ClassVar[Layout] = Layout()

    def __init_subclass__(
        cls,
        *,
        format: int | None = None,
        subject: str = "",
        keys: Sequence[str] = (),
        closed: bool = False,
        oldest_format: int = 1,
    ) -> None:
        super().__init_subclass__()
        cls._json_layout = Layout(format, subject, tuple(keys), closed, oldest_format)

    def to_json(self) -> JsonDict:
        """Convert to a JSON object, the inverse of ``from_json``."""
        return cast("JsonDict", _derive(cast("type", type(self))).to_json(self))

    @classmethod
    def from_json(cls: type[RecordT], data: object) -> RecordT:
        """Parse the output of ``to_json``.

        Args:
            data: The JSON object; a JsonObject adds its path to errors.

        Raises:
            MalformedJson: Names the value that is missing or invalid.
            FormatTooNew: A newer release wrote the object.
        """
        codec = _derive(cast("type", cls))
        if not isinstance(data, JsonObject):
            return cast("RecordT", codec.read(data))
        try:
            return cast("RecordT", codec.read(data.data))
        except MalformedJson as error:
            raise error.within(data.path) from None

    def check_json(self: RecordT, data: JsonMapping) -> RecordT:
        """Return the record that was read from ``data``, after checks across its fields."""
        return self


def codec_of(annotation: Any) -> Codec:
    """Return the codec of an annotation.

    >>> codec_of(tuple[int, ...]).read([1, 2])
    (1, 2)
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _codec_of_annotated(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return _codec_of_union(arguments)
    if origin is Literal:
        return codecs.choice(arguments)
    if origin is not None:
        return _codec_of_container(origin, arguments)
    if annotation in _CODECS:
        return _CODECS[annotation]
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _codec_of_dataclass(annotation)
    return _codec_of_schema(annotation)


def _codec_of_schema(annotation: Any) -> Codec:
    # Only records with a schema need pyarrow, whose import is slow.
    import pyarrow as pa

    from featurestore.arrow.schemas import schema_from_json, schema_to_json

    if annotation is pa.Schema:
        return codecs.parsed(schema_from_json, schema_to_json, "a schema", codecs.JSON)
    raise TypeError(f"{annotation!r} has no JSON codec")


def members(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Codec:
    """Return the codec of objects that remain mappings, with the annotations of some names.

    >>> members({"version": Version}).read({"version": 0})
    Traceback (most recent call last):
    featurestore.model.json_object.MalformedJson: version is 0, not an integer from 1 to
    9223372036854775807
    """
    return codecs.members(
        {name: codec_of(annotation) for name, annotation in required.items()},
        {name: codec_of(annotation) for name, annotation in (optional or {}).items()},
    )


def _codec_of_annotated(annotation: Any, markers: tuple[Any, ...]) -> Codec:
    if type(None) in get_args(annotation):
        present = [member for member in get_args(annotation) if member is not type(None)]
        present_codec = _codec_of_annotated(reduce(or_, present), markers)
        return present_codec if OMIT_DEFAULT in markers else codecs.optional(present_codec)
    codec = next((marker for marker in markers if isinstance(marker, Codec)), None)
    if AS_ARRAY in markers:
        codec = _derive_array(annotation)
    for marker in markers:
        if isinstance(marker, Range):
            codec = codecs.integer(marker.minimum, marker.maximum)
    codec = codec or codec_of(annotation)
    for marker in markers:
        if isinstance(marker, Valid):
            codec = codecs.checked(codec, marker.is_valid, marker.expected)
        elif isinstance(marker, Checked):
            codec = codecs.validated(codec, marker.check)
    return codec


_CODECS: Mapping[Any, Codec] = {
    str: codecs.TEXT,
    bool: codecs.FLAG,
    float: codecs.REAL,
    int: codecs.integer(),
    Any: codecs.JSON,
    object: codecs.JSON,
    datetime: codecs.TIME,
    timedelta: codecs.DURATION,
}
_SCALAR_NAMES: Mapping[type, str] = {str: "a string", bool: "true or false", float: "a number"}


def _codec_of_union(members: tuple[Any, ...]) -> Codec:
    present = [member for member in members if member is not type(None)]
    if len(present) == 1:
        codec = codec_of(present[0])
    elif set(present) == {int, float}:
        codec = codecs.REAL
    elif set(present) <= {str, bool, int, float}:
        # JSON has one type of numbers: a float without a fraction is written and read as an integer.
        has_numbers = int in present or float in present
        scalar_types = {*present, *((int, float) if has_numbers else ())}
        names = [name for dtype, name in _SCALAR_NAMES.items() if dtype in scalar_types]
        plural = f"values that are {' or '.join(names)}"
        codec = codecs.scalar(" or ".join(names), plural, *scalar_types)
    else:
        raise TypeError(f"a union of {present} has no JSON codec")
    return codecs.optional(codec) if len(present) < len(members) else codec


def _codec_of_container(origin: Any, arguments: tuple[Any, ...]) -> Codec:
    if issubclass(origin, Mapping):
        if arguments[1] in (Any, object):
            return codecs.JSON_OBJECT
        return codecs.mapping(codec_of(arguments[1]))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return codecs.fixed_array(tuple(map(codec_of, arguments)))
    if issubclass(origin, Sequence):
        return codecs.array(codec_of(arguments[0]), list if origin is list else tuple)
    if origin is frozenset:
        return Codec(codecs.array(codec_of(arguments[0]), frozenset).read, sorted)
    raise TypeError(f"{origin!r} has no JSON codec")


def _codec_of_dataclass(record_type: type) -> Codec:
    """Return the codec of a nested record; the methods of the class come before those derived."""
    derived = None
    methods: dict[str, Any] = {}
    for name in ("from_json", "to_json"):
        method = getattr(record_type, name, None)
        if method is None or getattr(method, "__func__", method) in _RECORD_METHODS:
            derived = derived or _derive(record_type)
            method = derived.read if name == "from_json" else derived.write
        methods[name] = method
    return Codec(methods["from_json"], methods["to_json"])


_RECORD_METHODS = (Record.to_json, Record.from_json.__func__)  # type: ignore[attr-defined]


def _find_fields(record_type: type) -> list[RecordMember]:
    """Return the fields of a dataclass in order, with their codecs."""
    hints = get_type_hints(record_type, include_extras=True)
    keys = _layout_of(record_type).keys
    members = []
    for field in dataclasses.fields(record_type):
        if keys and field.name not in keys:
            continue
        annotation, default = hints[field.name], field.default
        markers = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
        key = next((marker.name for marker in markers if isinstance(marker, Key)), field.name)
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        members.append(
            RecordMember(
                key,
                field.name,
                codec_of(annotation),
                is_required=not {OMIT_DEFAULT, DEFAULT_IF_MISSING}.intersection(markers),
                is_omitted=OMIT_DEFAULT in markers,
                is_inline=INLINE in markers,
                default=default,
            )
        )
    return members


def _layout_of(record_type: type) -> Layout:
    return cast("Layout", getattr(record_type, "_json_layout", Record._json_layout))


@cache
def _derive(record_type: type) -> Codec:
    """Return the codec of a dataclass, without its own methods."""
    fields, layout = _find_fields(record_type), _layout_of(record_type)
    by_attribute = {member.attribute: member for member in fields}
    written = [
        by_attribute.get(attribute) or _find_property(record_type, attribute)
        for attribute in layout.keys or by_attribute
    ]
    read, check = make_reader(record_type, fields, layout), getattr(record_type, "check_json", None)
    if check in (None, Record.check_json):
        return Codec(read, make_writer(written, layout))

    def read_checked(data: Any) -> Any:
        return check(read(data), data)

    return Codec(read_checked, make_writer(written, layout))


@cache
def _derive_array(record_type: type) -> Codec:
    """Return the codec of a dataclass as an array of its fields."""
    fields = _find_fields(record_type)
    names = [member.attribute for member in fields]
    return codecs.as_array(names, [member.codec for member in fields], record_type)


def _find_property(record_type: type, name: str) -> RecordMember:
    hints = get_type_hints(getattr(record_type, name).fget, include_extras=True)
    return RecordMember(name, name, codec_of(hints["return"]))
