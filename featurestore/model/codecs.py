"""Codecs of JSON values: how a value of one type is read from stored JSON, and written to it.

``records`` chooses the codec of a field by its annotation. A codec raises ``MalformedJson`` with
the path relative to its value, and the codecs of arrays, objects and records add the path of the
element. An element is checked by its exact type first: values that ``json`` parsed have no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from featurestore.errors import FeatureStoreError
from featurestore.model.json_object import (
    MAX_INT64,
    MalformedJson,
    wrong_value_error,
)
from featurestore.model.times import format_duration, parse_duration, parse_moment


@dataclass(frozen=True)
class Codec:
    """The functions that read and write the JSON of one type.

    Attributes:
        read: Returns the value of a JSON value; raises MalformedJson.
        write: Returns the JSON value of a value; None if they are the same.
        read_all: Reads the elements of an array as a whole, which is several times as fast; returns
            None if an element is invalid or unusual, so that each is read with ``read``.
        types: The exact types of the JSON values of a scalar.
        plural: What an array of these values is called in errors, such as "strings".
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None
    read_all: Callable[[Sequence[Any]], Sequence[Any] | None] | None = None
    types: frozenset[type] = frozenset()
    plural: str = ""

    def to_json(self, value: Any) -> Any:
        """Return the JSON value of a value."""
        return value if self.write is None else self.write(value)


def scalar(expected: str, plural: str, *types: type) -> Codec:
    """Return the codec of JSON values of some Python types, which are values already.

    >>> scalar("a string", "strings", str).read("a")
    'a'
    """
    exact_types = frozenset(types)

    def read(value: Any) -> Any:
        if type(value) in exact_types:
            return value
        # Numbers of NumPy are subclasses. Booleans are integers in Python, but not in JSON.
        if isinstance(value, types) and not isinstance(value, bool):
            return value
        raise wrong_value_error(value, expected)

    return Codec(read, None, _read_types(exact_types), exact_types, plural)


def _read_types(exact_types: frozenset[type]) -> Callable[[Sequence[Any]], Sequence[Any] | None]:
    def read_all(values: Sequence[Any]) -> Sequence[Any] | None:
        return values if exact_types.issuperset(map(type, values)) else None

    return read_all


TEXT = scalar("a string", "strings", str)
FLAG = scalar("true or false", "booleans", bool)
REAL = scalar("a number", "numbers", int, float)
_INTEGERS = frozenset([int])


