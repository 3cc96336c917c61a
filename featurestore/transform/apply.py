"""Application of fitted chains to columns and batches.

Chains use only the operations of ``Ops``, so they run in any library. Batches are dicts of arrays,
or Arrow record batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.batches import is_item_rows, split_item_rows
from featurestore.errors import FeatureNotFound, InvalidArgument, UnsupportedType, listing
from featurestore.model.names import mask_name
from featurestore.readers.columns import NumpyArray, Ragged, Tensor, to_numpy
from featurestore.transform.ops import LEAST_FLOAT32, Lists, Ops, Value, flush_to_float32
from featurestore.transform.rules import RULES
from featurestore.transform.steps import Chain, Form, ValueType, arrow_type, form_of

if TYPE_CHECKING:
    from featurestore.transform.fitted import FittedColumn, Transformations

_ITEM_TYPES: dict[ValueType | None, Any] = {"number": np.float64, "whole": np.int64}
# Converts an input column to an array of the library, and returns it with the mask of present
# values (None if all values are present).
ReadColumn = Callable[["FittedColumn", Any], tuple[Any, Any | None]]


def transform_columns(
    ops: Ops, transformations: Transformations, batch: Mapping[str, Tensor], read: ReadColumn
) -> dict[str, Tensor]:
    """Transform the columns of a batch that have a chain; return the others unchanged.

    ``<name>_present`` is the mask of a column; missing numbers may also be NaN.
    """
    result = {}
    for name, values in batch.items():
        if name in transformations:
            column = transformations[name]
            data, present = read(column, values)
            mask = batch.get(mask_name(name))
            if mask is not None:
                mask = ops.cast(mask, "bool")
                present = mask if present is None else mask & present
            values = _transform_column(ops, column, data, present)
        result[name] = values
    return result


def _transform_column(
    ops: Ops, column: FittedColumn, data: Tensor, present: Tensor | None
) -> Tensor:
    """Convert a column of a batch to its input kind, and apply its chain."""
    value_type = column.input_form.value_type
    if value_type == "whole" and ops.is_floating(data):
        # The caller represents missing integers as NaN in a float array.
        is_number = ~ops.isnan(data)
        present = is_number if present is None else present & is_number
        data = ops.where(is_number, data, 0.0)
    value = Value(value_type, data, present)
    if value_type == "number":
        value = Value(value_type, ops.number(value))
    elif value_type == "whole":
        value = Value(value_type, ops.cast(data, "int64"), present)
    return apply_chain(ops, column.chain, value, column.output, narrow=column.narrow)


def apply_chain(ops: Ops, chain: Chain, value: Value, form: Form, *, narrow: bool) -> Tensor:
    """Apply a fitted chain and return an array of the output form.

    Args:
        ops: The operations of a library.
        chain: The fitted steps.
        value: The input column.
        form: The form of the result.
        narrow: Whether the dataset files store the column as float32. If so, inputs are also
            rounded to float32.
    """
    steps = chain.steps
    if value.value_type == "list":
        value = RULES[steps[0].rule].apply(ops, steps[0], value)
        steps = steps[1:]
    if value.value_type == "number":
        # Some libraries flush subnormal numbers to 0.
        x = ops.number(value)
        small = (x < LEAST_FLOAT32) & (x > -LEAST_FLOAT32)
        x = ops.where(small, 0.0, x)
        if narrow:
            # The chain was fitted on the float32 values of the dataset files, so inputs from other
            # sources are rounded in the same way.
            x = ops.cast(ops.cast(x, "float32"), "float64")
        value = Value("number", x)
    for step in steps:
        value = RULES[step.rule].apply(ops, step, value)
    return _to_output(ops, value, form)


def _to_output(ops: Ops, value: Value, form: Form) -> Tensor:
    """Convert the result of a chain to the output type."""
    data = value.data
    if value.value_type == "whole" and value.present is not None:
        present = value.present
        # Integer types cannot represent NaN, so missing values become 0.
        for _ in range(len(data.shape) - len(present.shape)):
            present = present[..., None]
        data = ops.where(present, data, ops.cast(0, "int64"))
    elif value.value_type not in ("code", "whole") and form.dtype == "float32":
        data = flush_to_float32(ops, data)
    return ops.cast(data, form.dtype)


def decoded_to_value(form: Form, data: NumpyArray, present: npt.NDArray[np.bool_] | None) -> Value:
    """Convert a decoded array and its mask to a ``Value``."""
    if form.value_type == "list":
        return Value("list", to_lists(data, form.item), present)
    if form.value_type != "number":
        return Value(form.value_type, data, present)
    numbers = data.astype(np.float64, copy=False)
    if present is not None:
        shape = present.shape + (1,) * (numbers.ndim - present.ndim)
        numbers = np.where(present.reshape(shape), numbers, np.nan)
    return Value("number", numbers)


def decode_column(
    column: FittedColumn, values: Any
) -> tuple[NumpyArray, npt.NDArray[np.bool_] | None]:
    """Convert values to an array as readers decode it, with bytes for strings, and to its mask."""
    if column.input_form.value_type in ("text", "binary"):
        return _encode_strings(values)
    if column.input_form.value_type == "list":
        return _to_list_arrays(values, column.input_form.item)
    data = np.asarray(values)
    if data.dtype.kind == "M":
        data = data.astype("datetime64[us]").astype(np.int64)
    is_number = column.input_form.value_type == "number"
    if data.dtype.kind != "O":
        # Missing integers are NaN in an array of floats.
        return data, ~np.isnan(data) if data.dtype.kind == "f" and not is_number else None
    present = np.array([value is not None for value in data.reshape(-1).tolist()])
    filled = np.where(present.reshape(data.shape), data, 0)
    return filled.astype(np.float64 if is_number else np.int64), present


def _encode_strings(strings: Any) -> tuple[NumpyArray, npt.NDArray[np.bool_] | None]:
    """Encode strings as bytes, and return them with the mask of values that are not missing."""
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


def _to_list_arrays(rows: Any, item: str | None) -> tuple[NumpyArray, npt.NDArray[np.bool_] | None]:
    """Convert lists or ``Ragged`` to an object array of arrays; None is a missing list."""
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


def to_value(column: pa.Array, *, name: str) -> Value:
    """Convert an Arrow column to a ``Value``.

    >>> to_value(pa.array([1.5, None]), name="x").data.tolist()
    [1.5, nan]
    """
    form = form_of(column.type)
    if form.value_type == "other":
        raise UnsupportedType(f"Transformations do not support column {name!r} ({column.type}).")
    data, present = to_numpy(column, name=name)
    return decoded_to_value(form, data, present)


def to_lists(rows: NumpyArray, item: ValueType | None) -> Lists:
    """Convert an object array of arrays to ``Lists``; elements that are not arrays become empty.

    The result of ``create_item_rows`` is accepted as well.

    >>> rows = np.empty(2, object)
    >>> rows[:] = [np.array([1, 2]), b""]
    >>> to_lists(rows, "whole").lengths.tolist()
    [2, 0]
    """
    dtype = _ITEM_TYPES.get(item, object)
    if is_item_rows(rows):
        items, counts = split_item_rows(rows)
        return Lists(items.astype(dtype, copy=False), counts)
    item_arrays = [np.empty(0, dtype=dtype)]
    lengths = np.zeros(len(rows), dtype=np.int64)
    for row, cell in enumerate(rows.tolist()):
        if isinstance(cell, np.ndarray):
            item_arrays.append(cell.astype(dtype, copy=False))
            lengths[row] = len(cell)
    return Lists(np.concatenate(item_arrays), lengths)


def apply_to_arrays(
    transformations: Transformations, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Transform the columns of a batch of arrays."""
    result: dict[str, Any] = {}
    for name, values in batch.items():
        if name not in transformations:
            result[name] = values
            continue
        data, present = decode_column(transformations[name], values)
        mask = batch.get(mask_name(name))
        if mask is not None:
            mask = np.asarray(mask, dtype=np.bool_)
            present = mask if present is None else present & mask
        result[name] = transformations.apply_chain(name, data, present)
    return result


