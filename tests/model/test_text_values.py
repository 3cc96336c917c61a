"""Strings parsed as typed values: inferred and declared types."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.arrow.text_values import (
    INFERRED,
    TextRules,
    all_match,
    check_format,
    has_finite_number,
    parse_texts,
)
from featurestore.arrow.types import TIMESTAMP

# A string and its inferred type.
MEANINGS = {
    "0": "int64",
    "-12": "int64",
    "9223372036854775807": "int64",
    "9223372036854775808": "double",  # 2 ** 63, which float64 holds
    "9223372036854775809": None,
    "007": None,
    "+49": None,
    "-0": "int64",
    "0x1F": None,
    "1_000": None,
    "1,5": None,
    " 1": None,
    "1.50": "double",
    ".5": "double",
    "1.": "double",
    "1e5": "double",
    "1e400": None,
    "01.5": None,
    "nan": "double",
    "-Infinity": "double",
    "true": "boolean",
    "FALSE": "boolean",
    "yes": None,
    "2024-02-29": "date",
    "2023-02-29": None,
    "01/02/2020": None,
    "2020-1-2": None,
    "0000-01-01": None,
    "2024-01-01T00:00:00": "timestamp",
    "2024-01-01 05:30": "timestamp",
    "2024-01-01 24:00:00": None,
    "2024-01-01T00:00:00.123456789": "timestamp",
    "2024-01-01T00:00:00Z": "timestamp with zone",
    "2024-01-01 00:00:00.5+05:30": "timestamp with zone",
    "0001-01-01T00:00:00+01:00": None,
    "2024-01-01T00:00:00 UTC": None,
}


def test_fits_infers_first_matching_type(subtests: pytest.Subtests) -> None:
    for text, meaning in MEANINGS.items():
        with subtests.test(text=text):
            meanings = [
                dtype for dtype in INFERRED if all_match(pa.array([text, None]), dtype, TextRules())
            ]
            assert (meanings or [None])[0] == meaning


PARSED: list[tuple[str, pa.DataType, TextRules, object]] = [
    ("007", pa.int64(), TextRules(declared=True), 7),
    ("+5", pa.int16(), TextRules(declared=True), 5),
    ("1", pa.bool_(), TextRules(declared=True), True),
    ("2024-01-01", TIMESTAMP, TextRules(declared=True), datetime(2024, 1, 1, tzinfo=UTC)),
    ("1.234.567,5", pa.float64(), TextRules(decimal=",", thousands="."), 1234567.5),
    ("1,234", pa.int64(), TextRules(thousands=","), 1234),
    ("1.25", pa.decimal128(38, 4), TextRules(), Decimal("1.25")),
    ("31.12.2020", pa.date32(), TextRules(date_format="%d.%m.%Y"), date(2020, 12, 31)),
    (
        "1/2/20 3:04 PM",
        TIMESTAMP,
        TextRules(timestamp_format="%m/%d/%y %I:%M %p"),
        datetime(2020, 1, 2, 15, 4, tzinfo=UTC),
    ),
    (
        "2024-01-01T00:00:00.9999995Z",
        TIMESTAMP,
        TextRules(precision="us"),
        datetime(2024, 1, 1, 0, 0, 1, tzinfo=UTC),
    ),
]
MISFITS = [
    ("007", pa.int64(), TextRules()),
    ("0x1F", pa.int64(), TextRules(declared=True)),
    ("128", pa.int8(), TextRules(declared=True)),
    ("1,2", pa.int64(), TextRules(thousands=",")),
    ("1.5", pa.float64(), TextRules(decimal=",")),
    ("1e400", pa.float64(), TextRules(declared=True)),
    ("1e39", pa.float32(), TextRules(declared=True)),
    ("1.555", pa.decimal128(10, 2), TextRules()),
    ("31.02.2020", pa.date32(), TextRules(date_format="%d.%m.%Y")),
    ("2024-01-01T00:00:00.123456789Z", TIMESTAMP, TextRules()),
    ("", pa.int64(), TextRules(declared=True)),
]


def test_parse_texts_follows_text_rules(subtests: pytest.Subtests) -> None:
    for text, dtype, rules, value in PARSED:
        with subtests.test(text=text):
            array, reasons = parse_texts(pa.array([None, text]), dtype, rules)
            assert (array.to_pylist(), reasons) == ([None, value], {})


def test_parse_texts_misfit_reports_text(subtests: pytest.Subtests) -> None:
    for text, dtype, rules in MISFITS:
        with subtests.test(text=text):
            array, reasons = parse_texts(pa.array([text, None]), dtype, rules)
            assert array.to_pylist() == [None, None]
            assert repr(text) in reasons[0]


def test_has_number_nan_and_inf_texts_is_false() -> None:
    assert not has_finite_number(pa.array(["nan", "inf"]))
    assert has_finite_number(pa.array(["nan", "1"]))


def test_check_format_without_day_raises(subtests: pytest.Subtests) -> None:
    for pattern in ("%H:%M", "%Y", "%Y-%m-%d %Q", "%m/%d"):
        with subtests.test(pattern=pattern), pytest.raises(ValueError, match="%"):
            check_format(pattern)
    assert check_format("%d.%m.%y") == "%d.%m.%y"


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none()))
def test_parse_texts_integers_round_trip(values: list[int | None]) -> None:
    texts = pa.array([None if value is None else str(value) for value in values], pa.string())
    assert all_match(texts, "int64", TextRules())
    array, reasons = parse_texts(texts, pa.int64(), TextRules())
    assert (array.to_pylist(), reasons) == (values, {})


@given(st.lists(st.floats()))
def test_parse_texts_floats_round_trip(values: list[float]) -> None:
    texts = pa.array([repr(value) for value in values], pa.string())
    assert all_match(texts, "double", TextRules())
    array, _ = parse_texts(texts, pa.float64(), TextRules())
    for value, read in zip(values, array.to_pylist(), strict=True):
        assert read == value or (math.isnan(read) and math.isnan(value))


@given(st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), max_size=5))
def test_parse_texts_instants_round_trip(values: list[datetime]) -> None:
    texts = pa.array([value.isoformat() for value in values], pa.string())
    assert all_match(texts, "timestamp", TextRules())
    array, _ = parse_texts(texts, TIMESTAMP, TextRules())
    assert array.to_pylist() == [value.replace(tzinfo=UTC) for value in values]
