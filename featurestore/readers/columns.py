"""Column selection from the manifest, and conversion of columns from Arrow to numpy arrays.

The manifest determines types, shapes and null policies. Variable-length lists are object arrays
of arrays internally and are yielded as ``Ragged``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrays import combine_chunks
from featurestore.arrow.batches import is_item_rows, split_item_rows
from featurestore.arrow.casts import cast_bytes
from featurestore.arrow.json_text import short_repr
from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.types import describe, numpy_type
from featurestore.arrow.values import ConversionError, to_array
from featurestore.errors import InvalidArgument, NullsInColumns, UnsupportedType, listing
from featurestore.model.manifest import WEIGHT_ZERO, Manifest, ManifestSplit
from featurestore.model.names import PRESENT, NamedColumn, check_distinct_names, mask_name
from featurestore.readers.fills import fill_hint, fill_value_type, parse_fill

# Arrays and types of numpy, of any kind; an array of numpy, TensorFlow or PyTorch.
NumpyArray: TypeAlias = npt.NDArray[Any]
NumpyDtype: TypeAlias = np.dtype[Any]
Tensor: TypeAlias = Any
Values = tuple[NumpyArray, npt.NDArray[np.bool_] | None]
_STRING_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_DEFAULT_ROLES = ("feature", "label", "weight")
Nulls: TypeAlias = Literal["error", "mask"] | Mapping[str, Any]
SAMPLE_WEIGHT = "sample_weight"
# Internal name of the padding weights. It is not a valid column name.
PADDING_WEIGHT = "__fs_weight"
_LABEL_MASK = "__fs_present_"


@dataclass(frozen=True)
class SelectedColumn:
    """A column that a reader yields, with the numpy type and shape of one value.

    Attributes:
        dtype: The numpy type; object for strings, binaries and decimals, which are read as bytes.
        fill: The replacement of nulls; None if nulls are not replaced.
        masked: Whether the reader also yields the mask ``<name>_present``.
        byte_rows: Whether binaries of equal length may be read as uint8 of shape (rows, bytes).
        items: The item type of variable-length lists; None if all values have the same shape.
    """

    name: str
    dtype: NumpyDtype
    shape: tuple[int, ...]
    label: bool = False
    weight: bool = False
    fill: Any = None
    masked: bool = False
    byte_rows: bool = False
    items: NumpyDtype | None = None

    @property
    def mask(self) -> str:
        """The name of the mask; that of a label is internal, since readers do not yield it."""
        return _LABEL_MASK + self.name if self.label else mask_name(self.name)

    @property
    def zero(self) -> Any:
        """The value for padding rows."""
        return b"" if self.dtype == object else self.dtype.type(0)

    @property
    def row_bytes(self) -> int:
        """Size of one value in memory, in bytes; only the pointer for strings."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def select_columns(
    manifest: Manifest,
    split: ManifestSplit,
    *,
    columns: Sequence[str] | None,
    nulls: Nulls,
    null_handling: Sequence[str] = (),
    padded: Sequence[str] = (),
) -> tuple[SelectedColumn, ...]:
    """Select the columns of a reader; None selects the inputs, the labels and the weight.

    ``null_handling`` columns need no null policy, since a transformation replaces their nulls. A
    null policy never applies to a label: rows without label have weight 0 if the dataset was
    created with ``missing_labels="weight_zero"``, and the label is then masked.
    Transformations pad the lists in ``padded`` columns to a fixed length. Other columns with
    variable-length lists are selected only if ``columns`` includes them.

    Raises:
        InvalidArgument: A column or the null policy is unknown.
        UnsupportedType: Columns have no fixed shape; the message lists all of them.
        NullsInColumns: Columns have nulls and no policy covers them.
        ColumnConflict: A column has the name of a mask.
    """
    names = _column_names(manifest, columns)
    labels = {column.name for column in manifest.columns if column.role == "label"}
    fills = _fill_values(nulls, names, labels=labels)
    masked: set[str] = set()
    if nulls == "mask":
        # Use the same masks for all splits, so that a model can read every split.
        masked |= columns_with_nulls(manifest)
    masked -= labels
    if has_zero_weights(manifest):
        masked |= labels
    selected = []
    for name in names:
        column = manifest.column(name)
        data_type = type_from_json(column.type)
        dtype, shape = value_dtype_and_shape(data_type)
        items = None
        if name in padded:
            shape = ()
        elif columns is not None and -1 in shape:
            items = item_dtype(data_type)
        if items is not None:
            shape = ()
        selected.append(
            SelectedColumn(
                name,
                dtype,
                shape,
                label=column.role == "label",
                weight=column.role == "weight",
                masked=name in masked,
                items=items,
            )
        )
    _refuse_ragged(selected)
    _check_mask_names(selected)
    _refuse_missing_labels(split, [name for name in names if name in labels - masked])
    if nulls != "mask":
        handled = {*fills, *null_handling, *labels}
        _refuse_nulls(split, [name for name in names if name not in handled])
    return tuple(
        _set_fill_value(
            column, type_from_json(manifest.column(column.name).type), fills.get(column.name)
        )
        for column in selected
    )


