"""Limits of stored values: times in the years 1 to 9999, and the maximum cell size.

Python, pandas, Spark and SQL support different time ranges; all support these years. A cell is a
string, a binary value, or all values of a list or struct.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.casts import decode
from featurestore.arrow.types import is_encoded, is_nested
from featurestore.errors import ConfigurationError, LimitExceeded, OutOfRange

CELL_BYTES_VARIABLE = "FEATURESTORE_CELL_BYTES"
DEFAULT_CELL_BYTES = 64 << 20

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
# The first and the last second of the years 1 to 9999, relative to 1970.
_SECONDS = (-62_135_596_800, 253_402_300_799)
OUT_OF_RANGE_HINT = (
    "use null for unknown times; the first and last supported days are 0001-01-01 and 9999-12-31"
)


def time_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that contain times, also nested in lists and structs."""
    return tuple(field.name for field in schema if contains_times(field.type))


def contains_times(dtype: pa.DataType) -> bool:
    """Return whether a type is, or contains, a timestamp or date type.

    >>> contains_times(pa.list_(pa.date32())), contains_times(pa.int64())
    (True, False)
    """
    if is_encoded(dtype):
        return contains_times(dtype.value_type)
    if is_nested(dtype):
        return any(contains_times(dtype.field(index).type) for index in range(dtype.num_fields))
    return bool(pat.is_timestamp(dtype) or pat.is_date(dtype))


def find_out_of_range(array: pa.Array) -> int | None:
    """Return the first row with a time outside the years 1 to 9999, or None if there is none.

    >>> find_out_of_range(pa.array([0, 10**12], pa.int64()).cast(pa.timestamp("s")))
    1
    """
    # Almost all arrays are within the range, which one comparison of all values shows.
    if not _has_out_of_range(array):
        return None
    # The shortest prefix that contains such a time, by bisection; works for every type.
    inside, outside = 0, len(array)
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if _has_out_of_range(array.slice(0, middle)):
            outside = middle
        else:
            inside = middle
    return outside - 1


def out_of_range_mask(array: pa.Array) -> pa.Array | None:
    """Return a mask of rows with a time outside the years 1 to 9999, or None if there are none.

    >>> out_of_range_mask(pa.array([0, 10**12], pa.int64()).cast(pa.timestamp("s"))).to_pylist()
    [False, True]
    """
    if not _has_out_of_range(array):
        return None
    # One row may contain several times, or share one with other rows.
    if is_nested(array.type) or is_encoded(array.type):
        return pa.array([_has_out_of_range(array.slice(row, 1)) for row in range(len(array))])
    marks = np.zeros(len(array), dtype=np.bool_)
    marks[np.asarray(array.is_valid())] = _mask_out_of_range(array)
    return pa.array(marks)


def out_of_range_error(
    array: pa.Array, row: int, *, column: str, shown: str, hint: str = OUT_OF_RANGE_HINT
) -> OutOfRange:
    """Return the error for a time out of range; ``shown`` is the row's display name."""
    value = next(_format_out_of_range(array.slice(row, 1)))
    return OutOfRange(
        f"{shown} has {value} in {column!r}, outside of the years 1 to 9999.",
        hint=hint,
    )


def check_time_range(
    batch: pa.RecordBatch, columns: Sequence[str], *, rows_before: int = 0
) -> None:
    """Refuse a batch with a time outside of the years 1 to 9999.

    Raises:
        OutOfRange: Names the first row, counted from 0, and its column.
    """
    for name in columns:
        array = batch.column(batch.schema.get_field_index(name))
        row = find_out_of_range(array)
        if row is not None:
            raise out_of_range_error(array, row, column=name, shown=f"Row {rows_before + row}")


