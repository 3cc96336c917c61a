"""When values of one type may go into a column of another: when nothing is lost.

By default pandas has only 64-bit integers, and one missing value makes them floats;
a file read in chunks has another type in each. So a column may be written into one of another
numeric type, or of a shape, if every value has its equal there. The rule is applied twice: to the
types (``can_fit``), and of the values, where the rows are (``cast_exactly``).

==================  ===========================================================
given, wanted       a value fits when
==================  ===========================================================
integer, integer    it is within the range
decimal, decimal    it has at most the digits before and after the point; zeros at the end are none
integer, decimal    it has at most the digits before the point
decimal, integer    it is whole and within the range
integer, float      it is at most 2**53 (float64) or 2**24 (float32), either sign
float, integer      it is whole and within the range; no NaN, no infinity
float64, float32    float32 has the same value; NaN and infinities do
list, fixed size    it has that many items, and each item fits
fixed size, list    each of its items fits
==================  ===========================================================
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.arrays import first_shape_mismatch
from featurestore.arrow.arrow_cast import cast_array
from featurestore.arrow.types import (
    exact_in_float,
    holds_items,
    integer_range,
    is_exact,
    is_nested,
    numpy_type,
    widens,
)


class Misfit(ValueError):
    """A value has no equal in the type that it should get; ``value`` is None for arrays."""

    def __init__(self, text: str, value: float | Decimal | None = None) -> None:
        super().__init__(text)
        self.value = value


def can_fit(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if values of one type can have equals in another type.

    >>> can_fit(pa.int64(), pa.float64()), can_fit(pa.int64(), pa.string())
    (True, False)
    """
    if widens(source, target):
        return True
    if _is_numeric(source) and _is_numeric(target):
        return True
    if is_exact(source) and is_exact(target):
        return True
    if not (holds_items(source) and holds_items(target)):
        return False
    are_fixed = pat.is_fixed_size_list(source) and pat.is_fixed_size_list(target)
    if are_fixed and source.list_size != target.list_size:
        return False
    return can_fit(source.value_type, target.value_type)


def cast_exactly(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return an array as another type that ``can_fit`` allows.

    >>> cast_exactly(pa.array([1.0, None, 3.0]), pa.int64()).to_pylist()
    [1, None, 3]

    Raises:
        Misfit: A value has no equal there; the text names the first.
    """
    if not widens(array.type, target):
        mismatch = first_shape_mismatch(array, target)
        if mismatch is not None:
            raise Misfit(f"an array of shape {mismatch[1]} does not fit")
        value = first_misfit(array, target)
        if value is not None:
            raise Misfit(f"{value} does not fit", value)
    return cast_array(array, target)


def first_misfit(array: pa.Array, target: pa.DataType) -> Any:
    """Return the first number, inside of lists too, that has no equal in a type; None: all have.

    >>> first_misfit(pa.array([1.0, 2.5, 3.5]), pa.int64())
    2.5
    """
    while is_nested(array.type):
        if array.null_count == len(array):
            return None
        array, target = array.flatten(), target.value_type
    array = pc.drop_null(array)
    if pat.is_decimal(array.type) or pat.is_decimal(target):
        return _first_uncastable(array, target)
    values = array.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(_misfits(values, target))
    if not len(wrong):
        return None
    return values[wrong[0]].item()


def cast_label_keys(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return keys of labels as the type of the key that they meet, null where it has no equal.

    >>> cast_label_keys(pa.array([1, 300]), pa.int8()).to_pylist()
    [1, None]
    """
    try:
        return cast_array(array, target)
    except pa.ArrowInvalid:
        values = [_cast_or_null(array.slice(row, 1), target) for row in range(len(array))]
        return pa.concat_arrays(values)


def _cast_or_null(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return cast_array(array, target)
    except pa.ArrowInvalid:
        return pa.nulls(1, target)


def _first_uncastable(array: pa.Array, target: pa.DataType) -> Any:
    """Return the first value that cannot be cast; halves that can be are not looked into."""
    try:
        cast_array(array, target)
        return None
    except pa.ArrowInvalid:
        if len(array) == 1:
            return array[0].as_py()
    half = len(array) // 2
    first = _first_uncastable(array.slice(0, half), target)
    if first is not None:
        return first
    return _first_uncastable(array.slice(half), target)


def _misfits(values: Any, target: pa.DataType) -> Any:
    """Return which values have no equal in a type, as booleans."""
    if values.dtype.kind != "f":
        low, high = _integer_bounds(target)
        dtype_range = np.iinfo(values.dtype)
        return (values < max(low, dtype_range.min)) | (values > min(high, dtype_range.max))
    if pat.is_integer(target):
        low, high = integer_range(target)
        # Powers of two, so that they are floats themselves.
        inside = (values >= float(low)) & (values < float(high + 1))
        return ~(inside & (np.trunc(values) == values))
    with np.errstate(over="ignore"):
        there_and_back = values.astype(numpy_type(target)).astype(values.dtype)
    return (there_and_back != values) & ~np.isnan(values)


def _integer_bounds(target: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest whole number that a type holds with all between them."""
    if pat.is_integer(target):
        return integer_range(target)
    exact = exact_in_float(target)
    return -exact, exact


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind))
