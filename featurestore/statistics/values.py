"""The values of measured columns as numpy arrays with masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.arrow.types import numpy_type

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
# Differences of integers up to this magnitude are exact in int64.
_MAX_EXACT_RANGE = 1 << 62
# The number of leading values from which the pivot is computed.
_PROBED_ROWS = 256


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return an uninitialized array from Arrow's memory pool, which reuses freed memory.

    >>> empty((2, 3)).shape
    (2, 3)
    """
    data_type = np.dtype(dtype)
    size = shape if isinstance(shape, int) else math.prod(shape)
    return np.frombuffer(pa.allocate_buffer(size * data_type.itemsize), data_type).reshape(shape)


_EXACT_IN_FLOAT64 = 1 << 52


def is_float(numbers: NDArray[Any]) -> bool:
    """Return whether an array has floats."""
    return np.issubdtype(numbers.dtype, np.floating)


@dataclass(frozen=True)
class Values:
    """The measured values of one column in one batch.

    ``numbers`` has one number for each row, of type float64 or an integer type; nulls, NaN and
    infinities are replaced by the pivot. ``present`` is the mask of finite values, None if all
    values are finite. ``pivot`` is close to the mean of the first values, and equal to them if they
    are constant. ``extremes`` has the finite minimum and maximum, None without finite values.
    """

    numbers: NDArray[Any]
    present: Bools | None
    pivot: float | int
    extremes: tuple[Any, Any] | None
    nulls: int
    nan: int = 0
    infinite: int = 0

    @property
    def missing(self) -> int:
        """The number of rows without a finite value."""
        return self.nulls + self.nan + self.infinite

    @property
    def count(self) -> int:
        """The number of finite values."""
        return len(self.numbers) - self.missing

    @cached_property
    def finite(self) -> NDArray[Any]:
        """The finite values."""
        if self.present is None:
            return self.numbers
        return self.numbers[self.present]

    def deviations(self) -> Floats:
        """Return the numbers minus the pivot; 0 for missing values."""
        out: Floats = empty(len(self.numbers))
        self.write_deviations(slice(None), out)
        return out

    def write_deviations(self, rows: slice, out: Floats) -> None:
        """Write the numbers of a row range minus the pivot to ``out``.

        Differences of integers are computed exactly before the conversion to float, unless they
        overflow.
        """
        numbers = self.numbers[rows].reshape(out.shape)
        if self._fits_float64:
            np.subtract(numbers, float(self.pivot), out=out, dtype=np.float64)
        elif not self._has_exact_differences:
            out[:] = numbers.astype(np.float64) - float(self.pivot)
        elif numbers.dtype == np.uint64:
            # The unsigned difference wraps around, and its bits are those of the signed difference.
            out[:] = (numbers - np.uint64(self.pivot)).view(np.int64)
        else:
            out[:] = numbers - np.int64(self.pivot)

    @cached_property
    def _fits_float64(self) -> bool:
        """Whether float64 represents all numbers and their differences exactly."""
        if is_float(self.numbers) or self.numbers.dtype.itemsize < 8:
            return True
        if self.extremes is None:
            return True
        return max(abs(int(extreme)) for extreme in self.extremes) < _EXACT_IN_FLOAT64

    @cached_property
    def _has_exact_differences(self) -> bool:
        """Whether int64 represents all differences of the numbers."""
        if self.extremes is None:
            return True
        return int(self.extremes[1]) - int(self.extremes[0]) <= _MAX_EXACT_RANGE


def measured_values(column: pa.Array) -> Values:
    """Return the values of a column of numbers, booleans or times.

    Dates are converted to days, timestamps to microseconds.
    """
    numbers = _to_numbers(column)
    nulls = column.null_count
    present = None
    if nulls:
        present = _unpack_bits(column.buffers()[0], column).view(np.bool_)
    # Deviations from a pivot near the mean lose fewer digits in sums of squares than the numbers.
    pivot = _compute_pivot(numbers, present)
    if present is not None:
        numbers = _fill_missing(numbers, present, pivot)
    extremes = None
    if nulls < len(column):
        with np.errstate(invalid="ignore"):
            extremes = numbers.min(), numbers.max()
        if is_float(numbers) and not np.isfinite(extremes).all():
            return _values_with_non_finite(numbers, present, nulls)
    return Values(numbers, present, pivot, extremes, nulls)


def value_lengths(column: pa.Array) -> NDArray[np.int64]:
    """Return the lengths of the non-null values: characters, bytes or elements."""
    dtype = column.type
    if pat.is_fixed_size_list(dtype):
        return np.full(len(column) - column.null_count, dtype.list_size, dtype=np.int64)
    if (pat.is_string(dtype) or pat.is_large_string(dtype)) and not _is_ascii(column):
        lengths = pc.utf8_length(column)
    elif not pat.is_nested(dtype):
        lengths = pc.binary_length(column)
    else:
        lengths = pc.list_value_length(column)
    return np.asarray(lengths.drop_null().to_numpy(zero_copy_only=False), dtype=np.int64)


