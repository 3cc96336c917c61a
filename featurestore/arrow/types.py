"""Arrow types of features: conversion of input types, and storage types of tables.

A column has three types:

* *input type*: the Arrow type in the user's dataframe;
* *feature type*: the type that the group declares and every read returns (``feature_type``);
* *storage type*: the type in the Delta table (``storage_type``), since Delta has no unsigned
  integers and no fixed-size lists.

=====================  ======================  ========================================
input type             feature type            storage type
=====================  ======================  ========================================
bool, int8..int64      the same                the same
uint8 / 16 / 32        the same                int16 / 32 / 64
uint64                 the same                decimal(20, 0)
float16, float32       float32                 float32
float64                float64                 float64
decimal of 38 digits   decimal128(p, s)        the same
string kinds           string                  string
binary kinds           binary                  binary
dictionary, run-end    its value type          of its value type
date32, date64         date32                  date32
timestamp(any)         timestamp[us, UTC]      timestamp[us, UTC]
list kinds             list of feature type    list of storage type
fixed-size list        the same size           list, its shape in the column's metadata
struct                 fields alike            fields alike
null                   null                    bool
=====================  ======================  ========================================

Lists and structs are nested at most 16 levels deep: the cost of reading lists from Parquet in
DuckDB doubles with each level. Existing tables with deeper nesting can be read.

All other types (time of day, durations, intervals, maps, unions, decimal256) are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.hints import MAX_LEVELS as MAX_LEVELS
from featurestore.arrow.hints import TIMESTAMP as TIMESTAMP
from featurestore.arrow.hints import cast_hint
from featurestore.errors import UnsupportedType

_UNBOUNDED_BYTES = 16

# The key of the array shape in Delta's column metadata.
SHAPE = "featurestore.shape"

# Extension types whose storage type alone does not define their values.
_OPAQUE = (
    "pandas.period",
    "arrow.opaque",
    "arrow.parquet.variant",
    "arrow.variable_shape_tensor",
)
_DECIMAL_DIGITS = 38
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
    pa.null(),
)


def feature_type(column_type: pa.DataType) -> pa.DataType | None:
    """Return the feature type of a column type, or None if the column cannot be stored.

    >>> feature_type(pa.dictionary(pa.int8(), pa.large_string()))
    DataType(string)
    >>> feature_type(pa.duration("s")) is None
    True
    """
    dtype = _feature_type(column_type)
    if dtype is None or is_untyped(dtype):
        return None
    return dtype


def feature_schema(schema: pa.Schema) -> pa.Schema:
    """Convert a schema to feature types; columns of type null are unchanged.

    Raises:
        UnsupportedType: Lists every column that cannot be stored.
    """
    fields, unsupported, targets = [], [], {}
    for field in schema:
        feature = None if _has_opaque_bytes(field) else _feature_type(field.type)
        if feature is not None:
            fields.append(pa.field(field.name, feature, nullable=True))
            continue
        unsupported.append(f"{field.name}: {field.type} ({_suggest_conversion(field.type)})")
        target = None if _has_opaque_bytes(field) else preserving_type(field.type)
        if target is not None:
            targets[field.name] = target
    if unsupported:
        raise UnsupportedType(
            f"These columns have types that cannot be stored: {'; '.join(unsupported)}.",
            hint=cast_hint(targets) if targets else "change the types of these columns",
        )
    return pa.schema(fields)


def preserving_type(column_type: pa.DataType) -> pa.DataType | None:
    """Return the feature type to which ``featurestore.cast`` casts a column without loss, or None.

    >>> str(preserving_type(pa.map_(pa.string(), pa.duration("s"))))
    'list<item: struct<key: string, value: int64>>'
    >>> preserving_type(pa.time32("s")), preserving_type(pa.int8())
    (DataType(string), DataType(int8))
    """
    if getattr(column_type, "extension_name", "") == "pandas.period":
        return TIMESTAMP
    if pat.is_null(column_type):
        return pa.float64()
    feature = feature_type(column_type)
    if feature is not None:
        return feature
    if pat.is_time(column_type) or pat.is_union(column_type) or pat.is_decimal(column_type):
        return pa.string()
    if pat.is_duration(column_type):
        return pa.int64()
    if str(column_type) == "month_day_nano_interval":
        return pa.list_(pa.int64())
    return _preserving_nested(column_type)


def _preserving_nested(column_type: pa.DataType) -> pa.DataType | None:
    if pat.is_map(column_type):
        entries = [("key", column_type.key_type), ("value", column_type.item_type)]
        return preserving_type(pa.list_(pa.struct(entries)))
    if is_list_type(column_type):
        item = preserving_type(column_type.value_type)
        return None if item is None else pa.list_(pa.field("item", item))
    if not pat.is_struct(column_type):
        return None
    types = [(field.name, preserving_type(field.type)) for field in _fields(column_type)]
    if any(dtype is None for _, dtype in types):
        return None
    return feature_type(pa.struct(types))


def check_nesting(schema: pa.Schema) -> None:
    """Refuse columns that are nested deeper than the engines can read.

    Raises:
        UnsupportedType: Lists every column that is nested too deep.
    """
    refused = []
    for field in schema:
        levels = _nesting_depth(field.type)
        if levels > MAX_LEVELS:
            refused.append(f"{field.name} ({levels} levels)")
    if refused:
        raise UnsupportedType(
            f"These columns are nested deeper than {MAX_LEVELS} levels of lists and structs: "
            f"{', '.join(refused)}.",
            hint="flatten them into fewer levels, or store them as JSON text: json.dumps(value)",
        )


def storage_type(feature: pa.DataType) -> pa.DataType:
    """Return the type that stores a feature type in a Delta table.

    >>> storage_type(pa.uint64())
    Decimal128Type(decimal128(20, 0))
    """
    if feature in _WIDER:
        return _WIDER[feature]
    if pat.is_null(feature):
        return pa.bool_()
    if pat.is_fixed_size_list(feature) or pat.is_list(feature):
        # The name of array elements in Delta tables.
        return pa.list_(pa.field("element", storage_type(feature.value_type)))
    if pat.is_struct(feature):
        return pa.struct(_storage_fields(_fields(feature)))
    return feature


def storage_schema(features: pa.Schema) -> pa.Schema:
    """Return the Delta table schema that stores a schema of feature types.

    Delta's arrays have no fixed size: the shape of a column is stored in its metadata, as JSON.

    >>> storage_schema(pa.schema([("pixels", pa.list_(pa.uint8(), 64))])).field("pixels").metadata
    {b'featurestore.shape': b'[64]'}
    """
    fields = []
    for field, feature_field in zip(_storage_fields(features), features, strict=True):
        shape = array_shape(feature_field.type)
        if shape:
            field = field.with_metadata({SHAPE: json.dumps(shape)})
        fields.append(field)
    return pa.schema(fields)


def can_be_key(feature: pa.DataType) -> bool:
    """Return whether a column of this feature type may be part of a primary key."""
    return not (pat.is_floating(feature) or is_nested(feature))


def is_untyped(dtype: pa.DataType) -> bool:
    """Return whether a type is null, or a list or struct that contains null types.

    >>> is_untyped(pa.list_(pa.null())), is_untyped(pa.list_(pa.int8()))
    (True, False)
    """
    if not is_nested(dtype):
        return bool(pat.is_null(dtype))
    return any(is_untyped(dtype.field(index).type) for index in range(dtype.num_fields))


def is_encoded(dtype: pa.DataType) -> bool:
    """Return whether the rows of a type refer to values: a dictionary, or runs of equal values.

    >>> is_encoded(pa.dictionary(pa.int8(), pa.string())), is_encoded(pa.string())
    (True, False)
    """
    return pat.is_dictionary(dtype) or str(dtype).startswith("run_end_encoded")


def is_nested(dtype: pa.DataType) -> bool:
    """Return whether a type contains values of other types.

    Older releases of pyarrow overlook lists of a fixed size.

    >>> is_nested(pa.list_(pa.float32(), 3)), is_nested(pa.float32())
    (True, False)
    """
    return bool(pat.is_nested(dtype) or pat.is_fixed_size_list(dtype))


def is_list_type(dtype: pa.DataType) -> bool:
    """Return whether a type is a list type, of variable or fixed size.

    >>> is_list_type(pa.list_(pa.int8(), 3)), is_list_type(pa.struct([]))
    (True, False)
    """
    return is_variable_size_list(dtype) or bool(pat.is_fixed_size_list(dtype))


def is_variable_size_list(dtype: pa.DataType) -> bool:
    """Return whether a type is a variable-size list.

    >>> is_variable_size_list(pa.large_list(pa.int8())), is_variable_size_list(pa.list_(pa.int8(), 3))
    (True, False)
    """
    return bool(
        pat.is_list(dtype)
        or pat.is_large_list(dtype)
        or str(dtype).startswith(("list_view", "large_list_view"))
    )


def is_exact(dtype: pa.DataType) -> bool:
    """Return whether a type is an integer or decimal type, whose values are exact.

    >>> is_exact(pa.decimal128(4, 2)), is_exact(pa.float64())
    (True, False)
    """
    return bool(pat.is_integer(dtype) or pat.is_decimal(dtype))


def is_number(dtype: pa.DataType) -> bool:
    """Return whether a type is numeric or boolean.

    >>> is_number(pa.bool_()), is_number(pa.string())
    (True, False)
    """
    return bool(pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_boolean(dtype))


def decimal_places(dtype: pa.DataType) -> int:
    """Return the number of decimal places of a decimal type, 0 for other types.

    >>> decimal_places(pa.decimal128(4, 2)), decimal_places(pa.int64())
    (2, 0)
    """
    return int(dtype.scale) if pat.is_decimal(dtype) else 0


def integer_range(dtype: pa.DataType) -> tuple[int, int]:
    """Return the minimum and maximum of an integer type.

    >>> integer_range(pa.int8())
    (-128, 127)
    """
    bits = dtype.bit_width
    if pat.is_unsigned_integer(dtype):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def numpy_type(dtype: pa.DataType) -> np.dtype[Any]:
    """Return the numpy type of a numeric or boolean Arrow type.

    ``DataType.to_pandas_dtype`` needs pandas in older releases of pyarrow.

    >>> numpy_type(pa.float32())
    dtype('float32')
    """
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return np.dtype(names.get(str(dtype), str(dtype)))


def describe(dtype: pa.DataType) -> str:
    """Return the name of a type for error messages, with the shape of arrays.

    >>> describe(shaped_type(pa.uint8(), (8, 6))), describe(pa.int64())
    ('uint8 of shape (8, 6)', 'int64')
    """
    shape = array_shape(dtype)
    if pat.is_list(dtype):
        return f"list of {describe(dtype.value_type)}"
    if not shape:
        return str(dtype)
    return f"{array_item_type(dtype)} of shape {shape}"


def array_shape(dtype: pa.DataType) -> tuple[int, ...]:
    """Return the shape of one value: the sizes of nested fixed-size lists, () for other types.

    >>> array_shape(pa.list_(pa.list_(pa.uint8(), 6), 8)), array_shape(pa.float32())
    ((8, 6), ())
    """
    sizes = []
    while pat.is_fixed_size_list(dtype):
        sizes.append(dtype.list_size)
        dtype = dtype.value_type
    return tuple(sizes)


def array_item_type(dtype: pa.DataType) -> pa.DataType:
    """Return the item type of nested fixed-size lists; other types are returned unchanged.

    >>> array_item_type(pa.list_(pa.list_(pa.uint8(), 6), 8))
    DataType(uint8)
    """
    while pat.is_fixed_size_list(dtype):
        dtype = dtype.value_type
    return dtype


def innermost_type(dtype: pa.DataType) -> pa.DataType:
    """Return the type of the innermost items of lists; other types are returned unchanged.

    >>> innermost_type(pa.list_(pa.list_(pa.uint8(), 6)))
    DataType(uint8)
    """
    while is_list_type(dtype):
        dtype = dtype.value_type
    return dtype


def with_innermost_type(dtype: pa.DataType, items: pa.DataType) -> pa.DataType:
    """Return a list type with other innermost items, or the type of the items for other types.

    >>> with_innermost_type(pa.list_(pa.float64(), 2), pa.float32())
    FixedSizeListType(fixed_size_list<item: float>[2])
    """
    if not is_list_type(dtype):
        return items
    # -1 is the size of a variable-size list in pyarrow.
    size = dtype.list_size if pat.is_fixed_size_list(dtype) else -1
    return pa.list_(with_innermost_type(dtype.value_type, items), size)


def shaped_type(items: pa.DataType, shape: Sequence[int]) -> pa.DataType:
    """Return the type of arrays with a shape.

    >>> array_shape(shaped_type(pa.uint8(), (8, 6)))
    (8, 6)
    """
    dtype = items
    for size in reversed(shape):
        dtype = pa.list_(pa.field("item", dtype), size)
    return dtype


def is_tensor(dtype: pa.DataType) -> bool:
    """Return whether a type is Arrow's extension type for fixed-shape tensors."""
    return getattr(dtype, "extension_name", "") == "arrow.fixed_shape_tensor"


