"""petastorm metadata: the pickled schema, row groups, and the shapes of stored lists.

petastorm can read lists of numbers, but not lists of lists, so nested fixed-size lists are stored
flat.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import warnings
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrays import flatten_items
from featurestore.arrow.casts import cast_array
from featurestore.arrow.schemas import schema_from_json
from featurestore.arrow.types import array_item_type, array_shape
from featurestore.errors import missing_extra
from featurestore.model.manifest import ManifestSplit
from featurestore.plugins.format import DatasetContents

METADATA_FILE = "_common_metadata"
_UNISCHEMA = "features"


def petastorm() -> Any:
    """Import the petastorm modules ``unischema`` and ``etl.dataset_metadata``.

    Raises:
        MissingExtra: petastorm is not installed or does not work.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from petastorm import unischema
            from petastorm.etl import dataset_metadata
    except ImportError as error:
        raise missing_extra("petastorm", "petastorm") from error
    return unischema, dataset_metadata


def schema_with_metadata(
    contents: DatasetContents, split: ManifestSplit, *, shaped: bool = False
) -> pa.Schema:
    """Return the schema of a split's files with petastorm metadata.

    ``shaped`` includes array shapes, which petastorm's batch reader restores. Its row reader would
    return flat values despite the shape, so the stored files do not include shapes.
    """
    _, dataset_metadata = petastorm()
    schema = schema_from_json(contents.layout["schema"])
    nullable: set[str] = set()
    for dataset_split in contents.splits:
        nullable.update(dataset_split.nulls)
    max_row_groups = contents.layout["parquet"]["row_groups"]
    groups = {
        os.path.basename(shard.path): min(max_row_groups, shard.rows) for shard in split.shards
    }
    return stored_schema(schema).with_metadata(
        {
            # The protocol is fixed, since the default depends on the Python release and the bytes
            # are hashed.
            dataset_metadata.UNISCHEMA_KEY: pickle.dumps(
                unischema_of(schema, nullable=frozenset(nullable), shaped=shaped), protocol=4
            ),
            dataset_metadata.ROW_GROUPS_PER_FILE_KEY: json.dumps(groups).encode(),
        }
    )


def unischema_of(
    schema: pa.Schema, *, nullable: frozenset[str] = frozenset(), shaped: bool = False
) -> Any:
    """Return the petastorm schema of feature types; ``nullable`` are the columns with nulls."""
    unischema, _ = petastorm()
    fields = []
    for field in schema:
        sizes, leaf = array_shape(field.type), array_item_type(field.type)
        shape: tuple[int | None, ...] = tuple(sizes)
        if sizes and not shaped:
            # Files contain flat lists, whose length is the product of all sizes.
            shape = (prod(sizes),)
        if pat.is_list(leaf):
            shape, leaf = (None,), leaf.value_type
        numpy_type = _numpy_type(leaf)
        if numpy_type is np.datetime64 and field.name in nullable:
            # petastorm calls the type with each value, and numpy cannot convert pandas' NaT to
            # datetime64.
            numpy_type = np.object_
        # Interned, since pickle memoizes strings by identity, and the manifest contains a hash of
        # its output.
        name = sys.intern(field.name)
        fields.append(unischema.UnischemaField(name, numpy_type, shape, None, name in nullable))
    return unischema.Unischema(_UNISCHEMA, fields)


def _numpy_type(dtype: pa.DataType) -> Any:
    """Return the numpy or Python type in petastorm's schema."""
    from decimal import Decimal

    if pat.is_decimal(dtype):
        return Decimal
    if pat.is_string(dtype):
        return np.str_
    if pat.is_binary(dtype):
        return np.bytes_
    if pat.is_date(dtype) or pat.is_timestamp(dtype):
        return np.datetime64
    return np.dtype(dtype.to_pandas_dtype()).type


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the files, with flat lists for nested fixed-size lists.

    >>> image = pa.list_(pa.list_(pa.uint8(), 3), 2)
    >>> stored_schema(pa.schema([("image", image)])).field("image").type
    FixedSizeListType(fixed_size_list<item: uint8>[6])
    """
    fields = []
    for field in schema:
        sizes = array_shape(field.type)
        flat_type = pa.list_(pa.field("item", array_item_type(field.type)), prod(sizes))
        fields.append((field.name, flat_type if sizes else field.type))
    return pa.schema(fields)


def flatten_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with flat lists, as stored in files."""
    schema = stored_schema(batch.schema)
    arrays = []
    for array, field in zip(batch.columns, schema, strict=True):
        if array_shape(array.type):
            array = _fixed_size_lists(flatten_items(array), array, field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def restore_shape(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Convert a stored column to its feature type."""
    sizes = array_shape(dtype)
    if len(sizes) < 2:
        return cast_array(array, dtype)
    values = array.values.slice(array.offset * prod(sizes), len(array) * prod(sizes))
    kinds = [dtype]
    while pat.is_fixed_size_list(kinds[-1].value_type):
        kinds.append(kinds[-1].value_type)
    for list_type in reversed(kinds[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, type=list_type)
    return _fixed_size_lists(values, array, dtype)


def _fixed_size_lists(values: pa.Array, like: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return fixed-size lists with the nulls of another array."""
    valid = None
    if like.null_count:
        present = like.is_valid().to_numpy(zero_copy_only=False)
        valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(dtype, len(like), [valid], like.null_count, children=[values])


def is_supported(dtype: pa.DataType) -> bool:
    """Return whether petastorm's readers support a type.

    Supported types are scalars, and lists of booleans and numbers.
    """
    sizes, leaf = array_shape(dtype), array_item_type(dtype)
    is_list = bool(sizes)
    if pat.is_list(leaf) and not sizes:
        is_list, leaf = True, leaf.value_type
    if is_list:
        return bool(pat.is_boolean(leaf) or pat.is_integer(leaf) or pat.is_floating(leaf))
    return not pat.is_nested(leaf)
