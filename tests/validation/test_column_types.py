"""Verdicts of expectations on columns of each type are those of a rule in plain Python."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("great_expectations")
from featurestore.plugins.engine import Engine
from featurestore.plugins.validator import find_validator
from featurestore.store import FeatureStore
from featurestore.validation.checks import Subject
from featurestore.validation.tables import check_table
from featurestore_connectors.duckdb_delta import DuckDBEngine

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NS = pa.timestamp("ns", "UTC")
TIMES = [
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    EPOCH,
    datetime(2024, 2, 29, 12, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC),
]
# Values of each type; those of nanoseconds are numbers since 1970.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 7, 127],
    pa.int64(): [-(2**63), -1, 0, 7, 2**53, 2**53 + 1, 2**63 - 1],
    pa.uint64(): [0, 7, 2**53 + 1, 2**63, 2**64 - 1],
    pa.float32(): [0.5, -0.0, 0.0, 2.0**24, 7.0, float("inf"), float("nan")],
    pa.float64(): [0.1, -0.0, 0.0, 7.0, 2.0**53, 1e300, float("-inf"), float("nan")],
    pa.decimal128(5, 2): list(map(Decimal, ["0.10", "-0.10", "7.00", "999.99", "0.00"])),
    pa.decimal128(38, 0): list(map(Decimal, ["7", "-7", "9007199254740993", "9" * 38])),
    pa.string(): ["", "a", "ab", "7", "\N{GRINNING FACE}", "é", "A\nb"],
    pa.date32(): [date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
    pa.timestamp("us", "UTC"): TIMES,
    NS: [*(nanoseconds for nanoseconds in (-1, 0, 1, 999, 1_000, 1_001, 10**18 + 1))],
}
NUMBERS = [dtype for dtype in VALUES if not pa.types.is_temporal(dtype)][1:8]
PATTERNS = ["^a", "7", r"\d\d", "^$", "(?i)A", r"\.|-", "(?=é)", "0$"]
LENGTHS: list[float] = [0, 1, 2, 2.5, 19]


@dataclass(frozen=True)
class Case:
    """An expectation, whether a row is checked, and whether it is valid."""

    name: str
    arguments: dict[str, Any]
    is_checked: Callable[[Any, Any], bool]
    is_valid: Callable[[Any, Any], bool]


def is_missing(value: Any) -> bool:
    return value is None or value != value


def to_array(values: list[Any], dtype: pa.DataType) -> pa.Array:
    if dtype == NS:
        return pa.array(values, pa.int64()).cast(dtype)
    return pa.array([None if value is None else value for value in values], dtype)


def constant(value: Any, dtype: pa.DataType) -> Any:
    """Return a value as JSON has it."""
    if dtype == NS:
        return (EPOCH + timedelta(microseconds=value // 1000)).isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, date) else value


def text(value: Any) -> str:
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def exact(value: Any, dtype: pa.DataType) -> Any:
    """Return a number by value; a fraction of floats is the number that is written."""
    if not isinstance(value, int | float | Decimal) or not is_finite(value):
        return value
    if isinstance(value, float) and not value.is_integer():
        return Fraction(str(np.float32(value) if dtype == pa.float32() else value))
    return Fraction(value)


def missing_rules(all_missing: str, any_missing: str, none: str) -> dict[str, Any]:
    return {
        all_missing: lambda a, b: not (is_missing(a) and is_missing(b)),
        any_missing: lambda a, b: not (is_missing(a) or is_missing(b)),
        none: lambda _a, _b: True,
    }


def cases_of_column(dtype: pa.DataType, limits: list[Any]) -> Iterator[Case]:
    def has_value(a: Any, _: Any) -> bool:
        return not is_missing(a)

    yield Case("values_to_not_be_null", {}, lambda _a, _b: True, has_value)
    yield Case("values_to_be_null", {}, lambda _a, _b: True, lambda a, _: is_missing(a))
    if dtype == NS:  # texts in JSON have microseconds
        limits = [limit // 1000 * 1000 for limit in limits]
    low, high = limits
    # The library accepts no limits of text.
    for strict in () if dtype == pa.string() else (False, True):
        arguments = {"min_value": constant(low, dtype), "max_value": constant(high, dtype)}
        yield Case(
            "values_to_be_between",
            {**arguments, "strict_min": strict},
            has_value,
            lambda a, _, strict=strict: (low < a if strict else low <= a) and a <= high,
        )
    members = {"value_set": [constant(limit, dtype) for limit in limits]}
    yield Case("values_to_be_in_set", members, has_value, lambda a, _: a in limits)
    yield Case("values_to_not_be_in_set", members, has_value, lambda a, _: a not in limits)
    if dtype == NS:
        return
    for pattern in PATTERNS:
        yield Case(
            "values_to_match_regex",
            {"regex": pattern},
            has_value,
            lambda a, _, pattern=pattern: re.search(pattern, text(a)) is not None,
        )
    pattern_pair = PATTERNS[:2]
    yield Case(
        "values_to_not_match_regex_list",
        {"regex_list": pattern_pair},
        has_value,
        lambda a, _: not any(re.search(pattern, text(a)) for pattern in pattern_pair),
    )
    yield Case(
        "values_to_match_regex_list",
        {"regex_list": pattern_pair, "match_on": "all"},
        has_value,
        lambda a, _: all(re.search(pattern, text(a)) for pattern in pattern_pair),
    )
    for length in LENGTHS:
        yield Case(
            "value_lengths_to_be_between",
            {"max_value": length},
            has_value,
            lambda a, _, length=length: len(text(a)) <= length,
        )
    yield Case("value_lengths_to_equal", {"value": 1}, has_value, lambda a, _: len(text(a)) == 1)


def cases_of_pair(first: pa.DataType, second: pa.DataType) -> Iterator[Case]:
    def compare(rule: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        def is_valid(a: Any, b: Any) -> bool:
            if is_missing(a) or is_missing(b):
                return False
            return rule(*(a, b) if first == second else (exact(a, first), exact(b, second)))

        return is_valid

    rules = missing_rules("both_values_are_missing", "either_value_is_missing", "neither")
    for ignored, is_checked in rules.items():
        arguments = {"ignore_row_if": ignored}
        yield Case("pair_values_to_be_equal", arguments, is_checked, compare(lambda a, b: a == b))
        for or_equal in (False, True):
            yield Case(
                "pair_values_a_to_be_greater_than_b",
                {**arguments, "or_equal": or_equal},
                is_checked,
                compare(lambda a, b, or_equal=or_equal: a > b or (or_equal and a == b)),
            )


@st.composite
def tables(
    draw: st.DrawFn, types: list[pa.DataType]
) -> tuple[pa.Table, list[list[Any]], list[Any]]:
    """Draw a table of two columns, their values, and two limits of the first column."""
    first = draw(st.sampled_from(types))
    second = draw(st.sampled_from(NUMBERS) if first in NUMBERS else st.just(first))
    size = draw(st.integers(1, 8))
    columns = [
        draw(st.lists(st.none() | st.sampled_from(VALUES[each]), min_size=size, max_size=size))
        for each in (first, second)
    ]
    finite = list(filter(is_finite, VALUES[first]))
    limits = sorted(draw(st.lists(st.sampled_from(finite), min_size=2, max_size=2)))
    arrays = [to_array(columns[0], first), to_array(columns[1], second), pa.array(range(size))]
    return pa.table(arrays, ["a", "b", "k"]), columns, limits


def is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


CONDITIONS: list[tuple[dict[str, str], Callable[[int], bool]]] = [
    ({}, lambda _: True),
    ({"row_condition": "k >= 2"}, lambda row: row >= 2),
    ({"row_condition": "k < 5 and k <> 1", "condition_parser": "sql"}, lambda row: row in (0, 2, 3, 4)),
]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(drawn=tables(list(VALUES)), condition=st.sampled_from(CONDITIONS))
def test_row_level_verdicts_are_those_of_plain_python(
    drawn: tuple[pa.Table, list[list[Any]], list[Any]],
    condition: tuple[dict[str, str], Callable[[int], bool]],
) -> None:
    table, columns, limits = drawn
    first, second = table.schema.types[:2]
    of_column = [(case, {"column": "a"}) for case in cases_of_column(first, limits)]
    of_pair = [(case, {"column_A": "a", "column_B": "b"}) for case in cases_of_pair(first, second)]
    validator, checked = find_validator(), [*of_column, *of_pair]
    expectations = [
        {
            "type": f"expect_column_{case.name}",
            "kwargs": {**names, **case.arguments, **condition[0]},
        }
        for case, names in checked
    ]
    normalized = json.loads(json.dumps(validator.normalize(expectations)))
    outcomes = validator.check(table, normalized)
    for (case, _), expectation, outcome in zip(checked, normalized, outcomes, strict=True):
        rows = [
            row
            for row, (a, b) in enumerate(zip(*columns, strict=True))
            if condition[1](row) and case.is_checked(a, b)
        ]
        expected = [row for row in rows if not case.is_valid(columns[0][row], columns[1][row])]
        failing = [] if outcome.failing is None else np.flatnonzero(outcome.failing).tolist()
        assert (failing, outcome.checked) == (expected, len(rows)), (expectation, table.to_pydict())


def repeated_rows(rows: list[tuple[Any, ...]]) -> int:
    plain = [tuple(None if is_missing(value) else value for value in row) for row in rows]
    return sum(copies for copies in Counter(plain).values() if copies > 1)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = DuckDBEngine()
    yield engine
    engine.close()


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# Engines have no nanoseconds.
@given(drawn=tables(list(VALUES)[:-1]), condition=st.sampled_from(CONDITIONS))
def test_uniqueness_verdicts_are_those_of_plain_python(
    engine: Engine,
    tmp_path: Path,
    drawn: tuple[pa.Table, list[list[Any]], list[Any]],
    condition: tuple[dict[str, str], Callable[[int], bool]],
) -> None:
    table, columns, _ = drawn
    validator = find_validator()
    rules = missing_rules("all_values_are_missing", "any_value_is_missing", "never")
    checked = [("column_values_to_be_unique", {"column": "a"}, lambda a, _: not is_missing(a))]
    checked += [
        ("compound_columns_to_be_unique", {"column_list": ["a", "b"], "ignore_row_if": ignored}, rule)
        for ignored, rule in rules.items()
    ]  # fmt: skip
    expectations = validator.normalize(
        [
            {"type": f"expect_{name}", "kwargs": {**arguments, **condition[0]}}
            for name, arguments, _ in checked
        ]
    )
    relation = engine.stage(engine.from_arrow(table.to_reader()), str(tmp_path / "rows"))
    results = check_table(
        relation,
        Subject("t", 1, table.schema),
        engine=engine,
        expectations=expectations,
        validator=validator,
    )
    for (name, _, is_checked), result in zip(checked, results, strict=True):
        rows = [
            (a,) if name == "column_values_to_be_unique" else (a, b)
            for row, (a, b) in enumerate(zip(*columns, strict=True))
            if condition[1](row) and is_checked(a, b)
        ]
        expected = repeated_rows(rows)
        assert (result.unexpected, result.success) == (expected, not expected), result


def test_uniqueness_of_each_type_is_equal_on_engines(store: FeatureStore) -> None:
    types = list(VALUES)[:-1]
    columns = {
        f"c{number}": [None, *VALUES[dtype], None, *VALUES[dtype][:2], *[None] * 12][:16]
        for number, dtype in enumerate(types)
    }
    columns["c4"][14:] = [0.0, -0.0]
    arrays = [
        to_array(values, dtype) for values, dtype in zip(columns.values(), types, strict=True)
    ]
    table = pa.table(arrays, list(columns))
    engine, validator = store.session.engine, find_validator()
    relation = engine.stage(engine.from_arrow(table.to_reader()), f"{store.location}/_staged")
    names = list(columns)
    lists = [*([name] for name in names), *pairwise(names)]
    expectations = validator.normalize(
        [
            {
                "type": "expect_compound_columns_to_be_unique",
                "kwargs": {"column_list": list(column_names), "ignore_row_if": "never"},
            }
            if len(column_names) > 1
            else {
                "type": "expect_column_values_to_be_unique",
                "kwargs": {"column": column_names[0]},
            }
            for column_names in lists
        ]
    )
    results = check_table(
        relation,
        Subject("t", 1, table.schema),
        engine=engine,
        expectations=expectations,
        validator=validator,
    )
    for compared, result in zip(lists, results, strict=True):
        rows = list(zip(*(columns[name] for name in compared), strict=True))
        if len(compared) == 1:
            rows = [row for row in rows if not is_missing(row[0])]
        assert result.unexpected == repeated_rows(rows), (compared, result)
