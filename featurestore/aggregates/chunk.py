"""Rows and labels of whole keys, what is asked of them, and what functions share of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates.arrays import Flags
from featurestore.aggregates.column_codes import flags_of
from featurestore.aggregates.ranges import Rows, Timeline
from featurestore.aggregates.windows import Window

Function = Literal[
    "sum", "count", "mean", "min", "max", "std", "var", "first", "last",
    "count_distinct", "any", "all", "last_n",
]  # fmt: skip


@dataclass(frozen=True)
class Aggregate:
    """One function over one window of a chunk.

    ``values`` and ``condition`` are numbers of columns among those handed to ``aggregate``; the
    window is ``(t - offset - over, t - offset]`` in microseconds, without a beginning where
    ``over`` is None. ``n`` is how many values ``last_n`` keeps.
    """

    function: Function
    values: int
    over: int | None
    offset: int = 0
    condition: int | None = None
    n: int = 0


@dataclass(frozen=True)
class Totals:
    """What rows add to the sums and counts of every label that sees them all.

    ``sums`` are exact: of the values as "whole numbers" or as "doubles", and of their "squares".
    NaN and infinities are counted apart.
    """

    count: int = 0
    sums: Mapping[str, Fraction] = field(default_factory=dict)
    above: int = 0
    below: int = 0
    nothing: int = 0

    @property
    def odds(self) -> tuple[int, int, int]:
        """How many values are infinite above and below, and how many NaN."""
        return self.above, self.below, self.nothing

    @property
    def odd(self) -> int:
        """How many values are NaN or infinite."""
        return sum(self.odds)

    def plus(self, other: Totals) -> Totals:
        """Return the totals of the rows of both."""
        sums = dict(self.sums)
        for what, total in other.sums.items():
            sums[what] = sums.get(what, Fraction(0)) + total
        return Totals(
            self.count + other.count,
            sums,
            self.above + other.above,
            self.below + other.below,
            self.nothing + other.nothing,
        )


_NOTHING = Totals()


@dataclass
class Chunk:
    """Rows and labels of whole keys and what has been computed of them already."""

    timeline: Timeline
    rows: Rows
    columns: Sequence[pa.Array]
    conditions: Sequence[pa.Array]
    carried: Mapping[tuple[int, int | None], Totals] = field(default_factory=dict)
    windows: dict[tuple[int | None, int], Window] = field(default_factory=dict)
    found: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def totals(self, aggregate: Aggregate) -> Totals:
        """Return what rows that are not in the chunk add for every label."""
        return self.carried.get((aggregate.values, aggregate.condition), _NOTHING)

    def window(self, aggregate: Aggregate) -> Window:
        """Return the window of an aggregate; one for all that share it."""
        key = (aggregate.over, aggregate.offset)
        if key not in self.windows:
            self.windows[key] = self.timeline.window(over=key[0], offset=key[1])
        return self.windows[key]

    def in_window(self, aggregate: Aggregate, what: str, compute: Callable[[], Any]) -> Any:
        """Return what several functions over one column, condition and window share."""
        key = (what, aggregate.values, aggregate.condition, aggregate.over, aggregate.offset)
        if key not in self.found:
            self.found[key] = compute()
        return self.found[key]

    def of_column(self, aggregate: Aggregate, what: str, compute: Callable[[], Any]) -> Any:
        """Return what several functions and windows over one column and condition share."""
        key = (what, aggregate.values, aggregate.condition)
        if key not in self.found:
            self.found[key] = compute()
        return self.found[key]

    def present(self, aggregate: Aggregate) -> Flags:
        """Return the rows whose value counts."""
        found: Flags = self.of_column(aggregate, "present", lambda: self._present(aggregate))
        return found

    def _present(self, aggregate: Aggregate) -> Flags:
        flags = flags_of(self.columns[aggregate.values].is_valid())
        if aggregate.condition is not None:
            condition = self.conditions[aggregate.condition]
            flags = flags & flags_of(pc.fill_null(condition, False))
        return flags
