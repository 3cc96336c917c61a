"""Rows of feature types as JSON objects, and back, without a loss.

JSON has no types for some values: dates are days and timestamps microseconds since 1970, decimals are
strings of their digits, and binary values are base64. NaN and infinity are the names that Python's
``json`` reads.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.casts import cast_array
from featurestore.arrow.text_values import format_decimals
from featurestore.arrow.types import is_list_type

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def rows_to_json(batch: pa.RecordBatch) -> list[bytes]:
    """Return each row of a batch as a JSON object.

    >>> rows_to_json(pa.record_batch({"n": [1], "x": [None], "b": [b"a"]}))
    [b'{"n":1,"x":null,"b":"YQ=="}']
    """
    columns = [_to_json_values(array).to_pylist() for array in batch.columns]
    if not columns:
        return [b"{}"] * batch.num_rows
    names = batch.schema.names
    return [
        _ENCODER.encode(dict(zip(names, values, strict=True))).encode()
        for values in zip(*columns, strict=True)
    ]


def rows_from_json(texts: Sequence[bytes], schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of a schema from JSON objects of ``rows_to_json``.

    Raises:
        ValueError: A text is not a JSON object, or lacks a column.
        pa.ArrowException: A value does not have the type of its column.

    >>> rows_from_json([b'{"n":1,"b":"YQ=="}'], pa.schema([("b", pa.binary())]))[0].to_pylist()
    [b'a']
    """
    objects = [json.loads(text) for text in texts]
    columns = []
    for field in schema:
        try:
            values = [row[field.name] for row in objects]
        except (KeyError, TypeError) as error:
            raise ValueError(f"a JSON object has no member {field.name!r}") from error
        array = pa.array(values, json_type(field.type))
        columns.append(_from_json_values(array, field.type))
    return columns


def json_type(dtype: pa.DataType) -> pa.DataType:
    """Return the Arrow type of the JSON values of a feature type.

    >>> json_type(pa.list_(pa.date32(), 2))
    ListType(list<item: int32>)
    """
    if pat.is_decimal(dtype) or pat.is_binary(dtype):
        return pa.string()
    if pat.is_date(dtype):
        return pa.int32()
    if pat.is_timestamp(dtype):
        return pa.int64()
    if is_list_type(dtype):
        return pa.list_(pa.field("item", json_type(dtype.value_type)))
    if pat.is_struct(dtype):
        return pa.struct([(field.name, json_type(field.type)) for field in dtype])
    return dtype


def _to_json_values(array: pa.Array) -> pa.Array:
    dtype = array.type
    if pat.is_fixed_size_list(dtype):
        array = cast_array(array, pa.list_(pa.field("item", dtype.value_type)))
    if is_list_type(dtype):
        return _replace_items(array, _to_json_values(array.values))
    if pat.is_struct(dtype):
        children = [_to_json_values(child) for child in array.flatten()]
        return _build_struct(children, array, json_type(dtype))
    if pat.is_decimal(dtype):
        return format_decimals(array)
    if pat.is_binary(dtype):
        return _map_values(lambda value: base64.b64encode(value).decode(), array, pa.string())
    if pat.is_date(dtype) or pat.is_timestamp(dtype):
        return array.view(json_type(dtype))
    return array


def _from_json_values(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    if is_list_type(dtype):
        lists = _replace_items(array, _from_json_values(array.values, dtype.value_type))
        return cast_array(lists, dtype)
    if pat.is_struct(dtype):
        children = [
            _from_json_values(child, field.type)
            for child, field in zip(array.flatten(), dtype, strict=True)
        ]
        return _build_struct(children, array, dtype)
    if pat.is_binary(dtype):
        return _map_values(lambda text: base64.b64decode(text, validate=True), array, dtype)
    if pat.is_date(dtype) or pat.is_timestamp(dtype):
        return array.view(dtype)
    return cast_array(array, dtype)


def _map_values(convert: Callable[[Any], Any], array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Convert each value that is not null."""
    values = [None if value is None else convert(value) for value in array.to_pylist()]
    return pa.array(values, dtype)


def _replace_items(array: pa.ListArray, items: pa.Array) -> pa.Array:
    """Return a list array with other items of the same number."""
    mask = array.is_null() if array.null_count else None
    # Arrow refuses a mask together with the offsets of a slice.
    offsets = pa.array(array.offsets.to_numpy())
    return pa.ListArray.from_arrays(offsets, items, mask=mask)


def _build_struct(children: Sequence[pa.Array], array: pa.Array, dtype: pa.DataType) -> pa.Array:
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(dtype), mask=mask)
