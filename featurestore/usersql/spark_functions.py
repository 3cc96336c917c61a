"""The functions of queries that have equal results on DuckDB and on Spark.

The tables are all functions that a query may call on Spark, by the families of their arguments.
``tests/usersql/test_query_equivalence.py`` runs every entry over edge values on both engines and
compares values and types; ``docs/reference/sql.md`` is generated from the same entries. To add a
function, add it here and run that test.

Templates are Spark SQL; ``{0}`` is the first argument. ``{distinct}`` and ``{over}`` are the words
of an aggregate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from featurestore.usersql import typed_values
from featurestore.usersql.functions import ALIASES, FUNCTIONS, UNITS
from featurestore.usersql.typed_values import (
    CONVERSIONS,
    DifferentForm,
    DuckDBOnly,
    DuckDBTypes,
    Family,
    TypedValue,
)

_NUMBERS: tuple[Family, ...] = ("integer", "decimal", "float", "double")
_SCALARS: tuple[Family, ...] = (*_NUMBERS, "boolean", "string", "binary", "date", "timestamp")
_TIMES: tuple[Family, ...] = ("date", "timestamp")
_ANY: tuple[Family, ...] = (*_SCALARS, "list", "struct", "null")
# A shortened factor of a product keeps numbers of so many digits before the point.
_WHOLE_DIGITS = 10
_SUM_DIGITS = 28  # Spark adds ten digits for the sum
_CLOCK = ("hour", "minute", "second")
_FIELDS = ("year", "quarter", "month", "week", "day", "dayofyear", "dayofweek", "isodow", *_CLOCK)
# Units whose truncation is a truncation to years, with their number of years.
_YEARS = {"decade": 10, "century": 100, "millennium": 1000}
_FINE_UNITS = ("microsecond", "millisecond")
# A part of a text with DuckDB's rules: position 0 is before the first character, a negative
# position counts from the end, and a negative length goes back. greatest() and least() skip nulls.
_SIZE = "char_length({0})"
_NUMBER = "CAST({1} AS BIGINT)"
_FIRST = f"if({_NUMBER} < 0, {_SIZE} + {_NUMBER}, {_NUMBER} - 1)"
_LAST = f"({_FIRST} + CAST({{2}} AS BIGINT))"
_LOW = f"greatest(least({_FIRST}, {_LAST}), 0)"
_HIGH = f"least(greatest({_FIRST}, {_LAST}), {_SIZE})"
_SUBSTRING = (
    "if({1} IS NULL OR {2} IS NULL, NULL, substring({0}, "
    f"CAST(least({_LOW}, {_SIZE}) + 1 AS INT), CAST(greatest({_HIGH} - {_LOW}, 0) AS INT)))"
)
_SUFFIX = (
    "if({1} IS NULL, NULL, substring({0}, "
    f"CAST(least(greatest({_FIRST}, 0), {_SIZE}) + 1 AS INT)))"
)
_PREFIX = (
    "if({1} IS NULL, NULL, substring({0}, 1, "
    f"CAST(if({_NUMBER} < 0, greatest({_SIZE} + {_NUMBER}, 0), least({_NUMBER}, {_SIZE})) AS INT)))"
)
_ENDING = (
    "if({1} IS NULL, NULL, substring({0}, "
    f"CAST(if({_NUMBER} < 0, least(-{_NUMBER}, {_SIZE}), greatest({_SIZE} - {_NUMBER}, 0)) AS INT)"
    " + 1))"
)

Template = str


def _by_family(families: Sequence[Family], template: Template) -> dict[tuple[Family, ...], str]:
    return {(family,): template for family in families}


# Fields of a date or time, which are BIGINT in DuckDB.
_FIELD_FORMS = {
    name: _by_family(
        _TIMES,
        f"CAST({FUNCTIONS[name][0].spark} AS BIGINT)".replace(
            "{0}", "CAST({0} AS TIMESTAMP)" if name in _CLOCK else "{0}"
        ),
    )
    for name in _FIELDS
}
# Templates by families of arguments.
FORMS: dict[str, dict[tuple[Family, ...], Template]] = {
    "abs": _by_family(_NUMBERS, "abs({0})"),
    "isnan": _by_family(("float", "double"), "({0} = double('NaN'))"),
    "length": {
        ("string",): "CAST(char_length({0}) AS BIGINT)",
        ("list",): "CAST(if({0} IS NULL, NULL, size({0})) AS BIGINT)",
    },
    "strlen": {("string",): "CAST(octet_length({0}) AS BIGINT)"},
    "starts_with": {("string", "string"): "startswith({0}, {1})"},
    "ends_with": {("string", "string"): "endswith({0}, {1})"},
    "contains": {("string", "string"): "contains({0}, {1})"},
    "replace": {("string", "string", "string"): "replace({0}, {1}, {2})"},
    "strpos": {("string", "string"): "CAST(instr({0}, {1}) AS BIGINT)"},
    "substring": {("string", "integer"): _SUFFIX, ("string", "integer", "integer"): _SUBSTRING},
    "left": {("string", "integer"): _PREFIX},
    "right": {("string", "integer"): _ENDING},
    "trim": {("string",): FUNCTIONS["trim"][0].spark},
    "ltrim": {("string",): FUNCTIONS["ltrim"][0].spark},
    "rtrim": {("string",): FUNCTIONS["rtrim"][0].spark},
    "epoch_us": {("timestamp",): "unix_micros({0})"},
    "epoch": {("timestamp",): FUNCTIONS["epoch"][0].spark},
    **_FIELD_FORMS,
    "unnest": {("list",): "explode({0})"},
    # -- aggregates --
    "count": _by_family(_ANY, "count({distinct}{0}){over}"),
    "min": _by_family(_SCALARS, "min({distinct}{0}){over}"),
    "max": _by_family(_SCALARS, "max({distinct}{0}){over}"),
    "sum": {
        ("boolean",): "CAST(sum({distinct}CAST({0} AS INT)){over} AS DECIMAL(38,0))",
        ("integer",): (
            f"CAST(sum({{distinct}}CAST({{0}} AS DECIMAL({_SUM_DIGITS},0))){{over}} "
            "AS DECIMAL(38,0))"
        ),
        ("decimal",): "CAST(sum({distinct}{0}){over} AS {type})",
        ("float",): "sum({distinct}CAST({0} AS DOUBLE)){over}",
        ("double",): "sum({distinct}{0}){over}",
    },
    "avg": {
        ("integer",): "the exact sum, divided by the count",
        ("decimal",): "the exact sum, divided by the count",
        ("float",): "avg({distinct}CAST({0} AS DOUBLE)){over}",
        ("double",): "avg({distinct}{0}){over}",
    },
    # -- functions of windows --
    "row_number": {(): "CAST(row_number(){over} AS BIGINT)"},
    "rank": {(): "CAST(rank(){over} AS BIGINT)"},
    "dense_rank": {(): "CAST(dense_rank(){over} AS BIGINT)"},
}  # fmt: skip
AGGREGATES = frozenset({"count", "min", "max", "sum", "avg"})
WINDOW_FUNCTIONS = frozenset({"row_number", "rank", "dense_rank", "lag", "lead"})
# Functions of texts that are equal on both engines if all numbers are positive constants.
_POSITIVE = ("substring", "left", "right")
# Functions whose arguments DuckDB converts to one type.
CHOICES = ("coalesce", "greatest", "least", "nullif")
_NAMED_ONLY = ("len", "char_length", "character_length", "ifnull", "prefix", "suffix", "instr",
               "substr", "weekofyear", "dayofmonth", "dayofweek", "dayofyear", "weekday",
               "datetrunc")  # fmt: skip
QUERY_ALIASES = {name: ALIASES[name] for name in _NAMED_ONLY if name in ALIASES} | {"mean": "avg"}


def query_functions() -> frozenset[str]:
    """Return the names of the functions that queries may call on every engine."""
    return frozenset({*FORMS, *WINDOW_FUNCTIONS, *CHOICES, "date_trunc", *QUERY_ALIASES})


def write_function(
    name: str, arguments: Sequence[TypedValue], *, result: str, distinct: str = "", over: str = ""
) -> str:
    """Return the Spark SQL of a call.

    Args:
        name: A key of ``FORMS``.
        arguments: The arguments.
        result: DuckDB's type of the call.
        distinct: "DISTINCT " for an aggregate over distinct values.
        over: The window of the call, with a space before it.

    Raises:
        DifferentForm: The result differs between engines for these types.
        DuckDBOnly: The call was not compared with Spark.
    """
    families = tuple(argument.family for argument in arguments)
    template = find_form(name, families)
    if template is None:
        types = ", ".join(typed_values.type_name(argument.type) for argument in arguments)
        if name in ("min", "max") and family_is_nested(arguments):
            raise DifferentForm(f"{name}({types})", f"{name}({ordered_hint(arguments[0])})")
        accepted = ", ".join(f"{name}({', '.join(form)})" for form in FORMS[name])
        raise DuckDBOnly(f"{name}({types})", f"on every engine: {accepted}")
    if name == "avg" and families[0] in ("integer", "decimal"):
        return write_exact_mean(arguments[0], distinct, over)
    if name in _POSITIVE and all(_is_positive(argument) for argument in arguments[1:]):
        texts = [arguments[0].sql, *(str(argument.constant) for argument in arguments[1:])]
        return f"{name}({', '.join(texts)})"
    return template.format(
        *(argument.sql for argument in arguments), distinct=distinct, over=over, type=result
    )


def find_form(name: str, families: tuple[Family, ...]) -> Template | None:
    """Return the template of a call; a null is accepted for every family."""
    for accepted, template in FORMS[name].items():
        if len(accepted) == len(families) and all(
            family in (expected, "null")
            for family, expected in zip(families, accepted, strict=True)
        ):
            return template
    return None


def _is_positive(argument: TypedValue) -> bool:
    """Return whether a number is a positive constant of 32 bits."""
    return re.fullmatch(r"[1-9]\d{0,8}", argument.constant or "") is not None


def write_exact_mean(argument: TypedValue, distinct: str, over: str) -> str:
    """Return the mean of integers or decimals: their exact sum as a double, divided by their count.

    Spark's own mean of integers adds doubles, and its mean of decimals is a decimal.
    """
    scale = typed_values.digits_of(argument.type)[1] if argument.family == "decimal" else 0
    template = FORMS["sum"][(argument.family,)]
    total_type = f"DECIMAL(38,{scale})"
    total = template.format(argument.sql, distinct=distinct, over=over, type=total_type)
    dividend = CONVERSIONS["decimal", "double"](total, total_type, "DOUBLE")
    return f"try_divide({dividend}, CAST(count({distinct}{argument.sql}){over} AS DOUBLE))"


def write_choice(name: str, values: Sequence[TypedValue], result: str, types: DuckDBTypes) -> str:
    """Return a call of a function in ``CHOICES``."""
    common = types.common_type(list(values))
    if family_is_nested(values) and name in ("greatest", "least"):
        texts = [ordered_hint(value, number) for number, value in enumerate(values)]
        raise DifferentForm(
            f"{name}({typed_values.type_name(common)})", f"{name}({', '.join(texts)})"
        )
    converted = [typed_values.convert(value, common, types) for value in values]
    if name != "nullif":
        return f"{name}({', '.join(converted)})"
    # The result has the type of the first argument.
    first = typed_values.convert(values[0], result, types)
    return f"if({' = '.join(converted)}, NULL, {first})"


def family_is_nested(values: Sequence[TypedValue]) -> bool:
    """Return whether values are lists or structs, which engines order differently."""
    return any(value.family in ("list", "struct") for value in values)


def ordered_hint(value: TypedValue, number: int = 0) -> str:
    """Return the hint for an operand that has no order: a field of a struct, or a length.

    ``{0}`` is the SQL of the operand with this number.
    """
    match = re.match(r'STRUCT\(("(?:[^"]|"")*"|\w+) ', value.type)
    return f"length({{{number}}})" if match is None else f"{{{number}}}.{match[1]}"


def write_truncation(unit: TypedValue, time: TypedValue, result: str, types: DuckDBTypes) -> str:
    """Return the truncation of a date or time to a constant unit."""
    name = "" if unit.constant is None else str(types.text_of(unit.constant)).lower()
    if time.family not in ("date", "timestamp", "null"):
        raise DuckDBOnly(f"date_trunc of {typed_values.type_name(time.type)}")
    timestamp = typed_values.convert(time, result, types)
    if name in (*UNITS, *_FINE_UNITS):
        return f"date_trunc('{name}', {timestamp})"
    if name in _YEARS:
        # Spark returns null for these units.
        start = f"date_trunc('year', {timestamp})"
        return f"({start} - make_ym_interval(year({start}) % {_YEARS[name]}, 0))"
    units = ", ".join([*_FINE_UNITS, *UNITS, *_YEARS])
    raise DuckDBOnly(f"date_trunc({unit.stand_in}, ...)", f"units on every engine: {units}")


OperatorWriter = Callable[[TypedValue, TypedValue, str, DuckDBTypes], str]


def _write_exact(
    sign: str, first: TypedValue, second: TypedValue, result: str, types: DuckDBTypes
) -> str:
    """Return an operation whose operands have the type of the result."""
    first_sql, second_sql = (
        typed_values.convert(first, result, types),
        typed_values.convert(second, result, types),
    )
    family = typed_values.family_of(result)
    if family == "decimal":
        precision, scale = typed_values.digits_of(result)
        if precision == 38 and scale > 6:
            # Spark would round a result with more digits.
            narrower = f"DECIMAL(37,{scale})"
            first_sql, second_sql = (
                f"CAST({first_sql} AS {narrower})",
                f"CAST({second_sql} AS {narrower})",
            )
        return f"CAST({first_sql} {sign} {second_sql} AS {result})"
    if family == "integer":
        return write_integers(sign, first_sql, second_sql, result)
    return f"({first_sql} {sign} {second_sql})"


def write_integers(sign: str, first_sql: str, second_sql: str, result: str) -> str:
    """Return an operation on integers of the result's type; an overflow is an error."""
    if result in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT"):
        return f"({first_sql} {sign} {second_sql})"
    if result in ("UBIGINT", "HUGEINT"):
        return typed_values.narrow(f"({first_sql} {sign} {second_sql})", result)
    return typed_values.narrow(
        f"(CAST({first_sql} AS BIGINT) {sign} CAST({second_sql} AS BIGINT))", result
    )


