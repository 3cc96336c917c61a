"""Casts of arrays to a type that ``fitting.can_fit`` allows, which check each value.

==================  ===========================================================
source, target      a value fits when
==================  ===========================================================
integer, integer    it is within the range
decimal, decimal    it has at most the digits before and after the point, without trailing zeros
integer, decimal    it has at most the digits before the point
decimal, integer    it is whole and within the range
integer, float      it is at most 2**53 (float64) or 2**24 (float32), either sign
float, integer      it is whole and within the range; no NaN, no infinity
float64, float32    float32 has the same value; NaN and infinities do
list, fixed size    it has that many items, and each item fits
fixed size, list    each of its items fits
struct, struct      each field fits the field of that name; fields that it lacks are null
==================  ===========================================================
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.arrays import find_shape_mismatch
from featurestore.arrow.casts import cast_array
from featurestore.arrow.fitting import can_widen, exact_in_float
from featurestore.arrow.types import integer_range, is_nested, numpy_type


class InexactValueError(ValueError):
    """Error for a value without an equal in the target type; ``value`` is None for arrays."""

    def __init__(self, message: str, value: float | Decimal | None = None) -> None:
        super().__init__(message)
        self.value = value


def cast_exactly(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast an array to another type that ``can_fit`` allows.

    >>> cast_exactly(pa.array([1.0, None, 3.0]), pa.int64()).to_pylist()
    [1, None, 3]

    Raises:
        InexactValueError: A value has no equal in the target type; the message names the first.
    """
    if not can_widen(array.type, target):
        mismatch = find_shape_mismatch(array, target)
        if mismatch is not None:
            raise InexactValueError(f"an array of shape {mismatch[1]} does not fit")
        value = find_inexact_value(array, target)
        if value is not None:
            raise InexactValueError(f"{value} does not fit", value)
        try:
            return cast_array(array, target)
        # Arrays inside structs may have another shape.
        except pa.ArrowInvalid as error:
            raise InexactValueError(str(error)) from error
    return cast_array(array, target)


def find_inexact_value(array: pa.Array, target: pa.DataType) -> Any:
    """Return the first number, also in lists, without an equal in a type; None if all have one.

    >>> find_inexact_value(pa.array([1.0, 2.5, 3.5]), pa.int64())
    2.5
    """
    if can_widen(array.type, target):
        return None
    while is_nested(array.type):
        if array.null_count == len(array):
            return None
        if pat.is_struct(array.type):
            return _find_inexact_field(array, target)
        array, target = array.flatten(), target.value_type
    # Nulls fit every type.
    array = pc.drop_null(array)
    if pat.is_decimal(array.type) or pat.is_decimal(target):
        return _find_uncastable(array, target)
    values = array.to_numpy(zero_copy_only=False)
    inexact_rows = np.flatnonzero(_inexact_mask(values, target))
    if not len(inexact_rows):
        return None
    return values[inexact_rows[0]].item()


def _find_inexact_field(array: pa.Array, target: pa.DataType) -> Any:
    """Return the first number without an equal in the fields of structs."""
    children = pc.drop_null(array).flatten()
    for index, child in enumerate(children):
        field = target.field(array.type.field(index).name)
        value = find_inexact_value(child, field.type)
        if value is not None:
            return value
    return None


def cast_label_keys(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast label keys to the type of the primary key; keys without an equal become null.

    >>> cast_label_keys(pa.array([1, 300]), pa.int8()).to_pylist()
    [1, None]
    """
    try:
        return cast_array(array, target)
    # Value by value, so that only the keys without an equal become null.
    except pa.ArrowInvalid:
        values = [_cast_or_null(array.slice(row, 1), target) for row in range(len(array))]
        return pa.concat_arrays(values)


def _find_uncastable(array: pa.Array, target: pa.DataType) -> Any:
    """Return the first value that cannot be cast; castable halves are not searched."""
    try:
        cast_array(array, target)
        return None
    except pa.ArrowInvalid:
        if len(array) == 1:
            return array[0].as_py()
    half = len(array) // 2
    first = _find_uncastable(array.slice(0, half), target)
    if first is not None:
        return first
    return _find_uncastable(array.slice(half), target)


def _inexact_mask(values: Any, target: pa.DataType) -> Any:
    """Return a boolean mask of the values without an equal in a type."""
    if values.dtype.kind != "f":
        low, high = _integer_bounds(target)
        dtype_range = np.iinfo(values.dtype)
        return (values < max(low, dtype_range.min)) | (values > min(high, dtype_range.max))
    if pat.is_integer(target):
        low, high = integer_range(target)
        # Powers of two, which floats represent exactly.
        inside = (values >= float(low)) & (values < float(high + 1))
        return ~(inside & (np.trunc(values) == values))
    with np.errstate(over="ignore"):
        # A value is exact if the narrower type returns it unchanged.
        there_and_back = values.astype(numpy_type(target)).astype(values.dtype)
    return (there_and_back != values) & ~np.isnan(values)


def _integer_bounds(target: pa.DataType) -> tuple[int, int]:
    """Return the minimum and maximum of the contiguous integers that a type represents."""
    if pat.is_integer(target):
        return integer_range(target)
    exact = exact_in_float(target)
    return -exact, exact


def _cast_or_null(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return cast_array(array, target)
    except pa.ArrowInvalid:
        return pa.nulls(1, target)
