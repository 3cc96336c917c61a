"""The conversion of Python and foreign values to typed Arrow values, exactly or not at all.

Group writes infer the type of a column of Python values, and cast it to the type of the group's
column if every value has an equal there. Single values take the same way: ``to_array``,
``to_scalar`` and ``to_value`` accept what a write to a column of that type accepts, and refuse what
it refuses. ``pa.scalar(value, dtype)`` and ``pa.array(values, dtype)`` truncate instead: 1.7 to 1,
a datetime to its date, 1e300 to infinity, 2**53 + 1 to 2**53.

Command lines and JSON have no times, dates, decimals and bytes. ``from_text`` and ``from_json``
read the text forms of these types, and the nearest float of a decimal number.

Files and models round numbers to the nearest float32. A finite number beyond its range would become
infinity, and is refused.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow import types
from featurestore.arrow.bounds import find_out_of_range
from featurestore.arrow.casts import cast_array
from featurestore.arrow.cells import cells_to_array
from featurestore.arrow.exact_casts import InexactValueError, cast_exactly
from featurestore.arrow.fitting import can_fit
from featurestore.arrow.json_text import short_repr
from featurestore.arrow.text_values import TextRules, parse_texts
from featurestore.arrow.unstorable import CONVERSION_ERRORS
from featurestore.arrow.untyped import replace_null_types
from featurestore.errors import UnsupportedType

Convert = Callable[[Any], Any]


class ConversionError(ValueError):
    """Error for a value that has no equal in a type.

    ``value`` is the value, ``dtype`` the Arrow type, and ``reason`` the rest of the sentence
    that begins with the value.
    """

    def __init__(self, value: Any, dtype: pa.DataType, reason: str = "") -> None:
        self.value = value
        self.dtype = dtype
        self.reason = (
            reason or f"of type {type(value).__name__} does not fit {types.describe(dtype)}"
        )
        super().__init__(f"{short_repr(value)} {self.reason}")


def to_array(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Convert Python values, None for null, to an array of a type.

    >>> to_array([1, 2.0, None], pa.int8()).to_pylist()
    [1, 2, None]

    Raises:
        ConversionError: A value has no equal in the type; has the first such value.
    """
    array = _convert(values, dtype)
    if array is not None:
        return array
    # All values may have fitting types, and still have no common type.
    return pa.concat_arrays(
        [pa.array([], dtype), *[to_scalar_array(value, dtype) for value in values]]
    )


def to_scalar(value: Any, dtype: pa.DataType) -> pa.Scalar:
    """Convert a Python value, None for null, to a scalar of a type.

    >>> to_scalar(1.0, pa.int8())
    <pyarrow.Int8Scalar: 1>

    Raises:
        ConversionError: The value has no equal in the type.
    """
    return to_scalar_array(value, dtype)[0]


def to_value(value: Any, dtype: pa.DataType) -> Any:
    """Convert a value to the Python value that a column of a type returns for it.

    >>> to_value(np.datetime64("2024-01-31"), pa.date32())
    datetime.date(2024, 1, 31)

    Raises:
        ConversionError: The value has no equal in the type.
    """
    return to_scalar(value, dtype).as_py()


def value_converter(dtype: pa.DataType) -> Convert:
    """Return a function that equals ``to_value`` for a type, and is fast for common types.

    >>> value_converter(pa.int64())(1.0)
    1
    """
    if pat.is_string(dtype):
        plain_type: Any = str
    elif pat.is_int64(dtype):
        plain_type = int
    elif pat.is_float64(dtype):
        plain_type = float
    elif pat.is_boolean(dtype):
        plain_type = bool
    else:
        return lambda value: to_value(value, dtype)
    is_int64 = plain_type is int

    def convert(value: Any) -> Any:
        if type(value) is plain_type and (not is_int64 or -(2**63) <= value < 2**63):
            return value
        return to_value(value, dtype)

    return convert


def from_text(text: str, dtype: pa.DataType) -> Any:
    """Convert the text form of a value, as on a command line, to its Python value.

    Times and dates are ISO 8601, booleans ``true`` or ``false``, and bytes base64.

    >>> from_text("2024-01-31", pa.date32()), from_text("1.50", pa.decimal128(5, 2))
    (datetime.date(2024, 1, 31), Decimal('1.50'))

    Raises:
        ConversionError: The text is not a value of the type.
    """
    if pat.is_string(dtype):
        return text
    if pat.is_binary(dtype):
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConversionError(text, dtype, "is not base64") from error
    values, reasons = parse_texts(pa.array([text]), dtype, TextRules(declared=True))
    if reasons:
        raise ConversionError(text, dtype, f"is not {types.describe(dtype)}")
    return values[0].as_py()


def from_json(value: Any, dtype: pa.DataType) -> Any:
    """Convert a value of a JSON document to its Python value.

    Times, dates, decimals and bytes have text forms. A number becomes the nearest float of a
    floating-point type, unless it is an integer that the type cannot represent.

    >>> from_json("1.50", pa.decimal128(5, 2)), from_json(0.1, pa.float32())
    (Decimal('1.50'), 0.10000000149011612)

    Raises:
        ConversionError: The value is not one of the type.
    """
    has_text = pat.is_temporal(dtype) or pat.is_decimal(dtype) or pat.is_binary(dtype)
    if isinstance(value, str) and has_text:
        return from_text(value, dtype)
    if isinstance(value, list) and types.is_list_type(dtype):
        value = [from_json(item, dtype.value_type) for item in value]
    elif isinstance(value, dict) and pat.is_struct(dtype):
        fields = {field.name: field.type for field in map(dtype.field, range(dtype.num_fields))}
        value = {
            name: from_json(item, fields[name]) if name in fields else item
            for name, item in value.items()
        }
    elif type(value) is int and pat.is_decimal(dtype):
        # Arrow infers no type of integers beyond 64 bits.
        value = Decimal(value)
    elif isinstance(value, float) and pat.is_float32(dtype) and not rounds_to_infinity(value):
        value = float(np.float32(value))
    return to_value(value, dtype)