def _column_names(manifest: Manifest, columns: Sequence[str] | None) -> list[str]:
    """Return the names of the columns to read, after checking ``columns=``."""
    if columns is None:
        names = [column.name for column in manifest.columns if column.role in _DEFAULT_ROLES]
        return names or [column.name for column in manifest.columns]
    if isinstance(columns, str):
        raise InvalidArgument(
            f"columns={columns!r} is a string, not a list.", hint=f"columns=[{columns!r}]"
        )
    available = [column.name for column in manifest.columns]
    unknown = [name for name in columns if name not in available]
    problem = None
    if unknown:
        problem = f": training dataset {manifest.name!r} has no column {listing(unknown)}"
    elif not columns or len(set(columns)) < len(columns):
        problem = " must contain at least one column, and each column once"
    if problem is not None:
        raise InvalidArgument(
            f"columns={list(columns)}{problem}. Available: {listing(available, limit=50)}."
        )
    return list(columns)


def columns_with_nulls(manifest: Manifest) -> set[str]:
    """Return the columns that have nulls in any split."""
    return {name for split in manifest.splits for name, count in split.nulls.items() if count}


def has_zero_weights(manifest: Manifest) -> bool:
    """Return whether rows without label are read with the weight 0."""
    policy = manifest.missing_labels
    return policy is not None and policy.policy == WEIGHT_ZERO


def _fill_values(nulls: Nulls, names: Sequence[str], *, labels: Collection[str]) -> dict[str, Any]:
    """Return the fill value of each column, after checking ``nulls=``."""
    if not isinstance(nulls, Mapping):
        if nulls not in ("error", "mask"):
            raise InvalidArgument(
                f"nulls={nulls!r} is not supported.",
                hint='nulls="error", "mask" or {column: value}',
            )
        return {}
    unknown = [name for name in nulls if name not in names]
    if unknown:
        raise InvalidArgument(
            f"nulls= contains columns that are not read: {listing(unknown)}. "
            f"Available: {listing(names)}."
        )
    filled_labels = [name for name in nulls if name in labels]
    if filled_labels:
        raise InvalidArgument(
            f"nulls= contains the label {listing(filled_labels)}. A missing label is never filled.",
            hint='create_training_dataset(..., missing_labels="drop"), or "weight_zero"',
        )
    return dict(nulls)


def value_dtype_and_shape(dtype: pa.DataType) -> tuple[NumpyDtype, tuple[int, ...]]:
    """Return the numpy type and shape of a value; (-1,) for variable-length lists and structs.

    >>> value_dtype_and_shape(pa.list_(pa.float32(), 8))
    (dtype('float32'), (8,))
    """
    shape: tuple[int, ...] = ()
    while pat.is_fixed_size_list(dtype):
        shape += (dtype.list_size,)
        dtype = dtype.value_type
    if pat.is_nested(dtype):
        return np.dtype(object), (-1,)
    if pat.is_date(dtype) or pat.is_timestamp(dtype):
        return np.dtype(np.int64), shape
    if pat.is_string(dtype) or pat.is_binary(dtype) or pat.is_decimal(dtype):
        return np.dtype(object), shape
    return numpy_type(dtype), shape


def _check_mask_names(columns: Sequence[SelectedColumn]) -> None:
    """Refuse a column that has the name of the mask of another column."""
    names = [NamedColumn(column.name, f"column {column.name!r}") for column in columns]
    masks = [
        NamedColumn(column.mask, f"the mask of column {column.name!r}")
        for column in columns
        if column.masked
    ]

    def hint(mask: NamedColumn) -> str:
        distinct_names = [
            column.name for column in columns if column.name.lower() != mask.name.lower()
        ]
        return f"columns={distinct_names}, or rename the column before the dataset is created"

    check_distinct_names([*names, *masks], hint=hint)


def _refuse_ragged(columns: Sequence[SelectedColumn]) -> None:
    ragged: list[str] = []
    regular: list[str] = []
    for column in columns:
        names = ragged if -1 in column.shape else regular
        names.append(column.name)
    if ragged:
        raise UnsupportedType(
            "These columns have no fixed shape and cannot be batched: "
            f"{listing(ragged, limit=50)}.",
            hint=f"transformations={{{ragged[0]!r}: t.pad(8) | ...}} pads lists to one length; "
            f"columns={[*regular, *ragged]} reads lists as values and row splits, columns={regular} "
            "omits them",
        )


