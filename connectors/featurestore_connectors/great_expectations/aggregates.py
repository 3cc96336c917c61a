"""Expectations that a few numbers of a table decide: engines compute them, no row is loaded."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidExpectation
from featurestore.model.types import is_nested
from featurestore.model.validation import ExpectationResult
from featurestore.plugins.validator import Measure, MeasureKind
from featurestore_connectors.great_expectations.frames import with_times

ROWS = Measure("rows")
_UNIQUE = "expect_column_values_to_be_unique"
_COMPOUND_UNIQUE = "expect_compound_columns_to_be_unique"
_ROW_COUNTS = ("expect_table_row_count_to_be_between", "expect_table_row_count_to_equal")
_OF_NUMBERS: dict[str, MeasureKind] = {
    "expect_column_mean_to_be_between": "mean",
    "expect_column_median_to_be_between": "median",
    "expect_column_stdev_to_be_between": "std",
    "expect_column_sum_to_be_between": "sum",
}
_OF_ORDERED: dict[str, MeasureKind] = {
    "expect_column_max_to_be_between": "max",
    "expect_column_min_to_be_between": "min",
}
_OF_ANY: dict[str, MeasureKind] = {
    "expect_column_proportion_of_non_null_values_to_be_between": "present",
    "expect_column_proportion_of_unique_values_to_be_between": "distinct",
    "expect_column_unique_value_count_to_be_between": "distinct",
}
_DISTINCT_ONLY = frozenset(
    {
        "expect_column_distinct_values_to_be_in_set",
        "expect_column_distinct_values_to_contain_set",
        "expect_column_distinct_values_to_equal_set",
    }
)


def measures(expectation: Mapping[str, Any], schema: pa.Schema) -> tuple[Measure, ...] | None:
    """Return the measures that decide an expectation.

    None when there are none or its columns have no such measure.
    """
    kind, kwargs = str(expectation["type"]), expectation["kwargs"]
    if kwargs.get("row_condition"):
        return None
    if kind in _ROW_COUNTS:
        return (ROWS,)
    columns = _columns(expectation)
    if not set(columns) <= set(schema.names):
        return None
    types = [schema.field(name).type for name in columns]
    if kind in (_UNIQUE, _COMPOUND_UNIQUE):
        ignored = kwargs.get("ignore_row_if", "all_values_are_missing")
        if ignored != "all_values_are_missing" or any(map(is_nested, types)):
            return None
        return ROWS, Measure("present", columns), Measure("repeated", columns)
    if kind in _OF_NUMBERS and _is_number(types[0]):
        return ROWS, Measure(_OF_NUMBERS[kind], columns)
    if kind in _OF_ORDERED and (_is_number(types[0]) or pat.is_temporal(types[0])):
        return ROWS, Measure(_OF_ORDERED[kind], columns)
    if kind in _OF_ANY and not is_nested(types[0]):
        return ROWS, Measure("present", columns), Measure(_OF_ANY[kind], columns)
    return None


def _columns(expectation: Mapping[str, Any]) -> tuple[str, ...]:
    kwargs = expectation["kwargs"]
    if kwargs.get("column_list"):
        return tuple(kwargs["column_list"])
    return (kwargs.get("column"),)


def needs_copies(expectation: Mapping[str, Any]) -> bool:
    """Tell whether it matters how often a row occurs."""
    return str(expectation["type"]) not in _DISTINCT_ONLY


def evaluate(
    expectation: Mapping[str, Any],
    schema: pa.Schema,
    *,
    found: Mapping[Measure, Any],
    warning: bool,
) -> ExpectationResult:
    """Return the result that Great Expectations gives for a table with these measures."""
    kind, columns = str(expectation["type"]), _columns(expectation)
    if kind in (_UNIQUE, _COMPOUND_UNIQUE):
        return _uniqueness(expectation, columns, found=found, warning=warning)
    observed = _observed(kind, columns, found)
    holds = _lies_between(with_times(expectation, schema), observed)
    return ExpectationResult(
        expectation, holds, found[ROWS], row_level=False, observed=observed, warning=warning
    )


def _uniqueness(
    expectation: Mapping[str, Any],
    columns: tuple[str, ...],
    *,
    found: Mapping[Measure, Any],
    warning: bool,
) -> ExpectationResult:
    rows, present = found[ROWS], int(found[Measure("present", columns)])
    repeated = int(found[Measure("repeated", columns)])
    mostly = float(expectation["kwargs"].get("mostly") or 1.0)
    holds = repeated == 0 or present - repeated >= mostly * present
    message = ""
    if not holds:
        message = f"{repeated:,} of {rows:,} rows share their values with another one"
    return ExpectationResult(
        expectation,
        holds,
        rows,
        unexpected=repeated,
        row_level=False,
        message=message,
        warning=warning,
    )


def _observed(kind: str, columns: tuple[str, ...], found: Mapping[Measure, Any]) -> Any:
    if kind in _ROW_COUNTS:
        return found[ROWS]
    measure = (_OF_NUMBERS | _OF_ORDERED | _OF_ANY)[kind]
    value = found[Measure(measure, columns)]
    if kind == "expect_column_proportion_of_non_null_values_to_be_between":
        return _share(value, found[ROWS])
    if kind == "expect_column_proportion_of_unique_values_to_be_between":
        return _share(value, found[Measure("present", columns)])
    if measure == "sum" and value is None:
        return 0
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _lies_between(expectation: Mapping[str, Any], observed: Any) -> bool:
    kwargs = expectation["kwargs"]
    if observed is None or observed != observed:
        return False
    if "value" in kwargs:
        return bool(observed == kwargs["value"])
    is_above = operator.gt if kwargs.get("strict_min") else operator.ge
    is_below = operator.lt if kwargs.get("strict_max") else operator.le
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    try:
        above = low is None or is_above(observed, low)
        below = high is None or is_below(observed, high)
    except TypeError as error:
        raise InvalidExpectation(
            f"{expectation['type']}({dict(kwargs)!r}) cannot be computed: {error}",
            hint="compare the expectation with the types of the columns",
        ) from error
    return bool(above and below)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind))