def write_product(first: TypedValue, second: TypedValue, result: str, types: DuckDBTypes) -> str:
    """Return a product; the product of decimals has the digits of both."""
    if typed_values.family_of(result) != "decimal":
        return _write_exact("*", first, second, result, types)
    factors = []
    for factor in (first, second):
        decimal = factor.type
        if re.fullmatch(r"-?\d+", factor.constant or ""):
            decimal = f"DECIMAL({len(str(factor.constant).lstrip('-'))},0)"
        elif factor.family != "decimal":
            decimal = types.type_of(f"coalesce({factor.stand_in}, CAST(NULL AS DECIMAL(1,0)))")
        factors.append(
            (*typed_values.digits_of(decimal), typed_values.convert(factor, decimal, types))
        )
    # Spark rounds a product whose type has more than 38 digits, so the longer factor is shortened;
    # a value that does not fit is an error.
    (precision, scale, longer), (digits, _, shorter) = sorted(factors, reverse=True)
    if precision + digits > 37 and typed_values.digits_of(result)[1] > 6:
        precision = 37 - digits
        if precision - scale < _WHOLE_DIGITS:
            names = (
                f"{typed_values.type_name(first.type)} and {typed_values.type_name(second.type)}"
            )
            raise DifferentForm(f"the product of {names}", "cast({0} as double) * {1}")
        longer = f"CAST({longer} AS DECIMAL({precision},{scale}))"
    return f"CAST({longer} * {shorter} AS {result})"


