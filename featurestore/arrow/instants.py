"""Range check of time columns: the years 1 to 9999.

Python, pandas, Spark and SQL have different bounds; all support these years.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.types import is_nested
from featurestore.errors import OutOfRange

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
# The first and the last second of the years 1 to 9999, since 1970.
_SECONDS = (-62_135_596_800, 253_402_300_799)
OUT_OF_RANGE_HINT = (
    "give null where a time is not known; 0001-01-01 and 9999-12-31 are the first and the last "
    "day that a column holds"
)


def time_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that hold times, also inside of lists and structs."""
    return tuple(field.name for field in schema if holds_times(field.type))


def holds_times(kind: pa.DataType) -> bool:
    """Return whether values of a type are or have timestamps or dates.

    >>> holds_times(pa.list_(pa.date32())), holds_times(pa.int64())
    (True, False)
    """
    if pat.is_dictionary(kind):
        return holds_times(kind.value_type)
    if is_nested(kind):
        return any(holds_times(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pat.is_timestamp(kind) or pat.is_date(kind))


def first_out_of_range(array: pa.Array) -> int | None:
    """Return the first row with a time outside the years 1 to 9999, None without one.

    >>> first_out_of_range(pa.array([0, 10**12], pa.int64()).cast(pa.timestamp("s")))
    1
    """
    if not _has_out_of_range(array):
        return None
    # The shortest prefix that has one, by bisection, for every type.
    inside, outside = 0, len(array)
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if _has_out_of_range(array.slice(0, middle)):
            outside = middle
        else:
            inside = middle
    return outside - 1


def out_of_range_mask(array: pa.Array) -> pa.Array | None:
    """Return a mask of rows with a time outside the years 1 to 9999, None without such rows.

    >>> out_of_range_mask(pa.array([0, 10**12], pa.int64()).cast(pa.timestamp("s"))).to_pylist()
    [False, True]
    """
    if not _has_out_of_range(array):
        return None
    if is_nested(array.type) or pat.is_dictionary(array.type):
        return pa.array([_has_out_of_range(array.slice(row, 1)) for row in range(len(array))])
    marks = np.zeros(len(array), dtype=np.bool_)
    marks[np.asarray(array.is_valid())] = _leaves_out_of_range(array)
    return pa.array(marks)


def out_of_range_error(array: pa.Array, row: int, *, column: str, shown: str) -> OutOfRange:
    """Return the error for a time out of range; ``shown`` names its row."""
    value = next(_out_of_range_texts(array.slice(row, 1)))
    return OutOfRange(
        f"{shown} has {value} in {column!r}, outside of the years 1 to 9999.",
        hint=OUT_OF_RANGE_HINT,
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
        row = first_out_of_range(array)
        if row is not None:
            raise out_of_range_error(array, row, column=name, shown=f"Row {rows_before + row}")


def check_batch_times(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield batches whose times are in the years 1 to 9999."""
    columns = time_columns(schema)
    rows = 0
    for batch in batches:
        check_time_range(batch, columns, rows_before=rows)
        rows += batch.num_rows
        yield batch


def _has_out_of_range(array: pa.Array) -> bool:
    return any(_leaves_out_of_range(leaves).any() for leaves in _time_leaves(array))


def _out_of_range_texts(array: pa.Array) -> Iterator[str]:
    """Yield the times out of range as texts."""
    for leaves in _time_leaves(array):
        numbers, _ = _integers_and_bounds(leaves)
        for number in numbers[_leaves_out_of_range(leaves)]:
            yield _time_text(int(number), leaves.type)


def _time_leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the times of an array, those inside of lists and structs flattened."""
    kind = array.type
    if not holds_times(kind):
        return
    if pat.is_dictionary(kind):
        yield from _time_leaves(array.dictionary_decode())
    elif pat.is_struct(kind):
        for field in array.flatten():
            yield from _time_leaves(field)
    elif is_nested(kind):
        yield from _time_leaves(array.flatten())
    else:
        yield array


def _leaves_out_of_range(leaves: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark the non-null times that are out of range."""
    numbers, (first, last) = _integers_and_bounds(leaves)
    return (numbers < first) | (numbers > last)


def _integers_and_bounds(
    leaves: pa.Array,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], tuple[int, int]]:
    """Return times without nulls as whole numbers, and the bounds in their unit."""
    per_second = 0
    if pat.is_timestamp(leaves.type):
        per_second = _PER_SECOND[leaves.type.unit]
    elif pat.is_date64(leaves.type):
        per_second = _PER_SECOND["ms"]
    width = pa.int32() if pat.is_date32(leaves.type) else pa.int64()
    numbers = pc.drop_null(leaves).view(width).to_numpy(zero_copy_only=False)
    seconds = _SECONDS
    if not per_second:
        bounds = (seconds[0] // _DAY_SECONDS, seconds[1] // _DAY_SECONDS)
    else:
        bounds = (seconds[0] * per_second, (seconds[1] + 1) * per_second - 1)
    limits = np.iinfo(np.int64)
    first, last = max(bounds[0], limits.min), min(bounds[1], limits.max)
    return numbers.astype(np.int64), (first, last)


def _time_text(number: int, kind: pa.DataType) -> str:
    unit = "D" if pat.is_date32(kind) else "ms"
    if pat.is_timestamp(kind):
        unit = kind.unit
    text = str(np.datetime64(number, unit))
    if text == "NaT":  # the least number, which numpy takes for no time
        return f"{number} {unit} since 1970"
    return text
