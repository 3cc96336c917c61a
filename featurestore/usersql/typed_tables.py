"""The types of the tables and parameters of a query, as DuckDB has them.

The functions use a DuckDB connection of a connector; the core does not import DuckDB.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidSql, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.times import NaiveTimeWarning
from featurestore.usersql.text import quote
from featurestore.usersql.typed_values import TIMESTAMP_TZ

# Settings of a database for user queries. The last one locks all settings, so the order matters.
SANDBOX_SETTINGS = (
    "SET GLOBAL TimeZone = 'UTC'",
    "SET GLOBAL python_enable_replacements = false",
    "SET GLOBAL enable_external_access = false",
    "SET GLOBAL lock_configuration = true",
)
# A bool is an int, so it comes first.
_PARAMETER_TYPES: dict[type, str] = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    str: "VARCHAR",
    datetime: TIMESTAMP_TZ,
    date: "DATE",
}


def check_single_select(cursor: Any, query: str) -> None:
    """Raise InvalidSql if a query is not a single SELECT statement."""
    statements = cursor.extract_statements(query)
    if [statement.type.name for statement in statements] != ["SELECT"]:
        raise InvalidSql(
            "The query is not a single SELECT statement.",
            hint="write one SELECT; queries cannot change tables",
        )


def describe_tables(
    cursor: Any, schemas: Mapping[str, pa.Schema]
) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Register empty tables; return their names and typed columns by lower-case name.

    Args:
        cursor: A DuckDB cursor.
        schemas: The feature types of the tables by name.
    """
    tables = {}
    for name, schema in schemas.items():
        cursor.register(name, schema.empty_table())
        table = cursor.sql(f"FROM {quote(name)}")
        types = map(str, table.types)
        tables[name.lower()] = (name, list(zip(table.columns, types, strict=True)))
    return tables


def warn_about_naive_times(schema: pa.Schema) -> None:
    """Warn the caller about columns of times without a time zone, such as a date plus an interval."""
    naive_columns = [
        field.name for field in schema if pat.is_timestamp(field.type) and field.type.tz is None
    ]
    if naive_columns:
        warn_caller(
            f"the times of {listing(naive_columns)} have no time zone and are interpreted as UTC",
            NaiveTimeWarning,
        )


def parameter_types(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the DuckDB type of each parameter.

    >>> parameter_types({"n": 1, "name": "a"})
    {'n': 'BIGINT', 'name': 'VARCHAR'}

    Raises:
        InvalidSql: A value has another type than a boolean, a number, a string or a time.
    """
    types = {}
    for name, value in parameters.items():
        matches = [dtype for python, dtype in _PARAMETER_TYPES.items() if isinstance(value, python)]
        if not matches:
            raise InvalidSql(
                f"The parameter ${name} is {type(value).__name__}, which has no SQL type.",
                hint="pass a boolean, a number, a string or a time",
            )
        types[name] = matches[0]
    return types
