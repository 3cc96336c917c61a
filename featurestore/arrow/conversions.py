"""Casts of columns of any library to a feature type, exactly or as the caller allows.

``cast_values`` is the rule of ``featurestore.cast``: Arrow arrays are cast as arrays, and objects
that Arrow cannot represent (UUIDs, sets, complex numbers, mixed values) one by one. A value without
an equal in the type is an error that names the row, unless ``inexact`` rounds it or makes it null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow import types
from featurestore.arrow.arrays import from_tensors
from featurestore.arrow.casts import cast_array, decode
from featurestore.arrow.cell_casts import (
    NUMBERS,
    Target,
    is_numeric,
    to_target,
)
from featurestore.arrow.cells import (
    cells_to_array,
    classify_cells,
    interval_side,
)
from featurestore.arrow.columns import convert_values, python_cells
from featurestore.arrow.exact_casts import cast_exactly
from featurestore.arrow.fitting import can_fit
from featurestore.arrow.hints import (
    PER_SECOND,
    TIMESTAMP,
    can_be_epoch,
    cast_hint,
    parse_type,
)
from featurestore.arrow.json_text import short_repr
from featurestore.arrow.text_values import TextRules, check_format, format_decimals, parse_texts
from featurestore.arrow.unstorable import (
    CONVERSION_ERRORS,
    Cell,
    Column,
    is_missing,
)
from featurestore.arrow.values import to_array
from featurestore.errors import InvalidArgument, SchemaMismatch, UnsupportedType

Cast = Callable[[pa.Array], pa.Array]
INEXACT = ("error", "round", "null")

_FORM = re.compile(r"timestamp\[(s|ms|us|ns|YYYYMMDD|YYYY|Excel|.*%.*)\]")
_FINER_TEXT = r"(\.[0-9]{6})[0-9]{1,3}([^0-9]|$)"
_EXCEL_EPOCH_DAYS = 25_569
_DAY_MICROS = 86_400_000_000


def parse_target(target: object, *, column: str, inexact: str = "error") -> Target:
    """Parse a target of ``featurestore.cast``: a type as in ``dtypes=``, or a form of times.

    >>> parse_target("timestamp[YYYYMMDD]", column="day").form
    'YYYYMMDD'

    Raises:
        UnsupportedType: The type is unknown, or is not a feature type.
        InvalidArgument: The format or ``inexact`` is invalid.
    """
    if inexact not in INEXACT:
        raise InvalidArgument(
            f"inexact={inexact!r} is not one of {', '.join(map(repr, INEXACT))}.",
            hint="inexact='round' rounds numbers and cuts times, 'null' omits values",
        )
    rule: Any = inexact
    form = _FORM.fullmatch(target.strip()) if isinstance(target, str) else None
    if form is not None:
        if "%" in form[1]:
            try:
                check_format(form[1])
            except ValueError as error:
                raise InvalidArgument(
                    f"Column {column!r}: {error}.", hint="timestamp[%d/%m/%Y]"
                ) from error
        return Target(TIMESTAMP, form[1], rule)
    dtype = types.feature_type(parse_type(target, column=column))
    if dtype is None:
        raise UnsupportedType(
            f"Column {column!r}: {target} is not a type of features.",
            hint="use a type that a column can have, such as 'string' or 'int64'",
        )
    return Target(dtype, "", rule)


def cast_values(
    values: Column, target: Target, *, name: str, rows_before: int = 0
) -> pa.Array | pa.ChunkedArray:
    """Cast a column of any library.

    >>> cast_values([1.0, None, 3.0], Target(pa.int64()), name="n").to_pylist()
    [1, None, 3]

    Raises:
        SchemaMismatch: A value has no equal in the type; names the first, with its row.
    """
    column = _to_arrow(values)
    if pat.is_struct(target.dtype) and interval_side(values) is not None:
        column = python_cells(values)  # Arrow has no side of intervals
    if isinstance(column, pa.ChunkedArray):
        chunks, row = [], rows_before
        for chunk in column.chunks:
            chunks.append(_cast_or_raise(chunk, target, name, row))
            row += len(chunk)
        return pa.chunked_array(chunks, target.dtype)
    return _cast_or_raise(column, target, name, rows_before)


def _to_arrow(values: Column) -> pa.Array | pa.ChunkedArray | list[Cell]:
    """Return a column as an Arrow array, or as Python objects if Arrow cannot represent them."""
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "m" and getattr(values, "ndim", 1) == 1:
        # Counts of the column's own unit, which Arrow may lack.
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        missing = np.isnat(array) | np.ma.getmaskarray(array)
        return pa.array(np.asarray(array).astype("int64"), mask=np.asarray(missing))
    try:
        return convert_values(values)
    except CONVERSION_ERRORS:
        return python_cells(values)


def _cast_or_raise(
    column: pa.Array | list[Cell], target: Target, name: str, rows_before: int
) -> pa.Array:
    try:
        return _cast(column, target)
    except CONVERSION_ERRORS as error:
        if target.inexact == "null":
            return pa.concat_arrays(list(_cast_or_null(_omit_inexact(column, target), target)))
        row = _find_failure(column, target)
        value = _describe_value(_slice(column, row, 1))
        reason = str(error).partition("\n")[0].rstrip(".") if types.is_nested(target.dtype) else ""
        raise SchemaMismatch(
            f"Column {name!r}, row {rows_before + row}: {value} has no equal in {target.text}"
            f"{reason and f' ({reason})'}.",
            hint=_inexact_hint(name, column, target),
        ) from error


def _describe_value(values: pa.Array | list[Cell]) -> str:
    """Return the value and the type of a column of one row."""
    try:
        (cell,) = python_cells(values)
    except CONVERSION_ERRORS:  # times that Python cannot represent
        dtype = None if isinstance(values, list) else values.type
        return f"{' '.join(str(values).split())} of type {dtype}"
    return f"{short_repr(cell)} of type {type(cell).__name__}"


def _inexact_hint(name: str, column: pa.Array | list[Cell], target: Target) -> str:
    """Return the line that rounds values, or that omits them if they cannot be rounded."""
    omitting = cast_hint({name: target.text}, inexact="null")
    try:
        _cast(column, Target(target.dtype, target.form, "round"))
    except CONVERSION_ERRORS:
        return omitting
    return f"{cast_hint({name: target.text}, inexact='round')}  # or inexact='null'"


def _slice(column: Column, start: int, length: int) -> Any:
    if isinstance(column, list):
        return column[start : start + length]
    return column.slice(start, length)


def _find_failure(column: Column, target: Target) -> int:
    """Return the first row that cannot be cast, by bisection."""
    start, length = 0, len(column)
    while length > 1:
        half = length // 2
        try:
            _cast(_slice(column, start, half), target)
            start, length = start + half, length - half
        except CONVERSION_ERRORS:
            length = half
    return start


def _omit_inexact(column: pa.Array | list[Cell], target: Target) -> pa.Array | list[Cell]:
    """Make most numbers and times without an equal null, by which few casts of rows fail."""
    # Arrow does not compare half floats.
    if isinstance(column, list) or target.form or pat.is_float16(column.type):
        return column
    dtype = target.dtype
    are_numbers = can_be_epoch(column.type) and can_be_epoch(dtype)
    if not are_numbers and not (pat.is_timestamp(column.type) and pat.is_timestamp(dtype)):
        return column
    back = column.cast(dtype, safe=False).cast(column.type, safe=False)
    is_exact = pc.equal(back, column)
    if pat.is_floating(dtype):
        is_exact = pc.or_(is_exact, pc.not_equal(column, column))  # NaN
    return pc.if_else(is_exact, column, pa.scalar(None, column.type))


def _cast_or_null(column: Column, target: Target) -> Iterable[pa.Array]:
    """Yield the rows of a column, null where they cannot be cast."""
    try:
        yield _cast(column, target)
    except CONVERSION_ERRORS:
        if len(column) == 1:
            yield pa.nulls(1, target.dtype)
            return
        half = len(column) // 2
        yield from _cast_or_null(_slice(column, 0, half), target)
        yield from _cast_or_null(_slice(column, half, len(column) - half), target)


# -- arrays -------------------------------------------------------------------------------------


def _cast(column: pa.Array | list[Cell], target: Target) -> pa.Array:
    """Cast an array, or cells that Arrow cannot represent; raise one of ``CONVERSION_ERRORS``."""
    if isinstance(column, list):
        return _cast_cells(column, target)
    if types.is_tensor(column.type):
        column = from_tensors(column)
    extension = getattr(column.type, "extension_name", "")
    if extension == "pandas.period":
        return _cast_cells(python_cells(column.to_pandas()), target)
    if extension == "arrow.uuid" and pat.is_string(target.dtype):
        return _cast_cells(column.to_pylist(), target)  # the text is not the bytes
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if types.is_encoded(column.type):
        return decode(column, lambda values: _cast(values, target))
    if column.null_count == len(column):
        return pa.nulls(len(column), target.dtype)
    cast = _find_cast(column.type, target)
    if cast is not None:
        return cast(column)
    if types.is_nested(column.type):  # Python's durations have no unit
        column = cast_array(column, _with_counts(column.type))
    return _cast_cells(column.to_pylist(), target)


def _with_counts(dtype: pa.DataType) -> pa.DataType:
    """Return a type in which integers replace the durations of lists and structs."""
    if pat.is_duration(dtype):
        return pa.int64()
    if types.is_list_type(dtype):
        return pa.list_(dtype.value_field.with_type(_with_counts(dtype.value_type)))
    if not pat.is_struct(dtype):
        return dtype
    fields = map(dtype.field, range(dtype.num_fields))
    return pa.struct([field.with_type(_with_counts(field.type)) for field in fields])


def _find_cast(column_type: pa.DataType, target: Target) -> Cast | None:
    """Return the cast of arrays of a type, or None if the values are cast one by one."""
    dtype = target.dtype
    if pat.is_duration(column_type) or pat.is_time(column_type):
        if pat.is_string(dtype) and pat.is_time(column_type):
            return lambda rows: rows.cast(pa.string())
        return lambda rows: _cast(_counts(rows), target)
    source = types.feature_type(column_type)
    if source is None:
        return None
    if types.is_nested(source):
        is_same_form = can_fit(source, dtype) and target.inexact != "round"
        return (
            (lambda rows: cast_exactly(cast_array(rows, source), dtype)) if is_same_form else None
        )
    if pat.is_timestamp(column_type) or pat.is_date(column_type):
        return _find_cast_of_times(target)
    cast = _find_cast_of_scalars(source, target)
    return None if cast is None else lambda rows: cast(cast_array(rows, source))


def _find_cast_of_times(target: Target) -> Cast | None:
    dtype = target.dtype
    if pat.is_timestamp(dtype) or pat.is_date(dtype):
        return lambda rows: _cast_times(rows, target)
    if pat.is_integer(dtype):
        return lambda rows: cast_exactly(_counts(rows), dtype)
    return (lambda rows: rows.cast(pa.string())) if pat.is_string(dtype) else None


def _find_cast_of_scalars(source: pa.DataType, target: Target) -> Cast | None:
    """Return the cast between two types that are neither nested nor times, or None without one."""
    dtype = target.dtype
    if target.form:
        return partial(_parse if pat.is_string(source) else _times_from_numbers, target=target)
    if source == dtype:
        return lambda rows: rows
    if pat.is_string(source):
        has_no_text = types.is_nested(dtype) or pat.is_binary(dtype)
        return None if has_no_text else partial(_parse, target=target)
    if pat.is_string(dtype):
        if pat.is_decimal(source):
            return format_decimals
        return None if pat.is_binary(source) else lambda rows: rows.cast(pa.string())
    if pat.is_boolean(source) and is_numeric(dtype):
        return lambda rows: cast_array(rows.cast(pa.int8()), dtype)
    if pat.is_boolean(dtype) and is_numeric(source):
        return partial(_cast_flags, target=target)
    if can_fit(source, dtype):
        return lambda rows: cast_exactly(_round_numbers(rows, target), dtype)
    return None


def _parse(strings: pa.Array, target: Target) -> pa.Array:
    """Parse strings; invalid ones become null if the caller allows it."""
    rules = TextRules(declared=True, timestamp_format=target.form if "%" in target.form else None)
    if target.form and "%" not in target.form:
        return _times_from_numbers(_parse(strings, Target(pa.int64())), target)
    if target.inexact == "round" and target.dtype == TIMESTAMP and not target.form:
        # The digits after the microseconds are cut, so that no time is later.
        strings = pc.replace_substring_regex(strings, _FINER_TEXT, r"\1\2")
    values, reasons = parse_texts(strings, target.dtype, rules)
    if reasons and target.inexact != "null":
        raise ValueError(next(iter(reasons.values())))
    return values


def _times_from_numbers(numbers: pa.Array, target: Target) -> pa.Array:
    """Convert numbers to times: counts of a unit since 1970, days, years, or Excel's serial numbers."""
    if target.form == "Excel":
        days = pc.subtract(numbers.cast(pa.float64()), float(_EXCEL_EPOCH_DAYS))
        # A serial number has microseconds only approximately.
        micros = pc.round(pc.multiply(days, float(_DAY_MICROS)))
        return cast_exactly(micros, pa.int64()).cast(TIMESTAMP)
    if target.form in ("YYYYMMDD", "YYYY"):
        texts = cast_exactly(numbers, pa.int64()).cast(pa.string())
        pattern = "%Y%m%d" if target.form == "YYYYMMDD" else "%Y"
        width = len(target.form)
        if not pc.all(pc.equal(pc.binary_length(texts), width)).as_py():
            raise ValueError(f"a number has not {width} digits")
        values, reasons = parse_texts(texts, TIMESTAMP, TextRules(timestamp_format=pattern))
        if reasons:
            raise ValueError(next(iter(reasons.values())))
        return values
    if pat.is_floating(numbers.type):
        return _times_from_fractions(numbers, target)
    counts = cast_exactly(numbers, pa.int64()).cast(pa.timestamp(target.form, "UTC"))
    return _cast_times(counts, target)


