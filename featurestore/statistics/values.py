"""Arrow columns as numpy: finite values, where they are, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Values:
    """The measured values of one column in one batch.

    ``finite`` are the values without nulls, NaN and infinities: float64, or an integer type.
    ``present`` marks their rows, None when that is every row.
    """

    finite: NDArray[Any]
    present: Bools | None
    nulls: int
    nan: int = 0
    infinite: int = 0

    def minus(self, pivot: float | int) -> NDArray[np.float64]:
        """Return the finite values minus a pivot, as float64.

        Exact integers stay exact until then.
        """
        if self.finite.dtype.kind != "f" and isinstance(pivot, int):
            if self.finite.dtype == np.uint64:
                return _unsigned_minus(self.finite, pivot)
            return (self.finite.astype(np.int64, copy=False) - pivot).astype(np.float64)
        return self.finite.astype(np.float64, copy=False) - pivot


def measured_values(column: pa.Array) -> Values:
    """Return the values of a column of numbers, booleans or times.

    Dates are days, timestamps microseconds.
    """
    numbers = _numbers(column)
    nulls = column.null_count
    if nulls == 0:
        if numbers.dtype.kind == "f":
            return _finite_values(numbers)
        return Values(numbers, None, nulls)
    present = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    if numbers.dtype.kind == "f":
        return _finite_values_of_present(numbers, present, nulls)
    return Values(numbers[present], present, nulls)


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


def _finite_values(numbers: NDArray[np.float64]) -> Values:
    finite = np.isfinite(numbers)
    if finite.all():
        return Values(numbers, None, nulls=0)
    nan = int(np.isnan(numbers).sum())
    infinite = len(numbers) - int(finite.sum()) - nan
    return Values(numbers[finite], finite, 0, nan, infinite)


def _finite_values_of_present(numbers: NDArray[np.float64], present: Bools, nulls: int) -> Values:
    """Return the values where nulls hold a finite number that means nothing."""
    known = np.isfinite(numbers) & present
    nan = int(np.isnan(numbers).sum())
    infinite = len(numbers) - nulls - int(known.sum()) - nan
    return Values(numbers[known], known, nulls, nan, infinite)


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Return one number a row; those of null rows mean nothing."""
    kind = column.type
    if pat.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pat.is_date(kind):
        column = column.cast(pa.int32())
    elif pat.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())
    elif pat.is_decimal(kind):
        column = column.cast(pa.float64())
    if column.null_count:
        column = column.fill_null(0)
    numbers = column.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        return np.asarray(numbers, dtype=np.float64)
    return np.asarray(numbers)


def _unsigned_minus(values: NDArray[np.uint64], pivot: int) -> NDArray[np.float64]:
    shift = np.uint64(pivot)
    above = (values - shift).astype(np.float64)
    below = (shift - values).astype(np.float64)
    return np.where(values >= shift, above, -below)
