"""Selection of the columns of a reader: types, shapes and null policies, from the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.types import numpy_type
from featurestore.errors import InvalidArgument, NullsInColumns, UnsupportedType, listing
from featurestore.model.manifest import Manifest, ManifestSplit
from featurestore.readers.arrow_numpy import item_dtype

_DEFAULT_ROLES = ("feature", "label", "weight")

Nulls: TypeAlias = Literal["error", "mask"] | Mapping[str, Any]

SAMPLE_WEIGHT = "sample_weight"
# Internal name of the padding weights; no column can have this name.
PADDING_WEIGHT = "__fs_weight"
PRESENT = "_present"


@dataclass(frozen=True)
class SelectedColumn:
    """A column of a reader: numpy type and shape of one value, and the replacement of nulls.

    ``dtype`` is object for strings, binaries and decimals (bytes in object arrays). ``fill`` is None
    if nulls are not filled; ``masked`` columns have a second column ``<name>_present``.
    ``byte_rows``: binaries of one length may be read as uint8 of (rows, bytes).
    ``items``: the item type of variable-length lists, which are read as object arrays of arrays and
    yielded as ``Ragged``; None if values have one shape.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    label: bool = False
    weight: bool = False
    fill: Any = None
    masked: bool = False
    byte_rows: bool = False
    items: np.dtype[Any] | None = None

    @property
    def zero(self) -> Any:
        """The value of padding rows."""
        return b"" if self.dtype == object else self.dtype.type(0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one value in memory; for strings only the pointer."""
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
    """Return the columns of a reader; None selects the inputs, the labels and the weight.

    ``null_handling`` columns need no null policy, since a transformation replaces their nulls. A
    transformation also pads the lists of ``padded`` columns to one length. Other variable-length
    lists are read only if ``columns`` names them.

    Raises:
        InvalidArgument: A column or the null policy is unknown.
        UnsupportedType: Columns have no fixed shape; the message names all of them.
        NullsInColumns: Columns have nulls and no policy covers them.
    """
    names = _column_names(manifest, columns)
    fills = _fill_values(nulls, names)
    masked: set[str] = set()
    if nulls == "mask":
        # All splits have the same masks, so that one model can read them.
        for each in manifest.splits:
            masked.update(name for name, count in each.nulls.items() if count)
    selected = []
    for name in names:
        column = manifest.column(name)
        kind = type_from_json(column.type)
        dtype, shape = value_form(kind)
        items = None
        if name in padded:
            shape = ()
        elif columns is not None and -1 in shape:
            items = item_dtype(kind)
        if items is not None:
            shape = ()
        selected.append(
            SelectedColumn(
                name,
                dtype,
                shape,
                label=column.role == "label",
                weight=column.role == "weight",
                fill=fills.get(name),
                masked=name in masked,
                items=items,
            )
        )
    _refuse_ragged(selected)
    if nulls != "mask":
        _refuse_nulls(split, [name for name in names if name not in (*fills, *null_handling)])
    return tuple(map(_with_typed_fill, selected))


def _column_names(manifest: Manifest, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        names = [column.name for column in manifest.columns if column.role in _DEFAULT_ROLES]
        return names or [column.name for column in manifest.columns]
    if isinstance(columns, str):
        raise InvalidArgument(f"columns={columns!r} is a string.", hint=f"columns=[{columns!r}]")
    available = [column.name for column in manifest.columns]
    unknown = [name for name in columns if name not in available]
    problem = None
    if unknown:
        problem = f"has no column {listing(unknown)}"
    elif not columns or len(set(columns)) < len(columns):
        problem = "reads each column once, and at least one"
    if problem is not None:
        raise InvalidArgument(
            f"columns={list(columns)}: training dataset {manifest.name!r} {problem}. It has "
            f"{listing(available, limit=50)}."
        )
    return list(columns)


def _fill_values(nulls: Nulls, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(nulls, str):
        if nulls not in ("error", "mask"):
            raise InvalidArgument(
                f"nulls={nulls!r} is unknown.", hint='nulls="error", "mask" or {column: value}'
            )
        return {}
    unknown = [name for name in nulls if name not in names]
    if unknown:
        raise InvalidArgument(
            f"nulls= names columns that are not read: {listing(unknown)}. Read: {listing(names)}."
        )
    return dict(nulls)


def value_form(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return numpy type and shape of one value; (-1,) for variable-length lists and structs.

    >>> value_form(pa.list_(pa.float32(), 8))
    (dtype('float32'), (8,))
    """
    shape: tuple[int, ...] = ()
    while pat.is_fixed_size_list(kind):
        shape += (kind.list_size,)
        kind = kind.value_type
    if pat.is_nested(kind):
        return np.dtype(object), (-1,)
    if pat.is_date(kind) or pat.is_timestamp(kind):
        return np.dtype(np.int64), shape
    if pat.is_string(kind) or pat.is_binary(kind) or pat.is_decimal(kind):
        return np.dtype(object), shape
    return numpy_type(kind), shape


def _refuse_ragged(columns: Sequence[SelectedColumn]) -> None:
    ragged: list[str] = []
    regular: list[str] = []
    for column in columns:
        names = ragged if -1 in column.shape else regular
        names.append(column.name)
    if ragged:
        raise UnsupportedType(
            "These columns have no fixed shape and cannot be put into batches: "
            f"{listing(ragged, limit=50)}.",
            hint=f"transformations={{{ragged[0]!r}: t.pad(8) | ...}} pads lists to one length; "
            f"columns={[*regular, *ragged]} reads lists as values and row splits, columns={regular} "
            "omits them",
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
            hint='nulls="mask" adds <column>_present, nulls={column: value} fills them',
        )


def _with_typed_fill(column: SelectedColumn) -> SelectedColumn:
    """Return the column with its fill value cast to the type of the column."""
    if column.fill is None:
        return column
    if column.items is not None:
        raise InvalidArgument(
            f"nulls={{{column.name!r}: {column.fill!r}}}: missing lists cannot be filled.",
            hint='nulls="mask" reads them as empty lists and adds <column>_present',
        )
    value = (
        _as_bytes(column.fill)
        if column.dtype == object
        else _cast_number(column.fill, column.dtype)
    )
    if value is None:
        raise InvalidArgument(
            f"nulls={{{column.name!r}: {column.fill!r}}} is not a value of a column of type "
            f"{column.dtype}."
        )
    return replace(column, fill=value)


def _as_bytes(value: object) -> bytes | None:
    """Return a string or bytes as bytes, None for other types."""
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else None


def _cast_number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Cast a number to a type, None if the type cannot represent it; floats may be rounded."""
    number = np.asarray(value)
    if number.shape != () or number.dtype.kind not in "biuf":
        return None
    try:
        converted: npt.NDArray[Any] = number.astype(dtype)
    except (TypeError, ValueError):
        return None
    if dtype.kind != "f" and converted != number:
        return None
    return converted[()]
