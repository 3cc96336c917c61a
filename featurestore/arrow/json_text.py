"""A strict JSON parser (RFC 8259) for JSON files and records from external sources.

It is the parser of the standard library, without its extensions to the standard: ``NaN`` and
``Infinity``, duplicate names in an object, and lone surrogates, which are not valid Unicode.

https://www.rfc-editor.org/rfc/rfc8259
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_MAX_REPR = 60
# No type can represent integers with more digits.
_MAX_DIGITS = 400
# Functions recurse into values, up to twice per level.
_MAX_LEVELS = 250
_TOO_DEEP = f"values are nested more than {_MAX_LEVELS} levels deep"


class JsonError(ValueError):
    """A string is not JSON; the message is the reason, with the column if known."""


class NumberText(str):
    """A number as written, with all its digits."""

    __slots__ = ()


class NonFinite(float):
    """NaN or an infinity that a format writes as a string, since numbers in JSON are finite."""

    __slots__ = ()


class _Integer(NumberText):
    __slots__ = ()


def _parse_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; refuse repeated names."""
    members = dict(pairs)
    # RFC 8259 leaves the meaning of repeated names to the reader; here they are an error.
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise JsonError(f"the name {short_repr(repeated)} is repeated in one object")
    return members


def _parse_constant(word: str) -> Any:
    raise JsonError(f"{word} is not a JSON number")


@cache
def _decoder(exact: bool, constant: Callable[[str], Any] = _parse_constant) -> json.JSONDecoder:
    """Return a decoder; ``constant`` converts the names of NaN and infinity."""
    numbers: dict[str, Any] = {}
    if exact:
        numbers = {"parse_float": NumberText, "parse_int": _Integer}
    return json.JSONDecoder(object_pairs_hook=_parse_pairs, parse_constant=constant, **numbers)


def parse_json(
    text: str, *, exact: bool = False, constant: Callable[[str], Any] = _parse_constant
) -> Any:
    """Parse a JSON string.

    ``exact`` returns numbers as ``NumberText``, with all their digits. ``constant`` converts the names
    NaN, Infinity and -Infinity, which Python writes; by default they are errors.

    Raises:
        JsonError: The string is not valid JSON, an object has a duplicate name, a string is not
            valid Unicode, a number has more than 4,300 digits, or values are nested more than 250
            levels deep.

    >>> parse_json('{"id": 17, "tags": ["a", null]}')
    {'id': 17, 'tags': ['a', None]}
    >>> parse_json('{"id": 17, "id": 18}')
    Traceback (most recent call last):
    featurestore.arrow.json_text.JsonError: the name 'id' is repeated in one object
    """
    try:
        value = _decoder(exact, constant).decode(text)
    except (ValueError, RecursionError) as error:
        raise _json_error(error) from None
    return _check_value(value, text)


def parse_json_at(text: str, start: int, *, exact: bool = False) -> tuple[Any, int]:
    """Parse the value at an index of a string; return the value and the index of its end.

    Raises:
        JsonError: As in ``parse_json``; also if the string ends within the value.

    >>> parse_json_at('[{"id": 1}, {"id": 2}]', 1)
    ({'id': 1}, 10)
    """
    try:
        value, end = _decoder(exact).raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise _json_error(error) from None
    return _check_value(value, text[start:end]), end


def parse_number(text: NumberText) -> int | float:
    """Parse the text of a number.

    >>> parse_number(parse_json("1.50", exact=True))
    1.5
    """
    return int(text) if isinstance(text, _Integer) and len(text) < _MAX_DIGITS else float(text)


def to_json_text(value: Any) -> str:
    """Serialize a value of ``parse_json(..., exact=True)``, with all digits of its numbers.

    >>> to_json_text(parse_json('{"price": 1.50, "tags": ["a"]}', exact=True))
    '{"price": 1.50, "tags": ["a"]}'
    """
    if isinstance(value, NumberText):
        return str(value)
    if isinstance(value, dict):
        members = [f"{to_json_text(name)}: {to_json_text(item)}" for name, item in value.items()]
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def json_type_name(value: object) -> str:
    """Return the JSON type name of a value, for error messages.

    >>> json_type_name(None), json_type_name(True), json_type_name("a"), json_type_name([1])
    ('null', 'a boolean', 'a string', 'an array')
    """
    if isinstance(value, NumberText):
        return "a number"
    return _KINDS[type(value)]


_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def short_repr(value: object) -> str:
    """Return the repr of a value for error messages, truncated to about 60 characters.

    >>> len(short_repr("x" * 1000))
    60
    """
    if isinstance(value, NumberText):
        text = str(value)
    else:
        text = repr(value[:_MAX_REPR] if isinstance(value, str | list) else value)
    return text if len(text) <= _MAX_REPR else f"{text[: _MAX_REPR - 3]}..."


def _json_error(error: Exception) -> JsonError:
    """Translate an error of the standard parser."""
    if isinstance(error, JsonError):
        return error
    if isinstance(error, json.JSONDecodeError):
        if "\ufeff" in error.doc[:1]:
            return JsonError("it begins with a byte order mark")
        return JsonError(f"{error.msg} at column {error.colno}")
    if isinstance(error, RecursionError):
        return JsonError(_TOO_DEEP)
    # The limit of Python for the conversion of a string to an integer.
    return JsonError("a number has more than 4,300 digits")


def _check_value(value: Any, text: str) -> Any:
    """Return a value whose strings are valid Unicode, and which is not nested too deeply."""
    # Few texts have as many brackets as levels are allowed.
    if text.count("[") + text.count("{") > _MAX_LEVELS and _count_levels(value) > _MAX_LEVELS:
        raise JsonError(_TOO_DEEP)
    # Escapes can contain lone surrogates. Strings with such an escape are rare, so the others are not
    # encoded.
    if _HALF_PAIR.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise JsonError("a string contains a lone surrogate") from None
    return value


def _count_levels(value: Any) -> int:
    """Return the number of nested arrays and objects, at most one more than is allowed."""
    levels, values = 0, [value]
    # Level by level instead of recursion, which Python limits.
    while levels <= _MAX_LEVELS:
        containers = [value for value in values if isinstance(value, dict | list)]
        if not containers:
            break
        levels += 1
        values = []
        for container in containers:
            values += container.values() if isinstance(container, dict) else container
    return levels
