"""Application of fitted chains to columns and batches, with the operations of any library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from featurestore.readers.selection import PRESENT
from featurestore.transform.forms import Form
from featurestore.transform.ops import LEAST_FLOAT32, Ops, Value, flush_to_float32
from featurestore.transform.rules import RULES
from featurestore.transform.steps import Chain

if TYPE_CHECKING:
    from featurestore.transform.fitted import FittedColumn, Transformations

# Converts an input column to the library, and returns the mask of present values (None: all are).
ReadColumn = Callable[["FittedColumn", Any], tuple[Any, Any | None]]


def transform_columns(
    ops: Ops, transformations: Transformations, batch: Mapping[str, Any], read: ReadColumn
) -> dict[str, Any]:
    """Transform the columns of a batch that have a chain; return the others unchanged.

    ``<name>_present_integers`` is the mask of a column; missing numbers may also be NaN.
    """
    result = {}
    for name, values in batch.items():
        if name in transformations:
            column = transformations[name]
            data, present = read(column, values)
            values = _transform_column(
                ops, column, data, _combine_masks(ops, batch.get(name + PRESENT), present)
            )
        result[name] = values
    return result


def _combine_masks(ops: Ops, mask: Any | None, present: Any | None) -> Any | None:
    """Return the conjunction of two masks, None if both are None."""
    if mask is None:
        return present
    mask = ops.cast(mask, "bool")
    return mask if present is None else mask & present


def _transform_column(ops: Ops, column: FittedColumn, data: Any, present: Any | None) -> Any:
    kind = column.input_form.kind
    if kind == "whole" and ops.is_floating(data):
        # Integers with missing values arrive as floats with NaN.
        is_number = ~ops.isnan(data)
        present = is_number if present is None else present & is_number
        data = ops.where(is_number, data, 0.0)
    value = Value(kind, data, present)
    if kind == "number":
        value = Value(kind, ops.number(value))
    elif kind == "whole":
        value = Value(kind, ops.cast(data, "int64"), present)
    return apply_chain(ops, column.chain, value, column.output, narrow=column.narrow)


def apply_chain(ops: Ops, chain: Chain, value: Value, form: Form, *, narrow: bool) -> Any:
    """Apply a fitted chain and return an array of the output form.

    Args:
        ops: The operations of a library.
        chain: The fitted steps.
        value: The input column.
        form: The form of the result.
        narrow: Whether the files of the dataset store the column as float32; inputs are then
            rounded to float32, too.
    """
    steps = chain.steps
    if value.kind == "list":
        value = RULES[steps[0].rule].apply(ops, steps[0], value)
        steps = steps[1:]
    if value.kind == "number":
        # Some libraries flush subnormal numbers to 0.
        x = ops.number(value)
        small = (x < LEAST_FLOAT32) & (x > -LEAST_FLOAT32)
        x = ops.where(small, 0.0, x)
        if narrow:
            x = ops.cast(ops.cast(x, "float32"), "float64")
        value = Value("number", x)
    for step in steps:
        value = RULES[step.rule].apply(ops, step, value)
    return _to_output(ops, value, form)


def _to_output(ops: Ops, value: Value, form: Form) -> Any:
    if value.kind == "code":
        return ops.cast(value.data, form.dtype)
    if value.kind == "whole":
        data = value.data
        if value.present is not None:
            present = value.present
            for _ in range(len(data.shape) - len(present.shape)):
                present = present[..., None]
            data = ops.where(present, data, ops.cast(0, "int64"))
        return ops.cast(data, form.dtype)
    data = value.data
    if form.dtype == "float32":
        data = flush_to_float32(ops, data)
    return ops.cast(data, form.dtype)
