"""Layouts without records of fixed width.

The blocks of a window of every lane are read, decoded and permuted once.

Batches are cut from these windows. While one window is used up, the next ones are read a few lanes
at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featurestore.readers.arrow_numpy import Values, to_numpy
from featurestore.readers.order import EpochOrder
from featurestore.readers.outputs import finish, named, padding, put, weights
from featurestore.readers.selection import PADDING_WEIGHT, SelectedColumn
from featurestore.readers.shardfiles import ShardFiles
from featurestore.readers.steps import Arrays, StepRange, WorkerEpoch


class _Piece(NamedTuple):
    """Rows of a lane that one window holds.

    The first one's offset in the steps, and where they are in the window.
    """

    offset: int
    window: int
    begin: int
    end: int


@dataclass
class WindowBlocks:
    """Reads ranges of steps window by window; serves one thread."""

    files: ShardFiles
    columns: tuple[SelectedColumn, ...]
    _part: WorkerEpoch | None = None
    _windows: dict[tuple[int, int], Mapping[str, Values]] = field(default_factory=dict)

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        if steps.part is not self._part:
            self._part = steps.part
            self._windows.clear()
        read = self._read_lanes if steps.part.order.shuffle else self._read_ranges
        result = named(self.columns, read(steps))
        if steps.weighted:
            result[PADDING_WEIGHT] = weights(steps.rows())
        return result

    def _read_ranges(self, steps: StepRange) -> dict[str, Values]:
        names = [column.name for column in self.columns]
        table = self.files.read(*steps.canonical_ranges(), names)
        result: dict[str, Values] = {}
        for column in self.columns:
            # Padding stands at the end of the last step, so rows that exist come first.
            found = to_numpy(table[column.name], name=column.name)
            result[column.name] = padding(column, steps.row_count)
            put(result[column.name], 0, finish(column, found))
        return result

    def _read_lanes(self, steps: StepRange) -> dict[str, Values]:
        lanes, b = steps.part.lanes, steps.part.order.lane_batch
        shape = steps.steps, len(lanes), b
        result: dict[str, Values] = {}
        by_lane: dict[str, Values] = {}
        for column in self.columns:
            values, present = result[column.name] = padding(column, steps.row_count)
            by_lane[column.name] = (
                values.reshape(*shape, *values.shape[1:]),
                None if present is None else present.reshape(shape),
            )
        for index, lane in enumerate(lanes):
            for piece in self._pieces(lane, steps.start * b, steps.stop * b):
                for name, found in self._window(lane, piece.window).items():
                    _put_piece(by_lane[name], index, piece, found)
        self._look_ahead(lanes, steps.stop * b)
        return result

    @property
    def _epoch(self) -> EpochOrder:
        if self._part is None:
            raise TypeError("windows belong to an epoch")
        return self._part.epoch

    def _pieces(self, lane: int, start: int, stop: int) -> Iterator[_Piece]:
        """Yield the pieces that make up rows ``[start, stop)`` of a lane."""
        size = self._epoch.order.window_rows
        low, high = self._epoch.order.lane_bounds(lane)
        stop = min(stop, high - low)
        row = start
        while row < stop:
            window = row // size
            first = window * size
            end = min(stop, first + size)
            yield _Piece(row - start, window, row - first, end - first)
            row = end

    def _window(self, lane: int, window: int) -> Mapping[str, Values]:
        known = self._windows.get((lane, window))
        if known is None:
            known = self._windows[lane, window] = self._load(lane, window)
        return known

    def _load(self, lane: int, window: int) -> Mapping[str, Values]:
        starts, stops = self._epoch.window_ranges(lane, window)
        table = self.files.read(starts, stops, [column.name for column in self.columns])
        order = self._epoch.window_permutation(lane, window)
        result = {}
        for column in self.columns:
            values, present = finish(column, to_numpy(table[column.name], name=column.name))
            if present is not None:
                present = present[order]
            result[column.name] = values[order], present
        return result

    def _look_ahead(self, lanes: range, row: int) -> None:
        """Drop windows that are behind.

        Load the next one of as many lanes as the part of this one that is used up.
        """
        size = self._epoch.order.window_rows
        window, used = divmod(row, size)
        for key in list(self._windows):
            if key[1] < window:
                del self._windows[key]
        ready = -(-used * len(lanes) // size)
        for lane in lanes[:ready]:
            if window + 1 < self._epoch.windows(lane):
                self._window(lane, window + 1)


def _put_piece(target: Values, lane: int, piece: _Piece, found: Values) -> None:
    """Write a piece of a window into the (steps, lanes, b, ...) arrays of a column."""
    (values, present), (window_values, window_present) = target, found
    _put_lane(values, lane, piece.offset, window_values[piece.begin : piece.end])
    if present is None:
        return
    if window_present is None:
        flags = np.ones(piece.end - piece.begin, dtype=np.bool_)
    else:
        flags = window_present[piece.begin : piece.end]
    _put_lane(present, lane, piece.offset, flags)


def _put_lane(target: Any, lane: int, offset: int, values: npt.NDArray[Any]) -> None:
    """Write values of a lane into a (steps, lanes, b, ...) array, from an offset in it on.

    The first step may be entered in its middle and the last one left there; the steps between are
    whole.
    """
    b = target.shape[2]
    head = min(-offset % b, len(values))
    if head:
        target[offset // b, lane, offset % b : offset % b + head] = values[:head]
    whole = (len(values) - head) // b
    first = (offset + head) // b
    end = head + whole * b
    if whole:
        steps = values[head:end].reshape(whole, b, *values.shape[1:])
        target[first : first + whole, lane] = steps
    rest = len(values) - end
    if rest:
        target[first + whole, lane, :rest] = values[end:]
