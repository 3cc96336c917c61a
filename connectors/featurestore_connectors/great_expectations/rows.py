"""Expectations of single rows, and of unique rows, as predicates instead of calls of the library.

The library converts columns to pandas, where integers become floats, decimals objects and texts
depend on the other rows. Here a value has the meaning of its type: numbers compare by value, NaN is
missing, and the text of a value is that of Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.types import is_nested
from featurestore.errors import InvalidExpectation
from featurestore.model.json_object import JsonMapping
from featurestore.plugins.validator import Expectation
from featurestore.usersql import quote
from featurestore_connectors.great_expectations import predicates


@dataclass(frozen=True)
class RowTest:
    """The checked and the valid rows of an expectation in SQL.

    ``computed`` is a column that ``valid`` reads, in addition to those of the table.
    """

    checked: str
    valid: str
    computed: pa.Array | None = None


@dataclass(frozen=True)
class _Subject:
    """An expectation, the table that it checks, and a name for a computed column."""

    expectation: Expectation
    table: pa.Table
    computed: str

    @property
    def kwargs(self) -> JsonMapping:
        kwargs: JsonMapping = self.expectation["kwargs"]
        return kwargs

    def type_of(self, column: str) -> pa.DataType:
        return self.table.schema.field(column).type

    def present(self, column: str) -> str:
        return predicates.has_value(column, self.type_of(column))

    def error(self, reason: object) -> InvalidExpectation:
        return predicates.not_computed_error(self.expectation, reason)


def row_test(expectation: Expectation, table: pa.Table, *, computed: str) -> RowTest | None:
    """Return the test of an expectation, or None if only the library can evaluate it.

    Args:
        expectation: The expectation, with arguments of the types that the library accepts.
        table: The rows.
        computed: The name of the column ``RowTest.computed``.

    Raises:
        InvalidExpectation: The expectation does not suit the types of its columns.
    """
    build = _TESTS.get(str(expectation["type"]))
    if build is None:
        return None
    kwargs = expectation["kwargs"]
    columns = {kwargs[name] for name in ("column", "column_A", "column_B") if name in kwargs}
    columns |= set(kwargs.get("column_list") or ())
    if not columns <= set(table.column_names):
        return None
    return build(_Subject(expectation, table, computed))


# -- one column ------------------------------------------------------------------------------------


def _test_null(subject: _Subject) -> RowTest:
    present = subject.present(subject.kwargs["column"])
    is_null_test = subject.expectation["type"] == "expect_column_values_to_be_null"
    return RowTest("true", f"not ({present})" if is_null_test else present)


def _test_limits(subject: _Subject) -> RowTest | None:
    name = subject.kwargs["column"]
    if not _has_constants(subject.type_of(name)):
        return None
    limits = _limits_sql(subject, name, subject.type_of(name))
    return None if limits is None else RowTest(subject.present(name), limits)


def _limits_sql(subject: _Subject, name: str, dtype: pa.DataType) -> str | None:
    """Return the test of the limits in the arguments, or None if there are none."""
    tests = []
    for argument, strict, sign in (
        ("min_value", "strict_min", ">"),
        ("max_value", "strict_max", "<"),
    ):
        value = subject.kwargs.get(argument)
        if value is None:
            continue
        constant = predicates.constant_sql(value, dtype)
        if constant is None:
            raise subject.error(
                f"{argument}={value!r} cannot be compared with "
                f"{subject.kwargs['column']!r} ({subject.type_of(subject.kwargs['column'])})"
            )
        comparison = sign if subject.kwargs.get(strict) else f"{sign}="
        tests.append(f"{quote(name)} {comparison} {constant}")
    return " and ".join(tests) or None


def _test_set(subject: _Subject) -> RowTest | None:
    name, values = subject.kwargs["column"], subject.kwargs.get("value_set")
    dtype = subject.type_of(name)
    if not _has_constants(dtype) or not isinstance(values, list) or not values:
        return None
    member = predicates.in_set(name, [predicates.constant_sql(value, dtype) for value in values])
    negated = subject.expectation["type"] == "expect_column_values_to_not_be_in_set"
    return RowTest(subject.present(name), f"not {member}" if negated else member)


def _test_regex(subject: _Subject) -> RowTest | None:
    name, kwargs = subject.kwargs["column"], subject.kwargs
    # Without an argument, the library has a pattern of its own.
    patterns = kwargs.get("regex_list") or ([kwargs["regex"]] if "regex" in kwargs else [])
    if not _has_text(subject.type_of(name)) or not patterns:
        return None
    try:
        expressions = list(map(re.compile, patterns))
    except (re.error, ArithmeticError, RecursionError, TypeError) as error:
        raise subject.error(error) from error
    negated = "_not_match_" in subject.expectation["type"]
    is_met = all if kwargs.get("match_on") == "all" else any

    def is_valid(text: str) -> bool:
        return (
            is_met(expression.search(text) is not None for expression in expressions) is not negated
        )

    # Without a type, a column without values would have the type null.
    valid = pa.array(_map_texts(subject.table.column(name), is_valid), pa.bool_())
    return RowTest(subject.present(name), quote(subject.computed), valid)


def _test_lengths(subject: _Subject) -> RowTest | None:
    name, dtype = subject.kwargs["column"], subject.type_of(subject.kwargs["column"])
    column, computed = subject.table.column(name), subject.computed
    if pat.is_binary(dtype) or pat.is_large_binary(dtype):
        lengths = pc.binary_length(column)
    elif _has_text(dtype):
        lengths = pa.array(_map_texts(column, len)).cast(pa.int64())
    else:
        return None
    if subject.expectation["type"] == "expect_column_value_lengths_to_equal":
        constant = predicates.constant_sql(subject.kwargs["value"], pa.int64())
        if constant is None:
            raise subject.error(f"{subject.kwargs['value']!r} is not a number")
        return RowTest(subject.present(name), f"{quote(computed)} = {constant}", lengths)
    limits = _limits_sql(subject, computed, pa.int64())
    return None if limits is None else RowTest(subject.present(name), limits, lengths)


def _map_texts(column: pa.ChunkedArray, function: Callable[[str], object]) -> list[object]:
    """Return the results of a function of the texts of values; missing values have None."""
    # A text usually occurs in many rows.
    results: dict[str | None, object] = {None: None}
    texts = list(map(_text, column.to_pylist()))
    for text in texts:
        if text is not None and text not in results:
            results[text] = function(text)
    return [results[text] for text in texts]


def _text(value: object) -> str | None:
    """Return the text of a value in Python, without exponent for decimals; None if it is missing."""
    # NaN is not equal to itself.
    if value is None or value != value:
        return None
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _has_text(dtype: pa.DataType) -> bool:
    return not (is_nested(dtype) or pat.is_binary(dtype) or pat.is_large_binary(dtype))


def _has_constants(dtype: pa.DataType) -> bool:
    """Return whether constants of JSON can be compared with values of a type."""
    is_time = pat.is_timestamp(dtype) or pat.is_date(dtype)
    return (
        predicates.is_number(dtype)
        or is_time
        or pat.is_boolean(dtype)
        or predicates.is_string(dtype)
    )


# -- several columns -------------------------------------------------------------------------------


def _test_pair(subject: _Subject) -> RowTest | None:
    kwargs = subject.kwargs
    names = [kwargs["column_A"], kwargs["column_B"]]
    if any(is_nested(subject.type_of(name)) for name in names):
        return None
    sign = "="
    if subject.expectation["type"] == "expect_column_pair_values_a_to_be_greater_than_b":
        sign = ">=" if kwargs.get("or_equal") else ">"
    both = " and ".join(subject.present(name) for name in names)
    checked = _select_present(subject, names, kwargs.get("ignore_row_if"))
    if not _are_floats_mixed(*map(subject.type_of, names)):
        test = f"{quote(names[0])} {sign} {quote(names[1])}"
        return RowTest(checked, f"{both} and {test}")
    # The engine would compare the values as doubles.
    columns = [_exact_numbers(subject.table.column(name)) for name in names]
    compare = _COMPARISONS[sign]
    results = [
        None if first is None or second is None else compare(first, second)
        for first, second in zip(*columns, strict=True)
    ]
    return RowTest(checked, f"{both} and {quote(subject.computed)}", pa.array(results, pa.bool_()))


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda first, second: bool(first == second),
    ">": lambda first, second: bool(first > second),
    ">=": lambda first, second: bool(first >= second),
}


def _are_floats_mixed(first: pa.DataType, second: pa.DataType) -> bool:
    """Return whether the engine cannot compare two types of numbers exactly."""
    if first == second or not (predicates.is_number(first) and predicates.is_number(second)):
        return False
    if pat.is_decimal(first) or pat.is_decimal(second):
        return True
    return pat.is_floating(first) != pat.is_floating(second)


def _exact_numbers(column: pa.ChunkedArray) -> Iterator[Any]:
    """Yield numbers that Python compares by value; missing values are None.

    A float is the number that it is written as, as in comparisons with constants, if it is not
    integral.
    """
    dtype = column.type.to_pandas_dtype() if pat.is_floating(column.type) else None
    for value in column.to_pylist():
        if value is None or value != value:
            yield None
        elif dtype is None or value.is_integer():
            yield value
        else:
            yield Decimal(str(dtype(value)))


def _test_pair_set(subject: _Subject) -> RowTest | None:
    kwargs = subject.kwargs
    names = [kwargs["column_A"], kwargs["column_B"]]
    pairs = kwargs.get("value_pairs_set")
    if not isinstance(pairs, list) or not all(_has_constants(subject.type_of(n)) for n in names):
        return None
    tests = ["false"]
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise subject.error(f"{pair!r} is not a pair of values")
        equal = [_equals(subject, name, value) for name, value in zip(names, pair, strict=True)]
        tests.append(f"({' and '.join(equal)})")
    return RowTest(_select_present(subject, names, kwargs.get("ignore_row_if")), " or ".join(tests))


def _equals(subject: _Subject, name: str, value: Any) -> str:
    if value is None:
        return f"not ({subject.present(name)})"
    return predicates.in_set(name, [predicates.constant_sql(value, subject.type_of(name))])


def _test_different_values(subject: _Subject) -> RowTest | None:
    names = subject.kwargs["column_list"]
    types = [subject.type_of(name) for name in names]
    if any(map(is_nested, types)) or len(set(types)) > 1:
        return None
    tests = ["true"]
    for first, second in combinations(names, 2):
        present = [subject.present(first), subject.present(second)]
        equal = f"({' and '.join(present)} and {quote(first)} = {quote(second)})"
        tests.append(f"not ({equal} or not ({present[0]} or {present[1]}))")
    ignored = subject.kwargs.get("ignore_row_if")
    return RowTest(_select_present(subject, names, ignored), " and ".join(tests))


def _select_present(subject: _Subject, columns: Sequence[str], ignored: object) -> str:
    return present_rows(columns, subject.table.schema, ignored)


def present_rows(columns: Sequence[str], schema: pa.Schema, ignored: object) -> str:
    """Return the rows that are not ignored because of missing values, in SQL.

    ``ignored`` is the argument ``ignore_row_if`` of an expectation.
    """
    if ignored in ("neither", "never"):
        return "true"
    word = " and " if ignored in ("either_value_is_missing", "any_value_is_missing") else " or "
    return word.join(f"({predicates.has_value(name, schema.field(name).type)})" for name in columns)


_TESTS: Mapping[str, Callable[[_Subject], RowTest | None]] = {
    "expect_column_pair_values_a_to_be_greater_than_b": _test_pair,
    "expect_column_pair_values_to_be_equal": _test_pair,
    "expect_column_pair_values_to_be_in_set": _test_pair_set,
    "expect_column_value_lengths_to_be_between": _test_lengths,
    "expect_column_value_lengths_to_equal": _test_lengths,
    "expect_column_values_to_be_between": _test_limits,
    "expect_column_values_to_be_in_set": _test_set,
    "expect_column_values_to_be_null": _test_null,
    "expect_column_values_to_match_regex": _test_regex,
    "expect_column_values_to_match_regex_list": _test_regex,
    "expect_column_values_to_not_be_in_set": _test_set,
    "expect_column_values_to_not_be_null": _test_null,
    "expect_column_values_to_not_match_regex": _test_regex,
    "expect_column_values_to_not_match_regex_list": _test_regex,
    "expect_select_column_values_to_be_unique_within_record": _test_different_values,
}