@dataclass(frozen=True)
class TransformBatch:
    """A picklable function that engines apply to record batches to transform them."""

    transformations: Transformations

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Transform the columns of a batch."""
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
        # Arrow has no multidimensional arrays: nested fixed-size lists share one flat array of
        # values.
        for size in reversed(result.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        return array.cast(arrow_type(column.output))


def check_frame(transformations: Transformations, schema: pa.Schema) -> None:
    """Check that a frame has the columns to transform, with compatible types.

    Raises:
        FeatureNotFound: Columns are missing.
        InvalidArgument: The type of a column differs from the type on which its chain was fitted.
    """
    from featurestore.transform.steps import form_of

    missing = []
    for column in transformations.columns:
        if column.name not in schema.names:
            missing.append(column.name)
            continue
        dtype = schema.field(column.name).type
        form = form_of(dtype)
        # Steps convert numbers and integers to float64, so either kind is accepted for the other.
        numbers = {form.value_type, column.input_form.value_type} <= {"number", "whole"}
        if (form.shape, form.item) != (column.input_form.shape, column.input_form.item) or (
            form.value_type != column.input_form.value_type and not numbers
        ):
            raise InvalidArgument(
                f"Column {column.name!r} is {dtype}; the transformation {column.chain} was fitted "
                f"on {column.type}."
            )
    if missing:
        raise FeatureNotFound(
            f"The frame is missing columns of the transformations: {listing(missing, limit=50)}. "
            f"Available: {listing(schema.names, limit=50)}."
        )