def to_scalar_array(value: Any, dtype: pa.DataType) -> pa.Array:
    """Convert a Python value to an array of one row.

    >>> to_scalar_array(None, pa.int8()).null_count
    1

    Raises:
        ConversionError: The value has no equal in the type.
    """
    array = _convert([value], dtype)
    if array is None:
        raise ConversionError(value, dtype)
    return array


def cast_column(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast an Arrow array as a write casts a column.

    >>> cast_column(pa.array([1.0, None]), pa.int8()).to_pylist()
    [1, None]

    Raises:
        ConversionError: A value has no equal in the type; has the first such value.
    """
    try:
        column = _cast(array, dtype)
    except InexactValueError as error:
        # Arrays of another shape have no value.
        reason = str(error) if error.value is None else ""
        raise ConversionError(error.value, dtype, reason) from error
    except (UnsupportedType, *CONVERSION_ERRORS) as error:
        raise ConversionError(None, dtype, f"in {types.describe(array.type)}: {error}") from error
    if column is None:
        (value, *_) = array.drop_null().slice(0, 1).to_pylist() or [None]
        raise ConversionError(value, dtype)
    return column


def round_to_float32(column: pa.Array) -> pa.Array:
    """Round float64 numbers, also in lists, to float32, as training files may store them.

    >>> round_to_float32(pa.array([0.5, None])).type
    DataType(float)

    Raises:
        ConversionError: A number is too large for float32; has the first such number.
    """
    dtype = types.with_innermost_type(column.type, pa.float32())
    numbers = column
    while types.is_list_type(numbers.type):
        numbers = numbers.flatten()
    doubles: npt.NDArray[np.float64] = numbers.drop_null().to_numpy(zero_copy_only=False)
    too_large = assign_rounded(np.empty(len(doubles), np.float32), doubles)
    if too_large is not None:
        raise ConversionError(too_large, types.innermost_type(dtype))
    return cast_array(column, dtype)


def _convert(values: Sequence[Any], dtype: pa.DataType) -> pa.Array | None:
    """Convert values as a write to a column does; return None if a value may not fit."""
    try:
        array = _cast(cells_to_array(values), dtype)
    except (UnsupportedType, InexactValueError, *CONVERSION_ERRORS):
        return None
    # A time of the years 1 to 9999 in another zone may have another year in UTC.
    if array is None or find_out_of_range(array) is not None:
        return None
    return array


def _cast(array: pa.Array, dtype: pa.DataType) -> pa.Array | None:
    """Cast an array by way of its feature type; return None if the types do not fit."""
    if pat.is_null(array.type):
        return pa.nulls(len(array), dtype)
    source = types.feature_schema(pa.schema([("values", array.type)])).field(0).type
    source = replace_null_types(source, dtype)
    if not can_fit(source, dtype):
        return None
    return cast_exactly(cast_array(array, source), dtype)


# The least number that rounds to infinity: half a step above the largest float32.
BEYOND_FLOAT32 = float(2**128 - 2**103)


def rounds_to_infinity(number: float) -> bool:
    """Return whether a finite number becomes infinity in float32.

    >>> rounds_to_infinity(3.4e38), rounds_to_infinity(-1e39), rounds_to_infinity(math.inf)
    (False, True, False)
    """
    return math.isfinite(number) and abs(number) >= BEYOND_FLOAT32


def largest_finite(array: pa.Array) -> float | None:
    """Return the finite number of the greatest magnitude in an array of floats, or None.

    >>> largest_finite(pa.array([1.0, -1e300, None, math.inf]))
    -1e+300
    """
    extremes = pc.min_max(array).as_py()
    numbers = [extremes["min"], extremes["max"]]
    if None in numbers:
        return None
    if not all(map(math.isfinite, numbers)):
        values = array.drop_null().to_numpy(zero_copy_only=False)
        finite = values[np.isfinite(values)]
        numbers = [float(finite.min()), float(finite.max())] if len(finite) else []
    return larger_magnitude(numbers)


def larger_magnitude(numbers: Iterable[float | None]) -> float | None:
    """Return the number of the greatest magnitude, without None.

    >>> larger_magnitude([2.0, None, -3.0])
    -3.0
    """
    return max((number for number in numbers if number is not None), key=abs, default=None)


def assign_rounded(target: npt.NDArray[np.float32], numbers: npt.NDArray[Any]) -> float | None:
    """Assign numbers to a float32 array, rounded; return the first that became infinity, if any.

    >>> assign_rounded(np.zeros(2, np.float32), np.array([0.1, 1e300]))
    1e+300
    """
    with np.errstate(over="ignore"):
        target[:] = numbers
    if numbers.dtype.kind != "f" or numbers.dtype.itemsize <= target.itemsize:
        return None
    became_infinite = np.isinf(target)
    if not became_infinite.any():
        return None
    became_infinite &= np.isfinite(numbers)
    return float(numbers[became_infinite][0]) if became_infinite.any() else None
