"""Every function and operator of conditions over edge values, on both engines.

The expressions are made from the list of what is allowed, so nothing is allowed that is not
compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from featurestore.plugins.engine import Engine
from featurestore.usersql.conditions import expression
from featurestore.usersql.functions import (
    CASTS,
    FUNCTIONS,
    OPERATORS,
    SAME_KIND_FUNCTIONS,
    UNITS,
    ValueType,
)
from tests.usersql.edge_values import EDGES, TABLE, plain_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

_KINDS = [name for name in EDGES if name != "list"]
_CONSTANTS = {
    "integer": ["0", "-1", "10", "9223372036854775807", "0.5", "1e3"],
    "whole": ["18446744073709551615", "-1", "0.5"],
    "small": ["-128", "200", "2.5"],
    "float": ["0.1", "1", "1e-45", "-1.5"],
    "number": ["0.1", "1", "5e-324", "-0.0", "2.5"],
    "decimal": ["0.1", "1", "2.500", "1e0", "2.5001", "-1e300"],
    "string": ["''", "'a'", "'é'", "'\\'", "''''", "'İ'", "'a\x00b'"],
    "binary": ["''::blob", "'a\\x00'::blob", "'\\xFF'::blob"],
    "date": ["'1970-01-01'", "date '1600-02-29'", "timestamptz '1970-01-01 00:00:00+00'"],
    "timestamp": [
        "'1970-01-01'",
        "'1969-12-31 23:59:59.000001+00:00'",
        "date '2020-02-29'",
        "timestamptz '2024-03-31 03:30:00+01:00'",
        "timestamp '2024-03-31 02:30:00'",
        "timestamptz '2020-03-01 00:00:00+00' - interval 1 day",
    ],
}
_PATTERNS = ("'a%'", "'%a'", "'_'", "'%'", "''", "'%\x00%'", "'_%b'", "'é'", "'\t%'")
_COLUMNS: dict[ValueType, list[str]] = {
    "integer": ["integer", "small", "byte"],
    "unsigned": ["whole"],
    "number": ["number", "float", "decimal", "integer"],
}


def _arguments(sql_types: tuple[ValueType, ...]) -> list[list[str]]:
    """Return arguments for a function over all columns of its types."""
    result: list[list[str]] = [[]]
    for sql_type, letter in zip(sql_types, "abc", strict=False):
        choices = [f"{letter}_{name}" for name in _COLUMNS.get(sql_type, [sql_type])]
        if sql_type == "unit":
            choices = [f"'{unit}'" for unit in UNITS]
        if sql_type == "count":
            choices = ["1", "2", "100"]
        result = [[*before, choice] for before in result for choice in choices]
    return result


def _calls() -> list[str]:
    """Return every function and operator over all columns of its types."""
    texts = []
    for name, functions in FUNCTIONS.items():
        for function in functions:
            texts += [
                f"{name}({', '.join(arguments)})" for arguments in _arguments(function.arguments)
            ]
    for operator, functions in OPERATORS.items():
        for function in functions:
            texts += [
                f" {operator} ".join(arguments) for arguments in _arguments(function.arguments)
            ]
    texts += [f"-a_{column}" for column in ("integer", "small", "number", "float")]
    texts += ["extract(year from a_timestamp)", "date_part('dow', a_date)"]
    for sign in "+-":
        for amount in ("1 microsecond", "90 minute", "3 days", "1 week"):
            texts.append(f"a_timestamp {sign} interval {amount}")
    return texts


def _comparisons() -> list[str]:
    """Return comparisons of every pair of comparable types."""
    numeric = ["integer", "small", "byte", "whole", "float", "number", "decimal"]
    pairs = [(column, column) for column in _KINDS]
    pairs += [(first, second) for first in numeric for second in numeric if first != second]
    pairs += [("date", "timestamp"), ("timestamp", "date")]
    texts = []
    for first, second in pairs:
        words = ["=", "<"]
        if first == second:
            words += ["<>", "<=", ">", ">=", "is distinct from", "is not distinct from"]
        texts += [f"a_{first} {word} b_{second}" for word in words]
        texts.append(f"a_{first} between b_{second} and c_{second}")
    for column, values in _CONSTANTS.items():
        for value in values:
            texts += [f"a_{column} {word} {value}" for word in ("=", "<", ">=")]
    for pattern in _PATTERNS:
        texts += [f"a_string like {pattern}", f"a_string not like {pattern}"]
    return texts


def _choices() -> list[str]:
    """Return conditional expressions, casts and null predicates over all types."""
    texts = ["not a_boolean or b_boolean and c_boolean", "a_boolean is true"]
    texts.append("b_boolean is not false")
    for column in _KINDS:
        texts += [f"{name}(a_{column}, b_{column})" for name in SAME_KIND_FUNCTIONS]
        texts.append(f"coalesce(a_{column}, b_{column}, c_{column})")
        texts.append(f"case when a_boolean then b_{column} when b_boolean then c_{column} end")
        texts.append(f"if(a_boolean, b_{column}, c_{column})")
        texts.append(f"a_{column} in (b_{column}, c_{column})")
    for column in EDGES:
        texts += [f"a_{column} is null", f"a_{column} is not null"]
    types = {
        "integer": "bigint",
        "number": "double",
        "string": "varchar",
        "timestamp": "timestamptz",
    }
    texts += [f"a_{source}::{types.get(target, target)}" for source, target in CASTS]
    return texts


EXPRESSIONS = list(dict.fromkeys([*_calls(), *_comparisons(), *_choices()]))


def _values(engine: Engine) -> dict[str, list[Any]]:
    """Return the engine's result of each expression."""
    result = {}
    for start in range(0, len(EXPRESSIONS), 150):
        texts = EXPRESSIONS[start : start + 150]
        select_list = []
        for number, text in enumerate(texts):
            typed = expression(text, schema=TABLE.schema, dialect=engine.dialect)
            select_list.append(f"{typed.sql} AS e{number}")
        rows = engine.sql(
            f"SELECT id, {', '.join(select_list)} FROM edges",
            tables={"edges": engine.from_arrow(TABLE.to_reader())},
            parameters={},
        )
        table = engine.stream(rows).read_all().sort_by("id")
        for number, text in enumerate(texts):
            result[text] = plain_values(table.column(f"e{number}"))
    return result


