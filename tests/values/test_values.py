"""The conversion of Python values equals rules in plain Python, for one value and for arrays."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.arrow.values import (
    ConversionError,
    from_json,
    from_text,
    to_array,
    to_scalar,
    to_value,
    value_converter,
)
from tests.values.cases import (
    BEGIN,
    BEGIN_DOORS,
    DOCS,
    END,
    END_DOORS,
    REFUSED,
    TYPES,
    VALUES,
    are_equal,
    fitted,
    table,
    value_of,
)
from tests.values.door_rules import door_table

TEXT_FORMS = {
    "int64": ("12", 12),
    "double": ("0.5", 0.5),
    "bool": ("true", True),
    "string": ("007", "007"),
    "binary": ("YQ==", b"a"),
    "date": ("2024-01-31", dt.date(2024, 1, 31)),
    "timestamp": ("2024-01-31T12:00+02:00", dt.datetime(2024, 1, 31, 10, tzinfo=dt.UTC)),
    "decimal128(5, 2)": ("1.5", Decimal("1.50")),
}


def converted(value: Any, column_type: pa.DataType, convert: Any = to_value) -> Any:
    try:
        return convert(value, column_type)
    except ConversionError:
        return REFUSED


def converted_fast(value: Any, column_type: pa.DataType) -> Any:
    return value_converter(column_type)(value)


def is_by_rule(value: Any, name: str) -> bool:
    expected = fitted(value, TYPES[name])
    results = [converted(value, TYPES[name]), converted(value, TYPES[name], converted_fast)]
    if expected is REFUSED:
        return results == [REFUSED, REFUSED]
    return all(result is not REFUSED and are_equal(result, expected) for result in results)


def test_values_fit_by_the_plain_rule() -> None:
    pairs = list(product(TYPES, VALUES))
    assert len(pairs) > 1000
    assert [(name, code) for name, code in pairs if not is_by_rule(value_of(code), name)] == []


NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.decimals(-(10**6), 10**6, places=3),
    st.integers(-300, 300).map(lambda number: number / 2),
    st.booleans(),
)


@given(NUMBERS, st.sampled_from(list(TYPES)))
def test_random_numbers_fit_by_the_plain_rule(value: Any, name: str) -> None:
    assert is_by_rule(value, name)


@given(st.lists(st.none() | NUMBERS, max_size=6), st.sampled_from(["int8", "double", "uint64"]))
def test_arrays_have_the_values_of_scalars(values: list[Any], name: str) -> None:
    expected = [None if value is None else fitted(value, TYPES[name]) for value in values]
    if REFUSED in expected:
        with pytest.raises(ConversionError):
            to_array(values, TYPES[name])
    else:
        array = to_array(values, TYPES[name])
        assert array.type == TYPES[name]
        assert all(map(are_equal, array.to_pylist(), expected))


def test_times_out_of_range_in_utc_are_refused(subtests: pytest.Subtests) -> None:
    zone = dt.timezone(-dt.timedelta(hours=5))
    outside = dt.datetime(9999, 12, 31, 23, tzinfo=zone)
    inside = dt.datetime(9999, 12, 31, 18, tzinfo=zone)
    time = TYPES["timestamp"]
    forms: dict[str, tuple[pa.DataType, Callable[[Any], Any]]] = {
        "time": (time, lambda value: value),
        "list": (pa.list_(time), lambda value: [value]),
        "struct": (pa.struct([("a", time)]), lambda value: {"a": value}),
    }
    for title, (column_type, form) in forms.items():
        with subtests.test(title):
            assert to_value(form(inside), column_type) == form(inside)
            with pytest.raises(ConversionError, match="does not fit"):
                to_value(form(outside), column_type)


def test_null_fits_every_type(subtests: pytest.Subtests) -> None:
    for name, column_type in TYPES.items():
        with subtests.test(column=name):
            assert to_scalar(None, column_type).as_py() is None
            assert value_converter(column_type)(None) is None


def test_text_forms_become_values(subtests: pytest.Subtests) -> None:
    for name, (text, value) in TEXT_FORMS.items():
        with subtests.test(column=name):
            assert from_text(text, TYPES[name]) == value
            with pytest.raises(ConversionError) if name != "string" else subtests.test():
                from_text("no value!", TYPES[name])


def test_json_has_text_forms_only_of_types_that_json_lacks(subtests: pytest.Subtests) -> None:
    for name, (text, value) in TEXT_FORMS.items():
        with subtests.test(column=name):
            is_json_type = name in ("int64", "double", "bool")
            result = converted(text, TYPES[name], from_json)
            assert result is REFUSED if is_json_type else result == value
            assert from_json(json.loads("null"), TYPES[name]) is None
    assert from_json(0.1, pa.float32()) == float(np.float32(0.1))
    assert converted(1e300, pa.float32(), from_json) is REFUSED
    assert converted(2**53 + 1, pa.float64(), from_json) is REFUSED
    days = pa.struct([("day", pa.date32()), ("prices", pa.list_(pa.decimal128(5, 2)))])
    document = json.loads('{"day": "2024-01-31", "prices": ["1.5", 2]}')
    assert from_json(document, days) == {
        "day": dt.date(2024, 1, 31),
        "prices": [Decimal("1.50"), Decimal("2.00")],
    }


def test_error_has_value_and_type() -> None:
    with pytest.raises(ConversionError, match=r"1\.7 of type float does not fit int8") as caught:
        to_array([1, 1.7], pa.int8())
    assert caught.value.value == 1.7
    assert caught.value.dtype == pa.int8()


def test_page_has_the_tables() -> None:
    text = DOCS.read_text()
    assert text.split(BEGIN)[1].split(END)[0].strip() == table()
    assert text.split(BEGIN_DOORS)[1].split(END_DOORS)[0].strip() == door_table()
