"""Numpy arrays as Arrow takes them: native byte order, units that Arrow has, and cells uncut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.odd_columns import Unstorable

# Units of numpy's times that Arrow has; other units are converted to one of these.
_ARROW_UNITS = {"s": 1, "ms": 1, "us": 1, "ns": 1, "D": 1}
_OTHER_UNITS = {"Y": "D", "M": "D", "W": "D", "D": "D", "h": "s", "m": "s"}
_REFUSED = {
    "c": ("holds complex numbers, which cannot be stored", "[{v}.real, {v}.imag]"),
    "m": ("holds durations, which cannot be stored", "int({v}.astype('int64'))"),
    "V": ("holds records of numpy, which cannot be stored", "{v}.tobytes()"),
}
# The same for arrays that are cells themselves.
_REFUSED_CELLS = {
    "c": "np.stack([{v}.real, {v}.imag], -1).tolist()",
    "m": "np.where(np.isnat({v}), None, {v}.astype('int64').astype(object)).tolist()",
    "V": "{v}.tolist()",
}
_DOUBLE_BYTES = 8


def plain_array(array: Any) -> Any:
    """Return an array with the same values in a type that Arrow reads without loss.

    Masks stay; objects and texts stay, to be converted cell by cell.

    >>> plain_array(np.array([1, 2], ">i4")).dtype
    dtype('int32')
    >>> plain_array(np.array(["2024-03"], "M8[M]")).dtype
    dtype('<M8[D]')

    Raises:
        Unstorable: Complex numbers, durations, records, and values that would be rounded.
    """
    kind = array.dtype.kind
    if kind in _REFUSED:
        problem, expression = _REFUSED[kind]
        missing = "np.isnat({v})" if kind == "m" else ""
        raise Unstorable(problem, expression=expression, missing=missing)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if kind == "f" and array.dtype.itemsize > _DOUBLE_BYTES:
        return _exact(array, np.dtype(np.float64))
    if kind == "M":
        return _with_unit_of_arrow(array)
    return array


def cells_of_array(array: Any) -> Any:
    """Return the values of an array as Python objects, nested as its axes are.

    >>> cells_of_array(np.array(["2024-03-01T12"], "M8[h]"))
    [datetime.datetime(2024, 3, 1, 12, 0)]

    Raises:
        Unstorable: As ``plain_array``; times finer than a microsecond or outside years 1 to 9999.
    """
    if array.dtype.kind in _REFUSED_CELLS:
        raise Unstorable(
            f"holds arrays of {array.dtype} and shape {array.shape}, which cannot be stored",
            expression=_REFUSED_CELLS[array.dtype.kind],
            missing="not isinstance({v}, np.ndarray)",
        )
    try:
        plain = plain_array(array)
        if plain.dtype.kind != "M":
            return plain.tolist()
        if np.datetime_data(plain.dtype)[0] == "ns":
            plain = _exact(plain, np.dtype("M8[us]"))
    except Unstorable as error:
        raise Unstorable(
            error.problem,
            expression="[str(item) for item in {v}]",
            missing="not isinstance({v}, np.ndarray)",
        ) from error
    flat = plain.ravel().tolist()
    if int in set(map(type, flat)):  # numpy's form of what a datetime cannot hold
        raise Unstorable("holds times outside the years 1 to 9999")
    return plain.tolist()


def array_of_numbers(array: Any, *, nan_is_null: bool = False) -> pa.Array:
    """Return a plain array of one axis that holds numbers, booleans or times; masked are null.

    >>> array_of_numbers(np.ma.masked_equal([1, 2], 2)).to_pylist()
    [1, None]
    """
    mask = None
    if isinstance(array, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(array)  # type: ignore[no-untyped-call]
    return pa.array(np.ascontiguousarray(array), mask=mask, from_pandas=nan_is_null)


def _with_unit_of_arrow(array: Any) -> Any:
    unit, count = np.datetime_data(array.dtype)
    if unit in _ARROW_UNITS and count == 1:
        return array
    if unit == "generic":
        return array.astype("M8[us]")  # nothing but NaT
    if unit in _ARROW_UNITS:
        return _exact(array, np.dtype(f"M8[{unit}]"))
    return _exact(array, np.dtype(f"M8[{_OTHER_UNITS.get(unit, 'us')}]"))


def _exact(array: Any, dtype: Any) -> Any:
    """Return an array as another type in which all values have their equals."""
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
        back = converted.astype(array.dtype)
    differs = (back != array) & (array == array)  # not NaN, not NaT
    if np.ma.filled(differs, False).any():  # type: ignore[no-untyped-call]
        first = np.asarray(array)[np.asarray(differs)][0]
        raise Unstorable(
            f"holds values of {array.dtype} that {_name(dtype)} would round, for example {first}",
            expression="str({v})",
        )
    return converted


def _name(dtype: Any) -> str:
    return "microseconds" if dtype.kind == "M" else str(dtype)
