"""Arrow types of features: what a user's column becomes, and how a table stores it.

Three forms of one column:

* *given*: the Arrow type that the user's dataframe has;
* *feature type*: what the group promises and every read returns (``feature_type``);
* *storage type*: what the Delta table holds (``storage_type``), since Delta has no unsigned
  integers and no fixed-size lists.

=====================  ======================  ========================================
given                  feature type            storage type
=====================  ======================  ========================================
bool, int8..int64      the same                the same
uint8 / 16 / 32        the same                int16 / 32 / 64
uint64                 the same                decimal(20, 0)
float16, float32       float32                 float32
float64                float64                 float64
decimal128(p, s>=0)    the same                the same
string kinds           string                  string
binary kinds           binary                  binary
dictionary             its value type          of its value type
date32, date64         date32                  date32
timestamp(any)         timestamp[us, UTC]      timestamp[us, UTC]
list kinds             list of feature type    list of storage type
fixed-size list        the same size           list, its shape in the column's metadata
struct                 fields alike            fields alike
=====================  ======================  ========================================

Everything else (null, time of day, durations, intervals, maps, unions, decimal256) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import UnsupportedType
from featurestore.model.shapes import is_tensor, shape_of, tensor_type

TIMESTAMP = pa.timestamp("us", tz="UTC")

# The key of Delta's column metadata that holds the shape of arrays.
SHAPE = "featurestore.shape"

# Whole numbers up to here are exact.
_EXACT_IN_FLOAT32, _EXACT_IN_FLOAT64 = 2**24, 2**53
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_PLAIN = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    *_WIDER,
    pa.float32(),
    pa.float64(),
)


def feature_type(given: pa.DataType) -> pa.DataType | None:
    """Return the feature type of a column given as ``given``, or None when it cannot be stored.

    >>> feature_type(pa.dictionary(pa.int8(), pa.large_string()))
    DataType(string)
    >>> feature_type(pa.duration("s")) is None
    True
    """
    if given in _PLAIN:
        return given
    if isinstance(given, pa.BaseExtensionType):
        return feature_type(tensor_type(given) if is_tensor(given) else given.storage_type)
    if pat.is_dictionary(given):
        return feature_type(given.value_type)
    if pat.is_float16(given):
        return pa.float32()
    if _is_text(given):
        return pa.string()
    if _is_bytes(given):
        return pa.binary()
    if pat.is_date(given):
        return pa.date32()
    if pat.is_timestamp(given):
        return TIMESTAMP
    if pat.is_decimal128(given) and given.scale >= 0:
        return given
    return _nested(given)


def storage_type(feature: pa.DataType) -> pa.DataType:
    """Return the type in which a Delta table holds a feature type.

    >>> storage_type(pa.uint64())
    Decimal128Type(decimal128(20, 0))
    """
    if feature in _WIDER:
        return _WIDER[feature]
    if pat.is_fixed_size_list(feature) or pat.is_list(feature):
        return pa.list_(pa.field("element", storage_type(feature.value_type)))
    if pat.is_struct(feature):
        return pa.struct(_storage_fields(_fields(feature)))
    return feature


def feature_schema(given: pa.Schema) -> pa.Schema:
    """Return the schema of feature types for a given schema.

    Raises:
        UnsupportedType: Lists every column that cannot be stored.
    """
    fields, refused, pasted = [], [], []
    for field in given:
        result = feature_type(field.type)
        if result is None:
            refused.append(f"{field.name}: {field.type} ({_way_out(field.type)})")
            pasted.append(_paste(field.name, field.type))
        else:
            fields.append(pa.field(field.name, result, nullable=True))
    if refused:
        raise UnsupportedType(
            f"These columns have types that cannot be stored: {'; '.join(refused)}.",
            hint=f"with pandas: {'; '.join(pasted)}",
        )
    return pa.schema(fields)


def storage_schema(features: pa.Schema) -> pa.Schema:
    """Return the schema that the Delta table has for a schema of feature types.

    Delta's arrays have no size: the shape of a column is in its metadata, as JSON.

    >>> storage_schema(pa.schema([("pixels", pa.list_(pa.uint8(), 64))])).field("pixels").metadata
    {b'featurestore.shape': b'[64]'}
    """
    fields = []
    for field, given in zip(_storage_fields(features), features, strict=True):
        shape = shape_of(given.type)
        if shape:
            field = field.with_metadata({SHAPE: json.dumps(shape)})
        fields.append(field)
    return pa.schema(fields)


def _storage_fields(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return [pa.field(field.name, storage_type(field.type), nullable=True) for field in fields]


def can_be_key(feature: pa.DataType) -> bool:
    """Tell whether a column of this feature type may be part of a primary key."""
    return not (pat.is_floating(feature) or is_nested(feature))


def is_nested(kind: pa.DataType) -> bool:
    """Tell whether a type holds values of other types.

    Older releases of pyarrow overlook lists of a fixed size.

    >>> is_nested(pa.list_(pa.float32(), 3)), is_nested(pa.float32())
    (True, False)
    """
    return bool(pat.is_nested(kind) or pat.is_fixed_size_list(kind))


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Tell whether every value of ``narrow`` has an equal value in ``wide``.

    >>> widens(pa.int16(), pa.int64()), widens(pa.int64(), pa.int32())
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
        return narrow.list_size == wide.list_size and widens(narrow.value_type, wide.value_type)
    is_list = is_any_list(narrow) or pat.is_fixed_size_list(narrow)
    if is_list and pat.is_list(wide):
        return widens(narrow.value_type, wide.value_type)
    if pat.is_struct(narrow) and pat.is_struct(wide):
        return _widens_struct(narrow, wide)
    return False


def exact_in_float(kind: pa.DataType) -> int:
    """Return the number up to which a float type holds every whole number.

    >>> exact_in_float(pa.float32()) == 2**24
    True
    """
    return _EXACT_IN_FLOAT64 if pat.is_float64(kind) else _EXACT_IN_FLOAT32


def _widens_integer(narrow: pa.DataType, wide: pa.DataType) -> bool:
    least, greatest = integer_range(narrow)
    if pat.is_integer(wide):
        wide_least, wide_greatest = integer_range(wide)
        return wide_least <= least and greatest <= wide_greatest
    return bool(pat.is_floating(wide)) and greatest <= exact_in_float(wide)


def _widens_struct(narrow: pa.DataType, wide: pa.DataType) -> bool:
    mine, theirs = _fields(narrow), _fields(wide)
    if len(mine) != len(theirs):
        return False
    for field, other in zip(mine, theirs, strict=True):
        if field.name != other.name:
            return False
        if not widens(field.type, other.type):
            return False
    return True


def integer_range(kind: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type.

    >>> integer_range(pa.int8())
    (-128, 127)
    """
    bits = kind.bit_width
    if pat.is_unsigned_integer(kind):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _nested(given: pa.DataType) -> pa.DataType | None:
    if pat.is_struct(given):
        return _struct(given)
    if not (is_any_list(given) or pat.is_fixed_size_list(given)):
        return None
    value = feature_type(given.value_type)
    if value is None:
        return None
    item = pa.field("item", value)
    if not pat.is_fixed_size_list(given):
        return pa.list_(item)
    if given.list_size == 0:
        return None
    return pa.list_(item, given.list_size)


