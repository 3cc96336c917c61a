"""Bounds of JSON texts that clients send, which are checked before the text is parsed.

A parser takes memory for each value, recurses at each level, and converts long numbers slowly.
"""

from __future__ import annotations

import re

from featurestore.errors import InvalidArgument, LimitExceeded

MAX_DEPTH = 100
MAX_VALUES = 250_000
MAX_DIGITS = 1_000
# All bytes except the brackets of lists and objects.
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS = re.compile(rb"[0-9]+")


def check_json(text: bytes) -> None:
    """Check depth, number of values and lengths of numbers in a JSON text, in linear time.

    The text may be invalid JSON: the bounds hold for each prefix that a parser accepts.

    >>> check_json(b'{"a": [1, 2, "[[["]}')

    Raises:
        LimitExceeded: The text exceeds a limit.
        InvalidArgument: The text is not UTF-8.
    """
    # Python's parser detects UTF-16 and UTF-32, whose structure this function does not see.
    try:
        text.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("The JSON text is not UTF-8.") from None
    if b"\0" in text:
        raise InvalidArgument("The JSON text contains a zero byte.")
    # Without escaped backslashes and quotes, each quote begins or ends a string.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = b'"'.join(unescaped.split(b'"')[::2])
    values = structure.count(b",") + structure.count(b"[") + structure.count(b"{")
    if values > MAX_VALUES:
        raise LimitExceeded(f"The JSON text has {values:,} values; the limit is {MAX_VALUES:,}.")
    depth = 0
    for bracket in structure.translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise LimitExceeded(f"The JSON text has more than {MAX_DEPTH} levels.")
    for digits in _DIGITS.finditer(structure):
        if digits.end() - digits.start() > MAX_DIGITS:
            raise LimitExceeded(
                f"A number in the JSON text has more than {MAX_DIGITS:,} digits.",
                hint="send long numbers as strings",
            )
