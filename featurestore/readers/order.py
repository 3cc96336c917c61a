"""The order in which workers read an epoch.

Order version 1 is pure arithmetic on numbers that all workers know: it needs no I/O, random state
or communication. docs/reader-order.md has the rules and test vectors. Any change to the order
requires a new order version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from featurestore.errors import ReaderConfigError
from featurestore.hashing.mixing import GOLDEN, Words, mix, mix_all, tag

ORDER_VERSION = 1
PADDING = -1
MAX_DEFAULT_LANES = 64

Remainder = Literal["drop", "keep", "pad"]
REMAINDERS: tuple[Remainder, ...] = get_args(Remainder)
Rows = npt.NDArray[np.int64]

_BLOCKS, _WINDOWS = tag(101), tag(102)
# Number of rows to permute at once. Larger arrays exceed the core's cache and allocate new pages.
_PERMUTED_ROWS = 1 << 14


def default_lanes(global_batch_size: int) -> int:
    """Return the largest divisor of the global batch size up to 64.

    >>> default_lanes(1024), default_lanes(96), default_lanes(97)
    (64, 48, 1)
    """
    return max(divisors(global_batch_size, limit=MAX_DEFAULT_LANES))


def divisors(number: int, *, limit: int | None = None) -> list[int]:
    """Return the divisors of a number, up to ``limit``.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    highest = number if limit is None else min(number, limit)
    return [divisor for divisor in range(1, highest + 1) if number % divisor == 0]