def text_prefix(text: pa.StringScalar, characters: int) -> str:
    """Return the first characters of a string without copying the rest.

    >>> text_prefix(pa.scalar("äbcd"), 2)
    'äb'
    """
    # UTF-8 characters have at most four bytes; a truncated last character is not returned.
    data = text.as_buffer()
    first = data.slice(0, min(data.size, 4 * characters)).to_pybytes()
    return first.decode(errors="ignore")[:characters]


def _is_ascii(texts: pa.Array) -> bool:
    """Return True if all strings are ASCII; this check is faster than counting characters."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return True
    dtype = np.dtype(np.int64 if pat.is_large_string(texts.type) else np.int32)
    ends = np.frombuffer(offsets, dtype, len(texts) + 1, texts.offset * dtype.itemsize)
    inside = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]]
    return bool(inside.max(initial=0) < 128)


def _compute_pivot(numbers: NDArray[Any], present: Bools | None) -> Any:
    """Return a finite number close to the mean of the first values, or 0 without finite values."""
    values = _select_finite(numbers[:_PROBED_ROWS], present)
    if not len(values):
        # The probed rows have no finite value, but later rows may have some.
        values = _select_finite(numbers, present)
        if not len(values):
            return 0
    with np.errstate(over="ignore", invalid="ignore"):
        mean: float | int = float(values.mean(dtype=np.float64))
    low, high = values.min().item(), values.max().item()
    if isinstance(low, int):
        mean = round(mean)
    return min(max(low, mean), high)  # the minimum if the mean overflowed


def _select_finite(numbers: NDArray[Any], present: Bools | None) -> NDArray[Any]:
    """Return the finite values at the start of a column."""
    if present is not None:
        numbers = numbers[present[: len(numbers)]]
    if is_float(numbers):
        numbers = numbers[np.isfinite(numbers)]
    return numbers


def _fill_missing(numbers: NDArray[Any], present: Bools, pivot: float | int) -> NDArray[Any]:
    """Replace missing numbers by the pivot.

    Bitwise operations avoid mispredicted branches, which dominate ``np.where``.
    """
    word = np.dtype(f"i{numbers.itemsize}")
    fill = numbers.dtype.type(pivot).view(word)
    bits, mask = empty((2, len(numbers)), word)
    np.bitwise_xor(numbers.view(word), fill, out=bits)
    bits &= np.negative(present.view(np.int8), out=mask, dtype=word)
    bits ^= fill
    return bits.view(numbers.dtype)


def _values_with_non_finite(numbers: Floats, present: Bools | None, nulls: int) -> Values:
    """Return the values of a column with NaN or infinities."""
    is_finite = np.isfinite(numbers)
    nan = int(np.isnan(numbers).sum())
    infinite = len(numbers) - int(is_finite.sum()) - nan
    if present is not None:
        is_finite &= present
    pivot = _compute_pivot(numbers, is_finite)
    filled = _fill_missing(numbers, is_finite, pivot)
    extremes = None
    if is_finite.any():
        extremes = filled.min(), filled.max()
    return Values(filled, is_finite, pivot, extremes, nulls, nan, infinite)


def _to_numbers(column: pa.Array) -> NDArray[Any]:
    """Return one number for each row; the numbers in null rows are arbitrary."""
    dtype = column.type
    if pat.is_boolean(dtype):
        return _unpack_bits(column.buffers()[1], column).view(np.int8)
    if pat.is_date(dtype):
        column = column.cast(pa.int32())
    elif pat.is_timestamp(dtype):
        # Statistics of all timestamps are in microseconds, independent of the column's unit.
        column = column.cast(pa.timestamp("us", tz=dtype.tz)).cast(pa.int64())
    elif pat.is_decimal(dtype):
        column = column.cast(pa.float64())
    numpy_dtype = numpy_type(column.type)
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        numbers = np.zeros(len(column), dtype=numpy_dtype)
    else:
        start = column.offset * numpy_dtype.itemsize
        numbers = np.frombuffer(buffer, dtype=numpy_dtype, count=len(column), offset=start)
    if is_float(numbers):
        return np.asarray(numbers, dtype=np.float64)
    return numbers


def _unpack_bits(buffer: pa.Buffer | None, column: pa.Array) -> NDArray[np.uint8]:
    """Unpack the bitmap of a column to one byte per bit, 0 or 1."""
    if buffer is None or not len(column):
        return np.zeros(len(column), dtype=np.uint8)
    first, start = divmod(column.offset, 8)
    stop = start + len(column)
    packed = np.frombuffer(buffer, dtype=np.uint8)[first : first + (stop + 7) // 8]
    return np.unpackbits(packed, count=stop, bitorder="little")[start:]
