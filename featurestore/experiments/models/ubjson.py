"""Decoding of UBJSON (https://ubjson.org), the binary JSON of XGBoost's ``.ubj`` files."""

from __future__ import annotations

from typing import Any

import numpy as np

_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_INTEGERS = "iUIlL"
_CONSTANTS = {"Z": None, "T": True, "F": False}


def decode_ubjson(content: bytes) -> Any:
    r"""Return the value of a UBJSON document; floats keep their 32 or 64 bits.

    Raises:
        ValueError: The document is invalid, truncated or has bytes after its end.
        RecursionError: The document is nested too deeply.

    >>> decode_ubjson(b"{i\x01a[U\x07Td?\x00\x00\x00]}")
    {'a': [7, True, 0.5]}
    """
    decoder = _Decoder(content)
    value = decoder.read_value(decoder.read_marker())
    if decoder.position != len(content):
        raise ValueError(f"{len(content) - decoder.position} bytes follow its end")
    return value


class _Decoder:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0

    def read_value(self, marker: str) -> Any:
        """Return the value that begins after its marker."""
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker in _NUMBERS:
            return self._read_numbers(marker, 1)[0]
        if marker == "S":
            return self._read_text(self.read_marker())
        if marker == "C":
            return self._take(1).decode()
        if marker == "[":
            return self._read_array()
        if marker == "{":
            return self._read_object()
        raise ValueError(f"unknown type {marker!r} at {self.position - 1}")

    def read_marker(self) -> str:
        """Return the next type, without padding."""
        marker = self._take(1).decode("latin-1")
        return marker if marker != "N" else self.read_marker()

    def _read_array(self) -> list[Any]:
        marker = self.read_marker()
        item_type = None
        if marker == "$":
            item_type = self.read_marker()
            marker = self.read_marker()
        if marker == "#":
            count = self._read_length(self.read_marker())
            if item_type is not None:
                return self._read_numbers(item_type, count)
            return [self.read_value(self.read_marker()) for _ in range(count)]
        items = []
        while marker != "]":
            items.append(self.read_value(marker))
            marker = self.read_marker()
        return items

    def _read_object(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        marker = self.read_marker()
        while marker != "}":
            name = self._read_text(marker)
            if name in values:
                raise ValueError(f"two values of {name[:50]!r}")
            values[name] = self.read_value(self.read_marker())
            marker = self.read_marker()
        return values

    def _read_text(self, marker: str) -> str:
        return self._take(self._read_length(marker)).decode()

    def _read_length(self, marker: str) -> int:
        if marker not in _INTEGERS:
            raise ValueError(f"a length of the type {marker!r} at {self.position - 1}")
        return int(self._read_numbers(marker, 1)[0])

    def _read_numbers(self, marker: str, count: int) -> list[Any]:
        if marker not in _NUMBERS:
            raise ValueError(f"numbers of the type {marker!r} at {self.position - 1}")
        dtype = np.dtype(_NUMBERS[marker])
        values: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return values

    def _take(self, size: int) -> bytes:
        start, self.position = self.position, self.position + size
        if size < 0 or self.position > len(self.content):
            raise ValueError(f"it is truncated at {start}")
        return self.content[start : self.position]
