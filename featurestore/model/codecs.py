"""Codecs of JSON values: how a value of one type is read from stored JSON, and written to it.

``records`` chooses the codec of a field by its annotation. A codec raises ``MalformedJson`` with
the path relative to its value, and the codecs of arrays, objects and records add the path of the
element. An element is checked by its exact type first: values that ``json`` parsed have no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
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
        types: The exact types of JSON values that ``read`` returns unchanged, if any: an array of
            them is checked as a whole.
        plural: What an array of these values is called in errors, such as "strings".
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None
    types: frozenset[type] = frozenset()
    plural: str = ""


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

    return Codec(read, None, exact_types, plural)


TEXT = scalar("a string", "strings", str)
FLAG = scalar("true or false", "booleans", bool)
REAL = scalar("a number", "numbers", int, float)


def integer(minimum: int = 0, maximum: int = MAX_INT64) -> Codec:
    """Return the codec of integers within a range."""
    expected = f"an integer from {minimum} to {maximum}"

    def read(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise wrong_value_error(value, expected)
        return value

    return Codec(read)


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
    return Codec(read, None if write_value is None else write, types, codec.plural)


def array(codec: Codec, build: Callable[[Any], Any] = tuple) -> Codec:
    """Return the codec of arrays of any length; ``build`` makes the sequence."""
    read_item, write_item, types = codec.read, codec.write, codec.types
    is_number = codec.plural == "" and read_item.__qualname__.startswith("integer.")

    def read(value: Any) -> Any:
        _check_array(value)
        if types and types.issuperset(map(type, value)):
            return build(value)
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
        return list(value) if write_item is None else list(map(write_item, value))

    return Codec(read, write)


def fixed_array(codecs: Sequence[Codec], build: Callable[..., Any]) -> Codec:
    """Return the codec of arrays with one codec per element, such as pairs.

    ``build`` gets the elements as arguments.
    """
    length = len(codecs)

    def read(value: Any) -> Any:
        _check_array(value)
        if len(value) != length:
            raise wrong_value_error(value, f"an array of {length} values")
        items: list[Any] = []
        try:
            for codec, item in zip(codecs, value, strict=True):
                items.append(codec.read(item))
        except MalformedJson as error:
            raise error.within(f"[{len(items)}]") from None
        return build(*items)

    def write(value: Any) -> Any:
        return [
            item if codec.write is None else codec.write(item)
            for codec, item in zip(codecs, value, strict=True)
        ]

    return Codec(read, write)


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
        if write_item is None:
            return dict(value)
        return {name: write_item(item) for name, item in value.items()}

    return Codec(read, write)


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