def _refuse_missing_labels(split: ManifestSplit, labels: Sequence[str]) -> None:
    for name in labels:
        count = split.nulls.get(name)
        if count:
            raise NullsInColumns(
                f"The label {name!r} is null in {count:,} of {split.rows:,} rows of split "
                f"{split.name!r}.",
                hint="create the dataset again with "
                'create_training_dataset(..., missing_labels="drop"), or "weight_zero"',
            )


def _refuse_nulls(split: ManifestSplit, names: Sequence[str]) -> None:
    columns_with_nulls = []
    for name in names:
        count = split.nulls.get(name)
        if count:
            columns_with_nulls.append(f"{name!r} ({count})")
    if columns_with_nulls:
        raise NullsInColumns(
            f"These columns have nulls: {', '.join(columns_with_nulls)}.",
            hint=f'nulls="mask" adds <column>{PRESENT}, nulls={{column: value}} fills them',
        )


def _set_fill_value(column: SelectedColumn, dtype: pa.DataType, value: Any) -> SelectedColumn:
    """Return the column with its fill value in the form that readers yield."""
    if value is None:
        return column
    argument = f"nulls={{{column.name!r}: {short_repr(value)}}}"
    if pat.is_nested(dtype) and not pat.is_fixed_size_list(dtype):
        raise InvalidArgument(
            f"{argument}: null lists cannot be filled.",
            hint='nulls="mask" reads them as empty lists and adds <column>_present',
        )
    fill_type = fill_value_type(value, dtype)
    try:
        values = to_array([parse_fill(value, fill_type)], fill_type)
        data, _ = to_numpy(values, name=column.name)
    except (ConversionError, NullsInColumns) as error:
        raise InvalidArgument(
            f"{argument} is not a value of the column, which is {describe(dtype)}.",
            hint=fill_hint(column.name, value, dtype),
        ) from error
    # Tuples can be compared, unlike arrays.
    return replace(column, fill=_to_tuples(data[0]) if data.ndim > 1 else data[0])


def _to_tuples(array: NumpyArray) -> tuple[Any, ...]:
    return tuple(array) if array.ndim == 1 else tuple(map(_to_tuples, array))


class Ragged(NamedTuple):
    """The lists of a batch: row i is ``values[row_splits[i] : row_splits[i + 1]]``.

    Attributes:
        values: The concatenated items of all rows: an array, with PyTorch a tensor (for strings a
            list of bytes).
        row_splits: Start of each row, int64 of (rows + 1,); the last one is the number of items.

    >>> ragged = Ragged(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
    >>> [part.tolist() for part in np.split(ragged.values, ragged.row_splits[1:-1])]
    [[1, 2], [], [3]]
    """

    values: Any
    row_splits: Any


def item_dtype(dtype: pa.DataType) -> NumpyDtype | None:
    """Return the item type of variable-length lists, or None if it is not supported.

    >>> item_dtype(pa.list_(pa.string())), item_dtype(pa.list_(pa.float32()))
    (dtype('O'), dtype('float32'))
    """
    if not (pat.is_list(dtype) or pat.is_large_list(dtype)):
        return None
    item = dtype.value_type
    if pat.is_string(item) or pat.is_large_string(item) or pat.is_binary(item):
        return np.dtype(object)
    if pat.is_date(item) or pat.is_timestamp(item):
        return np.dtype(np.int64)
    if pat.is_boolean(item) or pat.is_integer(item) or pat.is_floating(item):
        return numpy_type(item)
    return None


def to_ragged(rows: NumpyArray, dtype: NumpyDtype) -> Ragged:
    """Convert an object array of arrays to ``Ragged``; elements that are not arrays become empty.

    The result of ``create_item_rows`` is accepted as well.

    >>> rows = np.empty(3, object)
    >>> rows[:] = [np.array([1, 2]), b"", np.array([3])]
    >>> to_ragged(rows, np.dtype(np.int64))
    Ragged(values=array([1, 2, 3]), row_splits=array([0, 2, 2, 3]))
    """
    if is_item_rows(rows):
        items, lengths = split_item_rows(rows)
        return Ragged(items.astype(dtype, copy=False), np.cumsum(np.append(0, lengths)))
    # ``np.concatenate`` needs at least one array, also if all lists are empty.
    item_arrays = [np.empty(0, dtype=dtype)]
    row_splits = np.zeros(len(rows) + 1, dtype=np.int64)
    for row, cell in enumerate(rows.tolist()):
        if isinstance(cell, np.ndarray):
            item_arrays.append(cell.astype(dtype, copy=False))
            row_splits[row + 1] = len(cell)
    return Ragged(np.concatenate(item_arrays), np.cumsum(row_splits))


