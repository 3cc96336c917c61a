"""Array operations of the kernel: reductions over windows, and conversions of Arrow columns.

A row is in the windows of a range of labels. Unless availability is delayed, the window of a label
is also a range of rows; ``chunk`` computes both ranges. The reductions are sums, extremes, distinct
counts and newest rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
_MAX_INT64 = int(np.iinfo(np.int64).max)


class Summands:
    """A number per row, with cached sums that several windows share."""

    def __init__(self, values: Integers) -> None:
        self.values = values
        self._sums: dict[int, tuple[Integers, Integers]] = {}

    @cached_property
    def prefix(self) -> Integers:
        """The sums of the first 0, 1, 2, ... rows."""
        sums = np.zeros(len(self.values) + 1, np.int64)
        np.cumsum(self.values, out=sums[1:])
        return sums

    def sums_up_to(self, positions: Integers, *, labels: int) -> Integers:
        """Return for each label the sum of the rows with positions up to the label's number."""
        cached = self._sums.get(id(positions))
        if cached is None:
            sums = np.zeros(labels + 1, np.int64)
            # add.at adds repeated positions, which indexed assignment would count once.
            np.add.at(sums, positions, self.values)
            # The cache keeps a reference to the positions, so that their id is not reused.
            cached = (positions, np.cumsum(sums)[:labels])
            self._sums[id(positions)] = cached
        return cached[1]


class LabelWindows(ABC):
    """The rows in each label's window, with reductions over them."""

    labels: int
    # Whether the first labels of the rows are in ascending order.
    is_sorted_by_begin = False

    @property
    @abstractmethod
    def label_ranges(self) -> tuple[Integers, Integers]:
        """The labels whose windows contain each row, as first label and end (exclusive)."""

    @abstractmethod
    def totals(self, summands: Summands) -> Integers:
        """Return the sum over the rows in each label's window."""

    def extremes(
        self, codes: Integers, present: Flags, choose: Callable[..., Integers], *, neutral: int
    ) -> Integers:
        """Return the maximum or minimum code of the flagged rows in each label's window.

        A row's label range is the union of two ranges whose length is a power of two. Ranges of
        each length are recorded at their start. Then, from the longest length down, the extreme of
        each range is passed on to its two halves.

        Args:
            codes: A number per row.
            present: The rows to include.
            choose: ``np.maximum`` or ``np.minimum``.
            neutral: The code of labels without such rows.
        """
        begin, end = self.label_ranges
        # A row in no window has an empty label range, which has no level.
        rows = np.flatnonzero(present & (begin < end))
        label_codes = np.full(self.labels, neutral, np.int64)
        if not len(rows):
            return label_codes
        begin, end, codes = begin[rows], end[rows], codes[rows]
        # frexp returns the bit length of an integer exactly; a logarithm could round up at powers
        # of two.
        level = np.frexp((end - begin).astype(np.float64))[1].astype(np.int8) - 1
        order = np.argsort(level, kind="stable")
        stops = np.cumsum(np.bincount(level))
        for exponent in range(len(stops) - 1, -1, -1):
            start = 0
            if exponent > 0:
                start = stops[exponent - 1]
            level_rows = order[start : stops[exponent]]
            # Two overlapping ranges cover the label range. Extremes may count a label twice, unlike
            # sums.
            choose.at(label_codes, begin[level_rows], codes[level_rows])  # type: ignore[attr-defined]
            choose.at(label_codes, end[level_rows] - (1 << exponent), codes[level_rows])  # type: ignore[attr-defined]
            if exponent > 0:
                half = 1 << (exponent - 1)
                # A copy: the halves of a range must read the codes from before this step.
                lower = label_codes.copy()
                choose(lower[half:], label_codes[:-half], out=lower[half:])
                label_codes = lower
        return label_codes

    def distinct(self, groups: Integers, present: Flags) -> Integers:
        """Return the number of distinct groups of the flagged rows in each label's window.

        Overlapping label ranges of rows in the same group are trimmed, so that each label is in at
        most one of them; then the ranges are counted.

        Args:
            groups: The group number of each row; groups of different keys have different numbers.
            present: The rows to include.
        """
        begin, end = self.label_ranges
        rows = np.flatnonzero(present & (begin < end))
        group, begin, end = groups[rows], begin[rows], end[rows]
        # Where begins ascend with the row number, a stable sort by group keeps them ascending.
        order = np.argsort(group, kind="stable")
        if not self.is_sorted_by_begin:
            order = np.lexsort((begin, group))
        group, begin, end = group[order], begin[order], end[order]
        width = self.labels + 1
        # The group number is the high part, so that one running maximum serves all groups.
        group_ends = np.maximum.accumulate(group * width + end)
        start_limits = np.zeros(len(rows), np.int64)
        start_limits[1:] = np.maximum(group_ends[:-1] - group[1:] * width, 0)
        begin = np.maximum(begin, start_limits)
        is_new = begin < end
        changes = np.bincount(begin[is_new], minlength=width)
        changes -= np.bincount(end[is_new], minlength=width)
        return np.cumsum(changes)[: self.labels]

    def newest(self, present: Flags, n: int) -> Integers:
        """Return the row numbers of the last ``n`` flagged rows in each label's window.

        The shape is (labels, n), newest last, padded with -1 at the front. Each label scans the
        rows of its key backwards, and skips rows that are not yet available or have been replaced.
        """
        rows = np.flatnonzero(present)
        numbers = np.cumsum(present) - 1
        begin, end = self.label_ranges
        begin, end = begin[rows], end[rows]
        position = self.extremes(numbers, present, np.maximum, neutral=-1)
        oldest = self.extremes(numbers, present, np.minimum, neutral=len(rows))
        newest_rows = np.full((self.labels, n), -1, np.int64)
        open_slots = np.full(self.labels, n, np.int64)
        active = np.flatnonzero(position >= 0)
        # Each step advances all labels that still need rows, so the loop is over steps, not labels.
        while len(active):
            candidates = position[active]
            is_seen = (begin[candidates] <= active) & (active < end[candidates])
            hits = active[is_seen]
            open_slots[hits] -= 1
            newest_rows[hits, open_slots[hits]] = rows[position[hits]]
            position[active] -= 1
            # Bounds the scan: beyond the oldest row of a window, rows belong to other labels or
            # keys.
            continues = (open_slots[active] > 0) & (position[active] >= oldest[active])
            active = active[continues]
        return newest_rows


