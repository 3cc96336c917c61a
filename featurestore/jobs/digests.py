"""Accumulators of row digests, which compare the rows of windows, and of time bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.batches import select_rows
from featurestore.arrow.types import TIMESTAMP
from featurestore.hashing import row_hash
from featurestore.jobs.inputs import TimeBounds
from featurestore.plugins.engine import Accumulator, TimeRange

# Sums of floats depend on the order of rows, which may differ between a window alone and in one
# query with others.
_FLOATS_AGREE = 1e-9


@dataclass(frozen=True)
class RowDigest:
    """A digest of rows that does not depend on their order.

    It has the number of rows, a sum of hashes of exact columns, and the sums of float columns.
    """

    rows: int = 0
    hashed: int = 0
    floats: tuple[float, ...] = ()

    def agrees(self, other: RowDigest) -> bool:
        """Return whether two digests are of the same rows, floats up to rounding."""
        if (self.rows, self.hashed) != (other.rows, other.hashed):
            return False
        for a, b in zip(self.floats, other.floats, strict=bool(self.rows)):
            if not math.isclose(a, b, rel_tol=_FLOATS_AGREE, abs_tol=_FLOATS_AGREE):
                return False
        return True


@dataclass(frozen=True)
class DigestAccumulator(Accumulator[RowDigest, RowDigest]):
    """Accumulates the digest of rows in any order."""

    def start(self) -> RowDigest:
        """Return the digest of no rows."""
        return RowDigest()

    def update(self, state: RowDigest, batch: pa.RecordBatch) -> RowDigest:
        """Add the rows of a batch."""
        if not batch.num_rows:
            return state
        exact, sums = [], list[float]()
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if not pat.is_floating(field.type):
                exact.append(field.name)
                continue
            values: Any = pc.drop_null(column).to_numpy()
            sums += [float(np.nansum(values)), column.null_count, float(np.isnan(values).sum())]
        hashed = 0
        if exact:
            hashes: Any = row_hash(batch, columns=exact)
            hashed = int(hashes.sum(dtype=np.uint64))
        return self.merge(state, RowDigest(batch.num_rows, hashed, tuple(sums)))

    def merge(self, left: RowDigest, right: RowDigest) -> RowDigest:
        """Return the digest of both."""
        if not left.rows:
            return right
        if not right.rows:
            return left
        floats = tuple(a + b for a, b in zip(left.floats, right.floats, strict=True))
        return RowDigest(left.rows + right.rows, (left.hashed + right.hashed) % 2**64, floats)

    def finish(self, state: RowDigest) -> RowDigest:
        """Return the digest."""
        return state


@dataclass(frozen=True)
class RangesAccumulator(Accumulator[list[RowDigest], list[RowDigest]]):
    """Accumulates the digests of several time ranges in one pass."""

    ranges: tuple[TimeRange, ...]

    def start(self) -> list[RowDigest]:
        """Return the digests of no rows."""
        return [RowDigest() for _ in self.ranges]

    def update(self, state: list[RowDigest], batch: pa.RecordBatch) -> list[RowDigest]:
        """Add the rows of a batch to the digests of the ranges that contain them."""
        return [
            DigestAccumulator().update(
                digest, select_rows(batch, pc.indices_nonzero(_inside(batch, time_range)))
            )
            for digest, time_range in zip(state, self.ranges, strict=True)
        ]

    def merge(self, left: list[RowDigest], right: list[RowDigest]) -> list[RowDigest]:
        """Return the digests of both."""
        return [DigestAccumulator().merge(*both) for both in zip(left, right, strict=True)]

    def finish(self, state: list[RowDigest]) -> list[RowDigest]:
        """Return the digest of each range."""
        return state


def _inside(batch: pa.RecordBatch, time_range: TimeRange) -> pa.Array:
    values = pc.cast(batch.column(batch.schema.get_field_index(time_range.column)), TIMESTAMP)
    start, end = pa.scalar(time_range.start, TIMESTAMP), pa.scalar(time_range.end, TIMESTAMP)
    if time_range.closed == "right":
        return pc.and_(pc.greater(values, start), pc.less_equal(values, end))
    return pc.and_(pc.greater_equal(values, start), pc.less(values, end))


@dataclass(frozen=True)
class BoundsAccumulator(Accumulator[TimeBounds, TimeBounds]):
    """The bounds of a column of times."""

    column: str

    def start(self) -> TimeBounds:
        """Return the bounds of no rows."""
        return TimeBounds()

    def update(self, state: TimeBounds, batch: pa.RecordBatch) -> TimeBounds:
        """Widen the bounds by a batch."""
        values = batch.column(batch.schema.get_field_index(self.column))
        micros: npt.NDArray[np.int64] = pc.cast(
            pc.cast(values.drop_null(), TIMESTAMP), pa.int64()
        ).to_numpy()
        if len(micros):
            state = state.merge(TimeBounds(int(micros.min()), int(micros.max())))
        return state.merge(TimeBounds(nulls=values.null_count, rows=len(values)))

    def merge(self, left: TimeBounds, right: TimeBounds) -> TimeBounds:
        """Return the bounds of both."""
        return left.merge(right)

    def finish(self, state: TimeBounds) -> TimeBounds:
        """Return the bounds."""
        return state
