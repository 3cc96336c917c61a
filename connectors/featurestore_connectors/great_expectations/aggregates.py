"""Inputs of expectations: measures, which engines compute without loading rows, and data frames.

The repeated rows of uniqueness expectations are a measure of the whole table, or are counted here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.types import is_nested
from featurestore.model.validation import ExpectationResult
from featurestore.plugins.validator import CheckOutcome, Expectation, Measure, MeasureKind
from featurestore_connectors.great_expectations.predicates import (
    count_repeated,
    is_number,
    not_computed_error,
    typed_arguments,
)
from featurestore_connectors.great_expectations.rows import present_rows

if TYPE_CHECKING:
    import pandas as pd

# float64 represents all integers up to this one exactly.
_MAX_EXACT = 1 << 53
ROWS = Measure("rows")
_UNIQUENESS = ("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique")
_ROW_COUNTS = ("expect_table_row_count_to_be_between", "expect_table_row_count_to_equal")
_NUMERIC_MEASURES: dict[str, MeasureKind] = {
    "expect_column_mean_to_be_between": "mean",
    "expect_column_median_to_be_between": "median",
    "expect_column_stdev_to_be_between": "std",
    "expect_column_sum_to_be_between": "sum",
}
_ORDERED_MEASURES: dict[str, MeasureKind] = {
    "expect_column_max_to_be_between": "max",
    "expect_column_min_to_be_between": "min",
}
_COUNT_MEASURES: dict[str, MeasureKind] = {
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


def measures(expectation: Expectation, schema: pa.Schema) -> tuple[Measure, ...] | None:
    """Return the measures that determine an expectation, or None if measures are not sufficient."""
    expectation_type, kwargs = str(expectation["type"]), expectation["kwargs"]
    # Engines compute measures over all rows.
    if kwargs.get("row_condition"):
        return None
    if expectation_type in _ROW_COUNTS:
        return (ROWS,)
    columns = _expectation_columns(expectation)
    if not set(columns) <= set(schema.names):
        return None
    types = [schema.field(name).type for name in columns]
    if expectation_type in _UNIQUENESS:
        ignored = kwargs.get("ignore_row_if", "all_values_are_missing")
        if any(map(is_nested, types)) or ignored not in ("never", "all_values_are_missing"):
            return None
        if ignored == "never":
            return ROWS, Measure("repeated_rows", columns)
        return ROWS, Measure("present", columns), Measure("repeated", columns)
    if expectation_type in _NUMERIC_MEASURES and is_number(types[0]):
        return ROWS, Measure(_NUMERIC_MEASURES[expectation_type], columns)
    if expectation_type in _ORDERED_MEASURES and (is_number(types[0]) or pat.is_temporal(types[0])):
        return ROWS, Measure(_ORDERED_MEASURES[expectation_type], columns)
    if expectation_type in _COUNT_MEASURES and not is_nested(types[0]):
        return (
            ROWS,
            Measure("present", columns),
            Measure(_COUNT_MEASURES[expectation_type], columns),
        )
    return None


def _expectation_columns(expectation: Expectation) -> tuple[str, ...]:
    """Return the column or the columns that an expectation measures."""
    kwargs = expectation["kwargs"]
    if kwargs.get("column_list"):
        return tuple(kwargs["column_list"])
    return (kwargs.get("column"),)


def needs_copies(expectation: Expectation) -> bool:
    """Return whether the result depends on duplicates of a row."""
    return str(expectation["type"]) not in _DISTINCT_ONLY


def evaluate(
    expectation: Expectation,
    schema: pa.Schema,
    *,
    measured: Mapping[Measure, Any],
    warning: bool,
) -> ExpectationResult:
    """Return an expectation result in the form of Great Expectations, computed from measures."""
    expectation_type, columns = str(expectation["type"]), _expectation_columns(expectation)
    if expectation_type in _UNIQUENESS:
        rows = checked = int(measured[ROWS])
        if expectation["kwargs"].get("ignore_row_if") == "never":
            repeated = int(measured[Measure("repeated_rows", columns)])
        else:
            checked = int(measured[Measure("present", columns)])
            repeated = int(measured[Measure("repeated", columns)])
        return _uniqueness_result(
            expectation, rows, checked=checked, repeated=repeated, warning=warning
        )
    observed = _observed_value(expectation_type, columns, measured)
    is_met = is_between(typed_arguments(expectation, schema), observed)
    return ExpectationResult(
        expectation, is_met, measured[ROWS], row_level=False, observed=observed, warning=warning
    )


def is_uniqueness(expectation: Expectation, schema: pa.Schema) -> bool:
    """Return whether an expectation compares values that the engine can group."""
    columns = _expectation_columns(expectation)
    return (
        expectation["type"] in _UNIQUENESS
        and set(columns) <= set(schema.names)
        and not any(is_nested(schema.field(name).type) for name in columns)
    )


def check_uniqueness(
    table: pa.Table, expectation: Expectation, *, condition: str | None, warning: bool
) -> CheckOutcome:
    """Return the outcome of a uniqueness expectation on the rows that meet a condition in SQL."""
    columns = _expectation_columns(expectation)
    ignored = expectation["kwargs"].get("ignore_row_if")
    selected = f"({present_rows(columns, table.schema, ignored)})"
    if condition is not None:
        selected += f" and ({condition})"
    checked, repeated = count_repeated(table, columns, selected)
    result = _uniqueness_result(
        expectation, table.num_rows, checked=checked, repeated=repeated, warning=warning
    )
    return CheckOutcome(result, checked)


def meets_fraction(expectation: Expectation, *, checked: int, unexpected: int) -> bool:
    """Return whether enough of the checked rows are expected: all, or the fraction ``mostly``."""
    mostly = float(expectation["kwargs"].get("mostly") or 1.0)
    return unexpected == 0 or checked - unexpected >= mostly * checked


def _uniqueness_result(
    expectation: Expectation, rows: int, *, checked: int, repeated: int, warning: bool
) -> ExpectationResult:
    """Return the result of a uniqueness expectation from the numbers of checked and repeated rows."""
    is_met = meets_fraction(expectation, checked=checked, unexpected=repeated)
    message = ""
    if not is_met:
        message = f"{repeated:,} of {rows:,} rows have the same values as another row"
    return ExpectationResult(
        expectation,
        is_met,
        rows,
        unexpected=repeated,
        row_level=False,
        message=message,
        warning=warning,
    )


def _observed_value(
    expectation_type: str, columns: tuple[str, ...], measured: Mapping[Measure, Any]
) -> Any:
    """Return the value that an expectation compares with its bounds."""
    if expectation_type in _ROW_COUNTS:
        return measured[ROWS]
    measure = (_NUMERIC_MEASURES | _ORDERED_MEASURES | _COUNT_MEASURES)[expectation_type]
    value = measured[Measure(measure, columns)]
    if expectation_type == "expect_column_proportion_of_non_null_values_to_be_between":
        return _fraction(value, measured[ROWS])
    if expectation_type == "expect_column_proportion_of_unique_values_to_be_between":
        return _fraction(value, measured[Measure("present", columns)])
    # The sum of no rows is null in SQL and 0 in pandas.
    if measure == "sum" and value is None:
        return 0
    # Data frames have times instead of dates, so the arguments are parsed to times, too.
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value


def _fraction(count: int, total: int) -> float:
    return count / total if total else 0.0


def is_between(expectation: Expectation, observed: Any) -> bool:
    """Return whether an observed value satisfies the bounds of an expectation."""
    kwargs = expectation["kwargs"]
    # NaN is not equal to itself.
    if observed is None or observed != observed:
        return False
    if "value" in kwargs:
        return bool(observed == kwargs["value"])
    is_above = operator.gt if kwargs.get("strict_min") else operator.ge
    is_below = operator.lt if kwargs.get("strict_max") else operator.le
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    try:
        is_min_met = low is None or is_above(observed, low)
        is_max_met = high is None or is_below(observed, high)
    except TypeError as error:
        raise not_computed_error(expectation, error) from error
    return bool(is_min_met and is_max_met)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Convert a table to pandas without loss of nulls or precision.

    Integers with nulls become floats if these are exact. Otherwise they become pandas' nullable
    integers, which some expectations cannot compare.
    """
    import pandas as pd

    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        mapper = None
        if column.null_count and not _fits_float(column):
            mapper = _nullable_dtype
        columns[name] = column.to_pandas(types_mapper=mapper, date_as_object=False)
    # The index keeps the number of rows of a table without columns.
    return pd.DataFrame(columns, index=range(table.num_rows), copy=False)


def _fits_float(column: pa.ChunkedArray) -> bool:
    # float64 represents all integers of up to 32 bits exactly.
    if not pat.is_integer(column.type) or column.type.bit_width < 64:
        return True
    bounds = pc.min_max(column).as_py()
    return bounds["min"] is None or (bounds["min"] >= -_MAX_EXACT and bounds["max"] <= _MAX_EXACT)


def _nullable_dtype(dtype: pa.DataType) -> Any:
    import pandas as pd

    if pat.is_unsigned_integer(dtype):
        return pd.UInt64Dtype()
    return pd.Int64Dtype()
