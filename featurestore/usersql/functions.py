"""Functions and operators of conditions that have equal results on every engine.

``tests/usersql/test_condition_equivalence.py`` builds an expression for every entry, evaluates
it on a table of edge cases with both engines, and compares all values, also with DuckDB's own
evaluation. Other functions are rejected on both engines, so the meaning of a condition does not
depend on the engine. To add a function, add it here and run that test.

Templates are engine SQL; ``{0}`` is the first argument. Integers are computed with 64 bits, other
numbers with double precision; results out of range and divisions by zero are null.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal

# "number" is a double, "float" a float32 column, "unsigned" a uint64 column, which only supports
# comparisons; "unit" and "count" are constants in the SQL.
ValueType = Literal[
    "boolean", "integer", "unsigned", "float", "number", "decimal", "string", "binary", "date",
    "timestamp", "list", "struct", "interval", "null", "unit", "count",
]  # fmt: skip


@dataclass(frozen=True)
class SqlFunction:
    """An overload of a function: argument kinds, result kind, and the SQL for each engine."""

    arguments: tuple[ValueType, ...]
    result: ValueType
    duckdb: str
    spark: str

    def template(self, dialect: str) -> str:
        """Return the SQL template for a dialect."""
        return self.spark if dialect == "spark" else self.duckdb


def _portable(arguments: tuple[ValueType, ...], result: ValueType, template: str) -> SqlFunction:
    return SqlFunction(arguments, result, template, template)


def _date_part(name: str, spark: str) -> tuple[SqlFunction, ...]:
    """Return the overloads that extract an integer field of a date or time."""
    duckdb = f"{name}({{0}})"
    return (
        SqlFunction(("timestamp",), "integer", duckdb, spark),
        SqlFunction(("date",), "integer", duckdb, spark),
    )


def _clock_part(name: str) -> tuple[SqlFunction, ...]:
    """Return the overload that extracts a field of the time of day."""
    return (_portable(("timestamp",), "integer", f"{name}({{0}})"),)


def _huge(argument: str) -> str:
    """Return DuckDB's SQL for a 64-bit integer as 128 bits, null if the value has more bits."""
    return f"CAST(TRY_CAST({argument} AS BIGINT) AS HUGEINT)"


def _arithmetic(operator: str, spark: str) -> tuple[SqlFunction, ...]:
    # Engines add narrow integers with different overflow; 64 bits with TRY_CAST give null on both.
    # No sum and no product of two 64-bit integers exceeds 128 bits. TRY would evaluate its argument
    # again for each row after an overflow, which takes exponential time in nested calls.
    integer_template = f"TRY_CAST({_huge('{0}')} {operator} {_huge('{1}')} AS BIGINT)"
    return (
        SqlFunction(
            ("integer", "integer"),
            "integer",
            integer_template,
            f"{spark}(try_cast({{0}} AS BIGINT), try_cast({{1}} AS BIGINT))",
        ),
        _portable(("number", "number"), "number", f"({{0}} {operator} {{1}})"),
    )


# Allowed first arguments of date_trunc.
UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")

# Casting a date to a time directly would use midnight in the session time zone.
_MIDNIGHT_DUCKDB = "make_timestamptz(epoch_us(CAST({0} AS TIMESTAMP)))"
_MIDNIGHT_SPARK = "timestamp_micros(unix_date({0}) * 86400000000)"
# The characters that DuckDB's trim removes: Unicode category Zs.
_SPACES = (
    " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u202f\u205f\u3000"
)
_INFINITE = "IN (CAST('Infinity' AS DOUBLE), CAST('-Infinity' AS DOUBLE))"

OPERATORS: dict[str, tuple[SqlFunction, ...]] = {
    "+": _arithmetic("+", "try_add"),
    "-": _arithmetic("-", "try_subtract"),
    "*": _arithmetic("*", "try_multiply"),
    # DuckDB divides a double by zero to infinity; Spark's try_divide returns null.
    "/": (
        SqlFunction(
            ("number", "number"), "number", "({0} / nullif({1}, 0))", "try_divide({0}, {1})"
        ),
    ),
    # With 128 bits, the smallest integer % -1 does not overflow.
    "%": (
        SqlFunction(
            ("integer", "integer"),
            "integer",
            f"TRY_CAST({_huge('{0}')} % nullif({_huge('{1}')}, 0) AS BIGINT)",
            "try_mod(try_cast({0} AS BIGINT), try_cast({1} AS BIGINT))",
        ),
    ),
    "||": (_portable(("string", "string"), "string", "({0} || {1})"),),
}

