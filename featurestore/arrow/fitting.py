"""Rules for storing values of one type in a column of another type without loss.

By default pandas only has 64-bit integers, and one missing value converts them to floats; the
chunks of a file may have different types. A column may therefore be written to a column of another
numeric type, or of a fixed shape, if every value has an equal there. The rule is applied twice: to
the types (``can_fit``), and to the values where the rows are read (``exact_casts``). If the target
type contains all values of the source type, values are not checked (``can_widen``).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import _fields, integer_range, is_exact, is_list_type
from featurestore.errors import SchemaMismatch

# Integers up to this limit are exact.
_EXACT_IN_FLOAT32, _EXACT_IN_FLOAT64 = 2**24, 2**53


def can_widen(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether every value of ``narrow`` has an equal value in ``wide``.

    >>> can_widen(pa.int16(), pa.int64()), can_widen(pa.int64(), pa.int32())
    (True, False)
    """
    if narrow == wide or pat.is_null(narrow):
        return True
    if pat.is_integer(narrow):
        return _widens_integer(narrow, wide)
    if pat.is_floating(narrow) and pat.is_floating(wide):
        return narrow.bit_width <= wide.bit_width
    if pat.is_decimal(narrow) and pat.is_decimal(wide):
        digits_before = narrow.precision - narrow.scale
        return narrow.scale <= wide.scale and digits_before <= wide.precision - wide.scale
    if pat.is_fixed_size_list(narrow) and pat.is_fixed_size_list(wide):
        return narrow.list_size == wide.list_size and can_widen(narrow.value_type, wide.value_type)
    is_list = is_list_type(narrow)
    if is_list and pat.is_list(wide):
        return can_widen(narrow.value_type, wide.value_type)
    if pat.is_struct(narrow) and pat.is_struct(wide):
        return _widens_struct(narrow, wide)
    return False


def can_fit(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of one type may have equals in another type.

    >>> can_fit(pa.int64(), pa.float64()), can_fit(pa.int64(), pa.string())
    (True, False)
    """
    if can_widen(source, target):
        return True
    if _is_numeric(source) and _is_numeric(target):
        return True
    if is_exact(source) and is_exact(target):
        return True
    if pat.is_struct(source) and pat.is_struct(target):
        return _fits_struct(source, target)
    if not (is_list_type(source) and is_list_type(target)):
        return False
    are_fixed = pat.is_fixed_size_list(source) and pat.is_fixed_size_list(target)
    if are_fixed and source.list_size != target.list_size:
        return False
    return can_fit(source.value_type, target.value_type)


def wider_decimal(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the decimal type that holds two decimal types, or None beyond 38 digits.

    >>> wider_decimal(pa.decimal128(3, 2), pa.decimal128(3, 0))
    Decimal128Type(decimal128(5, 2))
    """
    if not (pat.is_decimal(first) and pat.is_decimal(second)):
        return None
    scale = max(first.scale, second.scale)
    precision = max(first.precision - first.scale, second.precision - second.scale) + scale
    return pa.decimal128(precision, scale) if precision <= 38 else None


def widened_schema(schema: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """Return a schema whose decimals also hold the decimals of other columns, matched by name.

    >>> wide = pa.schema([("price", pa.decimal128(3, 0))])
    >>> widened_schema(pa.schema([("price", pa.decimal128(3, 2))]), wide).types
    [Decimal128Type(decimal128(5, 2))]

    Raises:
        SchemaMismatch: No decimal type of at most 38 digits holds both types.
    """
    types_by_name = dict(zip(columns.names, columns.types, strict=True))
    fields = []
    for field in schema:
        dtype = with_wider_decimals(field.type, types_by_name.get(field.name, field.type))
        if dtype is None:
            raise SchemaMismatch(
                f"Column {field.name!r} of type {field.type} cannot be widened for values of type "
                f"{types_by_name[field.name]}: decimals have at most 38 digits."
            )
        fields.append(field.with_type(dtype))
    return pa.schema(fields)


def with_wider_decimals(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return a type whose decimals, also in lists, hold the decimals of a second type.

    Returns None beyond 38 digits. Types without decimals, or with different list types, are
    unchanged.

    >>> with_wider_decimals(pa.list_(pa.decimal128(3, 2)), pa.list_(pa.decimal128(4, 2)))
    ListType(list<item: decimal128(4, 2)>)
    """
    if first == second:
        return first
    if pat.is_decimal(first) and pat.is_decimal(second):
        return wider_decimal(first, second)
    if not (is_list_type(first) and is_list_type(second)):
        return first
    item = with_wider_decimals(first.value_type, second.value_type)
    if item is None or item == first.value_type:
        return item and first
    # -1 is the size of a variable-size list in pyarrow.
    size = first.list_size if pat.is_fixed_size_list(first) else -1
    return pa.list_(first.value_field.with_type(item), size)


def exact_in_float(dtype: pa.DataType) -> int:
    """Return the largest number up to which a float type represents every integer.

    >>> exact_in_float(pa.float32()) == 2**24
    True
    """
    return _EXACT_IN_FLOAT64 if pat.is_float64(dtype) else _EXACT_IN_FLOAT32


def _widens_integer(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether a type contains all values of an integer type."""
    low, high = integer_range(narrow)
    if pat.is_integer(wide):
        wide_low, wide_high = integer_range(wide)
        return wide_low <= low and high <= wide_high
    if pat.is_decimal(wide):
        return high < 10 ** (wide.precision - wide.scale)
    return bool(pat.is_floating(wide)) and high <= exact_in_float(wide)


def _widens_struct(narrow: pa.DataType, wide: pa.DataType) -> bool:
    narrow_fields, wide_fields = _fields(narrow), _fields(wide)
    if len(narrow_fields) != len(wide_fields):
        return False
    for field, wide_field in zip(narrow_fields, wide_fields, strict=True):
        if field.name != wide_field.name:
            return False
        if not can_widen(field.type, wide_field.type):
            return False
    return True


def _fits_struct(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether the target has each field of the source, and only nullable fields besides."""
    source_types = {field.name: field.type for field in _fields(source)}
    for field in _fields(target):
        dtype = source_types.pop(field.name, None)
        if not (field.nullable if dtype is None else can_fit(dtype, field.type)):
            return False
    return not source_types


def _is_numeric(dtype: pa.DataType) -> bool:
    return bool(pat.is_integer(dtype) or pat.is_floating(dtype))