def check_batch_times(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield batches after checking that their times are in the years 1 to 9999."""
    columns = time_columns(schema)
    rows = 0
    for batch in batches:
        check_time_range(batch, columns, rows_before=rows)
        rows += batch.num_rows
        yield batch


def max_cell_bytes() -> int:
    """Return the maximum size of a cell in bytes: 64 MiB or ``FEATURESTORE_CELL_BYTES``.

    Raises:
        ConfigurationError: The environment variable is not a positive number.
    """
    text = os.environ.get(CELL_BYTES_VARIABLE, "")
    if not text:
        return DEFAULT_CELL_BYTES
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigurationError(
            f"{CELL_BYTES_VARIABLE}={text!r} is not a number of bytes.",
            hint=f"export {CELL_BYTES_VARIABLE}={DEFAULT_CELL_BYTES}",
        )
    return int(text)


def variable_size_columns(schema: pa.Schema, *, max_bytes: int) -> tuple[str, ...]:
    """Return the columns whose types allow cells larger than ``max_bytes``.

    >>> schema = pa.schema([("a", pa.int8()), ("b", pa.list_(pa.int8())), ("c", pa.list_(pa.int8(), 3))])
    >>> variable_size_columns(schema, max_bytes=2), variable_size_columns(schema, max_bytes=3)
    (('b', 'c'), ('b',))
    """
    names = []
    for field in schema:
        width = _fixed_cell_bytes(field.type)
        if width is None or width > max_bytes:
            names.append(field.name)
    return tuple(names)


def find_oversized_rows(array: pa.Array, *, max_bytes: int) -> list[int]:
    """Return the rows whose cells exceed ``max_bytes``.

    >>> find_oversized_rows(pa.array(["abc", "ab", "abc"]), max_bytes=2)
    [0, 2]
    """
    # Most batches are below the limit in total, which is cheaper to check.
    if array.nbytes <= max_bytes:
        return []
    if len(array) == 1:
        return [0] if cell_bytes(array) > max_bytes else []
    # Bisection: a slice within the limit contains no row above it.
    half = len(array) // 2
    later_rows = find_oversized_rows(array.slice(half), max_bytes=max_bytes)
    return find_oversized_rows(array.slice(0, half), max_bytes=max_bytes) + [
        half + row for row in later_rows
    ]


def find_oversized(array: pa.Array, *, max_bytes: int) -> int | None:
    """Return the first row whose cell exceeds ``max_bytes``, or None if all cells fit."""
    return next(iter(find_oversized_rows(array, max_bytes=max_bytes)), None)


def cell_bytes(array: pa.Array) -> int:
    """Return the size in bytes of the only cell of an array: UTF-8 bytes for strings, else Arrow's.

    >>> cell_bytes(pa.array(["ä"]))
    2
    """
    if is_nested(array.type):
        return int(array.nbytes)
    return int(pc.binary_length(array)[0].as_py() or 0)


def oversized_error(
    array: pa.Array, row: int, *, column: str, row_name: str, max_bytes: int
) -> LimitExceeded:
    """Return the error for a cell that is too large; ``row_name`` is the row's display name."""
    length = cell_bytes(array.slice(row, 1))
    return LimitExceeded(
        f"{row_name} has {length:,} bytes in {column!r}; a cell has at most {max_bytes:,}.",
        hint=f"store a file path instead, or set {CELL_BYTES_VARIABLE}={length} in the writing process",
    )


def check_cell_sizes(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], *, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Check the cell sizes of batches and yield the batches.

    Raises:
        LimitExceeded: Names the first row, counted from 0, and its column.
    """
    rows = 0
    for batch in batches:
        for name in columns:
            array = batch.column(batch.schema.get_field_index(name))
            row = find_oversized(array, max_bytes=max_bytes)
            if row is not None:
                raise oversized_error(
                    array, row, column=name, row_name=f"Row {rows + row}", max_bytes=max_bytes
                )
        rows += batch.num_rows
        yield batch


def _has_out_of_range(array: pa.Array) -> bool:
    return any(_mask_out_of_range(leaves).any() for leaves in _iter_time_leaves(array))


def _mask_out_of_range(leaves: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark the non-null times that are out of range."""
    numbers, (first, last) = _integers_and_bounds(leaves)
    return (numbers < first) | (numbers > last)


def _integers_and_bounds(
    leaves: pa.Array,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], tuple[int, int]]:
    """Return non-null times as integers, and the limits in their unit."""
    per_second = 0
    if pat.is_timestamp(leaves.type):
        per_second = _PER_SECOND[leaves.type.unit]
    elif pat.is_date64(leaves.type):
        per_second = _PER_SECOND["ms"]
    width = pa.int32() if pat.is_date32(leaves.type) else pa.int64()
    # The stored integers: Python and pandas times do not reach beyond these years.
    numbers = pc.drop_null(leaves).view(width).to_numpy(zero_copy_only=False)
    seconds = _SECONDS
    if not per_second:
        bounds = (seconds[0] // _DAY_SECONDS, seconds[1] // _DAY_SECONDS)
    else:
        # Up to the last fraction of the last second.
        bounds = (seconds[0] * per_second, (seconds[1] + 1) * per_second - 1)
    # In nanoseconds, 64 bits end in the year 2262, before the last second of 9999.
    limits = np.iinfo(np.int64)
    first, last = max(bounds[0], limits.min), min(bounds[1], limits.max)
    return numbers.astype(np.int64), (first, last)


def _iter_time_leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the times of an array, flattened from lists and structs."""
    dtype = array.type
    if not contains_times(dtype):
        return
    if is_encoded(dtype):
        yield from _iter_time_leaves(decode(array, lambda values: values))
    elif pat.is_struct(dtype):
        for field in array.flatten():
            yield from _iter_time_leaves(field)
    elif is_nested(dtype):
        yield from _iter_time_leaves(array.flatten())
    else:
        yield array


def _format_out_of_range(array: pa.Array) -> Iterator[str]:
    """Yield the times out of range as strings."""
    for leaves in _iter_time_leaves(array):
        numbers, _ = _integers_and_bounds(leaves)
        for number in numbers[_mask_out_of_range(leaves)]:
            yield _format_time(int(number), leaves.type)


def _format_time(number: int, dtype: pa.DataType) -> str:
    unit = "D" if pat.is_date32(dtype) else "ms"
    if pat.is_timestamp(dtype):
        unit = dtype.unit
    text = str(np.datetime64(number, cast(Any, unit)))
    if text == "NaT":  # the least number, which numpy takes for no time
        return f"{number} {unit} since 1970"
    return text


def _fixed_cell_bytes(dtype: pa.DataType) -> int | None:
    """Return the fixed cell size of a type in bytes, or None for variable-size types."""
    if pat.is_fixed_size_list(dtype):
        width = _fixed_cell_bytes(dtype.value_type)
        return None if width is None else dtype.list_size * width
    if pat.is_struct(dtype):
        widths = [_fixed_cell_bytes(dtype.field(index).type) for index in range(dtype.num_fields)]
        known_widths = [width for width in widths if width is not None]
        return sum(known_widths) if len(known_widths) == len(widths) else None
    if is_nested(dtype):
        return None
    try:
        return (int(dtype.bit_width) + 7) // 8
    except ValueError:  # strings and bytes have no fixed width
        return None
