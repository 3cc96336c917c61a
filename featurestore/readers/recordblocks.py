"""Layouts with records of fixed width.

Rows are gathered from memory maps in any order and decoded together.

Numbers go straight into the rows of a few arrays, one for each type, some megabytes of records at a
time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from featurestore.plugins.format import PlaneReader, RecordAccess
from featurestore.readers.byterows import ByteRows
from featurestore.readers.memory import Memory
from featurestore.readers.order import PADDING, EpochOrder, Rows
from featurestore.readers.outputs import finish
from featurestore.readers.packing import Packing
from featurestore.readers.selection import PADDING_WEIGHT, SelectedColumn
from featurestore.readers.shardfiles import ShardFiles
from featurestore.readers.steps import Arrays, Blocks, StepRange, WorkerEpoch

_WINDOWS_KEPT = 3
# Records gathered at once: enough to go through the shards one by one.
_GATHERED_BYTES = 8 * 1024 * 1024

Records = npt.NDArray[np.uint8]
ReadAlone = Callable[[Records, SelectedColumn], npt.NDArray[Any]]


@runtime_checkable
class PackedBlocks(Blocks, Protocol):
    """Blocks that serve many threads, and give what crosses to TensorFlow together."""

    def read_packed(self, steps: StepRange, packing: Packing) -> list[npt.NDArray[Any]]:
        """Return the columns as the arrays of a packing."""
        ...


@dataclass(frozen=True)
class _Decoding:
    """Where the values of a range of steps go."""

    packing: Packing
    read_alone: ReadAlone
    byte_rows: ByteRows

    @property
    def alone(self) -> list[str]:
        """The outputs that are neither single numbers nor byte rows."""
        return [name for name in self.packing.alone if name not in self.byte_rows.arrays]


@dataclass
class RecordBlocks:
    """Reads ranges of steps by gathering records; serves many threads."""

    files: ShardFiles
    access: RecordAccess
    columns: tuple[SelectedColumn, ...]
    _windows: OrderedDict[tuple[int, int, int, int], Rows] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)
    _memory: Memory = field(default_factory=Memory)
    _plane_readers: dict[bool, PlaneReader] = field(default_factory=dict)

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        packing = Packing(self.columns, steps.weighted, steps.part.batch_rows)
        arrays, alone = self._read(steps, packing, self._decoded)
        found = packing.parts(arrays) | alone
        return {name: found[name] for name in packing.outputs}

    def read_packed(self, steps: StepRange, packing: Packing) -> list[npt.NDArray[Any]]:
        """Return the same as the arrays of a packing.

        Texts of one width where that tells all of them apart.
        """
        return packing.crossing(*self._read(steps, packing, self._padded))

    def _read(
        self, steps: StepRange, packing: Packing, read_alone: ReadAlone
    ) -> tuple[list[npt.NDArray[Any]], Arrays]:
        """Return the arrays of a packing's groups, of shape (outputs, rows), and the others."""
        byte_rows = ByteRows(self.access, self.columns, self._memory, rows=steps.row_count)
        decode = _Decoding(packing, read_alone, byte_rows)
        if not steps.part.order.shuffle:
            parts = self.files.slices(*steps.canonical_ranges())
            count = sum(map(len, parts))  # padding stands at the end of the last step
            found, alone = self._decode(parts, slice(0, count), decode, np.arange(steps.row_count))
            return found, alone | byte_rows.arrays
        # Rows are read in the order in which they lie in the files, and put in their own order when
        # they are small.
        locations = self._locations(steps)
        order = np.argsort(locations)
        padded = int(np.searchsorted(locations[order], PADDING, side="right"))
        records = self._gathered(locations[order[padded:]])
        found, alone = self._decode(records, slice(padded, len(order)), decode, order)
        wanted = np.empty_like(order)
        wanted[order] = np.arange(len(order))
        arrays = self._borrow(packing, len(order))
        for array, target in zip(found, arrays, strict=True):
            np.take(array, wanted, axis=1, out=target, mode="clip")
        return arrays, {name: values[wanted] for name, values in alone.items()} | byte_rows.arrays

    def _decode(
        self, pieces: Iterable[Records], real: slice, decoding: _Decoding, yielded: Rows
    ) -> tuple[list[npt.NDArray[Any]], Arrays]:
        """Return what records hold in the rows ``real``, padding in the others.

        ``yielded`` are the rows where byte rows are put, since these are not moved again.
        """
        packing, byte_rows, rows = decoding.packing, decoding.byte_rows, len(yielded)
        arrays = self._borrow(packing, rows)
        numbers = packing.parts(arrays)
        if packing.weighted:
            numbers[PADDING_WEIGHT][:] = 1
        alone: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in decoding.alone}
        read_planes, start = self._plane_reader(packing), real.start
        for records in pieces:
            here = slice(start, start + len(records))
            read_planes(records, arrays, start)
            byte_rows.put(records, yielded[here])
            for column in self.columns:
                if column.name in alone:
                    alone[column.name].append(decoding.read_alone(records, column))
                elif column.name in numbers and not column.masked:
                    # Filled in place; nulls that the manifest knows nothing of are refused.
                    present = self.access.present(records, column.name)
                    finish(column, (numbers[column.name][here], present), in_place=True)
            start = here.stop
        for array in arrays:
            array[:, : real.start] = 0
            array[:, real.stop :] = 0
        byte_rows.clear(yielded[: real.start])
        byte_rows.clear(yielded[real.stop :])
        others: Arrays = {}
        for column in self.columns:
            if column.name in alone:
                others[column.name] = _joined(alone[column.name], column, real, rows=rows)
        return arrays, others

    def _borrow(self, packing: Packing, rows: int) -> list[npt.NDArray[Any]]:
        """Return memory for the groups of a packing, of shape (outputs, rows)."""
        wanted = [((len(names), rows), dtype) for dtype, names in packing.groups.items()]
        return self._memory.borrow(wanted, purpose="columns")

    def _decoded(self, records: Records, column: SelectedColumn) -> npt.NDArray[Any]:
        """Return a column that holds more than a number."""
        return finish(column, self.access.decode(records, [column.name])[column.name])[0]

    def _padded(self, records: Records, column: SelectedColumn) -> npt.NDArray[Any]:
        """Return the same; of texts numpy's bytes, which cross at half the cost of objects."""
        single = column.dtype == object and not column.shape and column.items is None
        if single and column.fill is None:
            texts = self.access.padded_texts(records, column.name)
            if texts is not None:
                return finish(column, (texts, self.access.present(records, column.name)))[0]
        return self._decoded(records, column)

    def _plane_reader(self, packing: Packing) -> PlaneReader:
        known = self._plane_readers.get(packing.weighted)
        if known is None:
            known = self._plane_readers[packing.weighted] = self.access.plane_reader(packing.planes)
        return known

    def _gathered(self, locations: Rows) -> Iterator[Records]:
        """Yield the records at locations; those that come overwrite those that went."""
        most = max(1, _GATHERED_BYTES // self.access.record_bytes)
        shape = min(most, len(locations)), self.access.record_bytes
        records = self._memory.borrow([(shape, np.dtype(np.uint8))], purpose="records")[0]
        for start in range(0, len(locations), most):
            some = locations[start : start + most]
            self.files.records(some, out=records[: len(some)])
            yield records[: len(some)]

    def _locations(self, steps: StepRange) -> Rows:
        """Return where the rows of steps are, in reading order; ``PADDING`` after a lane's end."""
        lanes, order = steps.part.lanes, steps.part.order
        b = order.lane_batch
        row, stop = steps.start * b, steps.stop * b
        parts = []
        while row < stop:
            window, offset = divmod(row, order.window_rows)
            count = min(stop - row, order.window_rows - offset)
            parts.append(self._window(steps.part, lanes, window)[:, offset : offset + count])
            row += count
        of_lanes = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        by_step = of_lanes.reshape(len(lanes), steps.steps, b).transpose(1, 0, 2)
        return by_step.reshape(-1)

    def _window(self, part: WorkerEpoch, lanes: range, window: int) -> Rows:
        """Return the locations of a window of all lanes, ``PADDING`` beyond the end of a lane."""
        key = (part.epoch.number, part.worker, part.workers, window)
        with self._lock:
            self.files.expect(part.epoch, lanes, window)
            known = self._windows.get(key)
            if known is None:
                known = self._windows[key] = self._make_window(part.epoch, lanes, window)
                while len(self._windows) > _WINDOWS_KEPT:
                    self._windows.popitem(last=False)
            return known

    def _make_window(self, epoch: EpochOrder, lanes: range, window: int) -> Rows:
        # (lanes, rows): a window may be said to be wider than any lane.
        first = window * epoch.order.window_rows
        width = min(epoch.order.window_rows, epoch.order.longest_lane - first)
        result = np.full((len(lanes), width), PADDING, dtype=np.int64)
        alive = [lane for lane in lanes if window < epoch.windows(lane)]
        for lane, order in zip(alive, epoch.window_permutations(alive, window), strict=True):
            locations = self.files.locations(*epoch.window_ranges(lane, window))
            row = result[lane - lanes.start, : len(locations)]
            np.take(locations, order, out=row, mode="clip")
        return result


def _joined(
    parts: list[npt.NDArray[Any]], column: SelectedColumn, real: slice, *, rows: int
) -> npt.NDArray[Any]:
    """Return parts as one array: of objects, if any of them is.

    Zeros or empty texts are in the rows of padding.
    """
    if len({part.dtype for part in parts}) > 1:
        parts = [part.astype(object) for part in parts]
    if parts and real == slice(0, rows):
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    if not parts:
        return np.full((rows, *column.shape), column.zero, dtype=column.dtype)
    kind = parts[0].dtype
    zero: Any = b"" if kind.kind in "OS" else 0
    result = np.full((rows, *column.shape), zero, dtype=kind)
    result[real] = np.concatenate(parts)
    return result
