"""Built-in checks, which need no validator.

Null keys, duplicate keys, event times in the future.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.arrow.cast_lines import PLAUSIBLE_START
from featurestore.model.durations import format_duration
from featurestore.model.times import python_rows, shifted
from featurestore.model.validation import ExpectationResult
from featurestore.validation.subject import Subject

NULL_KEYS, DUPLICATE_KEYS, FUTURE_TIMES, EARLY_TIMES = (
    "no_null_keys",
    "no_duplicate_keys",
    "no_future_event_times",
    "no_event_times_before_1980",
)
MOST_SAMPLES = 5


@dataclass(frozen=True)
class RowCheck:
    """A built-in check of single rows; a warning never refuses them."""

    type: str
    columns: tuple[str, ...]
    latest: datetime | None = None
    tolerance: timedelta = timedelta(0)

    @property
    def warning(self) -> bool:
        """Whether failing rows are only reported."""
        return self.type in (FUTURE_TIMES, EARLY_TIMES)

    @property
    def is_reported(self) -> bool:
        """Whether a report names it where nothing fails."""
        return self.type != EARLY_TIMES

    @property
    def expectation(self) -> Mapping[str, Any]:
        """The check in the form of an expectation."""
        if self.type == FUTURE_TIMES:
            kwargs = {"column": self.columns[0], "tolerance": format_duration(self.tolerance)}
            return {"type": self.type, "kwargs": kwargs}
        if self.type == EARLY_TIMES:
            return {"type": self.type, "kwargs": {"column": self.columns[0]}}
        return {"type": self.type, "kwargs": {"columns": list(self.columns)}}

    def failing(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Mark the rows that fail."""
        if self.type == FUTURE_TIMES and self.latest is not None:
            return _later_than(self.latest, batch.column(self.columns[0]))
        if self.type == EARLY_TIMES:
            return _earlier_than(PLAUSIBLE_START, batch.column(self.columns[0]))
        result = np.zeros(batch.num_rows, dtype=np.bool_)
        for name in self.columns:
            column = batch.column(name)
            if column.null_count:
                result |= column.is_null().to_numpy(zero_copy_only=False)
        return result


def _later_than(latest: datetime, column: pa.Array) -> NDArray[np.bool_]:
    return _mask(pc.greater(column, _limit(latest, column.type)))


def _earlier_than(earliest: datetime, column: pa.Array) -> NDArray[np.bool_]:
    return _mask(pc.less(column, _limit(earliest, column.type)))


def _limit(time: datetime, kind: pa.DataType) -> pa.Scalar:
    if pat.is_date(kind):
        return pa.scalar(time.date(), kind)
    return pa.scalar(time, kind)


def _mask(marked: pa.Array) -> NDArray[np.bool_]:
    known = pc.fill_null(marked, False)
    return np.asarray(known.to_numpy(zero_copy_only=False), dtype=np.bool_)


@dataclass
class CheckCounts:
    """What one check has found so far: rows looked at, rows that failed, a few of them."""

    rows: int = 0
    checked: int = 0
    unexpected: int = 0
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    warning: bool = False

    def add(
        self, rows: int, checked: int, unexpected: int, samples: Sequence[Mapping[str, Any]]
    ) -> None:
        """Count what was found in a chunk of rows."""
        self.rows += rows
        self.checked += checked
        self.unexpected += unexpected
        self.samples = [*self.samples, *samples][:MOST_SAMPLES]


def row_checks(subject: Subject, *, now: datetime, tolerance: timedelta) -> tuple[RowCheck, ...]:
    """Return the built-in checks of single rows that a subject needs."""
    checks = []
    if subject.key:
        checks.append(RowCheck(NULL_KEYS, subject.key))
    elif subject.event_time:
        checks.append(RowCheck(NULL_KEYS, (subject.event_time,)))
    if subject.event_time:
        checks.append(
            RowCheck(FUTURE_TIMES, (subject.event_time,), shifted(now, tolerance), tolerance)
        )
        checks.append(RowCheck(EARLY_TIMES, (subject.event_time,)))
    return tuple(checks)


def row_check_result(check: RowCheck, found: CheckCounts) -> ExpectationResult:
    """Return the result of a built-in check of rows."""
    shown = ", ".join(check.columns)
    message = ""
    if found.unexpected:
        message = f"{found.unexpected:,} of {found.rows:,} rows have nulls in {shown}"
    if found.unexpected and check.type == FUTURE_TIMES:
        message = f"{found.unexpected:,} of {found.rows:,} rows have a {shown} in the future"
    if found.unexpected and check.type == EARLY_TIMES:
        message = f"{found.unexpected:,} of {found.rows:,} rows have a {shown} before 1980"
    return ExpectationResult(
        expectation=check.expectation,
        success=not found.unexpected,
        rows=found.rows,
        unexpected=found.unexpected,
        samples=tuple(found.samples),
        message=message,
        warning=check.warning,
    )


def duplicates_result(
    key: tuple[str, ...], *, rows: int, duplicated: int, samples: Sequence[Mapping[str, Any]]
) -> ExpectationResult:
    """Return the result of the check for duplicate keys; ``unexpected`` counts keys, not rows."""
    message = ""
    if duplicated:
        occur = "key occurs" if duplicated == 1 else "keys occur"
        message = f"{duplicated:,} {occur} more than once in this write"
    return ExpectationResult(
        expectation={"type": DUPLICATE_KEYS, "kwargs": {"columns": list(key)}},
        success=not duplicated,
        rows=rows,
        unexpected=duplicated,
        samples=tuple(samples),
        message=message,
    )


def sample_rows(
    batch: pa.RecordBatch | pa.Table, failing: NDArray[np.bool_], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a few of the failing rows as plain dicts of the columns that matter."""
    first = pa.array(np.flatnonzero(failing)[:MOST_SAMPLES])
    return python_rows(batch.select(list(dict.fromkeys(columns))).take(first))