class RowRangeWindow(LabelWindows):
    """Windows without delays: label ``j`` contains the rows ``departed[j]:entered[j]``."""

    is_sorted_by_begin = True

    def __init__(self, entered: Integers, departed: Integers, *, rows: int) -> None:
        self.labels = len(entered)
        self._rows = rows
        self._entered, self._departed = entered, departed

    @cached_property
    def label_ranges(self) -> tuple[Integers, Integers]:
        """The labels whose windows contain each row, as first label and end (exclusive)."""
        return self._labels_before(self._entered), self._labels_before(self._departed)

    def _labels_before(self, positions: Integers) -> Integers:
        """Return for each row the number of labels whose position is at most the row's number."""
        return np.cumsum(np.bincount(positions, minlength=self._rows + 1))[: self._rows]

    def totals(self, summands: Summands) -> Integers:
        """Return the sum over the rows in each label's window."""
        return summands.prefix[self._entered] - summands.prefix[self._departed]

    def extremes(
        self, codes: Integers, present: Flags, choose: Callable[..., Integers], *, neutral: int
    ) -> Integers:
        """Return the maximum or minimum code of the flagged rows in each label's window.

        A label's window is the union of two runs of rows whose length is a power of two. The
        extremes of runs of each length are computed from runs of half the length.
        """
        label_codes = np.full(self.labels, neutral, np.int64)
        lengths = self._entered - self._departed
        nonempty = np.flatnonzero(lengths > 0)
        level = np.frexp(lengths[nonempty].astype(np.float64))[1].astype(np.int8) - 1
        nonempty = nonempty[np.argsort(level, kind="stable")]
        first, last = self._departed[nonempty], self._entered[nonempty]
        runs = codes if present.all() else np.where(present, codes, neutral)
        start = 0
        for exponent, stop in enumerate(np.cumsum(np.bincount(level)).tolist()):
            if exponent > 0:
                half = 1 << (exponent - 1)
                runs = choose(runs[:-half], runs[half:])
            if stop > start:
                ends = runs[last[start:stop] - (1 << exponent)]
                label_codes[nonempty[start:stop]] = choose(runs[first[start:stop]], ends)
            start = stop
        return label_codes


class LabelRangeWindow(LabelWindows):
    """Windows with delayed or replaced rows: each row is in the windows of a range of labels."""

    def __init__(self, begin: Integers, end: Integers, *, labels: int) -> None:
        self.labels = labels
        self._begin, self._end = begin, end

    @property
    def label_ranges(self) -> tuple[Integers, Integers]:
        """The labels whose windows contain each row, as first label and end (exclusive)."""
        return self._begin, self._end

    def totals(self, summands: Summands) -> Integers:
        """Return the sum over the rows in each label's window."""
        entered = summands.sums_up_to(self._begin, labels=self.labels)
        return entered - summands.sums_up_to(self._end, labels=self.labels)


