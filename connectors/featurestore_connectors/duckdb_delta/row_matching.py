"""Matching of labels and rows under the point-in-time rule, by binary search in sorted integers.

A row is one integer of its key and the time at which it becomes eligible. The rows are sorted by these
integers, and the integer of each label is searched among them. With a created time, a running maximum
of the event times identifies the latest event among the rows that are eligible (ADR 0011).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# A function that returns the tie hashes of the rows at the given positions.
TieHashes = Callable[[Int64s], Int64s]
# Codes of keys and times are 64-bit integers.
_MAX_CODE = 1 << 62
_CODE_BITS = 63
# Above this fraction of rows whose order is not determined by the leading bits of the codes, all
# codes are sorted again.
_MAX_UNDECIDED = 0.25


@dataclass(frozen=True)
class KeyCodes:
    """The values of a key column as integers from 0 to ``size - 1``; -1 for labels without a row."""

    labels: Int64s
    rows: Int64s
    size: int


@dataclass(frozen=True)
class RowTimes:
    """The event times of rows in microseconds, and the created times before which they do not match."""

    event: Int64s
    created: Int64s | None = None


def match_rows(
    keys: list[KeyCodes],
    label_times: Int64s,
    times: RowTimes,
    *,
    is_label_valid: Mask,
    is_row_valid: Mask,
    tie_hashes: TieHashes | None = None,
) -> Int64s:
    """Return the position of the row that matches each label, -1 without one.

    Args:
        keys: The codes of each key column.
        label_times: The times of the labels, in microseconds.
        times: The times of the rows.
        is_label_valid: Whether a label has all keys and a time.
        is_row_valid: Whether a row has all keys and times.
        tie_hashes: Hashes of rows with equal keys and times, of which the greatest matches. None if
            keys and times are unique.
    """
    matched_rows = np.full(len(is_label_valid), -1, dtype=np.int64)
    codes = combine_keys(keys)
    searched = np.flatnonzero(is_label_valid & (codes.labels >= 0))
    row_keys, candidates = codes.rows, None
    if not is_row_valid.all():
        candidates = np.flatnonzero(is_row_valid)
        row_keys = row_keys[candidates]
        created = None if times.created is None else times.created[candidates]
        times = RowTimes(times.event[candidates], created)
    if not len(row_keys) or not len(searched):
        return matched_rows
    label_times, length, rows = _sort_rows(row_keys, codes.size, label_times, times)
    starts = codes.labels[searched] * length
    label_codes = starts + label_times[searched]
    # Ascending searches read neighboring memory.
    label_order, label_codes = _sort_codes(label_codes)
    if label_order is not None:
        starts, searched = starts[label_order], searched[label_order]
    indices = np.searchsorted(rows.codes, label_codes, side="right") - 1
    is_same_key = (indices >= 0) & (rows.codes[indices] >= starts)
    indices, searched = rows.latest_event(indices[is_same_key]), searched[is_same_key]
    ties = None if tie_hashes is None else rows.find_ties(indices)
    matched_rows[searched] = _select(candidates, _select(rows.order, indices))
    if tie_hashes is not None and ties is not None:
        tied_rows = _select(candidates, _select(rows.order, ties.indices))
        # Hashes read all columns, so the sorted rows are released before.
        del rows
        greatest = ties.greatest(tie_hashes(tied_rows))
        matched_rows[searched[ties.matches]] = tied_rows[greatest]
    return matched_rows


def _select(values: Int64s | None, indices: Int64s) -> Int64s:
    """Return the values at the given indices; None has the values 0, 1, 2, ..."""
    return indices if values is None else values[indices]


@dataclass(frozen=True)
class _SortedRows:
    """Rows sorted by key and the time at which they become eligible.

    Attributes:
        codes: The integers of keys and times, ascending.
        order: The positions of the rows; None if they were sorted before.
        event_codes: The integers of keys and event times, if rows have a created time.
        created: The created times.
    """

    codes: Int64s
    order: Int64s | None
    event_codes: Int64s | None = None
    created: Int64s | None = None

    def latest_event(self, indices: Int64s) -> Int64s:
        """Return the index of the latest event among the eligible rows up to each index."""
        if self.event_codes is None:
            return indices
        # Events of a key have greater integers than all events of the previous keys, so one running
        # maximum serves all keys.
        is_latest = self.event_codes == np.maximum.accumulate(self.event_codes)
        # Of equal events, the last row has the latest created time.
        numbers = np.arange(len(is_latest), dtype=np.int32) * is_latest
        latest: Int64s = np.maximum.accumulate(numbers)[indices].astype(np.int64)
        return latest

    def find_ties(self, indices: Int64s) -> _Ties | None:
        """Return the rows that tie with rows at ``indices``, which are the last rows of their ties."""
        is_tied = self.codes[1:] == self.codes[:-1]
        for values in (self.event_codes, self.created):
            if values is not None:
                is_tied &= values[1:] == values[:-1]
        is_tied = np.concatenate([[False], is_tied])
        matches = np.flatnonzero(is_tied[indices])
        if not len(matches):
            return None
        ends, numbers = np.unique(indices[matches], return_inverse=True)
        all_starts = np.flatnonzero(~is_tied)
        starts = all_starts[np.searchsorted(all_starts, ends, side="right") - 1]
        sizes = ends - starts + 1
        tied = np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        return _Ties(matches, numbers.reshape(-1), tied, sizes)


@dataclass(frozen=True)
class _Ties:
    """Sets of rows with equal keys and times, one after another.

    Attributes:
        matches: The numbers of the matches that tie.
        sets: The number of the set of each of these matches.
        indices: The indices of the rows of all sets.
        sizes: The number of rows of each set.
    """

    matches: Int64s
    sets: Int64s
    indices: Int64s
    sizes: Int64s

    def greatest(self, hashes: Int64s) -> Int64s:
        """Return for each match the number of the row with the greatest hash of its set."""
        by_hash = np.lexsort((hashes, np.repeat(np.arange(len(self.sizes)), self.sizes)))
        greatest: Int64s = by_hash[np.cumsum(self.sizes) - 1][self.sets]
        return greatest


def _sort_rows(
    row_keys: Int64s, key_count: int, label_times: Int64s, times: RowTimes
) -> tuple[Int64s, int, _SortedRows]:
    """Sort the rows by key and time.

    Returns:
        The time part of the labels' codes, the number of different time parts, and the rows.
    """
    events = eligible = times.event
    if times.created is not None:
        eligible = np.maximum(events, times.created)
    first, last = int(events.min()), int(eligible.max())
    # Time part 0 is before all rows, so that a label of that time finds no row of its key.
    length = last - first + 2
    if key_count > _MAX_CODE // length:
        # Ranks among the distinct times of the rows, from 1; earlier labels have rank 0.
        distinct = np.unique(events if times.created is None else np.append(events, eligible))
        label_times, events, eligible = (
            np.searchsorted(distinct, values, side="right").astype(np.int64)
            for values in (label_times, events, eligible)
        )
        length = len(distinct) + 1
    else:
        label_times = np.clip(label_times, first - 1, last) - (first - 1)
        origin = first - 1
        events = events - origin
        eligible = events if times.created is None else eligible - origin
    codes = row_keys * length
    codes += eligible
    order, sorted_codes = _sort_codes(codes)
    if times.created is None:
        return label_times, length, _SortedRows(sorted_codes, order)
    event_codes, created = codes - eligible, times.created
    event_codes += events
    if order is not None:
        event_codes, created = event_codes[order], created[order]
    undecided = _find_runs(sorted_codes)
    if len(undecided):
        by_event = np.lexsort((created[undecided], event_codes[undecided], sorted_codes[undecided]))
        permutation = undecided[by_event]
        order = np.arange(len(codes)) if order is None else order
        order[undecided] = order[permutation]
        event_codes[undecided], created = event_codes[permutation], created.copy()
        created[undecided] = created[permutation]
    return label_times, length, _SortedRows(sorted_codes, order, event_codes, created)


def _sort_codes(codes: Int64s) -> tuple[Int64s | None, Int64s]:
    """Return the stable ascending order of codes, None if they ascend, and the codes in this order.

    NumPy sorts integers several times faster than it sorts positions by integers. So the leading bits
    of a code and its position are sorted as one integer, and codes with equal leading bits afterwards.
    """
    if not (codes[1:] < codes[:-1]).any():
        return None, codes
    position_bits = len(codes).bit_length()
    dropped_bits = max(int(codes.max()).bit_length() + position_bits - _CODE_BITS, 0)
    packed = codes >> dropped_bits
    packed <<= position_bits
    packed |= np.arange(len(codes))
    packed.sort()
    order = packed & ((1 << position_bits) - 1)
    if not dropped_bits:
        packed >>= position_bits
        return order, packed
    sorted_codes = codes[order]
    if not (sorted_codes[1:] < sorted_codes[:-1]).any():
        return order, sorted_codes
    packed >>= position_bits
    undecided = _find_runs(packed)
    if len(undecided) > _MAX_UNDECIDED * len(codes):
        order = np.argsort(codes, kind="stable")
        return order, codes[order]
    permutation = undecided[np.lexsort((sorted_codes[undecided], packed[undecided]))]
    order[undecided], sorted_codes[undecided] = order[permutation], sorted_codes[permutation]
    return order, sorted_codes


def _find_runs(ascending: Int64s) -> Int64s:
    """Return the indices of values that are equal to a neighbor."""
    is_equal = ascending[1:] == ascending[:-1]
    is_in_run = np.zeros(len(ascending), dtype=bool)
    is_in_run[1:] |= is_equal
    is_in_run[:-1] |= is_equal
    return np.flatnonzero(is_in_run)


def combine_keys(keys: list[KeyCodes]) -> KeyCodes:
    """Return one code for each combination of key values."""
    combined = keys[0]
    for key in keys[1:]:
        # Ranks of both are below the number of rows, whose square fits into a code.
        if combined.size > _MAX_CODE // key.size:
            combined, key = _compact(combined), _compact(key)
        is_present = (combined.labels >= 0) & (key.labels >= 0)
        label_codes = np.where(is_present, combined.labels * key.size + key.labels, -1)
        row_codes = combined.rows * key.size + key.rows
        combined = KeyCodes(label_codes, row_codes, combined.size * key.size)
    # A time needs part of the code.
    return _compact(combined) if combined.size > _MAX_CODE >> 32 else combined


def _compact(codes: KeyCodes) -> KeyCodes:
    """Return codes without gaps: ranks among the values of the rows."""
    distinct, ranks = np.unique(codes.rows, return_inverse=True)
    positions = np.searchsorted(distinct, codes.labels)
    positions[positions == len(distinct)] = 0
    is_present = distinct[positions] == codes.labels if len(distinct) else codes.labels < -1
    label_ranks = np.where(is_present, positions, -1)
    return KeyCodes(label_ranks, ranks.reshape(-1), max(len(distinct), 1))


def encode_keys(labels: pa.ChunkedArray, rows: pa.ChunkedArray) -> KeyCodes:
    """Return the codes of a key column; null rows get any code, since they are not candidates."""
    if pat.is_string(rows.type):
        distinct = rows.unique()
        label_codes, row_codes = (
            pc.index_in(values, value_set=distinct).fill_null(-1).to_numpy().astype(np.int64)
            for values in (labels, rows)
        )
        return KeyCodes(label_codes, row_codes, max(len(distinct), 1))
    row_values, label_values = (
        values.cast(pa.int64()).fill_null(0).to_numpy() for values in (rows, labels)
    )
    if not len(row_values):
        return KeyCodes(np.full(len(labels), -1), row_values, 1)
    first, last = int(row_values.min()), int(row_values.max())
    if last - first >= _MAX_CODE:
        return _compact(KeyCodes(label_values, row_values, _MAX_CODE))
    in_range = (label_values >= first) & (label_values <= last)
    label_codes = np.where(in_range, label_values - first, -1)
    return KeyCodes(label_codes, row_values - first, last - first + 1)
