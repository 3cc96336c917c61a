"""What is counted of one column over all rows, mergeable."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featurestore.statistics.exactsum import add_twofold, sum_integers, sum_twofold
from featurestore.statistics.kinds import CountedColumn
from featurestore.statistics.moments import Centred, Moments, centre
from featurestore.statistics.values import Values, lengths_of, measured_values

Bound = int | float | str | None


@dataclass
class Counts:
    """Counts, exact sums, extremes and lengths of one column.

    ``total`` is an exact integer for integers, booleans and times, a twofold for floats. Times are days or
    microseconds since 1970.
    """

    rows: int = 0
    nulls: int = 0
    nan: int = 0
    infinite: int = 0
    total: int | tuple[float, float] = 0
    minimum: Bound = None
    maximum: Bound = None
    moments: Moments = field(default_factory=Moments)
    shortest: int | None = None
    longest: int | None = None
    length: int = 0

    def merge(self, other: Counts) -> Counts:
        """Return the counts of both."""
        return Counts(
            self.rows + other.rows,
            self.nulls + other.nulls,
            self.nan + other.nan,
            self.infinite + other.infinite,
            _add_totals(self.total, other.total),
            _least(self.minimum, other.minimum),
            _greatest(self.maximum, other.maximum),
            self.moments.merge(other.moments),
            _least(self.shortest, other.shortest),  # type: ignore[arg-type]
            _greatest(self.longest, other.longest),  # type: ignore[arg-type]
            self.length + other.length,
        )


@dataclass(frozen=True)
class CountedBatch:
    """The counts of one column in one batch, with its values where co-moments need them."""

    counts: Counts
    values: Values | None = None
    centred: Centred | None = None


def count_batch(column: CountedColumn, data: pa.Array) -> CountedBatch:
    """Return the counts of one column of one batch."""
    if column.measured:
        return _count_measured(data)
    counts = Counts(rows=len(data), nulls=data.null_count)
    if column.has_length:
        _count_lengths(counts, lengths_of(data))
    if column.kind == "text" and counts.nulls < counts.rows:
        bounds = pc.min_max(data)
        counts.minimum, counts.maximum = bounds["min"].as_py(), bounds["max"].as_py()
    return CountedBatch(counts)


def _count_measured(data: pa.Array) -> CountedBatch:
    values = measured_values(data)
    finite = values.finite
    counts = Counts(len(data), values.nulls, values.nan, values.infinite)
    is_float = finite.dtype.kind == "f"
    counts.total = sum_twofold(finite) if is_float else sum_integers(finite)
    if len(finite):
        counts.minimum, counts.maximum = finite.min().item(), finite.max().item()
    centred = centre(values)
    counts.moments = centred.moments
    return CountedBatch(counts, values, centred)


def _count_lengths(counts: Counts, lengths: NDArray[np.int64]) -> None:
    if len(lengths):
        counts.shortest, counts.longest = int(lengths.min()), int(lengths.max())
        counts.length = int(lengths.sum())


def _add_totals(
    a: int | tuple[float, float], b: int | tuple[float, float]
) -> int | tuple[float, float]:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return add_twofold(
        a if isinstance(a, tuple) else (float(a), 0.0),
        b if isinstance(b, tuple) else (float(b), 0.0),
    )


def _least(a: Bound, b: Bound) -> Bound:
    return b if a is None else a if b is None else min(a, b)


def _greatest(a: Bound, b: Bound) -> Bound:
    return b if a is None else a if b is None else max(a, b)
