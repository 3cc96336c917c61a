"""Sealed JSON: objects with a checksum that detects every changed byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from featurestore.model.json_object import MalformedJson

CHECKSUM = "checksum"
LINE_CHECKSUM_LENGTH = 16  # of hexadecimal digits


def seal(data: Mapping[str, Any]) -> bytes:
    """Return a JSON object with its checksum, as files hold it.

    >>> unseal(seal({"name": "late_flights"}))["name"]
    'late_flights'
    """
    return _render({**data, CHECKSUM: _checksum(data)})


def parse_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a file without a check of its checksum.

    Raises:
        MalformedJson: The content is not a JSON object.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(str(error)) from error
    if not isinstance(data, dict):
        raise MalformedJson("it is not a JSON object")
    return data


def unseal(content: bytes) -> dict[str, Any]:
    """Return the JSON object that ``seal`` wrote.

    Raises:
        MalformedJson: The content is not what was written.
    """
    data = parse_object(content)
    payload = {name: value for name, value in data.items() if name != CHECKSUM}
    if seal(payload) != content:
        raise MalformedJson("its checksum does not fit what it says")
    return data


def seal_line(data: Mapping[str, Any]) -> str:
    """Return a JSON object on one line, without a newline, with a checksum at its end.

    >>> seal_line({"step": 1})
    '{"step": 1, "checksum": "66acd07fcea20439"}'
    """
    digest = hashlib.sha256(json.dumps(data).encode()).hexdigest()[:LINE_CHECKSUM_LENGTH]
    return json.dumps({**data, CHECKSUM: digest})


def unseal_line(line: str) -> dict[str, Any]:
    """Return the JSON object of a line that ``seal_line`` wrote.

    Raises:
        MalformedJson: The line differs from what was written.
    """
    data = parse_object(line.encode("utf-8", errors="surrogatepass"))
    payload = {name: value for name, value in data.items() if name != CHECKSUM}
    if seal_line(payload) != line:
        raise MalformedJson("its checksum does not match")
    return data


def _render(data: Mapping[str, Any]) -> bytes:
    # A lone surrogate can be parsed from a damaged file: it must not stop the comparison.
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", errors="surrogatepass")


def _checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(_render(data)).hexdigest()
