"""Shapes of lists in the files.

petastorm reads lists of numbers, not lists of lists, so nested lists of fixed size are stored flat.
"""

from __future__ import annotations

from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrays import flat_items
from featurestore.arrow.casts import cast_array
from featurestore.arrow.types import items_of, shape_of


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the files, with flat lists for nested lists of fixed size.

    >>> image = pa.list_(pa.list_(pa.uint8(), 3), 2)
    >>> stored_schema(pa.schema([("image", image)])).field("image").type
    FixedSizeListType(fixed_size_list<item: uint8>[6])
    """
    return pa.schema([(field.name, _flat_type(field.type)) for field in schema])


def _flat_type(kind: pa.DataType) -> pa.DataType:
    sizes, leaf = shape_of(kind), items_of(kind)
    if not sizes:
        return kind
    return pa.list_(pa.field("item", leaf), prod(sizes))


def flatten_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with flat lists, as it is stored."""
    schema = stored_schema(batch.schema)
    arrays = []
    for array, field in zip(batch.columns, schema, strict=True):
        if shape_of(array.type):
            array = _fixed_size_lists(flat_items(array), array, field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def restore_shape(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a stored column to its feature type."""
    sizes = shape_of(kind)
    if len(sizes) < 2:
        return cast_array(array, kind)
    values = array.values.slice(array.offset * prod(sizes), len(array) * prod(sizes))
    kinds = [kind]
    while pat.is_fixed_size_list(kinds[-1].value_type):
        kinds.append(kinds[-1].value_type)
    for each in reversed(kinds[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, type=each)
    return _fixed_size_lists(values, array, kind)


def _fixed_size_lists(values: pa.Array, like: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists of fixed size with the nulls of another array."""
    valid = None
    if like.null_count:
        present = like.is_valid().to_numpy(zero_copy_only=False)
        valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(like), [valid], like.null_count, children=[values])


def is_supported(kind: pa.DataType) -> bool:
    """Return True if petastorm's readers support a type.

    Supported are scalars, and lists of booleans and numbers.
    """
    sizes, leaf = shape_of(kind), items_of(kind)
    is_list = bool(sizes)
    if pat.is_list(leaf) and not sizes:
        is_list, leaf = True, leaf.value_type
    if is_list:
        return bool(pat.is_boolean(leaf) or pat.is_integer(leaf) or pat.is_floating(leaf))
    return not pat.is_nested(leaf)
