"""Fitted chains on columns and batches, in the operations of any library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from featurestore.readers.selection import PRESENT
from featurestore.transform.forms import Form
from featurestore.transform.kernels import settled
from featurestore.transform.ops import LEAST_FLOAT32, Ops, Value
from featurestore.transform.rules import RULES
from featurestore.transform.steps import Chain

if TYPE_CHECKING:
    from featurestore.transform.fitted import FittedColumn, Transformations

# Gives what came for a column as the library has it, and which values are there (None: all are).
ReadColumn = Callable[["FittedColumn", Any], tuple[Any, Any | None]]


def transform_columns(
    ops: Ops, transformations: Transformations, batch: Mapping[str, Any], read: ReadColumn
) -> dict[str, Any]:
    """Return a batch with the columns that have a chain transformed, the others as they are.

    ``<name>_present`` tells missing values of a column; missing numbers may be NaN.
    """
    result = {}
    for name, given in batch.items():
        if name in transformations:
            column = transformations[name]
            data, there = read(column, given)
            given = _transformed(ops, column, data, _both(ops, batch.get(name + PRESENT), there))
        result[name] = given
    return result


def _both(ops: Ops, mask: Any | None, there: Any | None) -> Any | None:
    """Return where a mask and what was read both say that a value is there."""
    if mask is None:
        return there
    mask = ops.cast(mask, "bool")
    return mask if there is None else mask & there


def _transformed(ops: Ops, column: FittedColumn, data: Any, present: Any | None) -> Any:
    kind = column.given.kind
    if kind == "whole" and ops.is_floating(data):
        # Whole numbers with missing ones among them come as floats with NaN.
        there = ~ops.isnan(data)
        present = there if present is None else present & there
        data = ops.where(there, data, 0.0)
    value = Value(kind, data, present)
    if kind == "number":
        value = Value(kind, ops.number(value))
    elif kind == "whole":
        value = Value(kind, ops.cast(data, "int64"), present)
    return apply_chain(ops, column.chain, value, column.output, narrow=column.narrow)


def apply_chain(ops: Ops, chain: Chain, value: Value, form: Form, *, narrow: bool) -> Any:
    """Return the results of a chain as the array that its form says.

    Args:
        ops: The library.
        chain: The fitted steps.
        value: The column as it is given.
        form: That of the result.
        narrow: Whether the dataset's files hold the column as float32: then numbers are given the
            same rounding wherever they come from.
    """
    steps = chain.steps
    if value.kind == "list":
        value = RULES[steps[0].rule].apply(ops, steps[0], value)
        steps = steps[1:]
    if value.kind == "number":
        # Not every library tells such small numbers from 0.
        x = ops.number(value)
        small = (x < LEAST_FLOAT32) & (x > -LEAST_FLOAT32)
        x = ops.where(small, 0.0, x)
        if narrow:
            x = ops.cast(ops.cast(x, "float32"), "float64")
        value = Value("number", x)
    for step in steps:
        value = RULES[step.rule].apply(ops, step, value)
    return _result(ops, value, form)


def _result(ops: Ops, value: Value, form: Form) -> Any:
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
        data = settled(ops, data)
    return ops.cast(data, form.dtype)
