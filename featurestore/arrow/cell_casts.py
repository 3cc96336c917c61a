"""Casts of Python objects that Arrow cannot represent: UUIDs, sets, complex numbers, mixed values.

``to_target`` converts one object to the Python value of a type. ``suggest_type`` returns the type
that preserves the objects of a column that cannot be stored, for the hint of its error.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.cells import (
    cell_category,
    cells_to_array,
    classify_cells,
    has_meaningful_string,
)
from featurestore.arrow.column_names import is_utf8_string
from featurestore.arrow.hints import (
    TIMESTAMP,
    cast_hint,
    format_type,
)
from featurestore.arrow.types import (
    feature_type,
    is_exact,
    is_list_type,
)
from featurestore.arrow.unstorable import (
    CONVERSION_ERRORS,
    Cell,
    decode_array,
    is_encoded_array,
    is_missing,
    nanoseconds_hint,
)
from featurestore.arrow.values import from_text, to_array

Inexact = Literal["error", "round", "null"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Python rounds decimals to the digits of a context, by default 28.
_WIDE_CONTEXT = Context(prec=400)
# Whole floats up to this limit are written without a fraction, as Arrow writes them.
_WHOLE_LIMIT = 1e15
_LISTS = {"list", "array", "set", "collection", "Arrow array"}
_DURATIONS = {"timedelta", "pandas Timedelta", "numpy timedelta64"}
_TIMES = {"date", "datetime", "datetime64"}
NUMBERS = {"int", "float", "numpy int", "numpy float", "longdouble"}


@dataclass(frozen=True)
class Target:
    """The type of a cast, the form of the times in numbers or strings, and the rule for other values."""

    dtype: pa.DataType
    form: str = ""
    inexact: Inexact = "error"

    def of(self, dtype: pa.DataType) -> Target:
        """Return the target of the items of this type."""
        return Target(dtype, inexact=self.inexact)

    @property
    def text(self) -> str:
        """The target in the language of ``featurestore.cast``."""
        return f"timestamp[{self.form}]" if self.form else format_type(self.dtype)


def to_target(cell: Cell, target: Target) -> Cell:
    """Convert an object to the Python value of a type; raise ValueError or TypeError otherwise."""
    if cell is None or cell_category(cell) == "missing":
        return None
    cell = _unwrap(cell)
    dtype = target.dtype
    if pat.is_string(dtype):
        return _to_text(cell)
    if pat.is_binary(dtype):
        return _to_bytes(cell)
    if is_list_type(dtype):
        item = target.of(dtype.value_type)
        return [to_target(value, item) for value in _to_items(cell, dtype)]
    if pat.is_struct(dtype):
        return _to_fields(cell, target)
    category = cell_category(cell)
    if category in _DURATIONS or (category in _TIMES and pat.is_integer(dtype)):
        return _to_count(cell)
    if category in _TIMES:
        return _to_time(cell, target)
    if hasattr(cell, "to_timestamp"):  # a Period
        return cell.to_timestamp()
    if isinstance(cell, str):
        return from_text(cell, dtype)
    return _to_number(cell, target) if isinstance(cell, int | float | Decimal | Fraction) else cell


def _unwrap(cell: Cell) -> Any:
    category = cell_category(cell)
    if category == "Enum":
        return cell.value
    if category == "Arrow scalar":
        return cell.as_py()
    if category == "Arrow array":
        return cell.to_pylist()
    if category in ("numpy int", "numpy float", "complex") and isinstance(cell, np.generic):
        return cell.item()
    return cell


def _to_number(cell: Cell, target: Target) -> Any:
    """Return an equal number of a type, or the nearest if the caller allows it."""
    dtype, is_rounded = target.dtype, target.inexact == "round"
    if pat.is_boolean(dtype) and cell in (0, 1):
        return bool(cell)
    if pat.is_decimal(dtype):
        number = Decimal(cell)
        return _round_decimal(number, dtype.scale) if is_rounded else number
    if isinstance(cell, bool):
        return int(cell) if is_numeric(dtype) else cell
    if pat.is_integer(dtype):
        return round(cell) if is_rounded or cell == int(cell) else cell
    if pat.is_floating(dtype):
        with np.errstate(over="ignore"):
            nearest = float(np.float32(cell)) if pat.is_float32(dtype) else float(cell)
        if nearest != cell and cell == cell and (not is_rounded or math.isinf(nearest)):
            raise ValueError(f"{cell} has no equal in {dtype}")
        return nearest
    return cell


def _round_decimal(number: Decimal, scale: int) -> Decimal:
    """Round to a number of digits, half to even, independent of the caller's decimal context."""
    try:
        return number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_EVEN, _WIDE_CONTEXT)
    except InvalidOperation as error:  # infinite, or of too many digits
        raise ValueError(f"{number} has no decimal of {scale} digits") from error


