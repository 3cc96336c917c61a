"""Times in Parquet files, told by their footers: faster than any query over the rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

from featurestore.model.times import to_micros


@dataclass(frozen=True)
class TimeBounds:
    """Least and greatest time of some rows in microseconds (the least above the greatest: none), nulls, rows."""

    low: int = 2**63 - 1
    high: int = -(2**63)
    nulls: int = 0
    rows: int = 0

    def merge(self, other: TimeBounds) -> TimeBounds:
        """Return the bounds of both."""
        return TimeBounds(
            min(self.low, other.low),
            max(self.high, other.high),
            self.nulls + other.nulls,
            self.rows + other.rows,
        )


def parquet_files(path: str) -> Iterator[str]:
    """Yield the Parquet files below a folder, in the order of their paths."""
    for parent, _, names in sorted(os.walk(path)):
        for name in sorted(names):
            if name.endswith(".parquet"):
                yield os.path.join(parent, name)


def time_bounds(file: str, column: str) -> TimeBounds | None:
    """Return the bounds of a column of a file; None where its footer does not tell."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(file)
    index = metadata.schema.to_arrow_schema().get_field_index(column)
    found = TimeBounds()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(index).statistics if index >= 0 else None
        if statistics is None or not statistics.has_null_count:
            return None
        nulls, rows = statistics.null_count, group.num_rows
        if nulls < rows:
            low, high = (micros(side) for side in _sides(statistics))
            if low is None or high is None:
                return None
            found = found.merge(TimeBounds(low, high))
        found = found.merge(TimeBounds(nulls=nulls, rows=rows))
    return found


def volume(file: str, column: str | None) -> tuple[int, int, tuple[int, int] | None]:
    """Return rows and bytes of a file, and the least and greatest time in a column where its footer tells it.

    Times are microseconds since 1970.
    """
    from pyarrow import parquet

    rows, size = parquet.read_metadata(file).num_rows, os.stat(file).st_size
    found = None if column is None else time_bounds(file, column)
    if found is None or found.low > found.high:
        return rows, size, None
    return rows, size, (found.low, found.high)


def micros(value: Any) -> int | None:
    """Return a time as logs and footers write it in microseconds; None when it is none."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        return None
    return to_micros(value if value.tzinfo else value.replace(tzinfo=UTC))


def _sides(statistics: Any) -> tuple[Any, Any]:
    return (statistics.min, statistics.max) if statistics.has_min_max else (None, None)