@dataclass(frozen=True)
class ReaderOrder:
    """The assignment of the rows of a split to steps and workers.

    Args:
        rows: Number of rows in the split.
        block_rows: Number of consecutive rows that are read together; only the last block is
            shorter.
        window_rows: Number of rows that are shuffled together within a lane, a multiple of
            ``block_rows``.
        global_batch_size: Number of rows per step over all workers.
        lanes: Number of parallel streams of an epoch, a divisor of the global batch size.
        seed: Any integer.
        shuffle: Whether to shuffle; False reads in canonical order.
        remainder: "drop" drops the rows that do not fill a global batch, "keep" yields a short last
            batch to one worker, "pad" fills the last batch with padding rows.

    Raises:
        ReaderConfigError: The numbers are inconsistent; the message lists valid numbers.

    >>> order = ReaderOrder(rows=10, block_rows=2, window_rows=4, global_batch_size=4, lanes=2)
    >>> order.steps_per_epoch
    2
    """

    rows: int
    block_rows: int
    window_rows: int
    global_batch_size: int
    lanes: int
    seed: int = 0
    shuffle: bool = True
    remainder: Remainder = "drop"

    def __post_init__(self) -> None:
        if self.remainder not in REMAINDERS:
            raise ReaderConfigError(
                f"remainder={self.remainder!r} is not supported.",
                hint='remainder="drop", "keep" or "pad"',
            )
        for name in ("block_rows", "window_rows", "global_batch_size", "lanes"):
            check_at_least_one(name, getattr(self, name))
        if not is_integer(self.seed):
            raise ReaderConfigError(f"seed={self.seed!r} is not an integer.")
        if self.window_rows % self.block_rows:
            blocks = max(1, round(self.window_rows / self.block_rows))
            raise ReaderConfigError(
                f"window_rows={self.window_rows} is not a multiple of the dataset's block size, "
                f"{self.block_rows} rows.",
                hint=f"window_rows={blocks * self.block_rows}",
            )
        if self.global_batch_size % self.lanes:
            raise ReaderConfigError(
                f"lanes={self.lanes} does not divide global_batch_size={self.global_batch_size}. "
                f"Available: {_format_numbers(divisors(self.global_batch_size))}.",
                hint=f"omit lanes=; its default is {default_lanes(self.global_batch_size)}",
            )
        if self.remainder == "drop" and self.rows < self.global_batch_size:
            raise ReaderConfigError(
                f"{self.rows} rows do not fill one global batch of {self.global_batch_size}.",
                hint='a smaller global_batch_size, or remainder="keep"',
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of global batches, equal on every worker."""
        if self.remainder == "drop":
            return self.rows // self.global_batch_size
        return -(-self.rows // self.global_batch_size)

    @property
    def lane_batch(self) -> int:
        """Number of rows of a global batch that come from each lane."""
        return self.global_batch_size // self.lanes

    @property
    def longest_lane(self) -> int:
        """Number of rows in the longest lane, padding included."""
        return max(-(-self.rows // self.lanes), self.steps_per_epoch * self.lane_batch)

    def worker_counts(self) -> list[int]:
        """Return the valid numbers of workers."""
        if self.remainder == "keep":
            return [1]
        return divisors(self.lanes)

    def check_workers(self, worker: int, workers: int) -> None:
        """Raise ReaderConfigError unless ``workers`` divides the lanes and ``worker`` is valid."""
        if self.remainder == "keep" and workers > 1:
            raise ReaderConfigError(
                f'remainder="keep" supports only one worker: the last batches of {workers} workers '
                "would differ in size.",
                hint='remainder="pad", or "drop"',
            )
        if workers < 1 or self.lanes % workers:
            raise ReaderConfigError(
                f"{workers} workers cannot share {self.lanes} lanes equally. "
                f"Available: {_format_numbers(self.worker_counts())} workers.",
                hint=self._suggest_setting(workers),
            )
        if not 0 <= worker < workers:
            raise ReaderConfigError(
                f"worker={worker} is out of range for {workers} workers.",
                hint=f"0 to {workers - 1}",
            )

    def worker_batch(self, workers: int) -> int:
        """Return the number of rows that a worker reads per step."""
        return self.global_batch_size // workers

    def worker_lanes(self, worker: int, workers: int) -> range:
        """Return the lanes that a worker owns."""
        self.check_workers(worker, workers)
        count = self.lanes // workers
        return range(worker * count, (worker + 1) * count)

    def lane_bounds(self, lane: int) -> tuple[int, int]:
        """Return the positions ``[start, stop)`` of a lane."""
        # Lanes cover all rows, and their lengths differ by at most one row.
        return lane * self.rows // self.lanes, (lane + 1) * self.rows // self.lanes

    def epoch(self, number: int) -> EpochOrder:
        """Return the order of one epoch."""
        if number < 0:
            raise ReaderConfigError(f"epoch={number} must be at least 0.")
        return EpochOrder(self, number)

    def _suggest_setting(self, workers: int) -> str:
        """Suggest a setting that is valid for this number of workers."""
        if workers < 1:
            return "workers=1"
        if self.global_batch_size % workers:
            size = max(1, round(self.global_batch_size / workers)) * workers
            return f"global_batch_size={size}, which {workers} divides"
        lanes_per_worker = divisors(
            self.global_batch_size // workers, limit=MAX_DEFAULT_LANES // workers
        )
        return f"lanes={max(lanes_per_worker, default=1) * workers}"


@dataclass(frozen=True)
class EpochOrder:
    """The order of one epoch."""

    order: ReaderOrder
    number: int

    def batch(self, step: int, *, worker: int = 0, workers: int = 1) -> Rows:
        """Return the canonical row numbers of one worker's batch; padding rows are ``PADDING``.

        >>> order = ReaderOrder(
        ...     rows=10, block_rows=2, window_rows=4, global_batch_size=4, lanes=2, remainder="pad"
        ... )
        >>> order.epoch(0).batch(2).shape
        (4,)
        """
        return self.batches(step, step + 1, worker=worker, workers=workers)[0]

    def batches(self, start: int, stop: int, *, worker: int = 0, workers: int = 1) -> Rows:
        """Return the batches of steps ``[start, stop)`` as an array of shape (steps, batch rows)."""
        order = self.order
        lanes = order.worker_lanes(worker, workers)
        if not 0 <= start <= stop <= order.steps_per_epoch:
            raise ReaderConfigError(
                f"Steps [{start}, {stop}) are not in an epoch of {order.steps_per_epoch} steps.",
                hint=f"0 to {order.steps_per_epoch - 1}",
            )
        if not order.shuffle:
            return self._canonical_batches(start, stop, worker, workers)
        b = order.lane_batch
        rows = np.empty((stop - start, len(lanes), b), dtype=np.int64)
        for index, lane in enumerate(lanes):
            rows[:, index, :] = self.lane_rows(lane, start * b, stop * b).reshape(-1, b)
        return rows.reshape(stop - start, len(lanes) * b)

    def lane_rows(self, lane: int, start: int, stop: int) -> Rows:
        """Return rows ``[start, stop)`` of a lane in reading order, ``PADDING`` beyond its end."""
        order = self.order
        low, high = order.lane_bounds(lane)
        result = np.full(stop - start, PADDING, dtype=np.int64)
        stop = min(stop, high - low)
        window = start // order.window_rows
        while window * order.window_rows < stop:
            first = window * order.window_rows
            rows = self._cached_window(lane, window)
            begin, end = max(start, first), min(stop, first + len(rows))
            result[begin - start : end - start] = rows[begin - first : end - first]
            window += 1
        return result

    def windows(self, lane: int) -> int:
        """Return the number of windows of a lane."""
        low, high = self.order.lane_bounds(lane)
        return -(-(high - low) // self.order.window_rows)

    def window_rows(self, lane: int, window: int) -> Rows:
        """Return the canonical rows of a window in reading order."""
        low, _ = self._window_bounds(lane, window)
        return self.rows_at(low + self.window_permutation(lane, window))

    def window_permutation(self, lane: int, window: int) -> Rows:
        """Return the offsets inside a window in reading order."""
        low, high = self._window_bounds(lane, window)
        return permutation(high - low, self._key(_WINDOWS, lane, window))

    def window_permutations(self, lanes: Sequence[int], window: int) -> Iterator[Rows]:
        """Yield the permutation of a window for each lane.

        Consecutive lanes whose windows have equal sizes are permuted together.
        """

        def window_size(lane: int) -> int:
            low, high = self._window_bounds(lane, window)
            return high - low

        for size, neighbors in groupby(lanes, key=window_size):
            keys = [self._key(_WINDOWS, lane, window) for lane in neighbors]
            lanes_per_call = max(1, _PERMUTED_ROWS // max(1, size))
            for first in range(0, len(keys), lanes_per_call):
                yield from permutations(size, keys[first : first + lanes_per_call])

    def window_ranges(self, lane: int, window: int) -> tuple[Rows, Rows]:
        """Return the ranges ``[start, stop)`` of canonical rows in a window, before the shuffle."""
        low, high = self._window_bounds(lane, window)
        return self.ranges(low, high)

    def ranges(self, low: int, high: int) -> tuple[Rows, Rows]:
        """Return the canonical row range of each block at positions ``[low, high)``."""
        if low >= high:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        edges = self._slot_edges(low, high)
        starts = self.rows_at(edges[:-1])
        return starts, starts + np.diff(edges)

    def rows_at(self, positions: Rows) -> Rows:
        """Return the canonical rows at positions of the epoch."""
        if not self.order.shuffle:
            return positions
        size = self.order.block_rows
        begin, gap = self._short_block
        # Only one block is short. Shifting the positions after it by its missing rows makes all
        # slots equally long, so that a division finds the slot.
        shifted = positions + gap * (positions >= begin + size - gap)
        slots = shifted // size
        return self._blocks[slots] * size + (shifted - slots * size)

    def _cached_window(self, lane: int, window: int) -> Rows:
        """Return ``window_rows`` of the lane's current window from a cache."""
        # Steps are read in order, so consecutive calls need the same window of a lane.
        cached_window = self._last_windows.get(lane)
        if cached_window is None or cached_window[0] != window:
            cached_window = self._last_windows[lane] = (window, self.window_rows(lane, window))
        return cached_window[1]

    @cached_property
    def _last_windows(self) -> dict[int, tuple[int, Rows]]:
        return {}

    def _window_bounds(self, lane: int, window: int) -> tuple[int, int]:
        low, high = self.order.lane_bounds(lane)
        size = self.order.window_rows
        return low + window * size, min(high, low + (window + 1) * size)

    def _slot_edges(self, low: int, high: int) -> Rows:
        """Return ``low``, the block starts between the two positions, and ``high``."""
        size = self.order.block_rows
        begin, gap = self.order.rows, 0
        if self.order.shuffle:
            begin, gap = self._short_block
        edges = np.arange(low // size, (high + gap) // size + 2, dtype=np.int64) * size
        # Slots after the short block start ``gap`` positions earlier.
        edges = edges - gap * (edges > begin)
        inner = edges[(edges > low) & (edges < high)]
        return np.concatenate([[low], inner, [high]])

    def _canonical_batches(self, start: int, stop: int, worker: int, workers: int) -> Rows:
        order = self.order
        size = order.worker_batch(workers)
        steps = np.arange(start, stop, dtype=np.int64)[:, None] * order.global_batch_size
        rows = steps + worker * size + np.arange(size, dtype=np.int64)
        return np.where(rows < order.rows, rows, PADDING)

    @cached_property
    def _blocks(self) -> Rows:
        """The block numbers in reading order."""
        return permutation(-(-self.order.rows // self.order.block_rows), self._key(_BLOCKS))

    @cached_property
    def _short_block(self) -> tuple[int, int]:
        """Start position of the short block, and how many rows shorter it is than the others."""
        order = self.order
        count = -(-order.rows // order.block_rows)
        gap = count * order.block_rows - order.rows
        if gap == 0:
            return order.rows, 0
        return int(np.flatnonzero(self._blocks == count - 1)[0]) * order.block_rows, gap

    def _key(self, purpose: int, lane: int = 0, window: int = 0) -> int:
        # Part of order version 1 (docs/reader-order.md).
        key = purpose
        for number in (self.order.seed, self.number, lane, window):
            key = mix(key + mix(number + GOLDEN))
        return key


def permutation(size: int, key: int) -> Rows:
    """Return the stable argsort of ``mix(key + (i + 1) * GOLDEN)`` for i = 0, ..., size - 1.

    >>> sorted(permutation(5, 1).tolist())
    [0, 1, 2, 3, 4]
    """
    return permutations(size, [key])[0]


def permutations(size: int, keys: Sequence[int]) -> Rows:
    """Return an array whose rows are ``permutation(size, key)`` for each key."""
    index = np.arange(1, size + 1, dtype=np.uint64)
    starts = np.array(keys, dtype=np.uint64)[:, None]
    steps = index * np.uint64(GOLDEN)
    # The mixer is a bijection, so hashes are distinct. Sorting hashes whose low bits are replaced
    # by the index is several times faster than argsort. The order is the same unless two hashes
    # agree in all other bits; those rows are sorted again.
    low = np.uint64((1 << max(1, int(size).bit_length())) - 1)
    packed: Words = mix_all((steps + starts).reshape(-1)).reshape(len(keys), size)
    packed &= ~low
    packed |= index - np.uint64(1)
    packed.sort(axis=1)
    has_ties = ((packed[:, 1:] ^ packed[:, :-1]) <= low).any(axis=1)
    packed &= low
    orders: Rows = packed.view(np.int64)
    for row in np.flatnonzero(has_ties):
        orders[row] = np.argsort(mix_all(steps + starts[row]), kind="stable")
    return orders


def check_at_least_one(name: str, value: object) -> None:
    """Raise ReaderConfigError unless the value is an integer of at least 1."""
    if not is_integer(value):
        raise ReaderConfigError(f"{name}={value!r} is not an integer.")
    if value < 1:  # type: ignore[operator]
        raise ReaderConfigError(f"{name}={value} must be at least 1.")


def is_integer(value: object) -> bool:
    """Return whether a value is an integer; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _format_numbers(values: list[int], *, limit: int = 24) -> str:
    text = ", ".join(map(str, values[:limit]))
    return text if len(values) <= limit else f"{text}, ... {values[-1]}"