def _to_time(cell: Cell, target: Target) -> Any:
    """Return a time, without the digits that the type lacks if the caller allows it."""
    dtype = target.dtype
    if target.inexact == "round":
        if isinstance(cell, np.datetime64):
            unit = np.dtype("M8[D]" if pat.is_date(dtype) else "M8[us]")
            # numpy wraps times that overflow a finer unit.
            return cell.astype(unit) if np.promote_types(cell.dtype, unit) == cell.dtype else cell
        if hasattr(cell, "to_pydatetime"):  # of pandas, with nanoseconds
            cell = cell.to_pydatetime(warn=False)
        if pat.is_date(dtype) and isinstance(cell, datetime):
            return (cell if cell.tzinfo is None else cell.astimezone(UTC)).date()
    if pat.is_timestamp(dtype) and cell_category(cell) == "date":
        return datetime(cell.year, cell.month, cell.day, tzinfo=UTC)
    return cell


def _to_count(cell: Cell) -> int:
    """Return a duration or a time as a count: of its own unit, or of nanoseconds since 1970."""
    if isinstance(cell, np.timedelta64):
        if np.isnat(cell):
            return None  # type: ignore[return-value]  # null
        return int(cell.astype("int64"))
    if isinstance(cell, np.datetime64):
        if np.isnat(cell):
            return None  # type: ignore[return-value]
        nanoseconds = cell.astype("M8[ns]")
        if nanoseconds.astype(cell.dtype) != cell or nanoseconds != cell:
            raise ValueError(f"{cell} is not a whole number of nanoseconds")
        return int(nanoseconds.astype("int64"))
    if isinstance(cell, timedelta):
        # pandas' durations have nanoseconds.
        return int(cell.value) if hasattr(cell, "value") else cell // timedelta(microseconds=1)
    if not isinstance(cell, datetime):
        cell = datetime(cell.year, cell.month, cell.day)
    zoned = cell if cell.tzinfo is not None else cell.replace(tzinfo=UTC)
    micros = (zoned - _EPOCH) // timedelta(microseconds=1)
    return int(micros) * 1000 + int(getattr(cell, "nanosecond", 0))


def _to_text(cell: Cell) -> str:
    """Return the text of an object, as Arrow writes numbers and booleans; lists and dicts as JSON."""
    if isinstance(cell, str):
        return str(cell)
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if isinstance(cell, bytes | bytearray | memoryview):
        return bytes(cell).decode()
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < _WHOLE_LIMIT:
        return str(int(cell))
    if isinstance(cell, Mapping | list | tuple | set | frozenset | range | np.ndarray):
        return json.dumps(_to_json(cell), ensure_ascii=False)
    if not has_meaningful_string(cell):
        raise ValueError("the text of the object would be its memory address")
    return str(cell)


def _to_json(cell: Cell) -> Any:
    cell = _unwrap(cell)
    if is_missing(cell):
        return None
    if isinstance(cell, Mapping):
        return {_to_text(key): _to_json(value) for key, value in cell.items()}
    if isinstance(cell, list | tuple | set | frozenset | range | np.ndarray):
        return [_to_json(item) for item in _to_items(cell, pa.list_(pa.string()))]
    return cell if isinstance(cell, bool | int | float | str) else _to_text(cell)


def _to_bytes(cell: Cell) -> bytes:
    if isinstance(cell, str):
        return cell.encode("utf-8", "surrogatepass")
    if isinstance(cell, np.void):
        return cell.tobytes()
    if isinstance(cell, bytes | bytearray | memoryview):
        return bytes(cell)
    raise TypeError(f"{type(cell).__name__} has no bytes")


def _to_items(cell: Cell, dtype: pa.DataType) -> Iterable[Cell]:
    """Return the items of an object; a single value is a list of one item."""
    if is_encoded_array(cell):
        return list(decode_array(cell))
    is_pair = pat.is_fixed_size_list(dtype) and dtype.list_size == 2
    if is_pair and pat.is_floating(dtype.value_type) and isinstance(cell, int | float | complex):
        return [cell.real, cell.imag]
    if is_pair and pat.is_integer(dtype.value_type) and isinstance(cell, int | Fraction):
        return [cell.numerator, cell.denominator]
    if isinstance(cell, Mapping):
        return [{"key": key, "value": value} for key, value in cell.items()]
    if isinstance(cell, set | frozenset):
        try:
            return sorted(cell)
        except TypeError:  # items of several types
            return sorted(cell, key=str)
    category = cell_category(cell)
    return list(cell) if category in _LISTS or hasattr(cell, "_fields") else [cell]


