"""dbt tests as expectations of Great Expectations.

The ``where`` of a test becomes the row condition of an expectation, which is SQL as well.
Only comparisons of columns with constants or other columns are converted: other expressions differ
between databases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.values import from_text, to_value
from featurestore.dbt.manifest import SINGULAR, DbtTest
from featurestore.errors import InvalidSql
from featurestore.model.validation import IN_FEATURE, FeatureComparison
from featurestore.usersql import DIALECT, parse_statement, predicate
from featurestore.validation.comparisons import check_types

if TYPE_CHECKING:
    from sqlglot import exp

# The nodes of conditions that databases evaluate equally; Null only in ``is null``.
_NODES = frozenset(
    {
        "And", "Between", "Boolean", "Column", "EQ", "GT", "GTE", "Identifier", "In", "Is", "LT",
        "LTE", "Literal", "NEQ", "Neg", "Not", "Or", "Paren",
    }
)  # fmt: skip


class UnsupportedCondition(ValueError):
    """A condition has no equivalent; the message is the part that has none."""


def to_row_condition(sql: str, columns: DbtColumns) -> str:
    """Return a condition with the column names of the table.

    Raises:
        UnsupportedCondition: The condition is not a comparison of columns with constants.
    """
    from sqlglot import exp

    def rename_column(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        name = columns.find(node.name)
        if name is None or len(node.parts) > 1:
            raise UnsupportedCondition(node.sql(dialect=DIALECT))
        return exp.column(name, quoted=True)

    try:
        tree = parse_statement(sql, expected="condition")
        for node in tree.walk():
            is_null_test = isinstance(node, exp.Null) and isinstance(node.parent, exp.Is)
            if type(node).__name__ not in _NODES and not is_null_test:
                raise UnsupportedCondition(node.sql(dialect=DIALECT))
        condition = str(tree.transform(rename_column).sql(dialect=DIALECT))
        # The engine refuses comparisons between types.
        predicate(condition, schema=columns.schema, dialect=DIALECT)
    except (InvalidSql, RecursionError) as error:
        raise UnsupportedCondition(sql) from error
    return condition


Expectation = Mapping[str, Any]
# The packages whose tests have the names of Great Expectations, and of the tests of dbt-utils.
EXPECTATION_PACKAGES = ("dbt_expectations",)
UTILITY_PACKAGES = ("dbt_utils",)
# Tests that limit the age of the newest row.
RECENCY_TESTS = ("recency", "expect_row_values_to_have_recent_data")
_COLUMN_ARGUMENTS = ("column_A", "column_B")
# Arguments with the same meaning in dbt-expectations and in Great Expectations.
_EQUAL_ARGUMENTS = frozenset(
    {
        *_COLUMN_ARGUMENTS,
        "column_list",
        "column_set",
        "max_value",
        "min_value",
        "mostly",
        "or_equal",
        "regex",
        "regex_list",
        "value",
        "value_set",
    }
)
_REGEXES = ("regex", "regex_list")
# The prefixes of expectations that are checked for each row, so that a condition can select rows.
_ROW_EXPECTATIONS = (
    "expect_column_pair_",
    "expect_column_values_",
    "expect_compound_columns_",
    "expect_multicolumn_",
    "expect_select_column_",
)
# Arguments that change how dbt runs a test, but not its meaning.
_IGNORED_ARGUMENTS = frozenset({"quote", "quote_values", "is_raw"})
_TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_IN_SET = "expect_column_values_to_be_in_set"
NOT_NULL = "expect_column_values_to_not_be_null"


@dataclass(frozen=True)
class RelatedGroup:
    """A feature group with which a test compares."""

    name: str
    schema: pa.Schema


class NotConvertible(ValueError):
    """A test has no equivalent expectation; the message is the reason."""


@dataclass(frozen=True)
class DbtColumns:
    """The columns of a table; names of dbt may differ from them in case."""

    schema: pa.Schema

    def find(self, name: str) -> str | None:
        """Return the name of a column as in the table, or None if it does not exist."""
        if name in self.schema.names:
            return name
        # Warehouses fold the case of unquoted names.
        matches = [column for column in self.schema.names if column.lower() == name.lower()]
        return matches[0] if len(matches) == 1 else None

    def get(self, name: object) -> str:
        """Return the name of a column as in the table; NotConvertible if it does not exist."""
        column = self.find(name.strip('"`')) if isinstance(name, str) else None
        if column is None:
            raise NotConvertible(f"the table has no column {name!r}")
        return column


def to_expectation(test: DbtTest, columns: DbtColumns) -> Expectation:
    """Convert a dbt test to an expectation.

    Raises:
        NotConvertible: No expectation has the same meaning.
    """
    if test.limits:
        raise NotConvertible(f"it has {', '.join(test.limits)}, which expectations do not have")
    if test.test_type == SINGULAR:
        raise NotConvertible("it is SQL, and an import does not execute SQL of a manifest")
    if test.namespace in EXPECTATION_PACKAGES:
        expectation = convert_by_name(test, columns)
    else:
        converters = _DBT_TESTS if test.namespace is None else _UTILITY_TESTS
        if test.test_type not in converters or test.namespace not in (None, *UTILITY_PACKAGES):
            raise NotConvertible("no expectation is equivalent")
        expectation = converters[test.test_type](test, columns)
    return add_config(expectation, test, columns)


def convert_relationship(
    test: DbtTest, columns: DbtColumns, *, tested_node: str, groups: Mapping[str, RelatedGroup]
) -> Expectation:
    """Convert the test ``relationships`` of dbt: values exist in a column of another table.

    Args:
        test: The test.
        columns: The columns of the tested table.
        tested_node: The id of the tested table.
        groups: The feature groups of the project by the ids of their nodes.

    Raises:
        NotConvertible: The other table is not imported, or has no such column.
        InvalidExpectation: The types of the two columns are never equal.
    """
    if test.limits:
        raise NotConvertible(f"it has {', '.join(test.limits)}, which expectations do not have")
    # A table that is compared with itself is the only one.
    others = [node for node in test.tables if node != tested_node] or list(test.tables)
    group = groups.get(others[0]) if len(others) == 1 else None
    if group is None:
        raise NotConvertible(
            f"it compares with {' and '.join(map(repr, others)) or 'an unknown table'}, which is "
            "not imported"
        )
    field = test.arguments.get("field")
    feature = DbtColumns(group.schema).find(field.strip('"`')) if isinstance(field, str) else None
    if feature is None:
        raise NotConvertible(f"the feature group {group.name!r} has no column {field!r}")
    expectation = _of_column(IN_FEATURE, test, columns, feature=f"{group.name}.{feature}")
    comparison = FeatureComparison.from_expectation(expectation)
    if comparison is not None:
        column_type = columns.schema.field(comparison.column).type
        check_types(comparison, column_type, group.schema.field(feature).type)
    return add_config(expectation, test, columns)


def add_config(expectation: Expectation, test: DbtTest, columns: DbtColumns) -> Expectation:
    """Add the condition and the severity of a test to its expectation."""
    if test.where is not None:
        expectation = add_condition(expectation, test.where, columns)
    if test.is_warning:
        expectation = {**expectation, "severity": "warning"}
    return expectation


def add_condition(expectation: Expectation, where: str, columns: DbtColumns) -> Expectation:
    """Limit an expectation to the rows of a condition."""
    if not expectation["type"].startswith(_ROW_EXPECTATIONS):
        raise NotConvertible("it has where, which expectations of the whole table do not have")
    try:
        condition = to_row_condition(where, columns)
    except UnsupportedCondition as error:
        raise NotConvertible(
            f"{str(error)!r} in its where is not a comparison of columns with constants"
        ) from error
    selection = {"row_condition": condition, "condition_parser": "sql"}
    kwargs = {**expectation["kwargs"], **selection}
    return {**expectation, "kwargs": kwargs}


def convert_by_name(test: DbtTest, columns: DbtColumns) -> Expectation:
    """Convert a test of dbt-expectations, which is named as the expectation."""
    kwargs: dict[str, Any] = {}
    if test.column is not None:
        kwargs["column"] = columns.get(test.column)
    for name, value in test.arguments.items():
        if value is not None and name not in _IGNORED_ARGUMENTS:
            kwargs |= _convert_argument(name, value, columns)
    if test.arguments.get("flags") == "i":
        kwargs |= {name: _ignore_case(kwargs[name]) for name in _REGEXES if name in kwargs}
    if "value_set" in kwargs:
        kwargs["value_set"] = _typed_values(
            kwargs["value_set"],
            kwargs.get("column"),
            columns,
            quoted=test.arguments.get("quote_values") is not False,
        )
    return {"type": test.test_type, "kwargs": kwargs}


def _convert_argument(name: str, value: Any, columns: DbtColumns) -> dict[str, Any]:
    """Return the arguments of an expectation for one of a test."""
    if name == "strictly":
        return {f"strict_{end}": bool(value) for end in ("min", "max")}
    if name == "flags":
        # dbt passes the flags to the database. Only "i" is the same in all databases.
        if value not in ("", "i"):
            raise NotConvertible(f"the flags {value!r} of its regex have no equivalent")
        return {}
    if name in _COLUMN_ARGUMENTS:
        return {name: columns.get(value)}
    if name == "column_list":
        return {name: _column_list(value, columns)}
    if name in _EQUAL_ARGUMENTS:
        return {name: value}
    raise NotConvertible(f"its argument {name!r} has no equivalent")


def differences(expectation: Expectation, test: DbtTest, columns: DbtColumns) -> list[str]:
    """Return how an expectation differs from its test for rows with nulls or NaN."""
    column = expectation["kwargs"].get("column")
    if column not in columns.schema.names:
        return []
    texts = []
    is_float = pat.is_floating(columns.schema.field(column).type)
    if test.namespace in EXPECTATION_PACKAGES and expectation["type"] == _IN_SET:
        texts.append(f"nulls in {column!r} pass, which fail in dbt; not_null has the same result")
    if test.test_type == "unique_combination_of_columns":
        texts.append(f"several nulls in {column!r} pass, which fail in dbt")
    if is_float and expectation["type"] in (_IN_SET, "expect_column_values_to_be_between"):
        texts.append(f"NaN in {column!r} is a missing value and passes, which may fail in dbt")
    return texts


def _ignore_case(value: Any) -> Any:
    """Return a regular expression, or a list of regular expressions, that ignores case."""
    return list(map(_ignore_case, value)) if isinstance(value, list) else f"(?i){value}"


def convert_not_null(test: DbtTest, columns: DbtColumns) -> Expectation:
    """Convert the test ``not_null`` of dbt."""
    return _of_column(NOT_NULL, test, columns)


def convert_unique(test: DbtTest, columns: DbtColumns) -> Expectation:
    """Convert the test ``unique`` of dbt, which ignores nulls as the expectation does."""
    return _of_column("expect_column_values_to_be_unique", test, columns)


def convert_accepted_values(test: DbtTest, columns: DbtColumns) -> Expectation:
    """Convert the test ``accepted_values`` of dbt."""
    column = columns.get(test.column)
    quoted = test.arguments.get("quote") is not False
    values = _typed_values(test.arguments.get("values"), column, columns, quoted=quoted)
    return _of_column("expect_column_values_to_be_in_set", test, columns, value_set=values)


def convert_accepted_range(test: DbtTest, columns: DbtColumns) -> Expectation:
    """Convert the test ``accepted_range`` of dbt-utils."""
    bounds: dict[str, Any] = {}
    for name in ("min_value", "max_value"):
        value = test.arguments.get(name)
        # dbt-utils also accepts SQL as a bound.
        if isinstance(value, str):
            raise NotConvertible(f"its {name} is SQL")
        if value is not None:
            bounds[name] = value
    if test.arguments.get("inclusive") is False:
        bounds |= {"strict_min": True, "strict_max": True}
    return _of_column("expect_column_values_to_be_between", test, columns, **bounds)


def convert_unique_combination(test: DbtTest, columns: DbtColumns) -> Expectation:
    """Convert the test ``unique_combination_of_columns`` of dbt-utils."""
    names = _column_list(test.arguments.get("combination_of_columns"), columns)
    if len(names) == 1:
        return {"type": "expect_column_values_to_be_unique", "kwargs": {"column": names[0]}}
    # dbt counts rows with the same values, also if all values are null.
    kwargs = {"column_list": names, "ignore_row_if": "never"}
    return {"type": "expect_compound_columns_to_be_unique", "kwargs": kwargs}


def convert_not_null_proportion(test: DbtTest, columns: DbtColumns) -> Expectation:
    """Convert the test ``not_null_proportion`` of dbt-utils."""
    share = test.arguments.get("at_least")
    if not isinstance(share, int | float) or test.arguments.get("at_most") not in (None, 1, 1.0):
        raise NotConvertible("its proportion has no equivalent")
    return _of_column(NOT_NULL, test, columns, mostly=share)


def _of_column(
    expectation_type: str, test: DbtTest, columns: DbtColumns, **arguments: Any
) -> Expectation:
    if test.arguments.get("group_by_columns"):
        raise NotConvertible("its argument 'group_by_columns' has no equivalent")
    return {"type": expectation_type, "kwargs": {"column": columns.get(test.column), **arguments}}


def _column_list(value: object, columns: DbtColumns) -> list[str]:
    if not isinstance(value, list) or not value:
        raise NotConvertible("its columns are not a list")
    return list(map(columns.get, value))


def _typed_values(
    values: object, column: str | None, columns: DbtColumns, *, quoted: bool
) -> list[Any]:
    """Return accepted values in the type of the column; dbt writes them as quoted text in SQL."""
    if not isinstance(values, list) or not values:
        raise NotConvertible("its values are not a list")
    if column is None:
        return values
    dtype = columns.schema.field(column).type
    return [_to_type(value, dtype, quoted=quoted) for value in values]


def _to_type(value: object, dtype: pa.DataType, *, quoted: bool) -> object:
    """Convert a value of YAML to the type of its column, as the comparison in SQL does.

    Raises:
        NotConvertible: The value has no equal in the type, so that databases round or refuse it.
    """
    if not isinstance(value, str | bool | int | float):
        raise NotConvertible(f"its value {value!r} is not a string, number or boolean")
    if not quoted and isinstance(value, str):
        raise NotConvertible(f"its value {value!r} is SQL, because it is not quoted")
    is_text = pat.is_string(dtype) or pat.is_large_string(dtype)
    if not quoted and (is_text or isinstance(value, bool) != pat.is_boolean(dtype)):
        raise NotConvertible(f"its value {value!r}, which is not quoted, is not of type {dtype}")
    # dbt writes the Python value: True, not true.
    text = str(value)
    if is_text:
        return text
    refusal = NotConvertible(f"its value {value!r} does not have the type {dtype}")
    try:
        if pat.is_boolean(dtype):
            return _TRUTH[text.lower()]
        if pat.is_integer(dtype) or pat.is_decimal(dtype):
            number = to_value(Decimal(text), dtype)
            return number if isinstance(number, int) else str(number)
        if pat.is_floating(dtype) and math.isfinite(float(text)):
            return float(text)
        if pat.is_timestamp(dtype) or pat.is_date(dtype):
            from_text(text, dtype)
            return text
    except (ArithmeticError, KeyError, ValueError) as error:
        raise refusal from error
    raise refusal


_Converter = Callable[[DbtTest, DbtColumns], Expectation]
_DBT_TESTS: Mapping[str, _Converter] = {
    "not_null": convert_not_null,
    "unique": convert_unique,
    "accepted_values": convert_accepted_values,
}
_UTILITY_TESTS: Mapping[str, _Converter] = {
    "accepted_range": convert_accepted_range,
    "not_null_proportion": convert_not_null_proportion,
    "unique_combination_of_columns": convert_unique_combination,
}
