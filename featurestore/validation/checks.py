"""Checks of rows: the built-in ones, and the accumulator that also evaluates expectations.

A call of a validator takes tens of milliseconds, so batches are buffered into chunks. A state is
flushed before it is pickled (as the result of an executor): buffered rows are never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.arrow.cast_lines import PLAUSIBLE_START
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.times import format_duration, shift_time, to_python_rows
from featurestore.model.validation import ExpectationResult
from featurestore.plugins.engine import Accumulator
from featurestore.plugins.validator import Validator

NULL_KEYS, DUPLICATE_KEYS, FUTURE_TIMES, EARLY_TIMES = (
    "no_null_keys",
    "no_duplicate_keys",
    "no_future_event_times",
    "no_event_times_before_1980",
)
MOST_SAMPLES = 5
_CHUNK_ROWS = 1 << 20
_CHUNK_BYTES = 128 << 20


@dataclass(frozen=True)
class Subject:
    """A table to audit. ``key``: the columns that identify a row, () if rows need not be unique."""

    name: str
    version: int
    schema: pa.Schema
    key: tuple[str, ...] = ()
    event_time: str | None = None

    @classmethod
    def of(cls, spec: FeatureGroupSpec) -> Subject:
        """Return the subject for a feature group; without a primary key rows need not be unique."""
        key: tuple[str, ...] = ()
        if spec.primary_key:
            key = spec.upsert_key
        return cls(spec.name, spec.version, spec.schema, key, spec.event_time)


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
            times = batch.column(self.columns[0])
            return _mask(pc.greater(times, _limit(self.latest, times.type)))
        if self.type == EARLY_TIMES:
            times = batch.column(self.columns[0])
            return _mask(pc.less(times, _limit(PLAUSIBLE_START, times.type)))
        result = np.zeros(batch.num_rows, dtype=np.bool_)
        for name in self.columns:
            column = batch.column(name)
            if column.null_count:
                result |= column.is_null().to_numpy(zero_copy_only=False)
        return result


def _limit(time: datetime, kind: pa.DataType) -> pa.Scalar:
    if pat.is_date(kind):
        return pa.scalar(time.date(), kind)
    return pa.scalar(time, kind)


def _mask(marked: pa.Array) -> NDArray[np.bool_]:
    mask = pc.fill_null(marked, False)
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)


@dataclass
class CheckCounts:
    """The counts of one check: checked rows, failing rows, and samples of failing rows."""

    rows: int = 0
    checked: int = 0
    unexpected: int = 0
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    warning: bool = False

    def add(
        self, rows: int, checked: int, unexpected: int, samples: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add the counts of a chunk of rows."""
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
            RowCheck(FUTURE_TIMES, (subject.event_time,), shift_time(now, tolerance), tolerance)
        )
        checks.append(RowCheck(EARLY_TIMES, (subject.event_time,)))
    return tuple(checks)


def row_check_result(check: RowCheck, counts: CheckCounts) -> ExpectationResult:
    """Return the result of a built-in check of rows."""
    shown = ", ".join(check.columns)
    message = ""
    if counts.unexpected:
        message = f"{counts.unexpected:,} of {counts.rows:,} rows have nulls in {shown}"
    if counts.unexpected and check.type == FUTURE_TIMES:
        message = f"{counts.unexpected:,} of {counts.rows:,} rows have a {shown} in the future"
    if counts.unexpected and check.type == EARLY_TIMES:
        message = f"{counts.unexpected:,} of {counts.rows:,} rows have a {shown} before 1980"
    return ExpectationResult(
        expectation=check.expectation,
        success=not counts.unexpected,
        rows=counts.rows,
        unexpected=counts.unexpected,
        samples=tuple(counts.samples),
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
    return to_python_rows(batch.select(list(dict.fromkeys(columns))).take(first))


@dataclass(frozen=True)
class RowExpectations:
    """Row-level expectations, the validator that knows them, and the key that samples show."""

    expectations: tuple[Mapping[str, Any], ...]
    validator: Validator | None
    key: tuple[str, ...] = ()

    def columns(self, expectation: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the columns that samples of an expectation show."""
        if self.validator is None:
            return self.key
        return tuple(dict.fromkeys([*self.key, *self.validator.columns(expectation)]))


@dataclass
class RowState:
    """Counts of all checks so far, and the buffered batches."""

    rules: RowExpectations
    rows: int = 0
    checks: list[CheckCounts] = field(default_factory=list)
    rule_counts: list[CheckCounts] = field(default_factory=list)
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    buffered_rows: int = 0
    buffered_bytes: int = 0

    def gather(self, batch: pa.RecordBatch) -> None:
        """Buffer a batch until a chunk is full."""
        self.buffered.append(batch)
        self.buffered_rows += batch.num_rows
        self.buffered_bytes += batch.nbytes
        if self.buffered_rows >= _CHUNK_ROWS or self.buffered_bytes >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Check the buffered batches."""
        if not self.buffered or self.rules.validator is None:
            return
        table = pa.Table.from_batches(self.buffered)
        self.buffered, self.buffered_rows, self.buffered_bytes = [], 0, 0
        outcomes = self.rules.validator.check(table, self.rules.expectations)
        for expectation, counts, outcome in zip(
            self.rules.expectations, self.rule_counts, outcomes, strict=True
        ):
            samples: list[dict[str, Any]] = []
            if outcome.failing is not None:
                samples = sample_rows(table, outcome.failing, self.rules.columns(expectation))
            counts.warning = outcome.result.warning
            counts.add(table.num_rows, outcome.checked, outcome.result.unexpected, samples)

    def __reduce__(self) -> tuple[Callable[..., RowState], tuple[Any, ...]]:
        self.flush()
        return RowState, (self.rules, self.rows, self.checks, self.rule_counts)


@dataclass(frozen=True)
class RowAccumulator(Accumulator[RowState, RowState]):
    """Accumulator that checks every row once."""

    checks: tuple[RowCheck, ...]
    rules: RowExpectations

    def start(self) -> RowState:
        """Return the state of no rows."""
        check_counts = [CheckCounts() for _ in self.checks]
        rule_counts = [CheckCounts() for _ in self.rules.expectations]
        return RowState(self.rules, 0, check_counts, rule_counts)

    def update(self, state: RowState, batch: pa.RecordBatch) -> RowState:
        """Run built-in checks on a batch and buffer it for the expectations."""
        state.rows += batch.num_rows
        for check, counts in zip(self.checks, state.checks, strict=True):
            failing = check.failing(batch)
            unexpected = int(failing.sum())
            samples: list[dict[str, Any]] = []
            if unexpected:
                samples = sample_rows(batch, failing, (*self.rules.key, *check.columns))
            counts.add(batch.num_rows, batch.num_rows, unexpected, samples)
        if self.rules.expectations and batch.num_rows:
            state.gather(batch)
        return state

    def merge(self, first: RowState, second: RowState) -> RowState:
        """Add the second state to the first one in place."""
        first.flush()
        second.flush()
        first.rows += second.rows
        first_counts = [*first.checks, *first.rule_counts]
        second_counts = [*second.checks, *second.rule_counts]
        for counts, added in zip(first_counts, second_counts, strict=True):
            counts.warning = counts.warning or added.warning
            counts.add(added.rows, added.checked, added.unexpected, added.samples)
        return first

    def finish(self, state: RowState) -> RowState:
        """Check the buffered rows and return the state."""
        state.flush()
        return state
