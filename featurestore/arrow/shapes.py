"""Shapes of array cells, represented by nested fixed-size lists.

A column of arrays of the shape (8, 6) is a column of fixed-size lists of 8 fixed-size lists of 6
values. Shapes are those of one row: a column of n rows is a numpy array of shape (n, 8, 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat


def shape_of(kind: pa.DataType) -> tuple[int, ...]:
    """Return the shape of one value: the sizes of nested fixed-size lists, () for all else.

    >>> shape_of(pa.list_(pa.list_(pa.uint8(), 6), 8)), shape_of(pa.float32())
    ((8, 6), ())
    """
    sizes = []
    while pat.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    return tuple(sizes)


def items_of(kind: pa.DataType) -> pa.DataType:
    """Return the type inside of nested fixed-size lists, the type itself for all else.

    >>> items_of(pa.list_(pa.list_(pa.uint8(), 6), 8))
    DataType(uint8)
    """
    while pat.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def shaped_type(items: pa.DataType, shape: Sequence[int]) -> pa.DataType:
    """Return the type of arrays of a shape.

    >>> shape_of(shaped_type(pa.uint8(), (8, 6)))
    (8, 6)
    """
    kind = items
    for size in reversed(shape):
        kind = pa.list_(pa.field("item", kind), size)
    return kind


def is_tensor(kind: pa.DataType) -> bool:
    """Return whether a type is Arrow's extension type of tensors of one shape."""
    return getattr(kind, "extension_name", "") == "arrow.fixed_shape_tensor"


def tensor_type(kind: Any) -> pa.DataType:
    """Return the type that holds Arrow's tensors of one shape in their logical order of axes.

    >>> shape_of(tensor_type(pa.fixed_shape_tensor(pa.int8(), [3, 2], permutation=[1, 0])))
    (2, 3)
    """
    shape = list(kind.shape)
    if kind.permutation is not None:
        shape = [kind.shape[axis] for axis in kind.permutation]
    return shaped_type(kind.value_type, shape)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is one of numbers or booleans.

    >>> is_number(pa.bool_()), is_number(pa.string())
    (True, False)
    """
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind))


def describe(kind: pa.DataType) -> str:
    """Return a type as messages name it: arrays by their shape.

    >>> describe(shaped_type(pa.uint8(), (8, 6))), describe(pa.int64())
    ('uint8 of shape (8, 6)', 'int64')
    """
    shape = shape_of(kind)
    if pat.is_list(kind):
        return f"list of {describe(kind.value_type)}"
    if not shape:
        return str(kind)
    return f"{items_of(kind)} of shape {shape}"
