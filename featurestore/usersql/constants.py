"""Comparisons of a numeric column with a constant, decided by value.

The constant is converted to the type of the column if it has an equal there, so that an engine
compares two values of one type. For other constants the comparison is narrowed to the nearest
value of the type: over integers ``n < 2.5`` is ``n <= 2``, and ``n = 2.5`` is false.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.values import ConversionError, from_json, to_value

Sign = Literal["=", "<>", "<", "<=", ">", ">="]
Number = int | float | Decimal
MIRRORED: dict[str, Sign] = {
    "=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip
# Enough digits for every 64-bit float and every decimal of 38 digits.
_EXACT = decimal.Context(prec=1_200, Emin=-2_000, Emax=2_000)
_MAX_DIGITS = 38


def to_decimal(value: float | Decimal) -> Decimal:
    """Return the decimal number that a constant was written as.

    A float is the shortest decimal number that is read as this float.

    >>> to_decimal(0.1)
    Decimal('0.1')
    """
    return value if isinstance(value, Decimal) else Decimal(repr(value))


def number_literal(value: float | Decimal) -> str:
    """Return a finite number as a literal in SQL, with an exponent if it needs more digits than decimals.

    >>> number_literal(1e-7), number_literal(-0.1), number_literal(1e300)
    ('0.0000001', '-0.1', '1E+300')
    """
    if isinstance(value, int) and abs(value) < 2**64:
        return str(int(value))
    number = Decimal(value) if isinstance(value, int) else to_decimal(value)
    text = format(number, "f")
    is_short = len(text) < _MAX_DIGITS and not isinstance(value, int)
    return text if is_short else f"{number:E}"


def is_narrowed(dtype: pa.DataType | None) -> bool:
    """Return whether ``narrow_comparison`` supports a type."""
    if dtype is None:
        return False
    if pat.is_decimal(dtype):
        return bool(dtype.precision <= _MAX_DIGITS)
    return bool(pat.is_integer(dtype) or pat.is_floating(dtype))


def to_number(constant: int | Decimal, dtype: pa.DataType) -> Number | None:
    """Return the value of a numeric type that equals a constant, or None if no value equals it.

    A constant with a point or an exponent equals the nearest float of a floating-point type, as in
    SQL.

    >>> to_number(Decimal("0.1"), pa.decimal128(5, 2)), to_number(Decimal("2.5"), pa.int8())
    (Decimal('0.10'), None)
    """
    is_float = pat.is_floating(dtype)
    value: Number = constant
    if is_float and (isinstance(constant, Decimal) or float(constant) == constant):
        value = float(constant)
    elif pat.is_decimal(dtype):  # integers of more than 64 bits are not decimals
        value = Decimal(constant)
    elif isinstance(constant, Decimal) and _EXACT.remainder(constant, Decimal(1)) == 0:
        value = int(constant)
    convert = from_json if is_float and isinstance(constant, Decimal) else to_value
    try:
        number: Number = convert(value, dtype)
    except ConversionError:
        return None
    return number


def narrow_comparison(
    sign: Sign, constant: int | Decimal, dtype: pa.DataType
) -> tuple[Sign, Number] | bool:
    """Return the comparison of a column with a value of its type that equals one with a constant.

    Returns True or False if the comparison has this result for every value.

    >>> narrow_comparison("<", Decimal("2.5"), pa.int64()), narrow_comparison("=", 300, pa.int8())
    (('<=', 2), False)
    """
    value = to_number(constant, dtype)
    if value is not None:
        return sign, value
    if sign in ("=", "<>"):
        return sign == "<>"
    is_upper = sign in ("<", "<=")
    nearest = _nearest(Decimal(constant), dtype, below=is_upper)
    if nearest is None:
        return False
    return ("<=" if is_upper else ">="), nearest


def _nearest(constant: Decimal, dtype: pa.DataType, *, below: bool) -> Number | None:
    """Return the nearest value below or above a constant; None if the type has none."""
    if pat.is_floating(dtype):
        return _nearest_float(constant, dtype, below=below)
    if pat.is_decimal(dtype):
        scale = dtype.scale
        largest = Decimal("9" * dtype.precision).scaleb(-scale, context=_EXACT)
        smallest = largest.copy_negate()
    else:
        limits = np.iinfo(dtype.to_pandas_dtype())
        scale, smallest, largest = 0, Decimal(int(limits.min)), Decimal(int(limits.max))
    rounding = decimal.ROUND_FLOOR if below else decimal.ROUND_CEILING
    unit = Decimal(1).scaleb(-scale, context=_EXACT)
    nearest = constant.quantize(unit, rounding=rounding, context=_EXACT)
    if (below and nearest < smallest) or (not below and nearest > largest):
        return None
    nearest = min(max(nearest, smallest), largest)
    return nearest if pat.is_decimal(dtype) else int(nearest)


def _nearest_float(constant: Decimal, data_type: pa.DataType, *, below: bool) -> float:
    dtype = data_type.to_pandas_dtype()
    with np.errstate(over="ignore"):
        nearest = dtype(float(constant))
        if nearest > constant and below:
            nearest = np.nextafter(nearest, dtype(-np.inf))
        elif nearest < constant and not below:
            nearest = np.nextafter(nearest, dtype(np.inf))
    return float(nearest)
