"""Sealed JSON: an object with a checksum over all of it, so that every other byte is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from featurestore.model.json_object import MalformedJson

CHECKSUM = "checksum"
LINE_CHECKSUM_LENGTH = 16  # of hexadecimal digits


def sealed(data: Mapping[str, Any]) -> bytes:
    """Return a JSON object with its checksum, as files hold it.

    >>> unsealed(sealed({"name": "late_flights"}))["name"]
    'late_flights'
    """
    return _render({**data, CHECKSUM: _checksum(data)})


def parsed(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a file; its checksum is not looked at.

    Raises:
        MalformedJson: It is no JSON object.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(str(error)) from error
    if not isinstance(data, dict):
        raise MalformedJson("it is not a JSON object")
    return data


def unsealed(content: bytes) -> dict[str, Any]:
    """Return the JSON object that ``sealed`` wrote.

    Raises:
        MalformedJson: The content is not what was written.
    """
    data = parsed(content)
    rest = {name: value for name, value in data.items() if name != CHECKSUM}
    if sealed(rest) != content:
        raise MalformedJson("its checksum does not fit what it says")
    return data


def sealed_line(data: Mapping[str, Any]) -> str:
    """Return a JSON object on one line, without a newline, with a checksum at its end.

    >>> sealed_line({"step": 1})
    '{"step": 1, "checksum": "66acd07fcea20439"}'
    """
    digest = hashlib.sha256(json.dumps(data).encode()).hexdigest()[:LINE_CHECKSUM_LENGTH]
    return json.dumps({**data, CHECKSUM: digest})


def unsealed_line(line: str) -> dict[str, Any]:
    """Return the JSON object of a line that ``sealed_line`` wrote.

    Raises:
        MalformedJson: The line differs from what was written.
    """
    data = parsed(line.encode("utf-8", errors="surrogatepass"))
    rest = {name: value for name, value in data.items() if name != CHECKSUM}
    if sealed_line(rest) != line:
        raise MalformedJson("its checksum does not match")
    return data


def _render(data: Mapping[str, Any]) -> bytes:
    # A lone surrogate can be parsed from a damaged file: it must not stop the comparison.
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", errors="surrogatepass")


def _checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(_render(data)).hexdigest()
