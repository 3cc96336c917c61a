"""Every function and operator that conditions may use, over edge values, on both engines.

The expressions are made from the list of what is allowed, so nothing is allowed that is not compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from featurestore.model.types import TIMESTAMP
from featurestore.plugins.engine import Engine
from featurestore.sql.conditions import expression
from featurestore.sql.functions import CASTS, CHOOSING, FUNCTIONS, OPERATORS, UNITS, Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1582, 10, 9, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1600, 2, 29, tzinfo=UTC),
    datetime(1883, 11, 18, 12, 3, 58, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2008, 12, 29, 0, 0, 0, 1, tzinfo=UTC),
    datetime(2010, 1, 3, 10, 59, 59, tzinfo=UTC),
    datetime(2020, 2, 29, 12, 30, 30, 500_000, tzinfo=UTC),
    datetime(2021, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2024, 3, 31, 2, 30, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]
_SPACES = "\u1680\u2000\u2001\u2002\u2004\u2005\u2006\u2007\u2008\u2009\u200aa\u202f\u205f\u3000"
_TEXTS = [
    *("", " ", " a ", "a", "A", "ab", "aé", "é", "e\u0301", "𝄞b", "\t a\n", "a\x00b", "%_", "\\"),
    *("ß", "İ", "'", "\u00a0a\u2003", _SPACES, "\u200ba\u2028", "\u0085a\ufeff"),
]
_WIDE = [0, 1, -1, 2, 3, 7, -7, 10, 100, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)]
_SPECIAL = [0.0, -0.0, 0.1, 0.5, -1.5, 2.5, 1.0, math.nan, math.inf, -math.inf]
_CENTS = ("0.00", "0.10", "-0.10", "1.00", "2.50", "99999999.99")
EDGES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "integer": (pa.int64(), _WIDE),
    "small": (pa.int8(), [0, 1, -1, 127, -128]),
    "byte": (pa.uint8(), [0, 1, 255]),
    "whole": (pa.uint64(), [0, 1, 2**63 - 1, 2**63, 2**64 - 1]),
    "float": (pa.float32(), [*_SPECIAL, 1.401298464324817e-45, 3.4e38]),
    "number": (pa.float64(), [*_SPECIAL, 5e-324, 1.7e308, 2.0**53, 2.0**63]),
    "decimal": (pa.decimal128(10, 2), [Decimal(each) for each in _CENTS]),
    "text": (pa.string(), _TEXTS),
    "binary": (pa.binary(), [b"", b"\x00", b"a", b"\xff", b"a\x00"]),
    "date": (pa.date32(), [each.date() for each in _TIMES]),
    "timestamp": (TIMESTAMP, _TIMES),
    "list": (pa.list_(pa.int64()), [[], [1], [1, None], [2, 1]]),
}
_KINDS = [name for name in EDGES if name != "list"]
_CONSTANTS = {
    "integer": ["0", "-1", "10", "9223372036854775807", "0.5", "1e3"],
    "whole": ["18446744073709551615"],
    "small": ["-128", "200"],
    "float": ["0.1", "1", "1e-45", "-1.5"],
    "number": ["0.1", "1", "5e-324", "-0.0", "2.5"],
    "decimal": ["0.1", "1", "2.500", "1e0"],
    "text": ["''", "'a'", "'é'", "'\\'", "''''", "'İ'", "'a\x00b'"],
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
_COLUMNS: dict[Kind, list[str]] = {
    "integer": ["integer", "small", "byte"],
    "unsigned": ["whole"],
    "number": ["number", "float", "decimal", "integer"],
}


def _table() -> pa.Table:
    """Return every pair of edge values of every kind: ``a_integer``, ``b_integer``, and a third."""
    size = max(len(values) for _, values in EDGES.values()) + 1
    rows = [(one, other) for one in range(size) for other in range(size)]
    columns: dict[str, pa.Array] = {"id": pa.array(range(size * size), pa.int64())}
    for name, (kind, values) in EDGES.items():
        padded = [*values, None, *values * size][:size]
        columns[f"a_{name}"] = pa.array([padded[one] for one, _ in rows], kind)
        columns[f"b_{name}"] = pa.array([padded[other] for _, other in rows], kind)
        columns[f"c_{name}"] = pa.array([padded[(one + other) % size] for one, other in rows], kind)
    return pa.table(columns)


def _arguments(kinds: tuple[Kind, ...]) -> list[list[str]]:
    """Return arguments for a function, over all columns of the kinds that it takes."""
    found: list[list[str]] = [[]]
    for kind, letter in zip(kinds, "abc", strict=False):
        choices = [f"{letter}_{name}" for name in _COLUMNS.get(kind, [kind])]
        if kind == "unit":
            choices = [f"'{unit}'" for unit in UNITS]
        if kind == "count":
            choices = ["1", "2", "100"]
        found = [[*before, choice] for before in found for choice in choices]
    return found


def _calls() -> list[str]:
    """Return every function and operator over all columns of the kinds that it takes."""
    texts = []
    for name, functions in FUNCTIONS.items():
        for function in functions:
            texts += [f"{name}({', '.join(each)})" for each in _arguments(function.arguments)]
    for operator, functions in OPERATORS.items():
        for function in functions:
            texts += [f" {operator} ".join(each) for each in _arguments(function.arguments)]
    texts += [f"-a_{kind}" for kind in ("integer", "small", "number", "float")]
    texts += ["extract(year from a_timestamp)", "date_part('dow', a_date)"]
    for sign in "+-":
        for amount in ("1 microsecond", "90 minute", "3 days", "1 week"):
            texts.append(f"a_timestamp {sign} interval {amount}")
    return texts


def _comparisons() -> list[str]:
    """Return comparisons of every kind with every kind that compares with it."""
    numeric = ["integer", "small", "byte", "whole", "float", "number", "decimal"]
    pairs = [(kind, kind) for kind in _KINDS]
    pairs += [(one, other) for one in numeric for other in numeric if one != other]
    pairs += [("date", "timestamp"), ("timestamp", "date")]
    texts = []
    for one, other in pairs:
        words = ["=", "<"]
        if one == other:
            words += ["<>", "<=", ">", ">=", "is distinct from", "is not distinct from"]
        texts += [f"a_{one} {word} b_{other}" for word in words]
        texts.append(f"a_{one} between b_{other} and c_{other}")
    for kind, values in _CONSTANTS.items():
        for value in values:
            texts += [f"a_{kind} {word} {value}" for word in ("=", "<", ">=")]
    for pattern in _PATTERNS:
        texts += [f"a_text like {pattern}", f"a_text not like {pattern}"]
    return texts


def _choices() -> list[str]:
    """Return what chooses between values of every kind, the casts, and what is said of nulls."""
    texts = ["not a_boolean or b_boolean and c_boolean", "a_boolean is true"]
    texts.append("b_boolean is not false")
    for kind in _KINDS:
        texts += [f"{name}(a_{kind}, b_{kind})" for name in CHOOSING]
        texts.append(f"coalesce(a_{kind}, b_{kind}, c_{kind})")
        texts.append(f"case when a_boolean then b_{kind} when b_boolean then c_{kind} end")
        texts.append(f"if(a_boolean, b_{kind}, c_{kind})")
        texts.append(f"a_{kind} in (b_{kind}, c_{kind})")
    for kind in EDGES:
        texts += [f"a_{kind} is null", f"a_{kind} is not null"]
    types = {"integer": "bigint", "number": "double", "text": "varchar", "timestamp": "timestamptz"}
    texts += [f"a_{one}::{types.get(other, other)}" for one, other in CASTS]
    return texts


TABLE = _table()
EXPRESSIONS = list(dict.fromkeys([*_calls(), *_comparisons(), *_choices()]))


def _plain(values: pa.ChunkedArray) -> list[Any]:
    """Return values of which equal ones are equal: NaN is one value, times are microseconds."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    found = []
    for value in values.to_pylist():
        if isinstance(value, float):
            value = "NaN" if math.isnan(value) else value
        if isinstance(value, Decimal) and value == int(value):
            value = int(value)
        found.append(value)
    return found


