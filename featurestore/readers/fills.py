"""Fill values of ``nulls=``: the values of a column type, in a call and in a reader state."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.types import array_item_type, describe
from featurestore.arrow.values import (
    ConversionError,
    from_json,
    from_text,
    rounds_to_infinity,
    to_value,
)
from featurestore.errors import OutOfRange
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.manifest import Manifest
from featurestore.model.times import from_micros
from featurestore.model.window_features import value_from_json, value_to_json

_EPOCH_DAY = date(1970, 1, 1)


def fill_value_type(value: Any, dtype: pa.DataType) -> pa.DataType:
    """Return the type of a fill value: one value fills all items of an array of a fixed shape.

    >>> fill_value_type(0, pa.list_(pa.float32(), 2))
    DataType(float)
    """
    if not isinstance(value, list | tuple | np.ndarray):
        return array_item_type(dtype)
    return dtype


def parse_fill(value: Any, dtype: pa.DataType) -> Any:
    """Convert a fill value to a Python value of a type.

    A fill is a value that a write to a column of the type accepts, or has the form that readers
    yield: days for dates, microseconds since 1970 for times, and bytes for strings and decimals.

    >>> parse_fill(1, pa.date32()), parse_fill([1, 0.5], pa.list_(pa.float32(), 2))
    (datetime.date(1970, 1, 2), [1.0, 0.5])

    Raises:
        ConversionError: The type has no such value.
    """
    if pat.is_fixed_size_list(dtype) and isinstance(value, list | tuple | np.ndarray):
        return to_value([parse_fill(item, dtype.value_type) for item in value], dtype)
    if isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
        try:
            if pat.is_date(dtype):
                return _EPOCH_DAY + timedelta(days=int(value))
            if pat.is_timestamp(dtype):
                return from_micros(int(value))
        except (OverflowError, OutOfRange) as error:
            raise ConversionError(value, dtype, "is outside of the years 1 to 9999") from error
    if isinstance(value, bytes) and (pat.is_string(dtype) or pat.is_decimal(dtype)):
        try:
            return from_text(value.decode(), dtype)
        except UnicodeDecodeError as error:
            raise ConversionError(value, dtype, "is not UTF-8") from error
    return to_value(value, dtype)


def fill_hint(name: str, value: Any, dtype: pa.DataType) -> str:
    """Return a fill of a column's type; the nearest one, if a float is not one of float32."""
    item_type = fill_value_type(None, dtype)
    is_float = pat.is_float32(item_type) and isinstance(value, float)
    if is_float and math.isfinite(value) and not rounds_to_infinity(value):
        return f"nulls={{{name!r}: np.float32({value!r})}}"
    example = "0"
    if pat.is_boolean(item_type):
        example = "False"
    elif pat.is_string(item_type):
        example = "''"
    elif pat.is_binary(item_type):
        example = "b''"
    elif pat.is_date(item_type):
        example = "datetime.date(1970, 1, 1)"
    elif pat.is_timestamp(item_type):
        example = "datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)"
    return f"nulls={{{name!r}: {example}}}, or another value of type {describe(item_type)}"


def fills_to_json(fills: JsonMapping, manifest: Manifest) -> JsonDict:
    """Return the values of ``nulls=`` in the JSON form of a reader state."""
    json_fills = {}
    for name, value in fills.items():
        dtype = fill_value_type(value, type_from_json(manifest.column(name).type))
        json_fills[name] = None if value is None else value_to_json(parse_fill(value, dtype))
    return json_fills


def fills_from_json(json_fills: JsonMapping, manifest: Manifest) -> JsonDict:
    """Return the values of ``nulls=`` of a reader state.

    Readers of earlier releases rounded the fills of float32 columns; their states have the numbers
    before rounding. A value that a column does not have is returned unchanged.
    """
    fills = {}
    for name, json_value in json_fills.items():
        value = value_from_json(json_value)
        dtype = fill_value_type(value, type_from_json(manifest.column(name).type))
        if isinstance(value, float) and pat.is_float32(dtype):
            with suppress(ConversionError):
                value = from_json(value, dtype)
        fills[name] = value
    return fills
