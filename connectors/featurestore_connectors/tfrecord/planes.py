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
from featurestore_connectors.tfrecord.columns import BYTES, FLOAT
from featurestore_connectors.tfrecord.template import Slot, Template

# Measured: fewer records pay numpy's calls too often, and threads wait for each other at every
# call; more of them leave the caches between two moves.
BLOCK_BYTES = 1 << 24
MOST_ROWS, FEWEST_ROWS = 16_384, 2048

Records = npt.NDArray[np.uint8]


def is_number(slot: Slot) -> bool:
    """Tell whether a column holds one number in each row."""
    return slot.field.column.wire != BYTES and not slot.field.column.shape


def number_type(slot: Slot) -> np.dtype[Any]:
    """Return the numpy type of a column of numbers; dates and times are int64."""
    leaf = slot.field.column.leaf
    return np.dtype(np.int64) if pat.is_date(leaf) or pat.is_timestamp(leaf) else numpy_type(leaf)


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
        return (
            slice(first, last + 1)
            if self.rows == tuple(range(first, last + 1))
            else np.array(self.rows)
        )

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
    size = max(offsets) + item.itemsize if size is None else size
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
        masks = np.array(
            [0x7F7F7F7F7F7F7F7F >> 8 * (8 - width) for width in self.widths], np.uint64
        )
        words &= masks.astype(words.dtype)[:, None]
        wire.join(words, width=max(self.widths))
        for row, offset, place in self.beyond:
            bits = records[:, offset + place] & np.uint8(0x7F if place == 8 else 1)
            words[row] |= bits.astype(np.uint64) << np.uint64(7 * place)
        found = target[:, start : start + len(records)]
        if target.dtype == np.bool_:
            found[self.fields.index] = words != 0
        else:  # from unsigned to signed of one size numpy converts one by one, and slowly
            found[self.fields.index] = words.view(np.int64) if words.dtype == np.uint64 else words


@dataclass(frozen=True)
class _Presence:
    """Which records have a value, by the first byte of the columns' keys."""

    fields: _Fields

    def write(self, records: Records, target: npt.NDArray[Any], start: int) -> None:
        target[self.fields.index, start : start + len(records)] = (
            self.fields.take(records) != wire.MASKED
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
        self._parts = [
            _parts(
                [
                    (row, template.slot(plane.column), plane.presence)
                    for row, plane in enumerate(planes)
                    if plane
                ]
            )
            for planes in groups
        ]

    def __call__(
        self, records: Records, arrays: Sequence[npt.NDArray[Any]], start: int = 0
    ) -> None:
        _write(records, list(zip(arrays, self._parts, strict=True)), start)


def read_numbers(records: Records, slots: Sequence[Slot]) -> list[npt.NDArray[Any]]:
    """Return columns of numbers, each of shape (records,)."""
    kinds = [number_type(slot) for slot in slots]
    places: dict[np.dtype[Any], list[int]] = {}
    for at, kind in enumerate(kinds):
        places.setdefault(kind, []).append(at)
    arrays = {kind: np.empty((len(mine), len(records)), kind) for kind, mine in places.items()}
    parts = [
        _parts([(row, slots[at], False) for row, at in enumerate(mine)]) for mine in places.values()
    ]
    _write(records, list(zip(arrays.values(), parts, strict=True)))
    return [arrays[kind][places[kind].index(at)] for at, kind in enumerate(kinds)]


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
    result: list[_Part] = []
    keys = [
        (row, slot.key_offset) for row, slot, presence in wanted if presence and slot.field.nullable
    ]
    if keys:
        result.append(_Presence(_fields("u1", keys)))
    always = tuple(row for row, slot, presence in wanted if presence and not slot.field.nullable)
    if always:
        result.append(_Everywhere(always))
    values = [(row, slot) for row, slot, presence in wanted if not presence]
    floats = [(row, slot.offset) for row, slot in values if slot.field.column.wire == FLOAT]
    if floats:
        result.append(_Floats(_fields("<f4", floats)))
    integers = [(row, slot) for row, slot in values if slot.field.column.wire != FLOAT]
    for size in (
        1,
        2,
        4,
        8,
    ):  # behind the last varint of a record there are as many bytes as the largest word needs
        mine = [
            (row, slot) for row, slot in integers if size // 2 < min(slot.field.width, 8) <= size
        ]
        if mine:
            result.append(_varints(size, mine))
    return result


def _varints(size: int, columns: Sequence[tuple[int, Slot]]) -> _Varints:
    beyond = tuple(
        (number, slot.offset, place)
        for number, (_, slot) in enumerate(columns)
        for place in range(8, slot.field.width)
    )
    widths = tuple(min(slot.field.width, size) for _, slot in columns)
    return _Varints(
        _fields(f"<u{size}", [(row, slot.offset) for row, slot in columns]), widths, beyond
    )


def _fields(kind: str, places: Sequence[tuple[int, int]]) -> _Fields:
    rows, offsets = zip(*places, strict=True)
    return _Fields(kind, offsets, rows)
