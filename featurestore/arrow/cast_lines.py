"""Code snippets that cast a column to another type, and detection of epoch units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow import types
from featurestore.arrow.column_lines import TEXT, cell_line, quoted
from featurestore.arrow.time_lines import (
    FORM_TITLES,
    detect_number_form,
    detect_text_formats,
    number_line,
    text_line,
)
from featurestore.arrow.types import (
    array_item_type,
    array_shape,
    integer_range,
    is_exact,
    is_nested,
    numpy_type,
)

# pandas and polars use the same type names.
_INTEGER_TYPES = {
    "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64",
    "uint8": "UInt8", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
}  # fmt: skip
# SQL type names of DuckDB.
SQL_TYPES = {
    "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
    "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT",
    "float": "FLOAT", "double": "DOUBLE", "string": "VARCHAR", "bool": "BOOLEAN",
}  # fmt: skip
# Expressions for dataframes whose cells are Python objects, by conversion.
_TIME = "datetime.datetime.fromisoformat({v})"
_MIDNIGHT = "datetime.datetime({v}.year, {v}.month, {v}.day, tzinfo=datetime.UTC)"
_ROUNDED = "round({v}) if {low} <= {v} <= {high} else None"
_DATE = "datetime.date.fromisoformat({v})"
# pandas stores integers with nulls as floats.
_NUMBER_TEXT = "str(int({v}) if {v} % 1 == 0 else {v})"
_EXACT_INTEGER = "int({v}) if {v} % 1 == 0 and {low} <= {v} <= {high} else None"
_RANGED = "{v} if {low} <= {v} <= {high} else None"
_FLAG = "{0: False, 1: True}.get({v})"
_DECIMAL = "decimal.Decimal(str({v}))"
_PARSED = "int({v}) if {v}.strip().lstrip('-').isdecimal() else None"
_PARSED_FLOAT = "float({v}) if {v}.strip().lstrip('-').replace('.', '', 1).isdecimal() else None"
_ITEMS = 'np.asarray({v}).astype("{t}")'
_ROUNDED_ITEMS = 'np.clip(np.round({v}), {low}, {high}).astype("{t}")'

# Earlier times cause a warning: numbers read in a wrong unit result in times in 1970.
PLAUSIBLE_START = datetime(1980, 1, 1, tzinfo=UTC)
_PLAUSIBLE_END = datetime(2100, 1, 1, tzinfo=UTC)
_UNIT_TITLES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_PANDAS_EPOCH = "df[{c!r}] = pd.to_datetime(df[{c!r}], unit={u!r}, utc=True)"
_POLARS_EPOCH = (
    "df = df.with_columns(pl.from_epoch({c!r}, time_unit={u!r}).dt.replace_time_zone('UTC'))"
)
_ARROW_EPOCH = (
    "table = table.set_column(table.column_names.index({c!r}), {c!r}, "
    "table[{c!r}].cast('int64').cast(pa.timestamp({u!r}, tz='UTC')))"
)
_DUCKDB_EPOCH = "rows = rows.select('* REPLACE (make_timestamptz(({q} {by})::BIGINT) AS {q})')"
_SPARK_EPOCH = "df = df.withColumn({c!r}, {by})"
_EPOCH_LINES = {"pandas": _PANDAS_EPOCH, "polars": _POLARS_EPOCH, "pyarrow": _ARROW_EPOCH}
_EPOCH_LINES |= {"duckdb": _DUCKDB_EPOCH, "pyspark": _SPARK_EPOCH}
# Conversions of epoch numbers to microseconds, or to the library's own unit.
_EPOCH_FACTORS = {
    "duckdb": {"s": "* 1000000", "ms": "* 1000", "us": "* 1", "ns": "// 1000"},
    "pyspark": {
        "s": "F.timestamp_seconds({c!r})",
        "ms": "F.timestamp_millis({c!r})",
        "us": "F.timestamp_micros({c!r})",
        "ns": "F.expr('timestamp_micros(`{c}` div 1000)')",
    },
}
# The same for Python objects.
_TIMEDELTA_ARGUMENTS = {"s": "seconds={v}", "ms": "milliseconds={v}", "us": "microseconds={v}"}
_TIMEDELTA_ARGUMENTS["ns"] = "microseconds={v} // 1000"
_EPOCH_PLUS = "datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta({n})"


def cast_line(library: str, column: str, source: pa.DataType, target: pa.DataType) -> str | None:
    """Return the code snippet that casts a column; values without an equal are rounded or null.

    Args:
        library: The kind of dataframe (``column_lines.detect_language``).
        column: A feature name.
        source: The current type of the column.
        target: The required type.

    >>> cast_line("pandas", "n", pa.bool_(), pa.int64())
    'df["n"] = df["n"].astype("boolean").astype("Int64")'
    >>> cast_line("pyspark", "n", pa.int64(), pa.int32())
    'df = df.withColumn("n", F.expr("try_cast(n AS int)"))'

    Returns None if no snippet exists, for example for epoch numbers whose unit only the caller
    knows.
    """
    is_wide_integer = pat.is_integer(source) and pat.is_decimal(target)
    if is_wide_integer or (pat.is_decimal(source) and is_exact(target)):
        return None  # values that the target holds need no cast; any cast would round the others
    language = _LANGUAGES.get(library)
    if language is not None and pat.is_date32(target):
        if language.to_date:
            return _format_line(language.to_date, column) if pat.is_string(source) else None
        language = None
    # pandas has no decimal dtype: its decimals are Python objects.
    has_decimals = pat.is_decimal(source) or pat.is_decimal(target)
    if language is None or (language is _PANDAS and has_decimals):
        expression = _cast_expression(source, target)
        return None if expression is None else cell_line(library, column, expression)
    if pat.is_timestamp(target):
        line = {True: language.to_timestamp, False: language.from_date}[bool(pat.is_string(source))]
        return _format_line(line, column) if pat.is_string(source) or pat.is_date(source) else None
    if array_shape(target):
        return _array_line(language, column, target)
    name = language.types.get(str(target))
    if name is None or not _is_castable(source, target):
        return None
    low, high = integer_range(target) if pat.is_integer(target) else (0, 0)
    line = _select_template(language, source, target)
    return _format_line(line, column, t=name, T=name.capitalize(), low=low, high=high)


def exact_cast_line(
    library: str, column: str, source: pa.DataType, target: pa.DataType
) -> str | None:
    """Return the code snippet that casts a column, and fails if a value has no equal.

    Returns None if no snippet exists, as between numbers: writes cast numbers that have an equal
    themselves, and a snippet would round the others.

    >>> exact_cast_line("polars", "n", pa.string(), pa.int64())
    'df = df.with_columns(pl.col("n").cast(pl.Int64))'
    >>> exact_cast_line("pandas", "n", pa.float64(), pa.int64())
    """
    is_number = pat.is_integer(source) or pat.is_floating(source)
    to_number = pat.is_integer(target) or pat.is_floating(target)
    if array_shape(target) or (is_number and to_number):
        return None
    if not (is_number and pat.is_boolean(target)) and not (pat.is_string(source) and to_number):
        return cast_line(library, column, source, target)
    language = _LANGUAGES.get(library)
    form = "flags"
    if not pat.is_boolean(target):
        form = "integers" if pat.is_integer(target) else "floats"
    if language is None:
        return cell_line(library, column, _EXACT_EXPRESSIONS[form])
    name = language.types[str(target)]
    return _format_line(_EXACT_LINES[library][form], column, t=name)


def key_line(library: str, column: str, source: pa.DataType, target: pa.DataType) -> str | None:
    """Return the code snippet that casts a key column without rounding, so that keys stay distinct.

    >>> key_line("pyspark", "k", pa.float64(), pa.int8())
    'df = df.withColumn("k", F.expr("CASE WHEN k % 1 = 0 THEN try_cast(k AS tinyint) END"))'
    """
    # pandas and Python write floats without a fraction as "1.0", which differs from the key "1".
    if pat.is_floating(source) and pat.is_string(target) and library not in ("duckdb", "pyspark"):
        return cell_line(library, column, _NUMBER_TEXT)
    if not (pat.is_floating(source) and pat.is_integer(target)):
        return cast_line(library, column, source, target)
    language = _LANGUAGES.get(library)
    if language is None:
        return cell_line(library, column, _clip_to_range(_EXACT_INTEGER, target))
    low, high = integer_range(target)
    return _format_line(
        language.exact_integer, column, t=language.types[str(target)], low=low, high=high
    )


def infer_epoch_unit(values: Iterable[float | None]) -> str | None:
    """Return the unit ("s", "ms", "us", "ns") of epoch numbers, derived from their magnitude.

    Returns None if no unit puts the maximum between 1980 and 2100.

    >>> infer_epoch_unit([1618491906000, 1618491907000])
    'ms'
    >>> infer_epoch_unit([20240131]) is None
    True
    """
    # The maximum decides: times near 1970 are small numbers in every unit.
    largest = max((abs(value) for value in values if value is not None), default=0)
    # The ranges of the units do not overlap, so at most one unit matches.
    for unit, per_second in _PER_SECOND.items():
        seconds = largest / per_second
        if PLAUSIBLE_START.timestamp() <= seconds < _PLAUSIBLE_END.timestamp():
            return unit
    return None


def infer_misread_unit(times: Iterable[datetime]) -> str | None:
    """Return the actual unit of epoch numbers that were interpreted as nanoseconds.

    >>> infer_misread_unit([datetime(1970, 1, 1, 0, 26, 58, 491906, tzinfo=UTC)])
    'ms'
    """
    nanoseconds = [time.timestamp() * 1e9 for time in times]
    unit = infer_epoch_unit(nanoseconds)
    if unit == "ns":
        return None
    return unit


def can_be_epoch(kind: pa.DataType) -> bool:
    """Return whether a column contains numbers, which may be epoch times."""
    return bool(pat.is_integer(kind) or pat.is_floating(kind))


def misread_hint(times: Iterable[datetime]) -> str:
    """Return the advice for times in 1970.

    >>> misread_hint([datetime(1970, 1, 1, 0, 26, 58, tzinfo=UTC)])
    "were epoch numbers in 'ms' read as nanoseconds? pd.to_datetime(numbers, unit='ms', utc=True)"
    """
    times = list(times)
    # Days and years are tested first: few epoch numbers are such numbers of whole seconds.
    for read_unit, per_second in _PER_SECOND.items():
        form = detect_number_form(round(time.timestamp() * per_second, 6) for time in times)
        if form is not None:
            line = number_line("pandas", "numbers", form).partition(" = ")[2]
            line = line.replace("df['numbers']", "numbers")
            return f"were {FORM_TITLES[form]} read as {_UNIT_TITLES[read_unit]} since 1970? {line}"
    unit = infer_misread_unit(times)
    if unit is not None:
        return (
            f"were epoch numbers in {unit!r} read as nanoseconds? "
            f"pd.to_datetime(numbers, unit={unit!r}, utc=True)"
        )
    return (
        "convert epoch numbers with their unit: pd.to_datetime(numbers, unit=...), and days such as "
        "20240131 with format='%Y%m%d'"
    )


def conversion_hint(
    column: str,
    kind: pa.DataType,
    values: Iterable[float | str | None] = (),
    *,
    library: str = "pandas",
) -> str:
    """Return the code snippet that converts a column of numbers or strings to times.

    A comment states which form or unit of the numbers was assumed. ``values`` are some values of the column;
    ``library`` is the kind of dataframe that determines the syntax (``column_lines.detect_language``).

    >>> conversion_hint("ts", pa.int64(), [1618491906])
    "df['ts'] = pd.to_datetime(df['ts'], unit='s', utc=True)  # assumed: seconds since 1970"
    """
    if not can_be_epoch(kind):
        patterns = detect_text_formats(value for value in values if isinstance(value, str))
        if patterns:
            return text_line(library, column, patterns)
        line = cast_line(library, column, pa.string(), types.TIMESTAMP) or ""
        if library == "duckdb":  # where double quotes are SQL's
            return line
        return line.replace(f'"{column}"', repr(column))
    numbers = [value for value in values if value is not None and not isinstance(value, str)]
    form = detect_number_form(numbers)
    if form is not None:
        return f"{number_line(library, column, form)}  # assumed: {FORM_TITLES[form]}"
    unit = infer_epoch_unit(numbers)
    if unit is not None:
        return f"{_epoch_line(library, column, unit)}  # assumed: {_UNIT_TITLES[unit]} since 1970"
    line = _epoch_line(library, column, "s")
    return f"{line}  # if the unit is seconds since 1970; otherwise 'ms' or 'us'"


@dataclass(frozen=True)
class _Language:
    """The cast syntax of a library: its type names, and a code template for each kind of cast.

    ``{c}`` is the column name, ``{q}`` the column name quoted for SQL, ``{t}`` the type, ``{low}``
    and ``{high}`` the type's range. ``whole`` and ``parsed`` are empty where ``ranged`` also rounds
    fractions or parses strings. ``flag`` converts zeros and ones to booleans. ``exact`` converts
    floats to integers, and non-integral values to null. Where ``date`` is empty, Python objects are
    parsed.
    """

    types: dict[str, str]
    plain: str
    to_timestamp: str
    from_date: str
    clipped: str
    to_boolean: str
    exact_integer: str
    to_date: str = ""
    rounded: str = ""
    numeric: str = ""
    items: str = ""
    whole_items: str = ""
    from_boolean: str = ""


_PANDAS = _Language(
    types=_INTEGER_TYPES
    | {"float": "float32", "double": "float64", "string": "string", "bool": "boolean"},
    # ``{high} + 1`` is a power of two, which float64 represents; the maximum of 64 bits is not.
    rounded='df["{c}"] = df["{c}"].round(); df["{c}"] = df["{c}"].where('
    'df["{c}"].between({low}, {high} + 1, inclusive="left")).astype("{t}")',
    exact_integer='df["{c}"] = df["{c}"].where((df["{c}"] % 1 == 0) & '
    'df["{c}"].between({low}, {high} + 1, inclusive="left")).astype("{t}")',
    to_boolean='df["{c}"] = df["{c}"].map({{0: False, 1: True}}).astype("boolean")',
    from_boolean='df["{c}"] = df["{c}"].astype("boolean").astype("{T}")',
    clipped='df["{c}"] = df["{c}"].where(df["{c}"].between({low}, {high})).astype("{t}")',
    numeric='df["{c}"] = pd.to_numeric(df["{c}"], errors="coerce").astype("{t}")',
    plain='df["{c}"] = df["{c}"].astype("{t}")',
    to_timestamp='df["{c}"] = pd.to_datetime(df["{c}"], utc=True)',
    from_date='df["{c}"] = pd.to_datetime(df["{c}"], utc=True)',
    items='df["{c}"] = [np.asarray(cell).astype("{t}") for cell in df["{c}"]]',
    whole_items='df["{c}"] = [np.clip(np.round(cell), {low}, {high}).astype("{t}") '
    'for cell in df["{c}"]]',
)  # fmt: skip
_POLARS = _Language(
    types=_INTEGER_TYPES
    | {"float": "Float32", "double": "Float64", "string": "String", "bool": "Boolean"},
    rounded='df = df.with_columns(pl.col("{c}").round().cast(pl.{t}, strict=False))',
    clipped='df = df.with_columns(pl.col("{c}").cast(pl.{t}, strict=False))',
    exact_integer='df = df.with_columns(pl.when(pl.col("{c}") % 1 == 0).then(pl.col("{c}"))'
    '.cast(pl.{t}, strict=False))',
    to_boolean='df = df.with_columns(pl.col("{c}").replace_strict({{0: False, 1: True}}, default=None))',
    plain='df = df.with_columns(pl.col("{c}").cast(pl.{t}))',
    to_timestamp='df = df.with_columns(pl.col("{c}").str.to_datetime(time_zone="UTC"))',
    from_date='df = df.with_columns('
    'pl.col("{c}").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"))',
)  # fmt: skip
_SPARK = _Language(
    types={
        "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint",
        # Spark has no unsigned integers.
        "uint8": "smallint", "uint16": "int", "uint32": "bigint", "uint64": "decimal(20, 0)",
        "float": "float", "double": "double", "string": "string", "bool": "boolean",
    },
    rounded='df = df.withColumn("{c}", F.expr("try_cast(round({c}) AS {t})"))',
    clipped='df = df.withColumn("{c}", F.expr("try_cast({c} AS {t})"))',
    exact_integer='df = df.withColumn("{c}", F.expr("CASE WHEN {c} % 1 = 0 THEN try_cast({c} AS {t}) END"))',
    to_date='df = df.withColumn("{c}", F.to_date("{c}"))',
    to_boolean='df = df.withColumn("{c}", F.expr("CASE {c} WHEN 0 THEN false WHEN 1 THEN true END"))',
    plain='df = df.withColumn("{c}", F.col("{c}").cast("{t}"))',
    to_timestamp='df = df.withColumn("{c}", F.to_timestamp("{c}"))',
    from_date='df = df.withColumn("{c}", F.to_timestamp("{c}"))',
    items='df = df.withColumn("{c}", F.col("{c}").cast("array<{t}>"))',
)  # fmt: skip
_DUCKDB = _Language(
    types=SQL_TYPES,
    clipped="rows = rows.select('* REPLACE (try_cast({q} AS {t}) AS {q})')",
    exact_integer="rows = rows.select('* REPLACE (CASE WHEN {q} % 1 = 0 THEN try_cast({q} AS {t}) END "
    "AS {q})')",
    to_date="rows = rows.select('* REPLACE ({q}::DATE AS {q})')",
    to_boolean="rows = rows.select('* REPLACE (CASE {q} WHEN 0 THEN false WHEN 1 THEN true END AS {q})')",
    plain="rows = rows.select('* REPLACE ({q}::{t} AS {q})')",
    to_timestamp="rows = rows.select('* REPLACE ({q}::TIMESTAMPTZ AS {q})')",
    from_date="rows = rows.select('* REPLACE (make_timestamptz(epoch_us({q}::TIMESTAMP)) AS {q})')",
)  # fmt: skip
_SPARK_NUMBER = (
    'df = df.withColumn("{c}", F.expr("coalesce(try_cast({c} AS {t}), '
    'if({c} IS NULL, NULL, raise_error({c})))"))'
)
# Casts that fail for other values: of texts to numbers, and of zeros and ones to booleans.
_EXACT_EXPRESSIONS = {
    "integers": "int({v})",
    "floats": "float({v})",
    "flags": "{0: False, 1: True}[{v}]",
}
_EXACT_LINES = {
    "pandas": {
        "integers": 'df["{c}"] = pd.array([None if pd.isna(cell) else int(cell) for cell in df["{c}"]], '
        'dtype="{t}")',
        "floats": 'df["{c}"] = pd.to_numeric(df["{c}"]).astype("{t}")',
        "flags": 'df["{c}"] = pd.array([None if pd.isna(cell) else {{0: False, 1: True}}[cell] '
        'for cell in df["{c}"]], dtype="boolean")',
    },
    "polars": {
        "integers": 'df = df.with_columns(pl.col("{c}").cast(pl.{t}))',
        "floats": 'df = df.with_columns(pl.col("{c}").cast(pl.{t}))',
        "flags": 'df = df.with_columns(pl.col("{c}").replace_strict('
        "{{0: False, 1: True, None: None}}, return_dtype=pl.Boolean))",
    },
    "pyspark": {
        # Without ANSI mode, Spark's plain casts return null for texts that are not numbers.
        "integers": _SPARK_NUMBER,
        "floats": _SPARK_NUMBER,
        "flags": 'df = df.withColumn("{c}", F.expr("CASE WHEN {c} IN (0, 1) THEN {c} = 1 '
        'WHEN {c} IS NOT NULL THEN raise_error(string({c})) END"))',
    },
    # A text with a question mark is not a number, and the error shows it.
    "duckdb": {
        "integers": "rows = rows.select('* REPLACE ((CASE WHEN {q}::DOUBLE % 1 = 0 THEN {q} "
        "ELSE {q} || chr(63) END)::{t} AS {q})')",
        "floats": "rows = rows.select('* REPLACE ({q}::{t} AS {q})')",
        "flags": "rows = rows.select('* REPLACE (CASE {q} WHEN 0 THEN false WHEN 1 THEN true "
        "ELSE ({q} || chr(63))::BOOLEAN END AS {q})')",
    },
}  # fmt: skip
_LANGUAGES = {"pandas": _PANDAS, "polars": _POLARS, "pyspark": _SPARK, "duckdb": _DUCKDB}


def _format_line(template: str, column: str, **values: object) -> str:
    return template.format(c=column, q=quoted(column), **values)


def _cast_expression(source: pa.DataType, target: pa.DataType) -> str | None:
    """Return the expression that casts a Python object, or None if no such cast exists."""
    if pat.is_date32(target):
        return _DATE if pat.is_string(source) else None
    if pat.is_timestamp(target):
        midnight = _MIDNIGHT if pat.is_date(source) else None
        return _TIME if pat.is_string(source) else midnight
    if array_shape(target):
        return _cast_array_expression(array_item_type(target))
    if not _is_castable(source, target):
        return None
    if pat.is_string(target):
        return TEXT
    if pat.is_decimal(target):
        return None if pat.is_boolean(source) else _DECIMAL
    if pat.is_boolean(target):
        return _FLAG
    if pat.is_floating(target):
        rounded = "float({v})" if pat.is_float64(target) else "float(np.float32({v}))"
        return _PARSED_FLOAT if pat.is_string(source) else rounded
    if pat.is_boolean(source):
        return "int({v})"
    expression = _RANGED if pat.is_integer(source) else _ROUNDED
    return _clip_to_range(_PARSED if pat.is_string(source) else expression, target)


def _cast_array_expression(items: pa.DataType) -> str:
    name = numpy_type(items).name
    if pat.is_integer(items):
        return _clip_to_range(_ROUNDED_ITEMS, items).replace("{t}", name)
    return _ITEMS.replace("{t}", name)


def _clip_to_range(expression: str, target: pa.DataType) -> str:
    if not pat.is_integer(target):
        return expression
    low, high = integer_range(target)
    return expression.replace("{low}", str(low)).replace("{high}", str(high))


def _is_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast is meaningful: between numbers, or between numbers and strings."""
    if is_nested(source):
        return False
    if pat.is_string(target):
        return not pat.is_binary(source)
    is_number = pat.is_integer(source) or pat.is_floating(source) or pat.is_boolean(source)
    if pat.is_boolean(target):
        return bool(is_number)
    return bool(is_number or pat.is_string(source) or pat.is_decimal(source))


