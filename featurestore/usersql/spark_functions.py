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

from featurestore.usersql.functions import ALIASES, FUNCTIONS, UNITS
from featurestore.usersql.typed_values import (
    CONVERSIONS,
    DifferentForm,
    DuckDBOnly,
    DuckDBTypes,
    Family,
    Value,
    convert,
    digits_of,
    family_of,
    narrow,
    spark_type,
    type_name,
)

_NUMBERS: tuple[Family, ...] = ("integer", "decimal", "float", "double")
_SCALARS: tuple[Family, ...] = (*_NUMBERS, "boolean", "string", "binary", "date", "timestamp")
_TIMES: tuple[Family, ...] = ("date", "timestamp")
_ANY: tuple[Family, ...] = (*_SCALARS, "list", "struct", "null")
# A shortened factor of a product keeps numbers of so many digits before the point.
_WHOLE_DIGITS = 10
_SUM_DIGITS = 28  # Spark adds ten digits for the sum
_FIELDS = ("year", "quarter", "month", "week", "day", "dayofyear", "dayofweek", "isodow",
           "hour", "minute", "second")  # fmt: skip
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
_LEFT = (
    "if({1} IS NULL, NULL, substring({0}, 1, "
    f"CAST(if({_NUMBER} < 0, greatest({_SIZE} + {_NUMBER}, 0), least({_NUMBER}, {_SIZE})) AS INT)))"
)
_RIGHT = (
    "if({1} IS NULL, NULL, substring({0}, "
    f"CAST(if({_NUMBER} < 0, least(-{_NUMBER}, {_SIZE}), greatest({_SIZE} - {_NUMBER}, 0)) AS INT)"
    " + 1))"
)

Template = str


def _by_family(families: Sequence[Family], template: Template) -> dict[tuple[Family, ...], str]:
    return {(family,): template for family in families}


def _field(name: str) -> dict[tuple[Family, ...], str]:
    """Return the forms of a field of a date or time, which is a BIGINT in DuckDB."""
    template = FUNCTIONS[name][0].spark
    if name in ("hour", "minute", "second"):
        template = template.replace("{0}", "CAST({0} AS TIMESTAMP)")
    return _by_family(_TIMES, f"CAST({template} AS BIGINT)")


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
    "left": {("string", "integer"): _LEFT},
    "right": {("string", "integer"): _RIGHT},
    "trim": {("string",): FUNCTIONS["trim"][0].spark},
    "ltrim": {("string",): FUNCTIONS["ltrim"][0].spark},
    "rtrim": {("string",): FUNCTIONS["rtrim"][0].spark},
    "epoch_us": {("timestamp",): "unix_micros({0})"},
    "epoch": {("timestamp",): FUNCTIONS["epoch"][0].spark},
    **{name: _field(name) for name in _FIELDS},
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
# Forms that run on both engines, instead of refused ones.
_INSTEAD = {
    "min": "min(s.a), or a window: qualify row_number() over (order by s.a, s.b) = 1",
    "max": "max(s.a), or a window: qualify row_number() over (order by s.a desc, s.b desc) = 1",
}


def query_functions() -> frozenset[str]:
    """Return the names of the functions that queries may call on every engine."""
    return frozenset({*FORMS, *WINDOW_FUNCTIONS, *CHOICES, "date_trunc", *QUERY_ALIASES})


