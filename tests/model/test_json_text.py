"""JSON from outside is parsed strictly by RFC 8259."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.arrow.json_text import (
    JsonError,
    parse_json,
    parse_json_at,
    parse_number,
    to_json_text,
)

ACCEPTED: dict[str, Any] = {
    "[]": [],
    " \t\r\n[1 , 2]\n ": [1, 2],
    "[[[[]]]]": [[[[]]]],
    "{}": {},
    '{"": 0}': {"": 0},
    '{"a": {"a": 1}, "A": 2}': {"a": {"a": 1}, "A": 2},
    '{"a\\u0000b": 1}': {"a\0b": 1},
    '"a\\"\\\\\\/\\b\\f\\n\\r\\t"': 'a"\\/\b\f\n\r\t',
    '"\\u0061\\u00E9\\ud83d\\uDE00"': "aé😀",
    '"\u2028\u2029\x7f\U0010ffff"': "\u2028\u2029\x7f\U0010ffff",
    '"\\\\ud800"': "\\ud800",
    "-0": 0,
    "0.1e+05": 10000.0,
    "1E22": 1e22,
    "-1.5e-3": -0.0015,
    "123456789012345678901234567890": 123456789012345678901234567890,
    "null": None,
    "true": True,
    "false": False,
    '"8E1A9A4E-0000-0000-0000-ABCDEF012345"': "8E1A9A4E-0000-0000-0000-ABCDEF012345",
}
REFUSED = [
    "",
    " ",
    "[1,]",
    "[,1]",
    "[1,,2]",
    "[1 2]",
    "[1",
    "]",
    "[1]]",
    '{"a": 1,}',
    '{"a" 1}',
    '{"a"}',
    "{a: 1}",
    "{'a': 1}",
    '{1: "a"}',
    '{"a": 1',
    '{"a": 1}}',
    '{"a": 1} {"b": 2}',
    '{"a": 1, "a": 2}',
    '[{"x": {"a": 1, "b": 2, "\\u0061": 3}}]',
    "NaN",
    "[Infinity]",
    "-Infinity",
    "Inf",
    "nan",
    "+1",
    "01",
    "-01",
    "-",
    "1.",
    ".5",
    "1e",
    "1e+",
    "0x1F",
    "1_000",
    "\uff11",
    "True",
    "nul",
    "undefined",
    "'a'",
    '"a',
    '"\t"',
    '"\n"',
    '"\0"',
    '"\\x41"',
    '"\\u00G0"',
    '"\\u12"',
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '["\\uD800x"]',
    '{"\\udfff": 1}',
    "// a\n1",
    "/* a */ 1",
    "1 # a",
    "\ufeff1",
    "\x0b1",
    "\xa01",
    "[" * 100_000,
    '{"a":' * 100_000,
]


def test_parse_json_valid_text_returns_value(subtests: pytest.Subtests) -> None:
    for text, value in ACCEPTED.items():
        with subtests.test(text=text):
            assert parse_json(text) == value


def test_parse_json_invalid_text_raises(subtests: pytest.Subtests) -> None:
    for text in REFUSED:
        for exact in (False, True):
            with subtests.test(text=text[:20], exact=exact), pytest.raises(JsonError, match=r"\w"):
                parse_json(text, exact=exact)


def test_parse_json_number_with_too_many_digits_raises() -> None:
    with pytest.raises(JsonError, match="digits"):
        parse_json("1" * 5000)
    assert parse_number(parse_json("1" * 5000, exact=True)) == float("inf")


def test_parse_json_at_returns_value_and_end() -> None:
    assert parse_json_at('[{"a": 1}, {"a": 2}]', 11) == ({"a": 2}, 19)
    with pytest.raises(JsonError, match="delimiter"):
        parse_json_at('[{"a": 1', 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
).filter(lambda value: "Infinity" not in json.dumps(value))


@given(VALUES, st.booleans())
def test_parse_json_round_trips_json_dumps(value: Any, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert parse_json(text) == value
    assert to_json_text(parse_json(text, exact=True)) == json.dumps(value, ensure_ascii=False)
    assert parse_json(to_json_text(parse_json(text, exact=True))) == value