@pytest.fixture(scope="module")
def embedded() -> Iterator[dict[str, list[Any]]]:
    """The results of the embedded engine."""
    from featurestore_connectors.duckdb_delta import DuckDBEngine

    engine = DuckDBEngine()
    yield _values(engine)
    engine.close()


def _has_rules_of_its_own(text: str) -> bool:
    """Return whether an expression uses narrow integers or division, which are documented separately."""
    narrow = re.search(r"_(small|byte|float|decimal|whole)", text)
    computes = re.search(r" [-+*/%] |^-|^abs", text)
    compares = "float" in text and "decimal" in text
    divides = " / " in text or " % " in text
    return bool(narrow and computes) or divides or compares


def test_conditions_equal_plain_duckdb_results(embedded: dict[str, list[Any]]) -> None:
    different = {}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("edges", TABLE)
        connection.execute("CREATE TABLE held AS FROM edges")
        for text in EXPRESSIONS:
            if _has_rules_of_its_own(text):
                continue
            # Results out of range are null here and an error there.
            query = f"SELECT TRY({text}) AS value FROM held ORDER BY id"
            expected = plain_values(connection.sql(query).to_arrow_table().column("value"))
            if embedded[text] != expected:
                different[text] = _first_difference(embedded[text], expected)
    assert different == {}


@pytest.mark.spark
def test_conditions_equal_on_duckdb_and_spark(
    spark: SparkSession, embedded: dict[str, list[Any]]
) -> None:
    from featurestore_connectors.spark_delta import SparkEngine

    different = {}
    for text, values in _values(SparkEngine(spark)).items():
        if values != embedded[text]:
            different[text] = _first_difference(values, embedded[text])
    assert different == {}


def _first_difference(actual: list[Any], expected: list[Any]) -> str:
    pairs = zip(actual, expected, strict=True)
    row = next(
        index for index, (value, expected_value) in enumerate(pairs) if value != expected_value
    )
    return f"row {row}: {actual[row]!r} is not {expected[row]!r}"