def write_call(
    name: str, arguments: Sequence[Value], *, result: str, distinct: str = "", over: str = ""
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
    template = _find_form(name, families)
    if template is None:
        types = ", ".join(type_name(argument.type) for argument in arguments)
        if name in ("min", "max") and families in (("struct",), ("list",)):
            raise DifferentForm(f"{name}({types})", _INSTEAD[name])
        raise DuckDBOnly(f"{name}({types})", _supported_types(name))
    if name == "avg" and families[0] in ("integer", "decimal"):
        return _write_exact_mean(arguments[0], distinct, over)
    if name in _POSITIVE and all(_is_positive(argument) for argument in arguments[1:]):
        texts = [arguments[0].sql, *(str(argument.constant) for argument in arguments[1:])]
        return f"{name}({', '.join(texts)})"
    return template.format(
        *(argument.sql for argument in arguments), distinct=distinct, over=over, type=result
    )


def _find_form(name: str, families: tuple[Family, ...]) -> Template | None:
    """Return the template of a call; a null is accepted for every family."""
    for accepted, template in FORMS[name].items():
        if len(accepted) == len(families) and all(
            family in (wanted, "null") for family, wanted in zip(families, accepted, strict=True)
        ):
            return template
    return None


def _is_positive(argument: Value) -> bool:
    """Return whether a number is a positive constant of 32 bits."""
    return re.fullmatch(r"[1-9]\d{0,8}", argument.constant or "") is not None


def _supported_types(name: str) -> str:
    accepted = [f"{name}({', '.join(families)})" for families in FORMS[name]]
    return f"on every engine: {', '.join(accepted)}"


def _write_exact_mean(argument: Value, distinct: str, over: str) -> str:
    """Return the mean of integers or decimals: their exact sum as a double, divided by their count.

    Spark's own mean of integers adds doubles, and its mean of decimals is a decimal.
    """
    scale = digits_of(argument.type)[1] if argument.family == "decimal" else 0
    template = FORMS["sum"][(argument.family,)]
    total_type = f"DECIMAL(38,{scale})"
    total = template.format(argument.sql, distinct=distinct, over=over, type=total_type)
    dividend = CONVERSIONS["decimal", "double"](total, total_type, "DOUBLE")
    return f"try_divide({dividend}, CAST(count({distinct}{argument.sql}){over} AS DOUBLE))"


def write_choice(name: str, values: Sequence[Value], result: str, types: DuckDBTypes) -> str:
    """Return a call of a function in ``CHOICES``."""
    common = types.common_type(list(values))
    if family_is_nested(values) and name in ("greatest", "least"):
        raise DifferentForm(f"{name} of {type_name(common)}", f"{name}(a.x, b.x)")
    converted = [convert(value, common, types) for value in values]
    if name != "nullif":
        return f"{name}({', '.join(converted)})"
    # The result has the type of the first argument.
    first = convert(values[0], result, types)
    return f"if({' = '.join(converted)}, NULL, {first})"


def family_is_nested(values: Sequence[Value]) -> bool:
    """Return whether values are lists or structs, which engines order differently."""
    return any(value.family in ("list", "struct") for value in values)


def write_truncation(unit: Value, time: Value, result: str, types: DuckDBTypes) -> str:
    """Return the truncation of a date or time to a constant unit."""
    name = "" if unit.constant is None else str(types.text_of(unit.constant)).lower()
    if time.family not in ("date", "timestamp", "null"):
        raise DuckDBOnly(f"date_trunc of {type_name(time.type)}")
    timestamp = convert(time, result, types)
    if name in (*UNITS, *_FINE_UNITS):
        return f"date_trunc('{name}', {timestamp})"
    if name in _YEARS:
        # Spark returns null for these units.
        start = f"date_trunc('year', {timestamp})"
        return f"({start} - make_ym_interval(year({start}) % {_YEARS[name]}, 0))"
    units = ", ".join([*_FINE_UNITS, *UNITS, *_YEARS])
    raise DuckDBOnly(f"date_trunc({unit.stand_in}, ...)", f"units on every engine: {units}")


OperatorWriter = Callable[[Value, Value, str, DuckDBTypes], str]


def _write_exact(sign: str, first: Value, second: Value, result: str, types: DuckDBTypes) -> str:
    """Return an operation whose operands have the type of the result."""
    left, right = convert(first, result, types), convert(second, result, types)
    family = family_of(result)
    if family == "decimal":
        precision, scale = digits_of(result)
        if precision == 38 and scale > 6:
            # Spark would round a result with more digits.
            narrower = f"DECIMAL(37,{scale})"
            left, right = f"CAST({left} AS {narrower})", f"CAST({right} AS {narrower})"
        return f"CAST({left} {sign} {right} AS {result})"
    if family == "integer":
        return _write_integers(sign, left, right, result)
    return f"({left} {sign} {right})"


def _write_integers(sign: str, left: str, right: str, result: str) -> str:
    if result in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT"):
        return f"({left} {sign} {right})"
    if result in ("UBIGINT", "HUGEINT"):
        return narrow(f"({left} {sign} {right})", result)
    return narrow(f"(CAST({left} AS BIGINT) {sign} CAST({right} AS BIGINT))", result)


def _write_product(first: Value, second: Value, result: str, types: DuckDBTypes) -> str:
    if family_of(result) != "decimal":
        return _write_exact("*", first, second, result, types)
    factors = []
    for factor in (first, second):
        decimal = factor.type
        if re.fullmatch(r"-?\d+", factor.constant or ""):
            decimal = f"DECIMAL({len(str(factor.constant).lstrip('-'))},0)"
        elif factor.family != "decimal":
            decimal = types.type_of(f"coalesce({factor.stand_in}, CAST(NULL AS DECIMAL(1,0)))")
        factors.append((*digits_of(decimal), convert(factor, decimal, types)))
    # Spark rounds a product whose type has more than 38 digits, so the longer factor is shortened;
    # a value that does not fit is an error.
    (precision, scale, longer), (digits, _, shorter) = sorted(factors, reverse=True)
    if precision + digits > 37 and digits_of(result)[1] > 6:
        precision = 37 - digits
        if precision - scale < _WHOLE_DIGITS:
            names = f"{type_name(first.type)} and {type_name(second.type)}"
            raise DifferentForm(f"the product of {names}", "a::double * b")
        longer = f"CAST({longer} AS DECIMAL({precision},{scale}))"
    return f"CAST({longer} * {shorter} AS {result})"


def _write_quotient(first: Value, second: Value, result: str, types: DuckDBTypes) -> str:
    left, right = convert(first, result, types), convert(second, result, types)
    if _is_positive(second) and result == "DOUBLE":
        return f"({left} / {right})"
    # DuckDB divides by zero as IEEE 754 says: infinity with the signs of both, or NaN.
    by_zero = f"CAST({left} AS DOUBLE) * power(CAST({right} AS DOUBLE), -1D)"
    quotient = f"if({right} = 0, {by_zero}, try_divide({left}, {right}))"
    return quotient if result == "DOUBLE" else f"CAST({quotient} AS {result})"


def _write_remainder(first: Value, second: Value, result: str, types: DuckDBTypes) -> str:
    left, right = convert(first, result, types), convert(second, result, types)
    if family_of(result) in ("float", "double"):
        return f"if({right} = 0, {left} * CAST('NaN' AS {result}), try_mod({left}, {right}))"
    return f"CAST({left} % {right} AS {spark_type(result)})"


def _write_concatenation(first: Value, second: Value, result: str, types: DuckDBTypes) -> str:
    if "binary" in (first.family, second.family):
        raise DuckDBOnly(f"{type_name(first.type)} || {type_name(second.type)}")
    return f"({convert(first, 'VARCHAR', types)} || {convert(second, 'VARCHAR', types)})"


OPERATOR_WRITERS: dict[str, OperatorWriter] = {
    "+": partial(_write_exact, "+"),
    "-": partial(_write_exact, "-"),
    "*": _write_product,
    "/": _write_quotient,
    "%": _write_remainder,
    "||": _write_concatenation,
}
