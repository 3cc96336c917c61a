"""A chunk of complete keys with its rows and labels, and intermediate results of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates.column_codes import Flags, to_flags
from featurestore.aggregates.ranges import Rows, Timeline
from featurestore.aggregates.windows import Window

Function = Literal[
    "sum", "count", "mean", "min", "max", "std", "var", "first", "last",
    "count_distinct", "any", "all", "last_n",
]  # fmt: skip


@dataclass(frozen=True)
class Aggregate:
    """One function over one window of a chunk.

    ``values`` and ``condition`` are indices of the columns passed to ``aggregate``; the window is
    ``(t - offset - over, t - offset]`` in microseconds, unbounded if ``over`` is None. ``n`` is the
    number of values of ``last_n``.
    """

    function: Function
    values: int
    over: int | None
    offset: int = 0
    condition: int | None = None
    n: int = 0


@dataclass(frozen=True)
class Totals:
    """Sums and counts of rows that are in the windows of all labels of a chunk.

    ``sums`` are exact: of the values as "whole numbers" or as "doubles", and of their "squares".
    NaN and infinities are excluded from the sums and counted.
    """

    count: int = 0
    sums: Mapping[str, Fraction] = field(default_factory=dict)
    positive_infinities: int = 0
    negative_infinities: int = 0
    nans: int = 0

    @property
    def non_finite_counts(self) -> tuple[int, int, int]:
        """The numbers of positive infinities, negative infinities and NaN."""
        return self.positive_infinities, self.negative_infinities, self.nans

    @property
    def non_finite_count(self) -> int:
        """The number of values that are NaN or infinite."""
        return sum(self.non_finite_counts)

    def plus(self, second: Totals) -> Totals:
        """Return the totals of the rows of both."""
        sums = dict(self.sums)
        for name, total in second.sums.items():
            sums[name] = sums.get(name, Fraction(0)) + total
        return Totals(
            self.count + second.count,
            sums,
            self.positive_infinities + second.positive_infinities,
            self.negative_infinities + second.negative_infinities,
            self.nans + second.nans,
        )


_NO_TOTALS = Totals()


@dataclass
class Chunk:
    """Rows and labels of complete keys, with a cache of intermediate results."""

    timeline: Timeline
    rows: Rows
    columns: Sequence[pa.Array]
    conditions: Sequence[pa.Array]
    base_totals: Mapping[tuple[int, int | None], Totals] = field(default_factory=dict)
    windows: dict[tuple[int | None, int], Window] = field(default_factory=dict)
    cache: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def totals(self, aggregate: Aggregate) -> Totals:
        """Return the totals of rows outside the chunk that count for every label."""
        return self.base_totals.get((aggregate.values, aggregate.condition), _NO_TOTALS)

    def window(self, aggregate: Aggregate) -> Window:
        """Return the window of an aggregate; aggregates over one window share it."""
        key = (aggregate.over, aggregate.offset)
        if key not in self.windows:
            self.windows[key] = self.timeline.window(over=key[0], offset=key[1])
        return self.windows[key]

    def cached_for_window(self, aggregate: Aggregate, name: str, compute: Callable[[], Any]) -> Any:
        """Return a result that functions over one column, condition and window share."""
        key = (name, aggregate.values, aggregate.condition, aggregate.over, aggregate.offset)
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]

    def cached_for_column(self, aggregate: Aggregate, name: str, compute: Callable[[], Any]) -> Any:
        """Return a result that functions and windows over one column and condition share."""
        key = (name, aggregate.values, aggregate.condition)
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]

    def present(self, aggregate: Aggregate) -> Flags:
        """Return which rows have a value and satisfy the condition."""
        flags: Flags = self.cached_for_column(
            aggregate, "present", lambda: self._find_present(aggregate)
        )
        return flags

    def _find_present(self, aggregate: Aggregate) -> Flags:
        flags = to_flags(self.columns[aggregate.values].is_valid())
        if aggregate.condition is not None:
            condition = self.conditions[aggregate.condition]
            flags = flags & to_flags(pc.fill_null(condition, False))
        return flags