def _array_line(language: _Language, column: str, target: pa.DataType) -> str | None:
    """Return the snippet that casts the items of arrays, or None without one."""
    name = language.types.get(str(array_item_type(target)))
    is_flat = len(array_shape(target)) == 1
    if not language.items or name is None or not (is_flat or language is _PANDAS):
        return None
    if pat.is_integer(array_item_type(target)) and language.whole_items:
        low, high = integer_range(array_item_type(target))
        return _format_line(language.whole_items, column, t=name.lower(), low=low, high=high)
    return _format_line(language.items, column, t=name.lower())


def _select_template(language: _Language, source: pa.DataType, target: pa.DataType) -> str:
    """Return the template for a cast between two types."""
    if pat.is_boolean(source):
        return language.from_boolean or language.plain
    if pat.is_boolean(target):
        return language.to_boolean
    if pat.is_string(source) and not pat.is_string(target):
        return language.numeric or language.clipped
    if not pat.is_integer(target):
        return language.plain
    return (language.rounded if pat.is_floating(source) else "") or language.clipped


def _epoch_line(library: str, column: str, unit: str) -> str:
    """Return the snippet that converts epoch numbers of a unit to times."""
    template = _EPOCH_LINES.get(library)
    if template is None:
        expression = _EPOCH_PLUS.replace("{n}", _TIMEDELTA_ARGUMENTS[unit])
        return cell_line(library, column, expression) or ""
    factor = _EPOCH_FACTORS.get(library, {}).get(unit, "").format(c=column)
    return template.format(c=column, q=quoted(column), u=unit, by=factor)