FUNCTIONS: dict[str, tuple[SqlFunction, ...]] = {
    # abs overflows for the smallest integer; it is null, like an overflow of a subtraction.
    "abs": (
        SqlFunction(
            ("integer",),
            "integer",
            f"TRY_CAST(abs({_huge('{0}')}) AS BIGINT)",
            "if({0} < 0, try_subtract(0L, try_cast({0} AS BIGINT)), try_cast({0} AS BIGINT))",
        ),
        _portable(("number",), "number", "abs({0})"),
    ),
    # Spark's isnan(NULL) is false. NaN equals NaN in both engines, and a comparison keeps null.
    "isnan": (SqlFunction(("number",), "boolean", "isnan({0})", "({0} = double('NaN'))"),),
    "isinf": (_portable(("number",), "boolean", f"({{0}} {_INFINITE})"),),
    "isfinite": (
        SqlFunction(
            ("number",),
            "boolean",
            "isfinite({0})",
            f"(NOT ({{0}} = double('NaN') OR {{0}} {_INFINITE}))",
        ),
    ),
    # Spark's size(NULL) can be -1 (spark.sql.legacy.sizeOfNull).
    "length": (
        _portable(("string",), "integer", "length({0})"),
        SqlFunction(("list",), "integer", "len({0})", "if({0} IS NULL, NULL, size({0}))"),
    ),
    "strlen": (SqlFunction(("string",), "integer", "strlen({0})", "octet_length({0})"),),
    "starts_with": (
        SqlFunction(("string", "string"), "boolean", "starts_with({0}, {1})", "startswith({0}, {1})"),
    ),
    "ends_with": (
        SqlFunction(("string", "string"), "boolean", "ends_with({0}, {1})", "endswith({0}, {1})"),
    ),
    "contains": (_portable(("string", "string"), "boolean", "contains({0}, {1})"),),
    "replace": (_portable(("string", "string", "string"), "string", "replace({0}, {1}, {2})"),),
    "strpos": (
        SqlFunction(("string", "string"), "integer", "strpos({0}, {1})", "instr({0}, {1})"),
    ),
    "substring": (
        _portable(("string", "count", "count"), "string", "substring({0}, {1}, {2})"),
        _portable(("string", "count"), "string", "substring({0}, {1})"),
    ),
    "left": (_portable(("string", "count"), "string", "left({0}, {1})"),),
    "right": (_portable(("string", "count"), "string", "right({0}, {1})"),),
    # Spark's trim removes the space character only.
    "trim": (SqlFunction(("string",), "string", "trim({0})", f"trim(BOTH '{_SPACES}' FROM {{0}})"),),
    "ltrim": (SqlFunction(("string",), "string", "ltrim({0})", f"trim(LEADING '{_SPACES}' FROM {{0}})"),),
    "rtrim": (SqlFunction(("string",), "string", "rtrim({0})", f"trim(TRAILING '{_SPACES}' FROM {{0}})"),),
    "year": _date_part("year", "year({0})"),
    "quarter": _date_part("quarter", "quarter({0})"),
    "month": _date_part("month", "month({0})"),
    "week": _date_part("week", "weekofyear({0})"),
    "day": _date_part("day", "day({0})"),
    "dayofyear": _date_part("dayofyear", "dayofyear({0})"),
    # Spark counts days of the week from Sunday = 1 (DuckDB: 0), and its weekday from Monday = 0
    # (isodow: 1).
    "dayofweek": _date_part("dayofweek", "(dayofweek({0}) - 1)"),
    "isodow": _date_part("isodow", "(weekday({0}) + 1)"),
    "hour": _clock_part("hour"),
    "minute": _clock_part("minute"),
    "second": _clock_part("second"),
    "epoch": (
        SqlFunction(("timestamp",), "number", "epoch({0})", "(unix_micros({0}) / 1000000D)"),
    ),
    "epoch_us": (SqlFunction(("timestamp",), "integer", "epoch_us({0})", "unix_micros({0})"),),
    "date_trunc": (_portable(("unit", "timestamp"), "timestamp", "date_trunc({0}, {1})"),),
}  # fmt: skip

# Functions whose arguments and result have the same kind.
SAME_KIND_FUNCTIONS = ("coalesce", "greatest", "least", "nullif")

