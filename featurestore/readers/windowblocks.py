"""Block reader of layouts without fixed-width records.

The blocks of a window of every lane are read, decoded and shuffled once; batches are slices of these
windows. While the current window is consumed, the next ones are loaded a few lanes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featurestore.readers.arrow_numpy import Values, to_numpy
from featurestore.readers.order import EpochOrder
from featurestore.readers.outputs import (
    fill_nulls,
    padding_values,
    padding_weights,
    with_masks,
    write_values,
)
from featurestore.readers.selection import PADDING_WEIGHT, SelectedColumn
from featurestore.readers.shardfiles import ShardFiles
from featurestore.readers.steps import Arrays, StepRange, WorkerEpoch


class _WindowSlice(NamedTuple):
    """Rows ``[begin, end)`` of a window that belong to a range of steps, at an offset of the lane."""

    offset: int
    window: int
    begin: int
    end: int


@dataclass
class WindowBlocks:
    """A reader of ranges of steps, window by window. Not thread-safe."""

    files: ShardFiles
    columns: tuple[SelectedColumn, ...]
    _worker_epoch: WorkerEpoch | None = None
    _windows: dict[tuple[int, int], Mapping[str, Values]] = field(default_factory=dict)

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        if steps.worker_epoch is not self._worker_epoch:
            self._worker_epoch = steps.worker_epoch
            self._windows.clear()
        read = self._read_lanes if steps.worker_epoch.order.shuffle else self._read_ranges
        result = with_masks(self.columns, read(steps))
        if steps.weighted:
            result[PADDING_WEIGHT] = padding_weights(steps.rows())
        return result

    def _read_ranges(self, steps: StepRange) -> dict[str, Values]:
        names = [column.name for column in self.columns]
        table = self.files.read(*steps.canonical_ranges(), names)
        columns: dict[str, Values] = {}
        for column in self.columns:
            # Padding is at the end of the last step.
            values = to_numpy(table[column.name], name=column.name)
            columns[column.name] = padding_values(column, steps.row_count)
            write_values(columns[column.name], 0, fill_nulls(column, values))
        return columns

    def _read_lanes(self, steps: StepRange) -> dict[str, Values]:
        lanes, b = steps.worker_epoch.lanes, steps.worker_epoch.order.lane_batch
        shape = steps.steps, len(lanes), b
        result: dict[str, Values] = {}
        by_lane: dict[str, Values] = {}
        for column in self.columns:
            values, present = result[column.name] = padding_values(column, steps.row_count)
            by_lane[column.name] = (
                values.reshape(*shape, *values.shape[1:]),
                None if present is None else present.reshape(shape),
            )
        for index, lane in enumerate(lanes):
            for window_slice in self._window_slices(lane, steps.start * b, steps.stop * b):
                for name, window_values in self._window(lane, window_slice.window).items():
                    _write_slice(by_lane[name], index, window_slice, window_values)
        self._advance(lanes, steps.stop * b)
        return result

    @property
    def _epoch(self) -> EpochOrder:
        if self._worker_epoch is None:
            raise TypeError("windows belong to an epoch")
        return self._worker_epoch.epoch

    def _window_slices(self, lane: int, start: int, stop: int) -> Iterator[_WindowSlice]:
        """Yield the slices of windows that make up rows ``[start, stop)`` of a lane."""
        size = self._epoch.order.window_rows
        low, high = self._epoch.order.lane_bounds(lane)
        stop = min(stop, high - low)
        row = start
        while row < stop:
            window = row // size
            first = window * size
            end = min(stop, first + size)
            yield _WindowSlice(row - start, window, row - first, end - first)
            row = end

    def _window(self, lane: int, window: int) -> Mapping[str, Values]:
        columns = self._windows.get((lane, window))
        if columns is None:
            columns = self._windows[lane, window] = self._load(lane, window)
        return columns

    def _load(self, lane: int, window: int) -> Mapping[str, Values]:
        starts, stops = self._epoch.window_ranges(lane, window)
        table = self.files.read(starts, stops, [column.name for column in self.columns])
        order = self._epoch.window_permutation(lane, window)
        result = {}
        for column in self.columns:
            values, present = fill_nulls(column, to_numpy(table[column.name], name=column.name))
            if present is not None:
                present = present[order]
            result[column.name] = values[order], present
        return result

    def _advance(self, lanes: range, row: int) -> None:
        """Drop consumed windows and load next ones.

        The share of lanes whose next window is loaded is the consumed share of this window.
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


def _write_slice(target: Values, lane: int, window_slice: _WindowSlice, source: Values) -> None:
    """Write a slice of a window into the (steps, lanes, b, ...) arrays of a column."""
    (values, present), (window_values, window_present) = target, source
    _write_lane(
        values, lane, window_slice.offset, window_values[window_slice.begin : window_slice.end]
    )
    if present is None:
        return
    if window_present is None:
        flags = np.ones(window_slice.end - window_slice.begin, dtype=np.bool_)
    else:
        flags = window_present[window_slice.begin : window_slice.end]
    _write_lane(present, lane, window_slice.offset, flags)


def _write_lane(target: Any, lane: int, offset: int, values: npt.NDArray[Any]) -> None:
    """Write values of a lane into a (steps, lanes, b, ...) array, from an offset on.

    The first and the last step may be partial; the steps between are complete.
    """
    b = target.shape[2]
    head = min(-offset % b, len(values))
    if head:
        target[offset // b, lane, offset % b : offset % b + head] = values[:head]
    complete_steps = (len(values) - head) // b
    first = (offset + head) // b
    end = head + complete_steps * b
    if complete_steps:
        steps = values[head:end].reshape(complete_steps, b, *values.shape[1:])
        target[first : first + complete_steps, lane] = steps
    last_values = len(values) - end
    if last_values:
        target[first + complete_steps, lane, :last_values] = values[end:]
