"""A fitted chain on one column, in the operations of any library."""

from __future__ import annotations

from typing import Any

from featurestore.transform.forms import Form
from featurestore.transform.kernels import settled
from featurestore.transform.ops import LEAST_FLOAT32, Ops, Value
from featurestore.transform.rules import RULES
from featurestore.transform.steps import Chain


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
    if value.kind == "number":
        # Not every library tells such small numbers from 0.
        x = ops.number(value)
        small = (x < LEAST_FLOAT32) & (x > -LEAST_FLOAT32)
        x = ops.where(small, 0.0, x)
        if narrow:
            x = ops.cast(ops.cast(x, "float32"), "float64")
        value = Value("number", x)
    for step in chain.steps:
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