def _struct(given: pa.DataType) -> pa.DataType | None:
    fields = []
    for field in _fields(given):
        kind = feature_type(field.type)
        if kind is None:
            return None
        fields.append(pa.field(field.name, kind, nullable=True))
    # Names that differ in case alone are one name in DuckDB and in Spark.
    names = {field.name.lower() for field in fields}
    if not fields or len(names) < len(fields):
        return None
    return pa.struct(fields)


def _fields(struct: pa.StructType) -> list[pa.Field]:
    return list(map(struct.field, range(struct.num_fields)))


def is_any_list(kind: pa.DataType) -> bool:
    """Tell whether a type is one of lists of any length.

    >>> is_any_list(pa.large_list(pa.int8())), is_any_list(pa.list_(pa.int8(), 3))
    (True, False)
    """
    return bool(
        pat.is_list(kind)
        or pat.is_large_list(kind)
        or str(kind).startswith(("list_view", "large_list_view"))
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pat.is_string(kind) or pat.is_large_string(kind) or str(kind) == "string_view")


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pat.is_binary(kind)
        or pat.is_large_binary(kind)
        or pat.is_fixed_size_binary(kind)
        or str(kind) == "binary_view"
    )


def _paste(name: str, kind: pa.DataType) -> str:
    """Return the line that makes a column storable, for a dataframe of pandas."""
    if pat.is_null(kind) or pat.is_decimal(kind):
        return f"df[{name!r}] = df[{name!r}].astype('float64')"
    if pat.is_duration(kind):
        return f"df[{name!r}] = df[{name!r}].dt.total_seconds()"
    if pat.is_time(kind):
        return f"df[{name!r}] = df[{name!r}].astype(str)"
    return f"df = df.drop(columns={name!r})"


def _way_out(kind: pa.DataType) -> str:
    if pat.is_null(kind):
        return "all values are null: give the column a type"
    if pat.is_duration(kind) or pat.is_time(kind):
        return "store it as int64 microseconds"
    if pat.is_map(kind):
        return "store it as a list of structs"
    if pat.is_struct(kind):
        return (
            "a struct needs at least one field, names that differ in more than case, "
            "and fields that can be stored"
        )
    if is_any_list(kind) or pat.is_fixed_size_list(kind):
        return "its values cannot be stored"
    if pat.is_decimal(kind):
        return "use decimal128 of at most 38 digits and scale >= 0"
    return "no storage for this type"


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return the numpy type of a numeric or boolean Arrow type.

    ``DataType.to_pandas_dtype`` would say the same, but needs pandas in older releases of pyarrow.

    >>> numpy_type(pa.float32())
    dtype('float32')
    """
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return np.dtype(names.get(str(kind), str(kind)))