def _values(engine: Engine) -> dict[str, list[Any]]:
    """Return what the engine makes of each expression."""
    found = {}
    for start in range(0, len(EXPRESSIONS), 150):
        texts = EXPRESSIONS[start : start + 150]
        written = []
        for number, text in enumerate(texts):
            typed = expression(text, schema=TABLE.schema, dialect=engine.dialect)
            written.append(f"{typed.sql} AS e{number}")
        rows = engine.sql(
            f"SELECT id, {', '.join(written)} FROM edges",
            tables={"edges": engine.from_arrow(TABLE.to_reader())},
            parameters={},
        )
        table = engine.stream(rows).read_all().sort_by("id")
        for number, text in enumerate(texts):
            found[text] = _plain(table.column(f"e{number}"))
    return found


@pytest.fixture(scope="module")
def embedded() -> Iterator[dict[str, list[Any]]]:
    """What the embedded engine makes of each expression."""
    from featurestore_connectors.duckdb_delta import DuckDBEngine

    engine = DuckDBEngine()
    yield _values(engine)
    engine.close()


def _has_rules_of_its_own(text: str) -> bool:
    """Tell whether a text computes with narrow numbers, or divides, which the list documents."""
    narrow = re.search(r"_(small|byte|float|decimal|whole)", text)
    computes = re.search(r" [-+*/%] |^-|^abs", text)
    compares = "float" in text and "decimal" in text
    divides = " / " in text or " % " in text
    return bool(narrow and computes) or divides or compares


def test_conditions_mean_what_duckdb_makes_of_them(embedded: dict[str, list[Any]]) -> None:
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
            expected = _plain(connection.sql(query).to_arrow_table().column("value"))
            if embedded[text] != expected:
                different[text] = _first_difference(embedded[text], expected)
    assert different == {}


@pytest.mark.spark
def test_conditions_mean_the_same_on_both_engines(
    spark: SparkSession, embedded: dict[str, list[Any]]
) -> None:
    from featurestore_connectors.spark_delta import SparkEngine

    different = {}
    for text, values in _values(SparkEngine(spark)).items():
        if values != embedded[text]:
            different[text] = _first_difference(values, embedded[text])
    assert different == {}


def _first_difference(found: list[Any], expected: list[Any]) -> str:
    pairs = zip(found, expected, strict=True)
    row = next(index for index, (one, other) in enumerate(pairs) if one != other)
    return f"row {row}: {found[row]!r} is not {expected[row]!r}"
