"""Built-in checks, which need no validator: null keys, duplicate keys, event times in the future."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.model.durations import format_duration
from featurestore.model.validation import ExpectationResult
from featurestore.validation.subject import Subject

NULL_KEYS, DUPLICATE_KEYS, FUTURE_TIMES = (
    "no_null_keys",
    "no_duplicate_keys",
    "no_future_event_times",
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
        return self.type == FUTURE_TIMES

    @property
    def expectation(self) -> Mapping[str, Any]:
        """The check in the form of an expectation."""
        if self.type == FUTURE_TIMES:
            kwargs = {"column": self.columns[0], "tolerance": format_duration(self.tolerance)}
            return {"type": self.type, "kwargs": kwargs}
        return {"type": self.type, "kwargs": {"columns": list(self.columns)}}

    def failing(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Mark the rows that fail."""
        if self.type == FUTURE_TIMES and self.latest is not None:
            column = batch.column(self.columns[0])
            latest: datetime | date = (
                self.latest.date() if pat.is_date(column.type) else self.latest
            )
            late = pc.fill_null(pc.greater(column, pa.scalar(latest, column.type)), False)
            return np.asarray(late.to_numpy(zero_copy_only=False), dtype=np.bool_)
        result = np.zeros(batch.num_rows, dtype=np.bool_)
        for name in self.columns:
            column = batch.column(name)
            if column.null_count:
                result |= column.is_null().to_numpy(zero_copy_only=False)
        return result


@dataclass
class Found:
    """What one check has found so far: rows looked at, rows that failed, a few of them."""

    rows: int = 0
    checked: int = 0
    unexpected: int = 0
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    warning: bool = False

    def add(
        self, rows: int, checked: int, unexpected: int, samples: Sequence[Mapping[str, Any]]
    ) -> None:
        """Take in what a chunk found."""
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
        checks.append(RowCheck(FUTURE_TIMES, (subject.event_time,), now + tolerance, tolerance))
    return tuple(checks)


def row_check_result(check: RowCheck, found: Found) -> ExpectationResult:
    """Return the result of a built-in check of rows."""
    shown = ", ".join(check.columns)
    wrong = f"have a {shown} in the future" if check.warning else f"have nulls in {shown}"
    return ExpectationResult(
        expectation=check.expectation,
        success=not found.unexpected,
        rows=found.rows,
        unexpected=found.unexpected,
        samples=tuple(found.samples),
        message=f"{found.unexpected:,} of {found.rows:,} rows {wrong}" if found.unexpected else "",
        warning=check.warning,
    )


def duplicates_result(
    key: tuple[str, ...], *, rows: int, duplicated: int, samples: Sequence[Mapping[str, Any]]
) -> ExpectationResult:
    """Return the result of the check for duplicate keys; ``unexpected`` counts keys, not rows."""
    return ExpectationResult(
        expectation={"type": DUPLICATE_KEYS, "kwargs": {"columns": list(key)}},
        success=not duplicated,
        rows=rows,
        unexpected=duplicated,
        samples=tuple(samples),
        message=f"{duplicated:,} {'key occurs' if duplicated == 1 else 'keys occur'} more than once in this write"
        if duplicated
        else "",
    )


def sample_rows(
    batch: pa.RecordBatch | pa.Table, failing: NDArray[np.bool_], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a few of the failing rows as plain dicts of the columns that matter."""
    indices = np.flatnonzero(failing)[:MOST_SAMPLES]
    rows: list[dict[str, Any]] = (
        batch.select(list(dict.fromkeys(columns))).take(pa.array(indices)).to_pylist()
    )
    return rows
