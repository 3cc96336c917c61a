"""Options of sources as strings: lists and mappings are JSON, which a command line can pass, too."""

from __future__ import annotations

import json
from collections.abc import Mapping

from featurestore.arrow.json_text import JsonError, parse_json
from featurestore.errors import InvalidArgument
from featurestore.model.names import RENAME, check_rename
from featurestore.model.source import is_secret_option


def options_to_strings(options: Mapping[str, object]) -> dict[str, str]:
    """Convert options to strings, and omit options that are None.

    Raises:
        InvalidArgument: An option name suggests a secret, or a value has an unsupported type.

    >>> options_to_strings({"header": False, "dtypes": {"zip": "string"}, "quote": None})
    {'header': 'false', 'dtypes': '{"zip": "string"}'}
    """
    strings = {}
    for name, value in options.items():
        if not isinstance(name, str):
            raise InvalidArgument(
                f"options={{{name!r}: ...}}: option names must be strings.",
                hint="options={'format': 'csv'}",
            )
        if is_secret_option(name):
            raise InvalidArgument(
                f"options={{{name!r}: ...}} would be stored in plain text.",
                hint="secret='env:NAME'",
            )
        text = check_rename(value) if name == RENAME else _to_string(name, value)
        if text is not None:
            strings[name] = text
    return strings


def options_from_strings(strings: Mapping[str, str]) -> dict[str, object]:
    """Return options as values that ``options_to_strings`` converts to exactly these strings.

    Calls in hints repeat the options of a caller in this form.

    >>> options_from_strings({"header": "false", "dtypes": '{"zip": "string"}', "delimiter": ";"})
    {'header': False, 'dtypes': {'zip': 'string'}, 'delimiter': ';'}
    """
    return {name: _from_string(name, text) for name, text in strings.items()}


def _to_string(name: str, value: object) -> str | None:
    """Convert an option value to a string, or None to None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return json.dumps({key: str(each) for key, each in value.items()}, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return json.dumps(list(value), ensure_ascii=False)
    raise InvalidArgument(
        f"options={{{name!r}: {value!r}}} is not a string, a number, a list or a mapping.",
        hint="options={'format': 'csv', 'dtypes': {'zip': 'string'}}",
    )


def _from_string(name: str, text: str) -> object:
    """Return the boolean, integer, list or mapping with this string, or the string itself."""
    try:
        value = parse_json(text)
    except JsonError:
        return text
    # Another spelling is a string: a digit may be a delimiter, and grants are for exact options.
    if isinstance(value, bool | int | list | dict) and _to_string(name, value) == text:
        return value
    return text