def tensor_type(dtype: Any) -> pa.DataType:
    """Return the fixed-size list type of Arrow tensors, in logical axis order.

    >>> array_shape(tensor_type(pa.fixed_shape_tensor(pa.int8(), [3, 2], permutation=[1, 0])))
    (2, 3)
    """
    shape = list(dtype.shape)
    if dtype.permutation is not None:
        shape = [dtype.shape[axis] for axis in dtype.permutation]
    return shaped_type(dtype.value_type, shape)


def type_width(dtype: pa.DataType) -> int:
    """Return the width of a type in bytes; variable-size values count as short ones.

    >>> type_width(pa.int64()), type_width(pa.list_(pa.float32(), 3)), type_width(pa.string())
    (8, 12, 16)
    """
    if pat.is_fixed_size_list(dtype):
        return int(dtype.list_size) * type_width(dtype.value_type)
    if pat.is_struct(dtype):
        return sum(type_width(dtype.field(index).type) for index in range(dtype.num_fields))
    try:
        return max(int(dtype.bit_width) // 8, 1)
    except ValueError:
        return _UNBOUNDED_BYTES


def is_unbounded(dtype: pa.DataType) -> bool:
    """Return whether the size of a type's values is unlimited.

    >>> is_unbounded(pa.string()), is_unbounded(pa.list_(pa.float32(), 3))
    (True, False)
    """
    if pat.is_fixed_size_list(dtype):
        return is_unbounded(dtype.value_type)
    if pat.is_struct(dtype):
        return any(is_unbounded(dtype.field(index).type) for index in range(dtype.num_fields))
    return bool(pat.is_string(dtype) or pat.is_binary(dtype) or pat.is_list(dtype))


def columns_width(schema: pa.Schema, names: Iterable[str]) -> int:
    """Return the total width in bytes of the selected columns of a row.

    >>> columns_width(pa.schema([("a", pa.int64()), ("b", pa.int8())]), ["a", "b", "a"])
    9
    """
    return sum(type_width(schema.field(name).type) for name in set(names))


def _feature_type(column_type: pa.DataType) -> pa.DataType | None:
    """Return the feature type, which may contain nulls without a type."""
    if column_type in _PLAIN:
        return column_type
    if isinstance(column_type, pa.BaseExtensionType):
        return _from_extension(column_type)
    if pat.is_dictionary(column_type) or str(column_type).startswith("run_end_encoded"):
        return _feature_type(column_type.value_type)
    if pat.is_float16(column_type):
        return pa.float32()
    is_string = pat.is_string(column_type) or pat.is_large_string(column_type)
    if is_string or str(column_type) == "string_view":
        return pa.string()
    if _is_bytes(column_type):
        return pa.binary()
    if pat.is_date(column_type):
        return pa.date32()
    if pat.is_timestamp(column_type):
        return TIMESTAMP
    return _decimal(column_type) if pat.is_decimal(column_type) else _nested(column_type)


def _from_extension(extension_type: pa.BaseExtensionType) -> pa.DataType | None:
    """Return the feature type of an extension type's storage, or None if it is not meaningful."""
    if extension_type.extension_name in _OPAQUE:
        return None
    # The storage of this extension type is int8.
    if extension_type.extension_name == "arrow.bool8":
        return pa.bool_()
    return _feature_type(
        tensor_type(extension_type) if is_tensor(extension_type) else extension_type.storage_type
    )


def _is_bytes(dtype: pa.DataType) -> bool:
    return bool(
        pat.is_binary(dtype)
        or pat.is_large_binary(dtype)
        or pat.is_fixed_size_binary(dtype)
        or str(dtype) == "binary_view"
    )


def _decimal(column_type: pa.DataType) -> pa.DataType | None:
    if column_type.scale < 0 or column_type.precision > _DECIMAL_DIGITS:
        return None
    return pa.decimal128(column_type.precision, column_type.scale)


def _nested(column_type: pa.DataType) -> pa.DataType | None:
    """Return the feature type of a list or struct, or None."""
    if pat.is_struct(column_type):
        return _struct(column_type)
    if not is_list_type(column_type):
        return None
    value = _feature_type(column_type.value_type)
    if value is None:
        return None
    item = pa.field("item", value)
    if not pat.is_fixed_size_list(column_type):
        return pa.list_(item)
    if column_type.list_size == 0:
        return None
    return pa.list_(item, column_type.list_size)


def _struct(struct: pa.DataType) -> pa.DataType | None:
    """Return the feature type of a struct, or None."""
    fields = []
    for field in _fields(struct):
        dtype = _feature_type(field.type)
        if dtype is None:
            return None
        fields.append(pa.field(field.name, dtype, nullable=True))
    # DuckDB and Spark treat names that differ only in case as equal.
    names = {field.name.lower() for field in fields}
    if not fields or len(names) < len(fields):
        return None
    return pa.struct(fields)


def _fields(struct: pa.StructType) -> list[pa.Field]:
    return list(map(struct.field, range(struct.num_fields)))


def _has_opaque_bytes(field: pa.Field) -> bool:
    """Return whether a field contains bytes that only one library can read.

    Older releases of pyarrow know most such types by the field's metadata only.
    """
    if isinstance(field.type, pa.BaseExtensionType):
        return False  # the type itself is checked
    name = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    return name in _OPAQUE


def _suggest_conversion(dtype: pa.DataType) -> str:
    """Return advice for a type that cannot be stored."""
    if pat.is_duration(dtype) or pat.is_time(dtype):
        return "store it as int64 microseconds"
    if pat.is_map(dtype):
        return "store it as a list of structs"
    if pat.is_struct(dtype):
        return (
            "a struct needs at least one field, names that differ in more than case, "
            "and fields that can be stored"
        )
    if is_list_type(dtype):
        return "its values cannot be stored"
    if pat.is_decimal(dtype):
        return "use decimal128 of at most 38 digits and scale >= 0"
    return "this type is not supported"


def _nesting_depth(dtype: pa.DataType) -> int:
    """Return the nesting depth of a type, without recursion, since types may be very deep."""
    deepest = 0
    waiting = [(dtype, 0)]
    while waiting:
        nested_type, levels = waiting.pop()
        if pat.is_dictionary(nested_type):
            waiting.append((nested_type.value_type, levels))
        elif isinstance(nested_type, pa.BaseExtensionType):
            waiting.append((nested_type.storage_type, levels))
        elif is_nested(nested_type):
            deepest = max(deepest, levels + 1)
            for index in range(nested_type.num_fields):
                waiting.append((nested_type.field(index).type, levels + 1))
    return deepest


def _storage_fields(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return [pa.field(field.name, storage_type(field.type), nullable=True) for field in fields]