def _times_from_fractions(numbers: pa.Array, target: Target) -> pa.Array:
    """Convert floats to times: the microsecond nearest to the float, which has no digit more."""
    per_second = PER_SECOND[target.form]
    if target.form in ("us", "ns"):
        whole = pc.floor(numbers) if target.inexact == "round" else numbers
        return _times_from_numbers(cast_exactly(whole, pa.int64()), target)
    micros = pc.round(pc.multiply(numbers.cast(pa.float64()), float(10**6 // per_second)))
    return cast_exactly(micros, pa.int64()).cast(TIMESTAMP)


def _cast_times(times: pa.Array, target: Target) -> pa.Array:
    """Cast times and dates; to cut their digits is to round them down, so that no time is later."""
    if target.inexact == "round" and pat.is_timestamp(times.type):
        unit = "day" if pat.is_date(target.dtype) else "microsecond"
        if unit == "day" or times.type.unit == "ns":
            times = pc.floor_temporal(times, unit=unit)
    if pat.is_date(target.dtype) and pat.is_timestamp(times.type):
        days = pc.floor_temporal(times, unit="day")
        if not pc.all(pc.equal(days, times)).as_py():
            raise ValueError("a time is not midnight")
        zone = pa.timestamp(times.type.unit)
        return days.cast(zone).cast(pa.date32())
    return cast_array(times, target.dtype)


def _cast_flags(numbers: pa.Array, target: Target) -> pa.Array:
    """Cast zeros and ones to booleans."""
    integers = cast_exactly(numbers, pa.int64())
    if not pc.all(pc.is_in(integers, pa.array([0, 1, None]))).as_py():
        raise ValueError("a number is not 0 or 1")
    return integers.cast(target.dtype)


def _counts(times: pa.Array) -> pa.Array:
    """Return times, dates, durations and times of day as counts of their unit."""
    width = pa.int32() if times.type.bit_width == 32 else pa.int64()
    return times.cast(width).cast(pa.int64())


def _round_numbers(numbers: pa.Array, target: Target) -> pa.Array:
    """Return numbers rounded to the target's digits, half to even, if the caller allows it."""
    dtype = target.dtype
    if target.inexact != "round" or not is_numeric(numbers.type):
        return numbers
    if pat.is_integer(dtype):
        if pat.is_integer(numbers.type):
            return numbers
        return pc.round(numbers, round_mode="half_to_even")
    if pat.is_decimal(dtype) and pat.is_decimal(numbers.type):
        digits = min(dtype.scale, numbers.type.scale)
        return pc.round(numbers, ndigits=digits, round_mode="half_to_even")
    if not pat.is_floating(dtype):
        return numbers
    rounded = numbers.cast(dtype, safe=False)
    was_finite = pc.is_finite(numbers.cast(pa.float64(), safe=False))
    if not pc.all(pc.equal(pc.is_finite(rounded), was_finite)).as_py():
        raise ValueError(f"a number is beyond the range of {dtype}")
    return rounded


def _cast_cells(cells: Sequence[Cell], target: Target) -> pa.Array:
    """Cast Python objects one by one."""
    categories = classify_cells(cells)
    if target.form:
        rows = [pa.nulls(1) if is_missing(cell) else cells_to_array([cell]) for cell in cells]
        return pa.concat_arrays([pa.array([], TIMESTAMP), *(_cast(row, target) for row in rows)])
    # NaN among other values than numbers is a missing value.
    converted = [
        None
        if cell is None or (is_missing(cell) and not categories <= NUMBERS)
        else to_target(cell, target)
        for cell in cells
    ]
    if pat.is_string(target.dtype) or pat.is_binary(target.dtype):
        return pa.array(converted, target.dtype)
    return to_array(converted, target.dtype)
