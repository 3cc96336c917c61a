"""Which columns a reader yields, in which form, and what it does about nulls.

Decided from the manifest alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, NullsInColumns, UnsupportedType, listing
from featurestore.model.arrow_json import type_from_json
from featurestore.model.manifest import Manifest, ManifestSplit
from featurestore.model.types import numpy_type
from featurestore.readers.ragged import item_dtype

_READ_ROLES = ("feature", "label", "weight")

Nulls: TypeAlias = Literal["error", "mask"] | Mapping[str, Any]

SAMPLE_WEIGHT = "sample_weight"
# What tells padding from rows on the way; no column can have this name.
PADDING_WEIGHT = "__fs_weight"
PRESENT = "_present"


@dataclass(frozen=True)
class SelectedColumn:
    """A column as readers yield it: numpy type and shape of one value, and what stands for nulls.

    ``dtype`` is object for texts, binaries and decimals (bytes in object arrays). ``fill`` is None
    where nulls are not filled; ``masked`` columns come with a second column ``<name>_present``.
    ``byte_rows``: binaries may be read as uint8 of (rows, bytes) where all are of one length.
    ``items``: the type of the items of lists of varying length, which come as object arrays of
    arrays and are yielded as ``Ragged``; None: values have one shape.
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
        """What padding rows hold."""
        return b"" if self.dtype == object else self.dtype.type(0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one value in memory; the pointer alone for texts."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def select_columns(
    manifest: Manifest,
    split: ManifestSplit,
    *,
    columns: Sequence[str] | None,
    nulls: Nulls,
    settled: Sequence[str] = (),
    padded: Sequence[str] = (),
) -> tuple[SelectedColumn, ...]:
    """Return the columns that a reader yields; None are the inputs, the labels and the weight.

    Nulls of ``settled`` columns need no policy: a transformation makes values of them. Another one
    gives the lists of ``padded`` columns one length. Other lists of varying length are read where
    ``columns`` names them.

    Raises:
        InvalidArgument: Columns that do not exist, or an unknown null policy.
        UnsupportedType: Columns without one fixed shape; all are named.
        NullsInColumns: Columns have nulls and no policy covers them.
    """
    names = _names(manifest, columns)
    fills = _fills(nulls, names)
    masked: set[str] = set()
    if nulls == "mask":
        # Masks are the same in all splits, so that one model reads them all.
        for each in manifest.splits:
            masked.update(name for name, count in each.nulls.items() if count)
    chosen = []
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
        chosen.append(
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
    _refuse_ragged(chosen)
    if nulls != "mask":
        _refuse_nulls(split, [name for name in names if name not in (*fills, *settled)])
    return tuple(map(_with_typed_fill, chosen))


def _names(manifest: Manifest, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        names = [column.name for column in manifest.columns if column.role in _READ_ROLES]
        return names or [column.name for column in manifest.columns]
    if isinstance(columns, str):
        raise InvalidArgument(f"columns={columns!r} is one text.", hint=f"columns=[{columns!r}]")
    known = [column.name for column in manifest.columns]
    wrong = [name for name in columns if name not in known]
    problem = None
    if wrong:
        problem = f"has no column {listing(wrong)}"
    elif not columns or len(set(columns)) < len(columns):
        problem = "reads each column once, and at least one"
    if problem is not None:
        raise InvalidArgument(
            f"columns={list(columns)}: training dataset {manifest.name!r} {problem}. It has "
            f"{listing(known, limit=50)}."
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


def _refuse_ragged(columns: Sequence[SelectedColumn]) -> None:
    ragged: list[str] = []
    others: list[str] = []
    for column in columns:
        names = ragged if -1 in column.shape else others
        names.append(column.name)
    if ragged:
        raise UnsupportedType(
            "These columns have no fixed shape and cannot be put into batches: "
            f"{listing(ragged, limit=50)}.",
            hint=f"transformations={{{ragged[0]!r}: t.pad(8) | ...}} gives lists one length; "
            f"columns={[*others, *ragged]} reads lists as values and row splits, columns={others} "
            "the others alone",
        )


def _refuse_nulls(split: ManifestSplit, names: Sequence[str]) -> None:
    found = []
    for name in names:
        count = split.nulls.get(name)
        if count:
            found.append(f"{name!r} ({count})")
    if found:
        raise NullsInColumns(
            f"These columns have nulls: {', '.join(found)}.",
            hint='nulls="mask" adds <column>_present, nulls={column: value} fills them',
        )


def _with_typed_fill(column: SelectedColumn) -> SelectedColumn:
    """Return the column with its fill value in the column's own type."""
    if column.fill is None:
        return column
    if column.items is not None:
        raise InvalidArgument(
            f"nulls={{{column.name!r}: {column.fill!r}}}: missing lists cannot be filled.",
            hint='nulls="mask" reads them as empty lists and adds <column>_present',
        )
    value = _text(column.fill) if column.dtype == object else _number(column.fill, column.dtype)
    if value is None:
        raise InvalidArgument(
            f"nulls={{{column.name!r}: {column.fill!r}}} is not a value of a column of type "
            f"{column.dtype}."
        )
    return replace(column, fill=value)


def _text(value: object) -> bytes | None:
    """Return a text or bytes as bytes; None for anything else."""
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else None


def _number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number in a type that holds it, where floats may lose digits.

    None where there is no such number.
    """
    given = np.asarray(value)
    if given.shape != () or given.dtype.kind not in "biuf":
        return None
    try:
        cast: npt.NDArray[Any] = given.astype(dtype)
    except (TypeError, ValueError):
        return None
    if dtype.kind != "f" and cast != given:
        return None
    return cast[()]
