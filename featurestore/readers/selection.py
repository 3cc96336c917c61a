"""Which columns a reader yields, in which form, and what it does about nulls: decided from the manifest alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, NullsInColumns, UnsupportedType, listing
from featurestore.model.arrow_json import type_from_json
from featurestore.model.manifest import Manifest, ManifestSplit
from featurestore.model.types import numpy_type

Nulls: TypeAlias = Literal["error", "mask"] | Mapping[str, Any]

SAMPLE_WEIGHT = "sample_weight"
PRESENT = "_present"


@dataclass(frozen=True)
class SelectedColumn:
    """A column as readers yield it: numpy type and shape of one value, and what stands for nulls.

    ``dtype`` is object for texts, binaries and decimals (bytes in object arrays). ``fill`` is None where nulls are not
    filled; ``masked`` columns come with a second column ``<name>_present``.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    label: bool = False
    fill: Any = None
    masked: bool = False

    @property
    def zero(self) -> Any:
        """What padding rows hold."""
        return b"" if self.dtype == object else self.dtype.type(0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one value in memory; the pointer alone for texts."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def select_columns(
    manifest: Manifest, split: ManifestSplit, *, columns: Sequence[str] | None, nulls: Nulls
) -> tuple[SelectedColumn, ...]:
    """Return the columns that a reader yields; None are the features and the labels.

    Raises:
        InvalidArgument: Columns that do not exist, or an unknown null policy.
        UnsupportedType: Columns without one fixed shape; all are named.
        NullsInColumns: Columns have nulls and no policy covers them.
    """
    names = _names(manifest, columns)
    with_nulls = {name for each in manifest.splits for name, count in each.nulls.items() if count}
    fills = _fills(nulls, names)
    chosen = [
        _column(manifest, name, fills=fills, masked=nulls == "mask" and name in with_nulls)
        for name in names
    ]
    _refuse_ragged(chosen, manifest)
    if nulls != "mask":
        _refuse_nulls(
            {
                name: split.nulls[name]
                for name in names
                if split.nulls.get(name) and name not in fills
            }
        )
    return tuple(_filled(column) for column in chosen)


def _names(manifest: Manifest, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        names = [column.name for column in manifest.columns if column.role in ("feature", "label")]
        return names or [column.name for column in manifest.columns]
    if isinstance(columns, str):
        raise InvalidArgument(f"columns={columns!r} is one text.", hint=f"columns=[{columns!r}]")
    known = [column.name for column in manifest.columns]
    wrong = [name for name in columns if name not in known]
    if wrong or not columns or len(set(columns)) < len(columns):
        problem = (
            f"has no column {listing(wrong)}"
            if wrong
            else "reads each column once, and at least one"
        )
        raise InvalidArgument(
            f"columns={list(columns)}: training dataset {manifest.name!r} {problem}. It has {listing(known, limit=50)}."
        )
    return list(columns)


def _fills(nulls: Nulls, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(nulls, str):
        if nulls not in ("error", "mask"):
            raise InvalidArgument(
                f"nulls={nulls!r} is unknown.", hint='nulls="error", "mask" or {column: value}'
            )
        return {}
    wrong = [name for name in nulls if name not in names]
    if wrong:
        raise InvalidArgument(
            f"nulls names columns that are not read: {listing(wrong)}.", hint=f"read are {names}"
        )
    return dict(nulls)


def _column(
    manifest: Manifest, name: str, *, fills: Mapping[str, Any], masked: bool
) -> SelectedColumn:
    column = manifest.column(name)
    dtype, shape = value_form(type_from_json(column.type))
    return SelectedColumn(name, dtype, shape, column.role == "label", fills.get(name), masked)


def value_form(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return numpy type and shape of one value; a ragged list or a struct has the shape (-1,).

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


def _refuse_ragged(columns: Sequence[SelectedColumn], manifest: Manifest) -> None:
    ragged = [column.name for column in columns if -1 in column.shape]
    if ragged:
        others = [column.name for column in columns if -1 not in column.shape]
        raise UnsupportedType(
            f"These columns have no fixed shape and cannot be put into batches: {listing(ragged, limit=50)}.",
            hint=f"read the others with columns={others}, or store lists of one length",
        )


def _refuse_nulls(counts: Mapping[str, int]) -> None:
    if counts:
        found = ", ".join(f"{name!r} ({count})" for name, count in counts.items())
        raise NullsInColumns(
            f"These columns have nulls: {found}.",
            hint='nulls="mask" adds <column>_present, nulls={column: value} fills them',
        )


def _filled(column: SelectedColumn) -> SelectedColumn:
    """Return the column with its fill value in the column's own type."""
    if column.fill is None:
        return column
    value = column.fill
    if column.dtype == object:
        value = value.encode() if isinstance(value, str) else value
        fits = isinstance(value, bytes)
    else:
        try:
            cast: npt.NDArray[Any] = np.asarray(value).astype(column.dtype)
        except (TypeError, ValueError):
            fits = False
        else:
            fits = np.asarray(value).dtype.kind in "biuf" and _same(np.asarray(value), cast)
            value = cast[()]
    if not fits:
        raise InvalidArgument(
            f"nulls={{{column.name!r}: {column.fill!r}}} is not a value of a column of type {column.dtype}."
        )
    return SelectedColumn(
        column.name, column.dtype, column.shape, column.label, value, column.masked
    )


def _same(given: npt.NDArray[Any], cast: npt.NDArray[Any]) -> bool:
    """Tell whether a cast kept the value; floats may lose digits."""
    if cast.shape != ():
        return False
    return cast.dtype.kind == "f" or bool(cast == given)
