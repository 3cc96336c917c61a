"""The bounds of JSON texts, compared with the values that Python parses."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidArgument, LimitExceeded
from featurestore.server.bounds import MAX_DEPTH, MAX_DIGITS, MAX_VALUES, check_json

TEXTS = st.text(st.sampled_from('[]{}",:\\/\n9é'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def depth_of(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth_of, children), default=0)


@settings(max_examples=100, deadline=None, database=None)
@given(
    value=VALUES,
    levels=st.integers(MAX_DEPTH - 8, MAX_DEPTH + 3),
    keys=st.booleans(),
    ascii=st.booleans(),
)
def test_texts_are_refused_by_their_depth(value: Any, levels: int, keys: bool, ascii: bool) -> None:
    for _ in range(levels):
        value = {'a"[': value} if keys else [value, "]"]
    text = json.dumps(value, ensure_ascii=ascii).encode()
    if depth_of(value) > MAX_DEPTH:
        with pytest.raises(LimitExceeded, match="levels"):
            check_json(text)
    else:
        check_json(text)


def test_numbers_and_values_are_bounded() -> None:
    check_json(b"[" + b",".join([b"9" * MAX_DIGITS] * 100) + b"]")
    check_json(json.dumps(["9" * 10 * MAX_DIGITS]).encode())
    check_json(b"[" + b"0," * (MAX_VALUES - 2) + b"0]")
    for text in (
        b"[" + b"9" * (MAX_DIGITS + 1) + b"]",
        b'{"a": 0.' + b"1" * (MAX_DIGITS + 1) + b"}",
        b"[" + b"0," * MAX_VALUES + b"0]",
        b"[" + b"[]," * MAX_VALUES + b"0]",
    ):
        with pytest.raises(LimitExceeded):
            check_json(text)


def test_other_encodings_are_refused() -> None:
    for encoding in ("utf-16", "utf-32", "utf-16-le", "utf-32-be", "latin-1"):
        with pytest.raises(InvalidArgument):
            check_json(json.dumps({"é": [[1]]}, ensure_ascii=False).encode(encoding))


def test_checks_take_linear_time() -> None:
    size = 4 << 20
    for unit in (b'"', b"\\", b'\\"', b'"\\', b"[", b"]", b'"[', b"9", b"\xc3\xa9", b"{}", b'"a":'):
        start = time.process_time()
        with suppress(InvalidArgument):
            check_json(unit * (size // len(unit)))
        # A quadratic check would take hours.
        assert time.process_time() - start < 5, unit
