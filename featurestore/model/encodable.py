"""Texts that the registry, manifests and tables can store: those that UTF-8 can encode."""

from __future__ import annotations

from collections.abc import Mapping

from featurestore.arrow.json_text import is_utf8_string
from featurestore.errors import InvalidArgument


def check_encodable(argument: str, value: object) -> object:
    r"""Return the value of an argument if UTF-8 can encode its strings.

    JSON and Python strings may contain a lone surrogate, half of a UTF-16 pair, which no file and
    no database can store. Strings in dicts and lists are checked, too.

    Raises:
        InvalidArgument: The message shows the string with an escape.

    >>> check_encodable("tags", {"team": "web"})
    {'team': 'web'}
    >>> check_encodable("description", "cat" + chr(0xD800))
    Traceback (most recent call last):
        ...
    featurestore.errors.InvalidArgument: description= contains 'cat\ud800', which UTF-8 cannot encode.
    Hint: 'cat\ud800'.encode('utf-8', 'replace').decode()
    """
    if isinstance(value, str):
        if not is_utf8_string(value):
            start = next(index for index, letter in enumerate(value) if not is_utf8_string(letter))
            shown = ascii(value[max(0, start - 20) : start + 20])
            raise InvalidArgument(
                f"{argument}= contains {shown}, which UTF-8 cannot encode.",
                hint=f"{shown}.encode('utf-8', 'replace').decode()",
            )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_encodable(argument, key)
            check_encodable(argument, item)
    elif isinstance(value, list | tuple):
        for item in value:
            check_encodable(argument, item)
    return value
