"""Columns of Hugging Face ``datasets``: their types decide how the stored values are read.

An image, a sound, a video and a document are their encoded bytes. An ``Array2D`` to ``Array5D`` is an
array of its shape, and a class label is its number. All other columns have the type of the stored
values.

https://huggingface.co/docs/datasets/about_dataset_features
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.arrays import combine_chunks
from featurestore.arrow.casts import cast_array
from featurestore.arrow.types import feature_type, is_list_type
from featurestore.errors import UnsupportedDataframe, UnsupportedType, listing

_BATCH_ROWS = 1000
# Types whose values are stored as {"bytes": ..., "path": ...}.
_ENCODED = ("Audio", "Image", "Nifti", "Pdf", "Video")
_ARRAYS = ("Array2D", "Array3D", "Array4D", "Array5D")


def column_type(storage_type: pa.DataType, feature: Any) -> pa.DataType | None:
    """Return the feature type of a column; None if its values cannot be stored.

    Args:
        storage_type: The Arrow type of the stored values.
        feature: The type of ``datasets`` as JSON, such as ``{"_type": "Image"}``; None if unknown.

    >>> storage_type = pa.list_(pa.list_(pa.float32()))
    >>> str(column_type(storage_type, {"_type": "Array2D", "shape": [8, 6], "dtype": "float32"}))
    'fixed_size_list<item: fixed_size_list<item: float>[6]>[8]'
    """
    name = feature.get("_type") if isinstance(feature, Mapping) else None
    if name in _ENCODED and _has_bytes(storage_type):
        return pa.binary()
    dtype = feature_type(storage_type)
    if name in _ARRAYS and dtype is not None:
        return _shaped(dtype, feature.get("shape"))
    return dtype


def to_column(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Convert stored values to the type of ``column_type``.

    Raises:
        UnsupportedType: A value is the path of a file, instead of its bytes.
        pa.ArrowInvalid: A value does not have the type.
    """
    if pat.is_binary(dtype) and _has_bytes(array.type):
        return _encoded_bytes(array)
    return cast_array(array, dtype)


def _has_bytes(storage_type: pa.DataType) -> bool:
    return bool(pat.is_struct(storage_type) and storage_type.get_field_index("bytes") >= 0)


def _shaped(dtype: pa.DataType, shape: Any) -> pa.DataType:
    """Return a nested list type with the lengths of a shape; an unknown length is None."""
    if not isinstance(shape, list | tuple) or not shape or not is_list_type(dtype):
        return dtype
    items = pa.field("item", _shaped(dtype.value_type, shape[1:]))
    length = shape[0]
    if isinstance(length, int) and 0 < length < 2**31:
        return pa.list_(items, length)
    return pa.list_(items)


def _encoded_bytes(array: pa.StructArray) -> pa.Array:
    # ``flatten`` applies the validity of the struct to its fields.
    fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    values = fields["bytes"]
    paths = fields.get("path", pa.nulls(len(array), pa.string()))
    outside = paths.filter(pc.and_(values.is_null(), paths.is_valid()))
    if len(outside):
        raise UnsupportedType(
            f"A value is the path {outside[0].as_py()!r} instead of the bytes of a file.",
            hint="dataset.save_to_disk(path) stores the bytes; read_source reads this folder",
        )
    return values.cast(pa.binary())


def dataset_batches(dataset: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a ``datasets.Dataset``, in its order and in feature types.

    A column that cannot be stored keeps its type, for an error of all such columns. The first batch has
    no rows.

    Raises:
        UnsupportedDataframe: The object has several datasets, or is a stream of examples.
    """
    name = type(dataset).__name__
    if isinstance(dataset, Mapping):
        raise UnsupportedDataframe(
            f"A {name} has the datasets {listing(list(dataset))}.",
            hint=f"df = df[{next(iter(dataset), 'train')!r}]",
        )
    if name != "Dataset":
        raise UnsupportedDataframe(
            f"A {name} of datasets has no columns of one type.",
            hint="df = datasets.Dataset.from_list(list(df), features=df.features)",
        )
    features = dataset.features.to_dict()
    yield _convert_table(dataset.features.arrow_schema.empty_table(), features)
    # This format has all columns, in the order of shuffled and selected rows.
    for table in dataset.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        yield _convert_table(table, features)


def _convert_table(table: pa.Table, features: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = []
    for field, column in zip(table.schema, table.columns, strict=True):
        dtype = column_type(field.type, features.get(field.name))
        array = combine_chunks(column)
        try:
            arrays.append(array if dtype is None else to_column(array, dtype))
        except (UnsupportedType, pa.ArrowInvalid) as error:
            message = error.message if isinstance(error, UnsupportedType) else str(error)
            raise UnsupportedType(
                f"Column {field.name!r}: {message}", hint=getattr(error, "hint", None)
            ) from error
    return pa.RecordBatch.from_arrays(arrays, table.schema.names)