CASTS: dict[tuple[ValueType, ValueType], SqlFunction] = {
    ("boolean", "integer"): _portable(("boolean",), "integer", "CAST({0} AS BIGINT)"),
    ("integer", "number"): _portable(("integer",), "number", "CAST({0} AS DOUBLE)"),
    ("float", "number"): _portable(("float",), "number", "CAST({0} AS DOUBLE)"),
    ("integer", "string"): SqlFunction(
        ("integer",), "string", "CAST({0} AS VARCHAR)", "CAST({0} AS STRING)"
    ),
    ("date", "timestamp"): SqlFunction(("date",), "timestamp", _MIDNIGHT_DUCKDB, _MIDNIGHT_SPARK),
    ("timestamp", "date"): _portable(("timestamp",), "date", "CAST({0} AS DATE)"),
}  # fmt: skip

# A column of type null contains nulls only and can be cast to any kind.
CASTS_OF_NULL: dict[ValueType, SqlFunction] = {
    "boolean": _portable(("null",), "boolean", "CAST(NULL AS BOOLEAN)"),
    "integer": _portable(("null",), "integer", "CAST(NULL AS BIGINT)"),
    "number": _portable(("null",), "number", "CAST(NULL AS DOUBLE)"),
    "date": _portable(("null",), "date", "CAST(NULL AS DATE)"),
    "string": SqlFunction(("null",), "string", "CAST(NULL AS VARCHAR)", "CAST(NULL AS STRING)"),
    "timestamp": SqlFunction(
        ("null",), "timestamp", "CAST(NULL AS TIMESTAMPTZ)", "CAST(NULL AS TIMESTAMP)"
    ),
}  # fmt: skip

# Function aliases.
ALIASES = {
    "len": "length",
    "char_length": "length",
    "character_length": "length",
    "ifnull": "coalesce",
    "prefix": "starts_with",
    "suffix": "ends_with",
    "instr": "strpos",
    "substr": "substring",
    "mod": "%",
    "add": "+",
    "weekofyear": "week",
    "dayofmonth": "day",
    "dow": "dayofweek",
    "doy": "dayofyear",
    "weekday": "dayofweek",
    "datetrunc": "date_trunc",
}

# Clock functions, which fix_clock replaces by constants.
CLOCK = frozenset(
    {
        "now", "current_timestamp", "get_current_timestamp", "transaction_timestamp",
        "current_date", "today", "localtimestamp", "current_localtimestamp",
    }
)  # fmt: skip

_SAMPLE = "frame.sample(fraction=0.1, seed=0) selects the same rows on every engine, by row hash"
_BOUNDS = "write the bounds, for example x >= 2.5 and x < 3.5"
_CONSTANT = "compute the constant: x > 20.0855 for ln(x) > 3"
_CASES = "list the spellings: zone in ('a', 'A')"
_PATTERN = "use starts_with, ends_with, contains or like"
_DIFFERENCE = "compare epoch_us(a) - epoch_us(b) with a number of microseconds"

# Suggested alternatives to common functions that differ between engines.
REPLACEMENTS: dict[str, str] = {
    **dict.fromkeys(
        ("random", "hash", "md5", "sha256", "uuid", "gen_random_uuid", "setseed"), _SAMPLE
    ),
    **dict.fromkeys(("round", "floor", "ceil", "ceiling", "trunc", "even"), _BOUNDS),
    **dict.fromkeys(
        ("ln", "log", "log2", "log10", "exp", "pow", "power", "sqrt", "cbrt", "sin", "cos", "tan"),
        _CONSTANT,
    ),
    **dict.fromkeys(("lower", "upper", "lcase", "ucase", "ilike"), _CASES),
    **dict.fromkeys(
        (
            "regexp_matches",
            "regexp_full_match",
            "regexp_extract",
            "regexp_replace",
            "regexplike",
            "similarto",
            "glob",
        ),
        _PATTERN,
    ),
    **dict.fromkeys(
        ("date_diff", "datediff", "date_sub", "datesub", "age", "epoch_ms"), _DIFFERENCE
    ),
    **dict.fromkeys(("dayname", "monthname", "strftime"), "use isodow(t) or month(t)"),
    "concat": "write a || b",
    "list_contains": "store the result in a separate boolean column",
}


@lru_cache(maxsize=1)
def duckdb_functions() -> frozenset[str]:
    """Return the DuckDB functions that only depend on their arguments.

    A test compares the list with DuckDB.
    """
    text = files("featurestore.usersql").joinpath("duckdb_functions.txt").read_text("utf-8")
    return frozenset(text.split())
