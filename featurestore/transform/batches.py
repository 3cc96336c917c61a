"""Transformation of batches: arrays by name, and Arrow record batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.batches import is_item_rows, items_and_lengths
from featurestore.errors import FeatureNotFound, InvalidArgument, UnsupportedType, listing
from featurestore.readers.arrow_numpy import Ragged, to_numpy
from featurestore.readers.selection import PRESENT
from featurestore.transform.fitted import FittedColumn, Transformations
from featurestore.transform.forms import Form, Kind, arrow_type, form_of
from featurestore.transform.ops import Lists, Value

_ITEM_TYPES: dict[Kind | None, Any] = {"number": np.float64, "whole": np.int64}


def to_value(column: pa.Array, *, name: str) -> Value:
    """Return an Arrow column as a value.

    >>> to_value(pa.array([1.5, None]), name="x").data.tolist()
    [1.5, nan]
    """
    form = form_of(column.type)
    if form.kind == "other":
        raise UnsupportedType(f"Transformations do not support column {name!r} ({column.type}).")
    data, present = to_numpy(column, name=name)
    return read_value(form, data, present)


def read_value(form: Form, data: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None) -> Value:
    """Return an array of readers and its mask as a value."""
    if form.kind == "list":
        return Value("list", to_lists(data, form.item), present)
    if form.kind != "number":
        return Value(form.kind, data, present)
    numbers = data.astype(np.float64, copy=False)
    if present is not None:
        shape = present.shape + (1,) * (numbers.ndim - present.ndim)
        numbers = np.where(present.reshape(shape), numbers, np.nan)
    return Value("number", numbers)


def to_lists(rows: npt.NDArray[Any], item: Kind | None) -> Lists:
    """Return the rows of an object array of arrays as ``Lists``; other cells are empty lists.

    Rows may also be those of ``item_rows``.

    >>> rows = np.empty(2, object)
    >>> rows[:] = [np.array([1, 2]), b""]
    >>> to_lists(rows, "whole").lengths.tolist()
    [2, 0]
    """
    dtype = _ITEM_TYPES.get(item, object)
    if is_item_rows(rows):
        items, counts = items_and_lengths(rows)
        return Lists(items.astype(dtype, copy=False), counts)
    item_arrays = [np.empty(0, dtype=dtype)]
    lengths = np.zeros(len(rows), dtype=np.int64)
    for row, cell in enumerate(rows.tolist()):
        if isinstance(cell, np.ndarray):
            item_arrays.append(cell.astype(dtype, copy=False))
            lengths[row] = len(cell)
    return Lists(np.concatenate(item_arrays), lengths)


@dataclass(frozen=True)
class TransformBatch:
    """A picklable function that transforms record batches, for engines."""

    transformations: Transformations

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with its columns transformed."""
        columns = []
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if field.name in self.transformations:
                column = self._transform_column(self.transformations[field.name], column)
            columns.append(column)
        schema = self.transformations.schema(batch.schema)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _transform_column(self, column: FittedColumn, values: pa.Array) -> pa.Array:
        data, present = to_numpy(values, name=column.name)
        result = self.transformations.apply_chain(column.name, data, present)
        array = pa.array(np.ascontiguousarray(result).reshape(-1))
        for size in reversed(result.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        return array.cast(arrow_type(column.output))


def check_frame(transformations: Transformations, schema: pa.Schema) -> None:
    """Check that a frame has the transformed columns, with compatible types.

    Raises:
        FeatureNotFound: Columns are missing.
        InvalidArgument: The type of a column differs from the type on which its chain was fitted.
    """
    from featurestore.transform.forms import form_of

    missing = []
    for column in transformations.columns:
        if column.name not in schema.names:
            missing.append(column.name)
            continue
        kind = schema.field(column.name).type
        form = form_of(kind)
        numbers = {form.kind, column.input_form.kind} <= {"number", "whole"}
        if (form.shape, form.item) != (column.input_form.shape, column.input_form.item) or (
            form.kind != column.input_form.kind and not numbers
        ):
            raise InvalidArgument(
                f"Column {column.name!r} is {kind}; the transformation {column.chain} was fitted "
                f"on {column.type}."
            )
    if missing:
        raise FeatureNotFound(
            f"The frame lacks columns of the transformations: {listing(missing, limit=50)}. It has "
            f"{listing(schema.names, limit=50)}."
        )


def apply_to_arrays(transformations: Transformations, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of arrays with its columns transformed."""
    result: dict[str, Any] = {}
    for name, values in batch.items():
        if name not in transformations:
            result[name] = values
            continue
        data, present = decode_column(transformations[name], values)
        mask = batch.get(name + PRESENT)
        if mask is not None:
            mask = np.asarray(mask, dtype=np.bool_)
            present = mask if present is None else present & mask
        result[name] = transformations.apply_chain(name, data, present)
    return result


def decode_column(
    column: FittedColumn, values: Any
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return an array as decoded by readers, strings as bytes, with the mask of present values."""
    if column.input_form.kind in ("text", "binary"):
        return _encode_strings(values)
    if column.input_form.kind == "list":
        return _list_arrays(values, column.input_form.item)
    data = np.asarray(values)
    if data.dtype.kind == "M":
        data = data.astype("datetime64[us]").astype(np.int64)
    if data.dtype.kind != "O":
        return data, _present_integers(data, column)
    present = np.array([value is not None for value in data.reshape(-1).tolist()])
    filled = np.where(present.reshape(data.shape), data, 0)
    return filled.astype(np.float64 if column.input_form.kind == "number" else np.int64), present


def _present_integers(data: npt.NDArray[Any], column: FittedColumn) -> npt.NDArray[np.bool_] | None:
    """Return the mask of integers that are floats with NaN."""
    if column.input_form.kind == "number" or data.dtype.kind != "f":
        return None
    return ~np.isnan(data)


def _encode_strings(strings: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    values = np.asarray(strings, dtype=object)
    data = np.full(values.shape, b"", dtype=object)
    present = np.ones(values.shape, dtype=np.bool_)
    flat, is_present = data.reshape(-1), present.reshape(-1)
    for row, value in enumerate(values.reshape(-1).tolist()):
        if isinstance(value, str):
            flat[row] = value.encode()
        elif isinstance(value, bytes):
            flat[row] = value
        else:
            is_present[row] = False
    return data, None if present.all() else present


def _list_arrays(
    rows: Any, item: str | None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return rows of lists, or ``Ragged``, as an object array of arrays; None is a missing list."""
    if isinstance(rows, Ragged):
        values = rows.values
        if item == "text":
            values = np.asarray(values, dtype=object)
        rows = np.split(np.asarray(values), np.asarray(rows.row_splits)[1:-1])
    data = np.full(len(rows), b"", dtype=object)
    is_present = np.ones(len(rows), dtype=np.bool_)
    for row, value in enumerate(rows):
        if value is None:
            is_present[row] = False
        elif item == "text":
            data[row] = _encode_strings(np.asarray(value, dtype=object))[0]
        else:
            data[row] = np.asarray(value)
    return data, None if is_present.all() else is_present
