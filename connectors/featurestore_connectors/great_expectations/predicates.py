"""Predicates of expectations: conditions on rows in SQL, run by DuckDB on Arrow rows.

The SQL is that of conditions on rows (``featurestore.usersql``). It compares a column with typed
constants, so that decimals are compared as decimals. Both engines call the validator with chunks of
rows, so predicates have the same result on both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidExpectation, InvalidSql
from featurestore.model.times import parse_moment
from featurestore.model.validation import describe
from featurestore.plugins.validator import Expectation
from featurestore.usersql import number_literal, predicate, quote

Mask = npt.NDArray[np.bool_]
# A thread per process, since Spark runs a process for each core.
_CONFIG: Mapping[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
}


def evaluate(table: pa.Table, predicates: Sequence[str]) -> list[Mask]:
    """Return the rows for which predicates are true, as a mask for each predicate.

    Raises:
        InvalidExpectation: A predicate cannot be evaluated.
    """
    if not predicates:
        return []
    columns = [
        f"coalesce({_engine_sql(sql, table.schema)}, false) as p{number}"
        for number, sql in enumerate(predicates)
    ]
    # The rows of an Arrow table keep their order.
    masks = _query(table, f"select {', '.join(columns)} from checked_rows")
    return [np.asarray(column.to_numpy(), dtype=np.bool_) for column in masks.itercolumns()]


def count_repeated(table: pa.Table, columns: Sequence[str], selected: str) -> tuple[int, int]:
    """Count the rows that meet a predicate, and those whose values occur in several such rows.

    Raises:
        InvalidExpectation: The predicate cannot be evaluated.
    """
    keys = []
    for name in columns:
        # Engines compare NaN as a value.
        present = _engine_sql(has_value(name, table.schema.field(name).type), table.schema)
        keys.append(f"case when {present} then {quote(name)} end")
    copies = (
        f"select count(*) as copies from checked_rows where {_engine_sql(selected, table.schema)} "
        f"group by {', '.join(keys)}"
    )
    sums = "sum(copies), sum(copies) filter (where copies > 1)"
    (counts,) = _query(table, f"select {sums} from ({copies})").to_pylist()
    rows, repeated = (int(count or 0) for count in counts.values())
    return rows, repeated


def _engine_sql(sql: str, schema: pa.Schema) -> str:
    try:
        return predicate(sql, schema=schema, dialect="duckdb")
    except InvalidSql as error:
        raise _not_evaluated_error(error.message) from error


def _query(table: pa.Table, sql: str) -> pa.Table:
    """Return the result of a query of ``checked_rows``."""
    try:
        with duckdb.connect(":memory:", config=dict(_CONFIG)) as connection:
            connection.execute("set TimeZone = 'UTC'")
            connection.register("checked_rows", table)
            return connection.sql(sql).to_arrow_table()
    except duckdb.Error as error:
        raise _not_evaluated_error(error) from error


def _not_evaluated_error(reason: object) -> InvalidExpectation:
    return InvalidExpectation(
        f"An expectation cannot be evaluated: {reason}",
        hint="compare a column with values of its type",
    )


def not_computed_error(expectation: Expectation, reason: object) -> InvalidExpectation:
    """Return the error for an expectation that does not suit the types of its columns."""
    return InvalidExpectation(
        f"{describe(expectation)} cannot be computed: {reason}",
        hint="compare the expectation with the types of the columns",
    )


# -- parts of predicates ---------------------------------------------------------------------------


def is_true(sql: str) -> str:
    """Return a condition that is false instead of null."""
    return f"coalesce({sql}, false)"


def has_value(name: str, dtype: pa.DataType) -> str:
    """Return the condition that a column is neither null nor NaN."""
    column = quote(name)
    if pat.is_floating(dtype):
        return f"{column} is not null and not isnan({column})"
    return f"{column} is not null"


def in_set(name: str, constants: Sequence[str | None]) -> str:
    """Return the condition that a value is one of some constants; None is never equal."""
    choices = [constant for constant in constants if constant is not None]
    if not choices:
        return "false"
    return is_true(f"{quote(name)} in ({', '.join(choices)})")


def constant_sql(value: object, dtype: pa.DataType) -> str | None:
    """Return a constant that is compared with a column, in SQL.

    Returns None if the types are never equal. ``usersql`` converts numbers to the type of the
    column. JSON has no times and decimals, so text is converted to them.

    >>> constant_sql(0.1, pa.decimal128(5, 2)), constant_sql("2024-01-31", pa.date32())
    ('0.1', "'2024-01-31'")
    """
    if isinstance(value, bool) or pat.is_boolean(dtype):
        return _boolean_sql(value, dtype)
    if is_number(dtype):
        return _number_sql(value, dtype)
    if isinstance(value, str) and is_string(dtype):
        return "'" + value.replace("'", "''") + "'"
    if pat.is_timestamp(dtype) or pat.is_date(dtype):
        return _time_sql(value)
    return None


def _boolean_sql(value: object, dtype: pa.DataType) -> str | None:
    """Return a boolean as a constant. As in Python, true equals 1."""
    if isinstance(value, bool | int | float | Decimal) and value in (0, 1):
        if pat.is_boolean(dtype):
            return str(bool(value)).lower()
        if is_number(dtype):
            return str(int(value))
    return None


def _number_sql(value: object, dtype: pa.DataType) -> str | None:
    if isinstance(value, str) and pat.is_decimal(dtype):
        try:
            value = Decimal(value)
        except ArithmeticError:
            return None
    if not isinstance(value, int | float | Decimal):
        return None
    try:
        return number_literal(value) if math.isfinite(float(value)) else None
    except OverflowError:  # no column has such integers
        return None


def _time_sql(value: object) -> str | None:
    try:
        if isinstance(value, str) and len(value) <= 10:
            value = date.fromisoformat(value)
        elif isinstance(value, str | datetime):
            value = parse_moment(value, warn=False)
    except ValueError:
        return None
    return f"'{value.isoformat()}'" if isinstance(value, date) else None


def is_number(dtype: pa.DataType) -> bool:
    """Return whether a type has integers, decimals or floating-point numbers."""
    return bool(pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_decimal(dtype))


def is_string(dtype: pa.DataType) -> bool:
    """Return whether a type has strings."""
    return bool(pat.is_string(dtype) or pat.is_large_string(dtype))


# -- arguments of the library ----------------------------------------------------------------------


def typed_arguments(expectation: Expectation, schema: pa.Schema) -> Mapping[str, Any]:
    """Convert limits and sets to the type of their column, for expectations of the library.

    Numbers become decimals if the column has decimals, and ISO strings become times. A value
    without an equal in the type is compared by value.
    """
    kwargs = expectation["kwargs"]
    name = kwargs.get("column")
    if name is None or name not in schema.names:
        return expectation
    dtype = schema.field(name).type
    if not (pat.is_timestamp(dtype) or pat.is_date(dtype) or pat.is_decimal(dtype)):
        return expectation
    converted = dict(kwargs)
    for key in ("min_value", "max_value", "value_set"):
        if key in kwargs:
            converted[key] = _to_comparable(kwargs[key], dtype)
    return {**expectation, "kwargs": converted}


def _to_comparable(value: Any, dtype: pa.DataType) -> Any:
    """Convert a value, or each value of a list, to one that pandas compares with the column."""
    if isinstance(value, list | tuple | set):
        return [_to_comparable(item, dtype) for item in value]
    if pat.is_decimal(dtype):
        is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
        constant = _number_sql(value, dtype) if is_number else None
        return value if constant is None else Decimal(constant)
    if not isinstance(value, str):
        return value
    try:
        time = parse_moment(value, warn=False)
    except ValueError:
        return value
    # Data frames have times instead of dates.
    return time.replace(tzinfo=None) if pat.is_date(dtype) else time
