"""Layouts without records of fixed width: the blocks of a window of every lane are read, decoded and permuted once.

Batches are cut from these windows. While one window is used up, the next ones are read a few lanes at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.readers.blocks import Arrays, Share, Stretch, empty, finish, named, put, weights
from featurestore.readers.columns import Values, to_numpy
from featurestore.readers.order import EpochOrder
from featurestore.readers.selection import SAMPLE_WEIGHT, SelectedColumn
from featurestore.readers.shardfiles import ShardFiles


@dataclass
class WindowBlocks:
    """Reads stretches window by window; serves one thread."""

    files: ShardFiles
    columns: tuple[SelectedColumn, ...]
    _share: Share | None = None
    _windows: dict[tuple[int, int], Mapping[str, Values]] = field(default_factory=dict)

    def read(self, stretch: Stretch) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        if stretch.share is not self._share:
            self._share = stretch.share
            self._windows.clear()
        shuffled = stretch.share.epoch.order.shuffle
        result = named(self.columns, self._lanes(stretch) if shuffled else self._ranges(stretch))
        if stretch.weighted:
            result[SAMPLE_WEIGHT] = weights(stretch.rows())
        return result

    def _ranges(self, stretch: Stretch) -> dict[str, Values]:
        count = stretch.steps * stretch.share.epoch.order.worker_batch(stretch.share.workers)
        table = self.files.read(
            *stretch.canonical_ranges(), [column.name for column in self.columns]
        )
        result: dict[str, Values] = {}
        for column in self.columns:
            # Padding stands at the end of the last step, so rows that exist come first.
            result[column.name] = empty(column, count)
            put(
                result[column.name],
                0,
                finish(column, to_numpy(table[column.name], name=column.name)),
            )
        return result

    def _lanes(self, stretch: Stretch) -> dict[str, Values]:
        order = stretch.share.epoch.order
        lanes = order.worker_lanes(stretch.share.worker, stretch.share.workers)
        b, steps = order.lane_batch, stretch.steps
        result = {column.name: empty(column, steps * len(lanes) * b) for column in self.columns}
        views = {
            name: [
                None if part is None else part.reshape(steps, len(lanes), b, *part.shape[1:])
                for part in parts
            ]
            for name, parts in result.items()
        }
        for index, lane in enumerate(lanes):
            for at, window, begin, end in self._pieces(lane, stretch.start * b, stretch.stop * b):
                for name, (values, present) in self._window(lane, window).items():
                    target, there = views[name]
                    _place(target, index, at, values[begin:end])
                    if there is not None:
                        flags = (
                            np.ones(end - begin, dtype=np.bool_)
                            if present is None
                            else present[begin:end]
                        )
                        _place(there, index, at, flags)
        self._look_ahead(lanes, stretch.stop * b)
        return result

    @property
    def _epoch(self) -> EpochOrder:
        if self._share is None:
            raise TypeError("windows belong to a share")
        return self._share.epoch

    def _pieces(self, lane: int, start: int, stop: int) -> list[tuple[int, int, int, int]]:
        """Return (place in the steps, window, begin and end in it) of rows ``[start, stop)`` of a lane."""
        size = self._epoch.order.window_rows
        low, high = self._epoch.order.lane_bounds(lane)
        stop = min(stop, high - low)
        pieces = []
        at = start
        while at < stop:
            window = at // size
            end = min(stop, (window + 1) * size)
            pieces.append((at - start, window, at - window * size, end - window * size))
            at = end
        return pieces

    def _window(self, lane: int, window: int) -> Mapping[str, Values]:
        known = self._windows.get((lane, window))
        if known is None:
            known = self._windows[lane, window] = self._load(lane, window)
        return known

    def _load(self, lane: int, window: int) -> Mapping[str, Values]:
        epoch = self._epoch
        starts, stops = epoch.window_ranges(lane, window)
        table = self.files.read(starts, stops, [column.name for column in self.columns])
        order = epoch.window_permutation(lane, window)
        result = {}
        for column in self.columns:
            values, present = finish(column, to_numpy(table[column.name], name=column.name))
            result[column.name] = (values[order], None if present is None else present[order])
        return result

    def _look_ahead(self, lanes: range, place: int) -> None:
        """Drop windows that are behind; load the next one of as many lanes as the part of this one that is used up."""
        size = self._epoch.order.window_rows
        window, used = divmod(place, size)
        for old in [key for key in self._windows if key[1] < window]:
            del self._windows[old]
        for lane in lanes[: -(-used * len(lanes) // size)]:
            if window + 1 < self._epoch.windows(lane) and (lane, window + 1) not in self._windows:
                self._windows[lane, window + 1] = self._load(lane, window + 1)


def _place(target: Any, lane: int, at: int, values: npt.NDArray[Any]) -> None:
    """Write values of a lane into a (steps, lanes, b, ...) array from place ``at`` of the lane's rows on."""
    b = target.shape[2]
    head = min(-at % b, len(values))
    if head:
        target[at // b, lane, at % b : at % b + head] = values[:head]
    whole = (len(values) - head) // b
    first = (at + head) // b
    if whole:
        target[first : first + whole, lane] = values[head : head + whole * b].reshape(
            whole, b, *values.shape[1:]
        )
    rest = len(values) - head - whole * b
    if rest:
        target[first + whole, lane, :rest] = values[head + whole * b :]
