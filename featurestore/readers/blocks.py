"""Block readers, which read the columns of step ranges from the shards of one split.

Fixed-width records are gathered from memory maps in any order and decoded together, some megabytes
at a time. Numbers are decoded directly into packed arrays, one for each type.

In other layouts, the blocks of each lane's current window are read, decoded and shuffled once;
batches are slices of these windows. While the current windows are consumed, the next windows are
loaded a few lanes at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from featurestore.plugins.format import PlaneReader, RecordAccess
from featurestore.readers import batches
from featurestore.readers.batches import Arrays, Blocks, Packing, StepRange, WorkerEpoch
from featurestore.readers.columns import (
    PADDING_WEIGHT,
    NumpyArray,
    SelectedColumn,
    Values,
    to_numpy,
)
from featurestore.readers.order import PADDING, EpochOrder, Rows
from featurestore.readers.prefetch import BufferPool
from featurestore.readers.shardfiles import ShardFiles

_CACHED_WINDOWS = 3
# Number of record bytes to gather at once: enough to read each shard only once per range.
_GATHERED_BYTES = 8 * 1024 * 1024
_SHORT_STRING_BYTES = 64
Records = npt.NDArray[np.uint8]
ReadColumn = Callable[[Records, SelectedColumn], NumpyArray]


@runtime_checkable
class PackedBlocks(Blocks, Protocol):
    """A thread-safe reader of step ranges that can return packed arrays.

    ``short_strings`` are the string columns whose values are at most some bytes long.
    """

    @property
    def short_strings(self) -> frozenset[str]: ...

    def read_packed(self, steps: StepRange, packing: Packing) -> list[NumpyArray]:
        """Return the columns of a step range as packed arrays."""
        ...


@dataclass
class RecordBlocks:
    """A reader of step ranges that gathers fixed-width records. Thread-safe."""

    files: ShardFiles
    access: RecordAccess
    columns: tuple[SelectedColumn, ...]
    _windows: OrderedDict[tuple[int, int, int, int], Rows] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)
    _memory: BufferPool = field(default_factory=BufferPool)
    _plane_readers: dict[bool, PlaneReader] = field(default_factory=dict)

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns of a step range as arrays of shape (steps * batch, ...)."""
        packing = Packing(self.columns, steps.has_padding_weights, steps.worker_epoch.batch_rows)
        arrays, ungrouped = self._read(steps, packing, self._decode_column)
        outputs = packing.rows_by_output(arrays) | ungrouped
        return {name: outputs[name] for name in packing.outputs}

    def read_packed(self, steps: StepRange, packing: Packing) -> list[NumpyArray]:
        """Return the columns of a step range as packed arrays.

        Strings become fixed-width bytes if padding them loses no information.
        """
        return packing.pack(*self._read(steps, packing, self._decode_fixed_width))

    def _read(
        self, steps: StepRange, packing: Packing, read_column: ReadColumn
    ) -> tuple[list[NumpyArray], Arrays]:
        """Return the group arrays of shape (outputs, rows), and the ungrouped arrays by name."""
        byte_rows = ByteRows(self.access, self.columns, self._memory, rows=steps.row_count)
        decoding = _Decoding(packing, read_column, byte_rows)
        if not steps.worker_epoch.order.shuffle and self.files.verify:
            # Checked records are copies, which do not change between the check and the decoding.
            locations = self.files.locations(*steps.canonical_ranges())
            arrays_in_file_order, ungrouped = self._decode(
                self._gather_records(locations),
                slice(0, len(locations)),
                decoding,
                np.arange(steps.row_count),
            )
            return arrays_in_file_order, ungrouped | byte_rows.arrays
        if not steps.worker_epoch.order.shuffle:
            # Canonical rows are adjacent in the files, so they need no sort.
            with self.files.slices(*steps.canonical_ranges()) as records_by_range:
                count = sum(map(len, records_by_range))  # padding is at the end of the last step
                arrays_in_file_order, ungrouped = self._decode(
                    records_by_range, slice(0, count), decoding, np.arange(steps.row_count)
                )
            return arrays_in_file_order, ungrouped | byte_rows.arrays
        # Read the records in file order, then move the decoded columns, which are smaller, into
        # reading order.
        locations = self._locations(steps)
        order = np.argsort(locations)
        # ``PADDING`` is -1, so padding rows precede all records.
        padded = int(np.searchsorted(locations[order], PADDING, side="right"))
        records = self._gather_records(locations[order[padded:]])
        arrays_in_file_order, ungrouped = self._decode(
            records, slice(padded, len(order)), decoding, order
        )
        # The inverse permutation of the sort.
        positions = np.empty_like(order)
        positions[order] = np.arange(len(order))
        arrays = self._borrow_buffers(packing, len(order))
        for array, target in zip(arrays_in_file_order, arrays, strict=True):
            # mode="clip" writes into ``out`` without an intermediate buffer; all positions are in
            # bounds.
            np.take(array, positions, axis=1, out=target, mode="clip")
        return arrays, {
            name: values[positions] for name, values in ungrouped.items()
        } | byte_rows.arrays

    def _decode(
        self,
        record_chunks: Iterable[Records],
        real_rows: slice,
        decoding: _Decoding,
        yielded_rows: Rows,
    ) -> tuple[list[NumpyArray], Arrays]:
        """Decode records into the rows ``real_rows``; the other rows are padding.

        ``yielded_rows`` are the row positions in reading order. Byte rows are written there
        directly, so that they are copied only once.
        """
        packing, byte_rows, rows = decoding.packing, decoding.byte_rows, len(yielded_rows)
        arrays = self._borrow_buffers(packing, rows)
        numbers = packing.rows_by_output(arrays)
        if packing.has_padding_weights:
            numbers[PADDING_WEIGHT][:] = 1
        chunks_by_column: dict[str, list[NumpyArray]] = {
            name: [] for name in decoding.object_outputs
        }
        object_columns = [column for column in self.columns if column.name in chunks_by_column]
        read_planes, start = self._plane_reader(packing), real_rows.start
        for records in record_chunks:
            chunk_rows = slice(start, start + len(records))
            read_planes(records, arrays, start)
            byte_rows.write(records, yielded_rows[chunk_rows])
            for column in object_columns:
                chunks_by_column[column.name].append(decoding.read_column(records, column))
            for column in self._unmasked_nullable_columns:
                if column.name in numbers:
                    # Fill nulls in place; raise an error for nulls that the manifest does not list.
                    present = self.access.present(records, column.name)
                    batches.fill_nulls(
                        column, (numbers[column.name][chunk_rows], present), in_place=True
                    )
            start = chunk_rows.stop
        for array in arrays:
            # Buffers are reused and contain values of earlier ranges.
            array[:, : real_rows.start] = 0
            array[:, real_rows.stop :] = 0
        byte_rows.clear(yielded_rows[: real_rows.start])
        byte_rows.clear(yielded_rows[real_rows.stop :])
        ungrouped: Arrays = {}
        for column in object_columns:
            ungrouped[column.name] = _join_chunks(
                chunks_by_column[column.name], column, real_rows, rows=rows
            )
        return arrays, ungrouped

    @cached_property
    def short_strings(self) -> frozenset[str]:
        """The string columns whose values are at most some bytes long."""
        no_records = np.empty((0, self.access.record_bytes), dtype=np.uint8)
        names = set()
        for column in self.columns:
            if _is_string(column) and not column.byte_rows:
                padded_strings = self.access.padded_texts(no_records, column.name)
                if padded_strings is not None and padded_strings.itemsize <= _SHORT_STRING_BYTES:
                    names.add(column.name)
        return frozenset(names)

    @cached_property
    def _unmasked_nullable_columns(self) -> list[SelectedColumn]:
        """The columns with nulls in the files that are not read as masks.

        With hundreds of columns, the search for them takes longer than the decoding of a batch.
        """
        no_records = np.empty((0, self.access.record_bytes), dtype=np.uint8)
        return [
            column
            for column in self.columns
            if not column.masked and self.access.present(no_records, column.name) is not None
        ]

    def _borrow_buffers(self, packing: Packing, rows: int) -> list[NumpyArray]:
        """Borrow a buffer of shape (outputs, rows) for each packed group."""
        buffers = [((len(names), rows), dtype) for dtype, names in packing.groups.items()]
        return self._memory.borrow(buffers, purpose="columns")

    def _decode_column(self, records: Records, column: SelectedColumn) -> NumpyArray:
        """Decode the values of an ungrouped column."""
        return batches.fill_nulls(column, self.access.decode(records, [column.name])[column.name])[
            0
        ]

    def _decode_fixed_width(self, records: Records, column: SelectedColumn) -> NumpyArray:
        """Decode the values of an ungrouped column, with strings as fixed-width bytes.

        The transfer of fixed-width bytes costs half as much as that of Python objects.
        """
        if _is_string(column) and column.fill is None:
            padded_strings = self.access.padded_texts(records, column.name)
            if padded_strings is not None:
                return batches.fill_nulls(
                    column, (padded_strings, self.access.present(records, column.name))
                )[0]
        return self._decode_column(records, column)

    def _plane_reader(self, packing: Packing) -> PlaneReader:
        plane_reader = self._plane_readers.get(packing.has_padding_weights)
        if plane_reader is None:
            plane_reader = self._plane_readers[packing.has_padding_weights] = (
                self.access.plane_reader(packing.planes)
            )
        return plane_reader

    def _gather_records(self, locations: Rows) -> Iterator[Records]:
        """Yield chunks of the records at ``locations``; each chunk overwrites the same buffer."""
        max_records = max(1, _GATHERED_BYTES // self.access.record_bytes)
        shape = min(max_records, len(locations)), self.access.record_bytes
        records = self._memory.borrow([(shape, np.dtype(np.uint8))], purpose="records")[0]
        for start in range(0, len(locations), max_records):
            chunk = locations[start : start + max_records]
            self.files.records(chunk, out=records[: len(chunk)])
            self.files.check_records(records[: len(chunk)], chunk)
            yield records[: len(chunk)]

    def _locations(self, steps: StepRange) -> Rows:
        """Return row locations in reading order, with ``PADDING`` after the end of a lane."""
        lanes, order = steps.worker_epoch.lanes, steps.worker_epoch.order
        b = order.lane_batch
        row, stop = steps.start * b, steps.stop * b
        window_parts = []
        while row < stop:
            window, offset = divmod(row, order.window_rows)
            count = min(stop - row, order.window_rows - offset)
            window_parts.append(
                self._window_locations(steps.worker_epoch, lanes, window)[
                    :, offset : offset + count
                ]
            )
            row += count
        by_lane = (
            window_parts[0] if len(window_parts) == 1 else np.concatenate(window_parts, axis=1)
        )
        # The reading order is by step, and by lane within a step.
        by_step = by_lane.reshape(len(lanes), steps.steps, b).transpose(1, 0, 2)
        return by_step.reshape(-1)

    def _window_locations(self, worker_epoch: WorkerEpoch, lanes: range, window: int) -> Rows:
        """Return the row locations of a window in each lane, with ``PADDING`` at the end."""
        key = (worker_epoch.epoch.number, worker_epoch.worker, worker_epoch.workers, window)
        with self._lock:
            # The lock also protects ``expect``, which is not thread-safe.
            self.files.expect(worker_epoch.epoch, lanes, window)
            locations = self._windows.get(key)
            if locations is None:
                locations = self._windows[key] = self._compute_window_locations(
                    worker_epoch.epoch, lanes, window
                )
                while len(self._windows) > _CACHED_WINDOWS:
                    # Ranges are read in order, so the oldest window will not be read again.
                    self._windows.popitem(last=False)
            return locations

    def _compute_window_locations(self, epoch: EpochOrder, lanes: range, window: int) -> Rows:
        # The array has the shape (lanes, rows). The configured window may be longer than all lanes.
        first = window * epoch.order.window_rows
        width = min(epoch.order.window_rows, epoch.order.longest_lane - first)
        window_locations = np.full((len(lanes), width), PADDING, dtype=np.int64)
        longer_lanes = [lane for lane in lanes if window < epoch.windows(lane)]
        for lane, order in zip(
            longer_lanes, epoch.window_permutations(longer_lanes, window), strict=True
        ):
            locations = self.files.locations(*epoch.window_ranges(lane, window))
            row = window_locations[lane - lanes.start, : len(locations)]
            np.take(locations, order, out=row, mode="clip")
        return window_locations


@dataclass(frozen=True)
class _Decoding:
    """The output arrays of a step range, and the decoder of ungrouped columns."""

    packing: Packing
    read_column: ReadColumn
    byte_rows: ByteRows

    @property
    def object_outputs(self) -> list[str]:
        """The outputs that are neither single numbers nor byte rows."""
        return [name for name in self.packing.ungrouped if name not in self.byte_rows.arrays]


class ByteRows:
    """The fixed-length binary columns of a step range.

    ``arrays`` are uint8 arrays of shape (rows, bytes) by column name; missing values are zeros.
    """

    def __init__(
        self,
        access: RecordAccess,
        columns: tuple[SelectedColumn, ...],
        memory: BufferPool,
        *,
        rows: int,
    ) -> None:
        self._access = access
        self.arrays: dict[str, Records] = {}
        no_records = np.empty((0, access.record_bytes), dtype=np.uint8)
        for column in columns:
            # The shape of an empty view contains the number of bytes per row.
            view = access.byte_rows(no_records, column.name) if column.byte_rows else None
            if view is not None:
                buffers = [((rows, view.shape[1]), np.dtype(np.uint8))]
                self.arrays[column.name] = memory.borrow(buffers, purpose=column.name)[0]

    def write(self, records: Records, rows: Rows) -> None:
        """Copy the values of records to ``rows``."""
        for name, array in self.arrays.items():
            view = self._access.byte_rows(records, name)
            assert view is not None
            cells: Any = np.dtype(f"V{view.shape[1]}")
            # View each row as a single item, so that numpy copies it at once.
            array.view(cells)[rows, 0] = view.view(cells)[:, 0]
            present = self._access.present(records, name)
            if present is not None:
                array[rows[~present]] = 0

    def clear(self, rows: Rows) -> None:
        """Set ``rows`` to zero."""
        if len(rows):
            for array in self.arrays.values():
                array[rows] = 0


def _is_string(column: SelectedColumn) -> bool:
    """Return whether a column has one string or binary per row."""
    return column.dtype == object and not column.shape and column.items is None


def _join_chunks(
    chunks: list[NumpyArray], column: SelectedColumn, real_rows: slice, *, rows: int
) -> NumpyArray:
    """Concatenate chunks and set padding rows to zeros or empty bytes.

    The result is an object array if any chunk is one.
    """
    if len({chunk.dtype for chunk in chunks}) > 1:
        chunks = [chunk.astype(object) for chunk in chunks]
    if chunks and real_rows == slice(0, rows):
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    if not chunks:
        return np.full((rows, *column.shape), column.zero, dtype=column.dtype)
    dtype = chunks[0].dtype
    zero: Any = b"" if dtype.kind in "OS" else 0
    values = np.full((rows, *column.shape), zero, dtype=dtype)
    values[real_rows] = np.concatenate(chunks)
    return values


@dataclass
class WindowBlocks:
    """A reader of step ranges that loads complete windows. Not thread-safe."""

    files: ShardFiles
    columns: tuple[SelectedColumn, ...]
    _worker_epoch: WorkerEpoch | None = None
    _windows: dict[tuple[int, int], Mapping[str, Values]] = field(default_factory=dict)

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns of a step range as arrays of shape (steps * batch, ...)."""
        if steps.worker_epoch is not self._worker_epoch:
            self._worker_epoch = steps.worker_epoch
            # Window numbers are the same in each epoch, but their rows differ.
            self._windows.clear()
        read = self._read_lanes if steps.worker_epoch.order.shuffle else self._read_ranges
        result = batches.add_masks(self.columns, read(steps))
        if steps.has_padding_weights:
            result[PADDING_WEIGHT] = batches.padding_weights(steps.rows())
        return result

    def _read_ranges(self, steps: StepRange) -> dict[str, Values]:
        """Read unshuffled steps from their canonical ranges."""
        names = [column.name for column in self.columns]
        table = self.files.read(*steps.canonical_ranges(), names)
        columns: dict[str, Values] = {}
        for column in self.columns:
            # Padding rows are at the end of the last step.
            values = to_numpy(table[column.name], name=column.name)
            columns[column.name] = batches.padding_values(column, steps.row_count)
            batches.write_values(columns[column.name], 0, batches.fill_nulls(column, values))
        return columns

    def _read_lanes(self, steps: StepRange) -> dict[str, Values]:
        """Read shuffled steps from the windows of each lane."""
        lanes, b = steps.worker_epoch.lanes, steps.worker_epoch.order.lane_batch
        shape = steps.steps, len(lanes), b
        result: dict[str, Values] = {}
        by_lane: dict[str, Values] = {}
        for column in self.columns:
            # Reshaped views, so that windows are written directly into the result.
            values, present = result[column.name] = batches.padding_values(column, steps.row_count)
            by_lane[column.name] = (
                values.reshape(*shape, *values.shape[1:]),
                None if present is None else present.reshape(shape),
            )
        for index, lane in enumerate(lanes):
            for window_slice in self._window_slices(lane, steps.start * b, steps.stop * b):
                for name, window_values in self._get_window(lane, window_slice.window).items():
                    _write_slice(by_lane[name], index, window_slice, window_values)
        self._advance_windows(lanes, steps.stop * b)
        return result

    @property
    def _epoch_order(self) -> EpochOrder:
        if self._worker_epoch is None:
            raise TypeError("windows belong to an epoch")
        return self._worker_epoch.epoch

    def _window_slices(self, lane: int, start: int, stop: int) -> Iterator[_WindowSlice]:
        """Yield the window slices that contain rows ``[start, stop)`` of a lane."""
        size = self._epoch_order.order.window_rows
        low, high = self._epoch_order.order.lane_bounds(lane)
        stop = min(stop, high - low)
        row = start
        while row < stop:
            window = row // size
            first = window * size
            end = min(stop, first + size)
            yield _WindowSlice(row - start, window, row - first, end - first)
            row = end

    def _get_window(self, lane: int, window: int) -> Mapping[str, Values]:
        columns = self._windows.get((lane, window))
        if columns is None:
            columns = self._windows[lane, window] = self._load_window(lane, window)
        return columns

    def _load_window(self, lane: int, window: int) -> Mapping[str, Values]:
        """Read a window of a lane, and shuffle it."""
        starts, stops = self._epoch_order.window_ranges(lane, window)
        table = self.files.read(starts, stops, [column.name for column in self.columns])
        order = self._epoch_order.window_permutation(lane, window)
        result = {}
        for column in self.columns:
            values, present = batches.fill_nulls(
                column, to_numpy(table[column.name], name=column.name)
            )
            if present is not None:
                present = present[order]
            result[column.name] = values[order], present
        return result

    def _advance_windows(self, lanes: range, row: int) -> None:
        """Drop consumed windows and load some of the next ones.

        The next window is loaded for the same fraction of lanes as the fraction of the current
        window that has been consumed.
        """
        size = self._epoch_order.order.window_rows
        window, used = divmod(row, size)
        for key in list(self._windows):
            if key[1] < window:
                del self._windows[key]
        # Loading all next windows at once would delay the step at the end of a window.
        ready = -(-used * len(lanes) // size)
        for lane in lanes[:ready]:
            if window + 1 < self._epoch_order.windows(lane):
                self._get_window(lane, window + 1)


class _WindowSlice(NamedTuple):
    """Rows ``[begin, end)`` of a window, which begin at ``offset`` in the step range."""

    offset: int
    window: int
    begin: int
    end: int


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


def _write_lane(target: NumpyArray, lane: int, offset: int, values: NumpyArray) -> None:
    """Write the values of a lane into an array of shape (steps, lanes, b, ...), from ``offset`` on.

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
