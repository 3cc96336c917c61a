"""Transposition of number columns from records to array rows.

numpy copies structured arrays field by field, several hundred records at a time, without a Python
call per column. Both a record and a column of the target array are such structures; the fields of
the latter are one row apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.types as pat

from featurestore.arrow.types import numpy_type
from featurestore.plugins.format import Plane
from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.template import Slot, Template
from featurestore_connectors.tfrecord.wire_columns import BYTES, FLOAT

# Measured: with fewer records, the overhead of numpy calls and of waiting for the GIL dominates.
# More records do not fit into the CPU caches between two copies.
BLOCK_BYTES = 1 << 24
MAX_ROWS, MIN_ROWS = 16_384, 2048
# Masks of seven bits in each byte of a word.
_GROUPS = 0x7F7F7F7F7F7F7F7F

Records = npt.NDArray[np.uint8]


def is_number(slot: Slot) -> bool:
    """Return whether a column contains scalar numbers."""
    return slot.field.column.wire != BYTES and slot.field.column.shape == ()


def number_type(slot: Slot) -> np.dtype[Any]:
    """Return the numpy type of a column of numbers; dates and times are int64."""
    leaf = slot.field.column.leaf
    if pat.is_date(leaf) or pat.is_timestamp(leaf):
        return np.dtype(np.int64)
    return numpy_type(leaf)


@dataclass(frozen=True)
class _Fields:
    """Values of one type at several offsets of each record, and their target rows in an array."""

    dtype: str
    offsets: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def index(self) -> Any:
        """The target rows, as a slice if they are consecutive, which numpy indexes faster."""
        first, last = self.rows[0], self.rows[-1]
        if self.rows == tuple(range(first, last + 1)):
            return slice(first, last + 1)
        return np.array(self.rows)

    def copy_to(self, records: Records, target: npt.NDArray[Any], start: int = 0) -> None:
        """Copy the values to ``target[rows, start : start + n]`` in a contiguous array."""
        size = target.dtype.itemsize
        column_type = _record_dtype(self.dtype, tuple(row * target.strides[0] for row in self.rows))
        shape, offset = (len(records),), start * size
        # The view describes one column of the target as a structure with one field per row.
        column_view: npt.NDArray[Any] = np.ndarray(
            shape, column_type, buffer=target, offset=offset, strides=(size,)
        )
        column_view[...] = records.view(_record_dtype(self.dtype, self.offsets, records.shape[1]))[
            :, 0
        ]

    def read(self, records: Records) -> npt.NDArray[Any]:
        """Return the values in a new array, with one row per offset."""
        values = np.empty((len(self.offsets), len(records)), self.dtype)
        _Fields(self.dtype, self.offsets, tuple(range(len(self.offsets)))).copy_to(records, values)
        return values


@lru_cache(maxsize=256)
def _record_dtype(dtype: str, offsets: tuple[int, ...], size: int | None = None) -> np.dtype[Any]:
    """Return a structured type with one field per offset."""
    item = np.dtype(dtype)
    names = [f"f{number}" for number in range(len(offsets))]
    if size is None:
        size = max(offsets) + item.itemsize
    return np.dtype(
        {
            "names": names,
            "formats": [item] * len(offsets),
            "offsets": list(offsets),
            "itemsize": size,
        }
    )


class _RecordWriter(Protocol):
    """Writer for some rows of an array."""

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None: ...


@dataclass(frozen=True)
class _FloatWriter:
    """Writer for float columns."""

    fields: _Fields

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None:
        if target.dtype == np.float32:
            # Values of the target type are copied without an intermediate array.
            self.fields.copy_to(records, target, start)
        else:
            target[self.fields.index, start : start + len(records)] = self.fields.read(records)


@dataclass(frozen=True)
class _VarintWriter:
    """Writer for varint columns that are read as words of one size.

    ``beyond`` contains (row, offset, position) of ninth and tenth varint bytes.
    """

    fields: _Fields
    widths: tuple[int, ...]
    beyond: tuple[tuple[int, int, int], ...]

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None:
        words = self.fields.read(records)
        masks = [_GROUPS >> 8 * (8 - width) for width in self.widths]
        # A word may extend beyond a short varint, and the mask removes the bytes of the next field.
        words &= np.array(masks, np.uint64).astype(words.dtype)[:, None]
        wire.join(words, width=max(self.widths))
        for row, offset, position in self.beyond:
            # The tenth byte of a varint contains only the highest of 64 bits.
            bits = records[:, offset + position] & np.uint8(0x7F if position == 8 else 1)
            words[row] |= bits.astype(np.uint64) << np.uint64(7 * position)
        columns = target[:, start : start + len(records)]
        if target.dtype == np.bool_:
            columns[self.fields.index] = words != 0
            return
        if words.dtype == np.uint64:
            # This is a view, since numpy converts unsigned to signed integers slowly.
            words = words.view(np.int64)
        columns[self.fields.index] = words


@dataclass(frozen=True)
class _PresenceWriter:
    """Writer for presence masks, derived from bytes that equal ``null`` for null values."""

    fields: _Fields
    null: int

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None:
        target[self.fields.index, start : start + len(records)] = (
            self.fields.read(records) != self.null
        )


@dataclass(frozen=True)
class _ConstantPresenceWriter:
    """Writer for the presence masks of columns without nulls."""

    rows: tuple[int, ...]

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None:
        target[list(self.rows), start : start + len(records)] = True


class FixedPlaneReader:
    """Reads numbers from records into arrays (implements ``PlaneReader``)."""

    def __init__(self, template: Template, groups: Sequence[Sequence[Plane | None]]) -> None:
        self._writers = []
        for planes in groups:
            planes_to_read = [
                (row, template.slot(plane.column), plane.presence)
                for row, plane in enumerate(planes)
                if plane
            ]
            self._writers.append(_plane_writers(planes_to_read))

    def __call__(
        self, records: Records, arrays: Sequence[npt.NDArray[Any]], start: int = 0
    ) -> None:
        _write(records, list(zip(arrays, self._writers, strict=True)), start)


def read_numbers(records: Records, slots: Sequence[Slot]) -> list[npt.NDArray[Any]]:
    """Return columns of numbers, each of shape (records,)."""
    columns: dict[np.dtype[Any], list[int]] = {}
    for number, slot in enumerate(slots):
        columns.setdefault(number_type(slot), []).append(number)
    targets = []
    rows = {}
    for dtype, numbers in columns.items():
        array = np.empty((len(numbers), len(records)), dtype)
        planes_to_read = []
        for row, number in enumerate(numbers):
            planes_to_read.append((row, slots[number], False))
            rows[number] = array[row]
        targets.append((array, _plane_writers(planes_to_read)))
    _write(records, targets)
    return [rows[number] for number in range(len(slots))]


def _write(
    records: Records,
    targets: Sequence[tuple[npt.NDArray[Any], Sequence[_RecordWriter]]],
    start: int = 0,
) -> None:
    step = max(MIN_ROWS, min(MAX_ROWS, BLOCK_BYTES // records.shape[1]))
    for first in range(0, len(records), step):
        block = records[first : first + step]
        for array, writers in targets:
            for writer in writers:
                writer.write(block, array, start + first)


def _plane_writers(planes: Sequence[tuple[int, Slot, bool]]) -> list[_RecordWriter]:
    """Return the writers for (row, column, whether to write presence) tuples."""
    floats, always_present = [], []
    # Presence bytes, grouped by the value that marks nulls.
    presences: dict[int, list[tuple[int, int]]] = {}
    integers: dict[int, list[tuple[int, Slot]]] = {}
    for row, slot, presence in planes:
        if presence and slot.null_byte is not None:
            presences.setdefault(slot.null_byte.null, []).append((row, slot.null_byte.offset))
        elif presence:
            always_present.append(row)
        elif slot.field.column.wire == FLOAT:
            floats.append((row, slot.offset))
        else:
            integers.setdefault(_word_bytes(slot.field.width), []).append((row, slot))
    writers: list[_RecordWriter] = [
        _PresenceWriter(_to_fields("u1", offsets), null) for null, offsets in presences.items()
    ]
    if always_present:
        writers.append(_ConstantPresenceWriter(tuple(always_present)))
    if floats:
        writers.append(_FloatWriter(_to_fields("<f4", floats)))
    for size in sorted(integers):
        writers.append(_varint_writer(size, integers[size]))
    return writers


def _word_bytes(width: int) -> int:
    """Return the size of the smallest word for a varint, or for its first eight bytes.

    A record has enough bytes after its last varint to read a word of this size.
    """
    for size in (1, 2, 4):
        if width <= size:
            return size
    return 8


def _varint_writer(size: int, columns: Sequence[tuple[int, Slot]]) -> _VarintWriter:
    """Return the writer for varint columns that are read as words of ``size`` bytes."""
    offsets, widths, beyond = [], [], []
    for number, (row, slot) in enumerate(columns):
        offsets.append((row, slot.offset))
        widths.append(min(slot.field.width, size))
        for position in range(8, slot.field.width):
            beyond.append((number, slot.offset, position))
    return _VarintWriter(_to_fields(f"<u{size}", offsets), tuple(widths), tuple(beyond))


def _to_fields(dtype: str, row_offsets: Sequence[tuple[int, int]]) -> _Fields:
    rows, column_offsets = zip(*row_offsets, strict=True)
    return _Fields(dtype, column_offsets, rows)