def integer(minimum: int = 0, maximum: int = MAX_INT64) -> Codec:
    """Return the codec of integers within a range."""
    expected = f"an integer from {minimum} to {maximum}"

    def read(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise wrong_value_error(value, expected)
        return value

    def read_all(values: Sequence[Any]) -> Sequence[Any] | None:
        if not values:
            return values
        if not _INTEGERS.issuperset(map(type, values)):
            return None
        return values if minimum <= min(values) and max(values) <= maximum else None

    return Codec(read, None, read_all)


def choice(values: Sequence[Any]) -> Codec:
    """Return the codec of a ``Literal`` of strings.

    >>> choice(("left", "inner")).read("outer")
    Traceback (most recent call last):
    featurestore.model.json_object.MalformedJson: the document is 'outer', not one of left, inner
    """

    def read(value: Any) -> Any:
        if TEXT.read(value) not in values:
            raise wrong_value_error(value, f"one of {', '.join(values)}")
        return value

    return Codec(read)


def to_plain(value: Any) -> Any:
    """Return a JSON value with mappings as dicts and sequences as lists, as ``json`` parses them."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(to_plain, value))
    return value


def _return_unchanged(value: Any) -> Any:
    return value


def _check_object(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise wrong_value_error(value, "an object")
    return value


# Any JSON value, and an object of any values: neither is copied when it is read.
JSON = Codec(_return_unchanged, to_plain)
JSON_OBJECT = Codec(_check_object, to_plain)


def optional(codec: Codec) -> Codec:
    """Return the codec of values that may be null."""
    read_value, write_value = codec.read, codec.write

    def read(value: Any) -> Any:
        return None if value is None else read_value(value)

    def write(value: Any) -> Any:
        return None if value is None or write_value is None else write_value(value)

    types = codec.types | {type(None)} if codec.types else codec.types
    read_all = _read_types(types) if types else None
    return Codec(read, None if write_value is None else write, read_all, types, codec.plural)


def array(codec: Codec, build: Callable[[Any], Any] = tuple) -> Codec:
    """Return the codec of arrays of any length; ``build`` makes the sequence."""
    read_item, write_item, read_all = codec.read, codec.write, codec.read_all
    is_number = codec.plural == "" and read_item.__qualname__.startswith("integer.")

    def read(value: Any) -> Any:
        _check_array(value)
        if read_all is not None and (contents := read_all(value)) is not None:
            return build(contents)
        items: list[Any] = []
        try:
            for item in value:
                items.append(read_item(item))
        except MalformedJson as error:
            if codec.plural:
                raise wrong_value_error(value, f"an array of {codec.plural}") from None
            index = str(len(items)) if is_number else f"[{len(items)}]"
            raise error.within(index) from None
        return build(items)

    def write(value: Any) -> Any:
        return list(map(write_item, value))  # type: ignore[arg-type]

    return Codec(read, list if write_item is None else write)


_LISTS = frozenset([list])


def fixed_array(codecs: Sequence[Codec], build: Callable[..., Any] | None = None) -> Codec:
    """Return the codec of arrays with one codec per element, such as pairs.

    ``build`` gets the elements as arguments; None: they are read as a tuple.
    """
    length, readers = len(codecs), [(codec.types, codec.read) for codec in codecs]

    def read(value: Any) -> Any:
        _check_array(value)
        if len(value) != length:
            raise wrong_value_error(value, f"an array of {length} values")
        items: list[Any] = []
        try:
            for (types, read_item), item in zip(readers, value, strict=True):
                items.append(item if type(item) in types else read_item(item))
        except MalformedJson as error:
            raise error.within(f"[{len(items)}]") from None
        return tuple(items) if build is None else build(*items)

    def read_all(values: Sequence[Any]) -> Sequence[Any] | None:
        if not _LISTS.issuperset(map(type, values)) or set(map(len, values)) != {length}:
            return None
        columns = []
        for codec, column in zip(codecs, zip(*values, strict=True), strict=True):
            contents = codec.read_all(column) if codec.read_all else None
            if contents is None:
                return None
            columns.append(contents)
        # ``zip`` is three times as fast as a call for each array.
        return list(zip(*columns, strict=True) if build is None else map(build, *columns))

    def write(value: Any) -> Any:
        return [codec.to_json(item) for codec, item in zip(codecs, value, strict=True)]

    is_plain = all(codec.write is None for codec in codecs)
    has_read_all = all(codec.read_all for codec in codecs)
    return Codec(read, list if is_plain else write, read_all if has_read_all else None)


def as_array(names: Sequence[str], codecs: Sequence[Codec], build: Callable[..., Any]) -> Codec:
    """Return the codec of objects as arrays of the attributes ``names``."""
    values = fixed_array(codecs, build)
    attributes = attrgetter(*names)
    is_plain = all(codec.write is None for codec in codecs)

    def write(value: Any) -> Any:
        items = attributes(value)
        return list(items) if is_plain else values.to_json(items)

    return Codec(values.read, write, values.read_all)


def mapping(codec: Codec) -> Codec:
    """Return the codec of objects with values of one type, which are read as a dict."""
    read_item, write_item = codec.read, codec.write

    def read(value: Any) -> Any:
        items: dict[str, Any] = {}
        name = ""
        try:
            for name, item in _check_object(value).items():
                items[name] = read_item(item)
        except MalformedJson as error:
            raise error.within(name) from None
        return items

    def write(value: Any) -> Any:
        return {name: write_item(item) for name, item in value.items()}  # type: ignore[misc]

    return Codec(read, dict if write_item is None else write)


def members(required: Mapping[str, Codec], optional: Mapping[str, Codec]) -> Codec:
    """Return the codec of objects that remain mappings; their other names are not checked."""
    all_members = {**required, **optional}

    def read(value: Any) -> Any:
        _check_object(value)
        for name, codec in all_members.items():
            if name in value:
                try:
                    codec.read(value[name])
                except MalformedJson as error:
                    raise error.within(name) from None
            elif name in required:
                raise MalformedJson("is missing", name)
        return value

    return Codec(read, to_plain)


def checked(codec: Codec, is_valid: Callable[[Any], Any], expected: str) -> Codec:
    """Return a codec that also checks each value that it reads; ``expected`` is for errors.

    A check that raises an error of damaged JSON counts as failed.
    """

    def read(value: Any) -> Any:
        content = codec.read(value)
        try:
            if is_valid(content):
                return content
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
            pass
        raise wrong_value_error(value, expected)

    return Codec(read, codec.write)


def validated(codec: Codec, check: Callable[[Any], object]) -> Codec:
    """Return a codec that also calls ``check``, whose FeatureStoreError is the text of the error."""

    def read(value: Any) -> Any:
        content = codec.read(value)
        try:
            check(content)
        except FeatureStoreError as error:
            raise MalformedJson(error.message) from error
        return content

    return Codec(read, codec.write)


def parsed(
    parse: Callable[[Any], Any], write: Callable[[Any], Any], expected: str, source: Codec = TEXT
) -> Codec:
    r"""Return the codec of values that are parsed from those of another codec.

    An error of ``parse`` becomes MalformedJson: the value is not ``expected``.

    >>> parsed(bytes.fromhex, bytes.hex, "hexadecimal digits").read("0a")
    b'\n'
    """

    def read(value: Any) -> Any:
        content = source.read(value)
        try:
            return parse(content)
        except MalformedJson:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise wrong_value_error(value, expected) from error

    return Codec(read, write)


def _check_array(value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise wrong_value_error(value, "an array")


def _parse_time(text: str) -> datetime:
    return parse_moment(text, warn=False)


def _parse_microseconds(number: int) -> timedelta:
    return timedelta(microseconds=number)


def _to_microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


TIME = parsed(_parse_time, datetime.isoformat, "an ISO 8601 time")
DURATION = parsed(parse_duration, format_duration, "a duration")
MICROSECONDS = parsed(_parse_microseconds, _to_microseconds, "a duration", integer())
