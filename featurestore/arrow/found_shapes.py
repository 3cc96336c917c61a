"""Shape inference for variable-size lists that all have one length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.arrow_cast import cast_array
from featurestore.arrow.shapes import is_number, shaped_type
from featurestore.arrow.types import is_any_list

Shapes: TypeAlias = dict[str, tuple[int, ...] | None]


def is_list_of_numbers(kind: pa.DataType) -> bool:
    """Return whether a type is one of lists of any length, at each depth, with numbers inside.

    >>> is_list_of_numbers(pa.list_(pa.list_(pa.int8()))), is_list_of_numbers(pa.list_(pa.string()))
    (True, False)
    """
    if not is_any_list(kind):
        return False
    return is_number(kind.value_type) or is_list_of_numbers(kind.value_type)


def uniform_shape(column: pa.Array) -> tuple[int, ...] | None:
    """Return the shape of lists of numbers that all have one length, at each depth.

    Returns None if lengths differ, where items are missing, and where lists hold no numbers.

    >>> uniform_shape(pa.array([[[1, 2], [3, 4]], None])), uniform_shape(pa.array([[1], [2, 3]]))
    ((2, 2), None)
    """
    shape: list[int] = []
    inside = column
    while pat.is_list(inside.type) or pat.is_large_list(inside.type):
        if inside.null_count and (shape or inside.null_count == len(inside)):
            return None
        sizes = pc.unique(pc.drop_null(pc.list_value_length(inside)))
        if len(sizes) != 1 or sizes[0].as_py() == 0:
            return None
        shape.append(sizes[0].as_py())
        inside = inside.flatten()
    if inside.null_count or not is_number(inside.type):
        return None
    return tuple(shape) or None


def with_uniform_shape(column: pa.Array) -> pa.Array | None:
    """Return lists of numbers that all have one length as lists of fixed size; None for others.

    >>> str(with_uniform_shape(pa.array([[1, 2], None])).type)
    'fixed_size_list<item: int64>[2]'
    """
    shape = uniform_shape(column)
    if shape is None:
        return None
    kind = column.type
    for _ in shape:
        kind = kind.value_type
    return cast_array(column, shaped_type(kind, shape))


@dataclass(frozen=True)
class UniformShapes:
    """An accumulator: the shape of each column of lists whose rows all have one, by name.

    The state holds a shape, or None without one, for each column that had a row.
    """

    threads = 1

    def start(self) -> Shapes:
        """Return the state of no rows."""
        return {}

    def update(self, state: Shapes, batch: pa.RecordBatch) -> Shapes:
        """Return the state with the rows of a batch of lists."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count < len(column):
                self.merge(state, {name: uniform_shape(column)})
        return state

    def merge(self, first: Shapes, second: Shapes) -> Shapes:
        """Return the state of both."""
        for name, shape in second.items():
            is_same = first.get(name, shape) == shape
            first[name] = shape if is_same else None
        return first

    def finish(self, state: Shapes) -> dict[str, tuple[int, ...]]:
        """Return the shapes by the columns that have one."""
        shapes = {}
        for name, shape in state.items():
            if shape is not None:
                shapes[name] = shape
        return shapes