def to_numpy(array: Any, *, name: str) -> Values:
    """Convert an Arrow array to values of shape (rows, *shape) and a mask of non-null rows.

    The mask is None if there are no nulls. Booleans, integers and floats keep their type; dates
    become int64 days and times int64 microseconds since 1970 UTC; strings, binaries and decimals
    become object arrays of bytes; and variable-length lists become object arrays of arrays. Null
    rows become zeros, empty bytes or empty lists.

    >>> values, present = to_numpy(pa.array([1, None], pa.int32()), name="x")
    >>> values.tolist(), present.tolist()
    ([1, 0], [True, False])
    """
    if isinstance(array, pa.ChunkedArray):
        array = combine_chunks(array)
    if pat.is_fixed_size_list(array.type):
        return _fixed_size_rows(array, name=name)
    present = _validity_mask(array)
    if pat.is_list(array.type) or pat.is_large_list(array.type):
        return _ragged_rows(array, present, name=name), present
    return _flatten_items(array, present), present


def _ragged_rows(array: Any, present: npt.NDArray[np.bool_] | None, *, name: str) -> NumpyArray:
    """Convert variable-length lists to an object array of slices of one item array."""
    items = array.flatten()  # excludes the items under null lists
    if items.null_count:
        raise NullsInColumns(
            f"Lists of column {name!r} contain nulls.",
            hint="fill them before the dataset is created",
        )
    lengths = np.diff(array.offsets.to_numpy())
    if present is not None:
        lengths = lengths * present  # null lists are empty
    flat_items = _flatten_items(items, None)
    rows = np.empty(len(array), dtype=object)
    start = 0
    for row, length in enumerate(lengths.tolist()):
        rows[row] = flat_items[start : start + length]
        start += length
    return rows


def _validity_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return the mask of non-null rows, or None if there are no nulls."""
    if not array.null_count:
        return None
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _fixed_size_rows(array: Any, *, name: str) -> Values:
    """Convert fixed-size lists to the rows of an array; null lists become zeros."""
    rows, dtype = len(array), array.type
    present = valid = _validity_mask(array)
    shape: tuple[int, ...] = ()
    while pat.is_fixed_size_list(dtype):
        size = dtype.list_size
        # ``values`` ignores the offset of the array, and ``flatten`` would omit the items of null
        # lists.
        array = array.values.slice(array.offset * size, len(array) * size)
        shape, dtype = (*shape, size), dtype.value_type
        if valid is not None:
            valid = np.repeat(valid, size)
        items = _validity_mask(array)
        if items is not None and (valid is None or (valid & ~items).any()):
            raise NullsInColumns(
                f"Lists of column {name!r} contain nulls.",
                hint="fill them before the dataset is created",
            )
    return _flatten_items(array, valid).reshape(rows, *shape), present


def _flatten_items(array: Any, present: npt.NDArray[np.bool_] | None) -> NumpyArray:
    """Convert values other than lists to numpy; nulls become zeros or empty bytes."""
    dtype = array.type
    if pat.is_decimal(dtype):
        return _decimal_bytes(array)
    if dtype in _STRING_TYPES:
        return _to_bytes_objects(array, present)
    if pat.is_date(dtype):
        array = array.cast(pa.date32()).view(pa.int32()).cast(pa.int64())
    elif pat.is_timestamp(dtype):
        array = array.cast(pa.timestamp("us", tz=dtype.tz)).view(pa.int64())
    if present is None:
        numbers: NumpyArray = array.to_numpy(zero_copy_only=False)
        return numbers
    # Arrow converts integers with nulls to floats, so fill the nulls first.
    values = array.fill_null(pa.scalar(0).cast(array.type)).to_numpy(zero_copy_only=False)
    # Values under null lists are undefined.
    return np.where(present, values, values.dtype.type(0))


def _to_bytes_objects(array: pa.Array, present: npt.NDArray[np.bool_] | None) -> NumpyArray:
    raw = cast_bytes(array, pa.large_binary())
    if raw.null_count:
        raw = raw.fill_null(b"")
    byte_strings: NumpyArray = raw.to_numpy(zero_copy_only=False)
    if present is None:
        return byte_strings
    return np.where(present, byte_strings, b"")


def _decimal_bytes(array: pa.Array) -> NumpyArray:
    """Format decimals as bytes, such as ``b"-12.30"``."""
    result = np.full(len(array), b"", dtype=object)
    for row, value in enumerate(array.to_pylist()):
        if value is not None:
            # ``str`` may return an exponent, such as "1E+3".
            result[row] = format(value, "f").encode()
    return result