def write_quotient(first: TypedValue, second: TypedValue, result: str, types: DuckDBTypes) -> str:
    """Return a quotient, which is a float32 or a double."""
    first_sql, second_sql = (
        typed_values.convert(first, result, types),
        typed_values.convert(second, result, types),
    )
    if _is_positive(second) and result == "DOUBLE":
        return f"({first_sql} / {second_sql})"
    # DuckDB divides by zero as in IEEE 754: infinity with the signs of both, or NaN.
    by_zero = f"CAST({first_sql} AS DOUBLE) * power(CAST({second_sql} AS DOUBLE), -1D)"
    quotient = f"if({second_sql} = 0, {by_zero}, try_divide({first_sql}, {second_sql}))"
    return quotient if result == "DOUBLE" else f"CAST({quotient} AS {result})"


def write_remainder(first: TypedValue, second: TypedValue, result: str, types: DuckDBTypes) -> str:
    """Return a remainder, which has the sign of the dividend."""
    first_sql, second_sql = (
        typed_values.convert(first, result, types),
        typed_values.convert(second, result, types),
    )
    if typed_values.family_of(result) in ("float", "double"):
        return f"if({second_sql} = 0, {first_sql} * CAST('NaN' AS {result}), try_mod({first_sql}, {second_sql}))"
    return f"CAST({first_sql} % {second_sql} AS {typed_values.spark_type(result)})"


def write_concatenation(
    first: TypedValue, second: TypedValue, result: str, types: DuckDBTypes
) -> str:
    """Return two values as one text."""
    if "binary" in (first.family, second.family):
        raise DuckDBOnly(
            f"{typed_values.type_name(first.type)} || {typed_values.type_name(second.type)}"
        )
    return f"({typed_values.convert(first, 'VARCHAR', types)} || {typed_values.convert(second, 'VARCHAR', types)})"


OPERATOR_WRITERS: dict[str, OperatorWriter] = {
    "+": partial(_write_exact, "+"),
    "-": partial(_write_exact, "-"),
    "*": write_product,
    "/": write_quotient,
    "%": write_remainder,
    "||": write_concatenation,
}