def _to_fields(cell: Cell, target: Target) -> dict[str, Any]:
    if cell_category(cell) == "Interval":
        cell = {"left": cell.left, "right": cell.right, "closed": cell.closed}
        cell = {name: cell[name] for name in cell if target.dtype.get_field_index(name) >= 0}
    if isinstance(cell, tuple) and len(cell) == 2 and target.dtype.get_field_index("key") == 0:
        cell = {"key": cell[0], "value": cell[1]}  # an entry of a map
    if not isinstance(cell, Mapping):
        raise TypeError(f"{type(cell).__name__} has no fields")
    values = {}
    for field in map(target.dtype.field, range(target.dtype.num_fields)):
        values[field.name] = to_target(cell.get(field.name), target.of(field.type))
    unknown = cell.keys() - values.keys()
    if unknown:
        raise ValueError(f"{min(map(str, unknown))!r} is not a field of the type")
    return values


def suggest_cast(name: str, cells: Sequence[Cell], *, target: str | None = None) -> str:
    """Return the line that casts a column of cells that cannot be stored, without loss.

    >>> suggest_cast("z", [1j, None])
    "df = featurestore.cast(df, {'z': 'float64[2]'})"
    """
    if target is not None:
        return cast_hint({name: target})
    dtype = suggest_type(cells)
    if classify_cells(cells) <= _TIMES and pat.is_int64(dtype):
        return nanoseconds_hint(name)
    return cast_hint({name: dtype})


def suggest_type(cells: Sequence[Cell]) -> pa.DataType:
    """Return the type that preserves cells that cannot be stored.

    >>> suggest_type([{1, 2}, None]), suggest_type([1, "a"])
    (ListType(list<item: int64>), DataType(string))
    """
    present = [_unwrap(cell) for cell in cells if not is_missing(cell)]
    categories = classify_cells(present)
    if categories <= {"text", "bytes", "numpy void"}:
        return (
            pa.string()
            if categories == {"text"} and all(map(is_utf8_string, present))
            else pa.binary()
        )
    if "complex" in categories and categories <= {"complex", *NUMBERS}:
        return pa.list_(pa.float64(), 2)
    if "Fraction" in categories and categories <= {"Fraction", "int", "numpy int"}:
        return pa.list_(pa.int64(), 2)
    if "dict" in categories and categories <= {"dict"}:
        return _suggest_struct(present)
    if categories == {"Interval"}:
        bounds = suggest_type([*(cell.left for cell in present), *(cell.right for cell in present)])
        return pa.struct([("left", bounds), ("right", bounds), ("closed", pa.string())])
    if categories & _LISTS and "dict" not in categories:
        any_list = pa.list_(pa.null())
        items = itertools.chain.from_iterable(_to_items(cell, any_list) for cell in present)
        return pa.list_(pa.field("item", suggest_type(list(items))))
    return _suggest_scalar(present, categories)


def _suggest_scalar(cells: Sequence[Cell], categories: set[str]) -> pa.DataType:
    if categories and categories <= _DURATIONS:
        return pa.int64()
    if categories == {"Period"}:
        return TIMESTAMP
    try:
        dtype = feature_type(cells_to_array(cells).type)
        return pa.string() if dtype is None else dtype
    except CONVERSION_ERRORS:
        pass
    if categories and categories <= _TIMES:
        try:
            to_array([_to_count(cell) for cell in cells], pa.int64())
            return pa.int64()
        except CONVERSION_ERRORS:  # finer than nanoseconds, or too far from 1970
            pass
    return pa.string()


def _suggest_struct(cells: Sequence[Mapping[Cell, Cell]]) -> pa.DataType:
    """Return a struct, or the list of the entries of dicts whose keys are not strings."""
    keys = list(dict.fromkeys(itertools.chain.from_iterable(cells)))
    if not all(isinstance(key, str) for key in keys):
        values = [value for cell in cells for value in cell.values()]
        entries = [("key", suggest_type(keys)), ("value", suggest_type(values))]
        return pa.list_(pa.field("item", pa.struct(entries)))
    dtype = pa.struct([(key, suggest_type([cell.get(key) for cell in cells])) for key in keys])
    return feature_type(dtype) or pa.string()


def is_numeric(dtype: pa.DataType) -> bool:
    """Return whether a type is an integer, decimal or floating-point type."""
    return bool(is_exact(dtype) or pat.is_floating(dtype))
