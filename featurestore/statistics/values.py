"""Arrow columns as numpy: finite values, where they are, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.model.types import numpy_type

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
_EXACT_IN_FLOAT64 = 1 << 52


@dataclass(frozen=True)
class Values:
    """The measured values of one column in one batch.

    ``numbers`` has one for every row, float64 or of an integer type; where there is no value, or
    NaN or an infinity, it is 0. ``present`` marks the rows of the other ones, None when that is
    every row. ``extremes`` are the least and the greatest finite value, None without any.
    """

    numbers: NDArray[Any]
    present: Bools | None
    extremes: tuple[Any, Any] | None
    nulls: int
    nan: int = 0
    infinite: int = 0

    @property
    def count(self) -> int:
        """How many values are finite."""
        return len(self.numbers) - self.nulls - self.nan - self.infinite

    @cached_property
    def finite(self) -> NDArray[Any]:
        """The values without nulls, NaN and infinities."""
        if self.present is None:
            return self.numbers
        return self.numbers[self.present]

    def minus(self, pivot: float | int) -> Floats:
        """Return the finite values minus a pivot, as float64.

        Exact integers stay exact until then.
        """
        return _minus(self.finite, pivot)

    def write_minus(self, pivot: float | int, rows: slice, out: Floats) -> None:
        """Write the numbers of rows minus a pivot into an array."""
        numbers = self.numbers[rows]
        if self._fits_float64:
            np.subtract(numbers, float(pivot), out=out, dtype=np.float64)
        else:
            out[:] = _minus(numbers, pivot)

    @cached_property
    def _fits_float64(self) -> bool:
        """Whether a float64 holds every number and every difference of two of them."""
        if self.numbers.dtype.kind == "f" or self.numbers.dtype.itemsize < 8:
            return True
        if self.extremes is None:
            return False
        return max(abs(int(each)) for each in self.extremes) < _EXACT_IN_FLOAT64


def measured_values(column: pa.Array) -> Values:
    """Return the values of a column of numbers, booleans or times.

    Dates are days, timestamps microseconds.
    """
    numbers = _numbers(column)
    nulls = column.null_count
    present = None
    extremes = None
    if nulls == 0:
        extremes = _extremes(numbers)
    else:
        present = _valid(column)
        if nulls < len(column):
            extremes = _extremes(np.where(present, numbers, numbers[present.argmax()]))
        numbers = np.where(present, numbers, numbers.dtype.type(0))
    if numbers.dtype.kind == "f" and extremes is not None and not np.isfinite(extremes).all():
        return _with_odd_numbers(numbers, present, nulls)
    return Values(numbers, present, extremes, nulls)


def lengths_of(column: pa.Array) -> NDArray[np.int64]:
    """Return the lengths of the values that are not null."""
    kind = column.type
    if pat.is_fixed_size_list(kind):
        return np.full(len(column) - column.null_count, kind.list_size, dtype=np.int64)
    if pat.is_string(kind) or pat.is_large_string(kind):
        lengths = pc.utf8_length(column)
    elif pat.is_binary(kind) or pat.is_large_binary(kind):
        lengths = pc.binary_length(column)
    else:
        lengths = pc.list_value_length(column)
    return np.asarray(lengths.drop_null().to_numpy(zero_copy_only=False), dtype=np.int64)


def _extremes(numbers: NDArray[Any]) -> tuple[Any, Any] | None:
    if not len(numbers):
        return None
    with np.errstate(invalid="ignore"):
        return numbers.min(), numbers.max()


def _with_odd_numbers(numbers: Floats, present: Bools | None, nulls: int) -> Values:
    """Return the values of a column with NaN or infinities; nulls hold finite numbers."""
    known = np.isfinite(numbers)
    nan = int(np.isnan(numbers).sum())
    infinite = len(numbers) - int(known.sum()) - nan
    if present is not None:
        known &= present
    filled = np.where(known, numbers, 0.0)
    return Values(filled, known, _extremes(filled[known]), nulls, nan, infinite)


def _valid(column: pa.Array) -> Bools:
    return _bits(column.buffers()[0], column).view(np.bool_)


def _minus(numbers: NDArray[Any], pivot: float | int) -> Floats:
    if numbers.dtype.kind != "f" and isinstance(pivot, int):
        if numbers.dtype == np.uint64:
            return _unsigned_minus(numbers, pivot)
        return (numbers.astype(np.int64, copy=False) - pivot).astype(np.float64)
    return numbers.astype(np.float64, copy=False) - pivot


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Return one number a row; those of null rows may be anything."""
    kind = column.type
    if pat.is_boolean(kind):
        return _bits(column.buffers()[1], column).view(np.int8)
    if pat.is_date(kind):
        column = column.cast(pa.int32())
    elif pat.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())
    elif pat.is_decimal(kind):
        column = column.cast(pa.float64())
    numbers = _in_memory(column)
    if numbers.dtype.kind == "f":
        return np.asarray(numbers, dtype=np.float64)
    return numbers


def _in_memory(column: pa.Array) -> NDArray[Any]:
    """Return the numbers of a column as they lie in memory."""
    dtype = numpy_type(column.type)
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column), dtype=dtype)
    start = column.offset * dtype.itemsize
    return np.frombuffer(buffer, dtype=dtype, count=len(column), offset=start)


def _bits(buffer: pa.Buffer | None, column: pa.Array) -> NDArray[np.uint8]:
    """Return the bits of a column in a buffer, each as 0 or 1."""
    if buffer is None or not len(column):
        return np.zeros(len(column), dtype=np.uint8)
    first, start = divmod(column.offset, 8)
    stop = start + len(column)
    packed = np.frombuffer(buffer, dtype=np.uint8)[first : first + (stop + 7) // 8]
    return np.unpackbits(packed, count=stop, bitorder="little")[start:]


def _unsigned_minus(values: NDArray[np.uint64], pivot: int) -> Floats:
    shift = np.uint64(pivot)
    above = (values - shift).astype(np.float64)
    below = (shift - values).astype(np.float64)
    return np.where(values >= shift, above, -below)
