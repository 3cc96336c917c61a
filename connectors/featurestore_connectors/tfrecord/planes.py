"""Numbers out of records: columns become the rows of arrays, many columns in one move.

numpy copies structures field by field, some hundred records at a time, with no Python call for a
column. A record is such a structure; so is what stands at one place of all rows of an array: its
fields lie a row apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.types as pat

from featurestore.model.types import numpy_type
from featurestore.plugins.format import Plane
from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.template import Slot, Template
from featurestore_connectors.tfrecord.wire_columns import BYTES, FLOAT

# Measured: fewer records pay numpy's calls too often, and threads wait for each other at every
# call; more of them leave the caches between two moves.
BLOCK_BYTES = 1 << 24
MOST_ROWS, FEWEST_ROWS = 16_384, 2048
# Seven bits of each byte of a word.
_GROUPS = 0x7F7F7F7F7F7F7F7F

Records = npt.NDArray[np.uint8]


def is_number(slot: Slot) -> bool:
    """Tell whether a column holds one number in each row."""
    return slot.field.column.wire != BYTES and slot.field.column.shape == ()


def number_type(slot: Slot) -> np.dtype[Any]:
    """Return the numpy type of a column of numbers; dates and times are int64."""
    leaf = slot.field.column.leaf
    if pat.is_date(leaf) or pat.is_timestamp(leaf):
        return np.dtype(np.int64)
    return numpy_type(leaf)


@dataclass(frozen=True)
class _Fields:
    """Values of one type at some offsets of every record, and the array rows they go to."""

    kind: str
    offsets: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def index(self) -> Any:
        """The rows, as numpy likes them best."""
        first, last = self.rows[0], self.rows[-1]
        if self.rows == tuple(range(first, last + 1)):
            return slice(first, last + 1)
        return np.array(self.rows)

    def move(self, records: Records, target: npt.NDArray[Any], start: int = 0) -> None:
        """Copy the values into ``target[rows, start : start + n]``; ``target`` is contiguous."""
        size = target.dtype.itemsize
        across = _structure(self.kind, tuple(row * target.strides[0] for row in self.rows))
        shape, offset = (len(records),), start * size
        place: npt.NDArray[Any] = np.ndarray(
            shape, across, buffer=target, offset=offset, strides=(size,)
        )
        place[...] = records.view(_structure(self.kind, self.offsets, records.shape[1]))[:, 0]

    def take(self, records: Records) -> npt.NDArray[Any]:
        """Return the values in an array of their own, a row for each offset."""
        found = np.empty((len(self.offsets), len(records)), self.kind)
        _Fields(self.kind, self.offsets, tuple(range(len(self.offsets)))).move(records, found)
        return found


@lru_cache(maxsize=256)
def _structure(kind: str, offsets: tuple[int, ...], size: int | None = None) -> np.dtype[Any]:
    item = np.dtype(kind)
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


class _Part(Protocol):
    """Some rows of an array, which are written together."""

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None: ...


@dataclass(frozen=True)
class _Floats:
    """Columns of floats."""

    fields: _Fields

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None:
        if target.dtype == np.float32:
            self.fields.move(records, target, start)
        else:
            target[self.fields.index, start : start + len(records)] = self.fields.take(records)


@dataclass(frozen=True)
class _Varints:
    """Columns of varints that are read in words of one size.

    ``beyond`` are the places of ninth and tenth bytes.
    """

    fields: _Fields
    widths: tuple[int, ...]
    beyond: tuple[tuple[int, int, int], ...]

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None:
        words = self.fields.take(records)
        masks = [_GROUPS >> 8 * (8 - width) for width in self.widths]
        words &= np.array(masks, np.uint64).astype(words.dtype)[:, None]
        wire.join(words, width=max(self.widths))
        for row, offset, place in self.beyond:
            bits = records[:, offset + place] & np.uint8(0x7F if place == 8 else 1)
            words[row] |= bits.astype(np.uint64) << np.uint64(7 * place)
        found = target[:, start : start + len(records)]
        if target.dtype == np.bool_:
            found[self.fields.index] = words != 0
            return
        if words.dtype == np.uint64:
            # From unsigned to signed of one size numpy converts one by one, and slowly.
            words = words.view(np.int64)
        found[self.fields.index] = words


@dataclass(frozen=True)
class _Presence:
    """Which records have a value, by the bytes that are ``null`` where they have none."""

    fields: _Fields
    null: int

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None:
        target[self.fields.index, start : start + len(records)] = (
            self.fields.take(records) != self.null
        )


@dataclass(frozen=True)
class _Everywhere:
    """Presence of columns that have a value in every record."""

    rows: tuple[int, ...]

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None:
        target[list(self.rows), start : start + len(records)] = True


class FixedPlaneReader:
    """Writes numbers of records into arrays (the interface ``PlaneReader``)."""

    def __init__(self, template: Template, groups: Sequence[Sequence[Plane | None]]) -> None:
        self._parts = []
        for planes in groups:
            wanted = []
            for row, plane in enumerate(planes):
                if plane:
                    wanted.append((row, template.slot(plane.column), plane.presence))
            self._parts.append(_parts(wanted))

    def __call__(
        self, records: Records, arrays: Sequence[npt.NDArray[Any]], start: int = 0
    ) -> None:
        _write(records, list(zip(arrays, self._parts, strict=True)), start)


def read_numbers(records: Records, slots: Sequence[Slot]) -> list[npt.NDArray[Any]]:
    """Return columns of numbers, each of shape (records,)."""
    columns: dict[np.dtype[Any], list[int]] = {}
    for number, slot in enumerate(slots):
        columns.setdefault(number_type(slot), []).append(number)
    targets = []
    found = {}
    for kind, numbers in columns.items():
        array = np.empty((len(numbers), len(records)), kind)
        wanted = []
        for row, number in enumerate(numbers):
            wanted.append((row, slots[number], False))
            found[number] = array[row]
        targets.append((array, _parts(wanted)))
    _write(records, targets)
    return [found[number] for number in range(len(slots))]


def _write(
    records: Records, targets: Sequence[tuple[npt.NDArray[Any], Sequence[_Part]]], start: int = 0
) -> None:
    step = max(FEWEST_ROWS, min(MOST_ROWS, BLOCK_BYTES // records.shape[1]))
    for first in range(0, len(records), step):
        block = records[first : first + step]
        for array, parts in targets:
            for part in parts:
                part.write(block, array, start + first)


def _parts(wanted: Sequence[tuple[int, Slot, bool]]) -> list[_Part]:
    """Return what writes (row, column, whether its presence is meant)."""
    floats, everywhere = [], []
    # One layout marks nulls by one value.
    presences: dict[int, list[tuple[int, int]]] = {}
    integers: dict[int, list[tuple[int, Slot]]] = {}
    for row, slot, presence in wanted:
        if presence and slot.null_byte is not None:
            presences.setdefault(slot.null_byte.null, []).append((row, slot.null_byte.offset))
        elif presence:
            everywhere.append(row)
        elif slot.field.column.wire == FLOAT:
            floats.append((row, slot.offset))
        else:
            integers.setdefault(_word_bytes(slot.field.width), []).append((row, slot))
    parts: list[_Part] = []
    for null, places in presences.items():
        parts.append(_Presence(_fields("u1", places), null))
    if everywhere:
        parts.append(_Everywhere(tuple(everywhere)))
    if floats:
        parts.append(_Floats(_fields("<f4", floats)))
    for size in sorted(integers):
        parts.append(_varints(size, integers[size]))
    return parts


def _word_bytes(width: int) -> int:
    """Return the bytes of the smallest word that holds a varint, or the first eight bytes of it.

    Behind the last varint of a record there are as many bytes as the largest word needs.
    """
    for size in (1, 2, 4):
        if width <= size:
            return size
    return 8


def _varints(size: int, columns: Sequence[tuple[int, Slot]]) -> _Varints:
    places, widths, beyond = [], [], []
    for number, (row, slot) in enumerate(columns):
        places.append((row, slot.offset))
        widths.append(min(slot.field.width, size))
        for place in range(8, slot.field.width):
            beyond.append((number, slot.offset, place))
    return _Varints(_fields(f"<u{size}", places), tuple(widths), tuple(beyond))


def _fields(kind: str, places: Sequence[tuple[int, int]]) -> _Fields:
    rows, offsets = zip(*places, strict=True)
    return _Fields(kind, offsets, rows)
