"""Bounds of columns from the statistics in the log.

The one place that knows how other writers cut them.

Bounds are ordinals: integers as they are, dates as days and times as microseconds since 1970. A
bound may lie further out than the true value, never further in. Spark (and delta-rs, in
checkpoints) cut times to milliseconds, so the greatest time may be 999 microseconds later than its
text, and the least one is taken to be as much earlier. Texts are cut in a way of each writer's own,
so they give no bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.times import to_micros

MICROS_OF_DAY = 86_400_000_000
_CUT_DIGITS = 3
_CUT_MICROS = 999
_FIRST_DAY = date(1970, 1, 1).toordinal()
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, eq=False)
class ColumnBounds:
    """Bounds of one column in each file of a snapshot.

    Where ``known`` is False the log tells nothing of a file.

    >>> bounds = ColumnBounds.of([(1, 5), None])
    >>> bounds.may_hold(6, 9).tolist()
    [False, True]
    """

    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    known: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, found: Sequence[tuple[int, int] | None]) -> ColumnBounds:
        """Return the bounds of files, None for those whose bounds are not known."""
        known = np.zeros(len(found), dtype=np.bool_)
        pairs = np.zeros((len(found), 2), dtype=np.int64)
        for position, pair in enumerate(found):
            if pair is not None:
                known[position] = True
                pairs[position] = pair
        return cls(pairs[:, 0], pairs[:, 1], known)

    def may_hold(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Tell for each file whether it may hold a value in ``[first, last]``."""
        overlaps: npt.NDArray[np.bool_] = (self.low <= last) & (self.high >= first)
        return overlaps | ~self.known

    def greatest(self) -> int | None:
        """Return a value that none in the files exceeds.

        None when one is not known, or there are no files.
        """
        if not len(self.known) or not self.known.all():
            return None
        return int(self.high.max())

    def pairs(self) -> list[tuple[int, int] | None]:
        """Return lower and upper bound of each file, None where they are not known."""
        sides = zip(self.low.tolist(), self.high.tolist(), self.known.tolist(), strict=True)
        return [(low, high) if known else None for low, high, known in sides]

    def kept(self, which: npt.NDArray[np.bool_]) -> ColumnBounds:
        """Return the bounds of some of the files."""
        return ColumnBounds(self.low[which], self.high[which], self.known[which])

    def joined(self, other: ColumnBounds) -> ColumnBounds:
        """Return these bounds, then those of more files."""
        return ColumnBounds(
            np.concatenate([self.low, other.low]),
            np.concatenate([self.high, other.high]),
            np.concatenate([self.known, other.known]),
        )


def has_bounds(kind: pa.DataType) -> bool:
    """Tell whether the log can bound a column of a storage type."""
    return bool(pat.is_integer(kind) or pat.is_date(kind) or pat.is_timestamp(kind))


def bounds_in(
    statistics: Mapping[str, Any], column: str, kind: pa.DataType
) -> tuple[int, int] | None:
    """Return lower and upper bound of a column by a file's statistics, None where they tell none.

    >>> stats = {"minValues": {"n": 1}, "maxValues": {"n": 5}}
    >>> bounds_in(stats, "n", pa.int64())
    (1, 5)
    """
    least, greatest = statistics.get("minValues"), statistics.get("maxValues")
    if not isinstance(least, dict) or not isinstance(greatest, dict):
        return None
    low = _ordinal_of_text(least.get(column), kind, slack=-_CUT_MICROS)
    high = _ordinal_of_text(greatest.get(column), kind, slack=_CUT_MICROS)
    if low is None or high is None:
        return None
    return low, high


def bounds_of_partition(text: str | None, kind: pa.DataType) -> tuple[int, int] | None:
    """Return the bounds of a partition column in a file, from the value that the log has for it."""
    value: Any = text
    if text is not None and pat.is_integer(kind):
        try:
            value = int(text)
        except ValueError:
            return None
    found = _ordinal_of_text(value, kind, slack=0)
    if found is None:
        return None
    return found, found


def ordinal(value: Any) -> int | None:
    """Return a Python value as bounds count it; None for values that they do not bound.

    >>> ordinal(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    1000000
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        return to_micros(value)
    if isinstance(value, date):
        return value.toordinal() - _FIRST_DAY
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _ordinal_of_text(value: Any, kind: pa.DataType, *, slack: int) -> int | None:
    """Return a bound of the log as an ordinal, further out by ``slack`` where it may be cut."""
    if pat.is_integer(kind):
        if not isinstance(value, int) or not _INT64.min <= value <= _INT64.max:
            return None
        return ordinal(value)
    if not isinstance(value, str):
        return None
    try:
        if pat.is_date(kind):
            return ordinal(date.fromisoformat(value))
        if pat.is_timestamp(kind):
            found = ordinal(datetime.fromisoformat(value))
            if found is not None and _may_be_cut(value):
                found += slack
            return found
    except (ValueError, OverflowError):
        # Years before 1 and after 9999, which other writers have.
        return None
    return None


def _may_be_cut(text: str) -> bool:
    """Tell whether a time may have lost its microseconds: whole ones have six digits."""
    _, dot, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return not dot or digits <= _CUT_DIGITS