def combined_codes(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> Integers:
    """Encode each row as an integer; rows that are equal in all columns have equal integers.

    >>> combined_codes([pa.array([5, 5, 7, None]), pa.array(["a", "b", "a", None])], 4).tolist()
    [0, 1, 2, 3]
    """
    codes = np.zeros(rows, np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = codes * (int(indices.max(initial=0)) + 1) + indices
        # Codes stay below the number of rows after each column, so pairs do not overflow 64 bits.
        codes = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return codes


def to_flags(column: pa.Array | pa.ChunkedArray) -> Flags:
    """Convert booleans without nulls to numpy."""
    return np.asarray(column.to_numpy(zero_copy_only=False), bool)


def to_integers(column: pa.ChunkedArray) -> Integers:
    """Convert integers to numpy, with 0 for null."""
    if column.null_count:
        column = pc.fill_null(column, 0)
    return np.asarray(column.to_numpy(), np.int64)


def to_masked_array(values: npt.NDArray[Any], empty: Flags, dtype: pa.DataType) -> pa.Array:
    """Convert values to an Arrow array, with null where ``empty``."""
    return pa.array(values, mask=empty, type=dtype)


def normalize_floats(column: pa.Array) -> pa.Array:
    """Normalize a column so that equal floats have equal bits: one zero and one NaN."""
    if not pat.is_floating(column.type):
        return column
    # Adding 0.0 turns -0.0 into 0.0.
    doubles = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
    # NaN has many bit patterns, which are replaced by a single one.
    doubles[np.isnan(doubles)] = np.nan
    nulls = to_flags(column.is_null())
    return pa.array(doubles, mask=nulls).cast(column.type)


def decimals_to_doubles(column: pa.Array) -> Doubles:
    """Convert decimals to the nearest doubles, with 0 for null."""
    low, *high = decimal_words(column)
    units = low + (high[0] << 32)
    sign = units >> 63
    is_small = (np.abs(units) <= 1 << 53) & (high[1] == sign & 0xFFFFFFFF) & (high[2] == sign)
    # The quotient of two exact doubles is rounded only once.
    if is_small.all() and column.type.scale <= 22:
        return units / 10.0**column.type.scale
    return np.array(list(map(float, column.fill_null(0).to_pylist())), np.float64)


def decimal_words(column: pa.Array) -> list[Integers]:
    """Return the unscaled integers of decimals as four words, lowest first."""
    wide = column.cast(pa.decimal128(38, column.type.scale)).fill_null(0)
    # A decimal has 128 bits in Arrow's memory. Words of 32 bits leave room for sums in 64 bits.
    words = np.frombuffer(wide.buffers()[1], np.uint32).reshape(-1, 4)
    # The buffer of a slice contains the rows before it.
    words = words[wide.offset : wide.offset + len(wide)]
    lower = [words[:, number].astype(np.int64) for number in range(3)]
    return [*lower, words[:, 3].view(np.int32).astype(np.int64)]


def encode_ordered(column: pa.Array) -> Integers | None:
    """Encode values as integers of the same order, or return None for unsupported types.

    ``decode_ordered`` is the inverse. Floats are encoded by their bits; NaN of either sign is the
    maximum, and -0.0 equals 0.0.
    """
    dtype = column.type
    if pat.is_floating(dtype):
        doubles = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        doubles[np.isnan(doubles)] = np.nan
        return _flip_negatives(doubles.view(np.int64))
    if pat.is_temporal(dtype):
        # int32 dates have no direct cast to int64.
        column = column.cast(pa.int32()) if dtype.bit_width == 32 else column
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pat.is_integer(dtype) and not pat.is_uint64(dtype):
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return None


def _flip_negatives(bits: Integers) -> Integers:
    """Convert the bits of doubles to integers of the same order, or back."""
    # As integers, the bits of negative doubles are in reverse order.
    return np.where(bits < 0, bits ^ np.int64(_MAX_INT64), bits)


def decode_ordered(codes: Integers, empty: Flags, dtype: pa.DataType) -> pa.Array:
    """Decode codes from ``encode_ordered``, with null where ``empty``."""
    codes = np.where(empty, 0, codes)
    if pat.is_floating(dtype):
        return pa.array(_flip_negatives(codes).view(np.float64), mask=empty).cast(dtype)
    integers = pa.array(codes, mask=empty)
    if pat.is_temporal(dtype) and dtype.bit_width == 32:
        integers = integers.cast(pa.int32())
    return integers.cast(dtype)


def dense_ranks(column: pa.Array) -> Integers:
    """Return the dense rank of each value; the rank of nulls is arbitrary."""
    return pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
