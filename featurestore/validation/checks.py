"""Row-level checks: built-in checks, and the accumulator that also evaluates expectations.

An expectation that cannot be evaluated has a result of its own, and the others are checked.

A validator call takes tens of milliseconds, so batches are buffered into chunks. A state is flushed
before it is pickled, so executors never send buffered rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.arrow.hints import PLAUSIBLE_START
from featurestore.errors import FeatureStoreError, InvalidExpectation
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.times import format_duration, shift_time, to_python_rows
from featurestore.model.validation import ExpectationResult, describe
from featurestore.plugins.engine import Accumulator
from featurestore.plugins.validator import CheckOutcome, Expectation, Validator

NULL_KEYS, DUPLICATE_KEYS, FUTURE_TIMES, EARLY_TIMES = (
    "no_null_keys",
    "no_duplicate_keys",
    "no_future_event_times",
    "no_event_times_before_1980",
)
MAX_SAMPLES = 5
# The expectations are evaluated when either limit is reached.
_CHUNK_ROWS = 1 << 20
_CHUNK_BYTES = 128 << 20


@dataclass(frozen=True)
class Subject:
    """A table to audit; ``key`` has the columns that must be unique, () if none."""

    name: str
    version: int
    schema: pa.Schema
    key: tuple[str, ...] = ()
    event_time: str | None = None

    @classmethod
    def of(cls, spec: FeatureGroupSpec) -> Subject:
        """Create the subject of a feature group; only primary keys must be unique."""
        key: tuple[str, ...] = ()
        if spec.primary_key:
            key = spec.upsert_key
        return cls(spec.name, spec.version, spec.schema, key, spec.event_time)


@dataclass(frozen=True)
class RowCheck:
    """A built-in row-level check: of nulls, or of times after or before a limit."""

    type: str
    columns: tuple[str, ...]
    limit: datetime | None = None
    tolerance: timedelta = timedelta(0)

    @property
    def expectation(self) -> Expectation:
        """The check as an expectation dict."""
        if self.type == FUTURE_TIMES:
            kwargs = {"column": self.columns[0], "tolerance": format_duration(self.tolerance)}
            return {"type": self.type, "kwargs": kwargs}
        if self.type == EARLY_TIMES:
            return {"type": self.type, "kwargs": {"column": self.columns[0]}}
        return {"type": self.type, "kwargs": {"columns": list(self.columns)}}

    def result(self, counts: CheckCounts) -> ExpectationResult:
        """Return the result of the check for the counts of all rows."""
        column_names = ", ".join(self.columns)
        message = ""
        if counts.unexpected:
            reasons = {
                NULL_KEYS: f"nulls in {column_names}",
                FUTURE_TIMES: f"a {column_names} in the future",
                EARLY_TIMES: f"a {column_names} before 1980",
            }
            message = f"{counts.unexpected:,} of {counts.rows:,} rows have {reasons[self.type]}"
        return ExpectationResult(
            expectation=self.expectation,
            success=not counts.unexpected,
            rows=counts.rows,
            unexpected=counts.unexpected,
            samples=tuple(counts.samples),
            message=message,
            warning=self.type in (FUTURE_TIMES, EARLY_TIMES),
        )

    def failing(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return a mask of the failing rows."""
        if self.limit is not None:
            times = batch.column(self.columns[0])
            # A column of dates is compared with the day of the limit in UTC.
            day = self.limit.astimezone(UTC).date()
            limit = pa.scalar(day if pat.is_date(times.type) else self.limit, times.type)
            compare = pc.greater if self.type == FUTURE_TIMES else pc.less
            mask = pc.fill_null(compare(times, limit), False)
            return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)
        result = np.zeros(batch.num_rows, dtype=np.bool_)
        for name in self.columns:
            column = batch.column(name)
            if column.null_count:
                result |= column.is_null().to_numpy(zero_copy_only=False)
        return result


@dataclass
class CheckCounts:
    """Counts and samples of one check: all rows, checked rows and failing rows.

    ``error`` is the reason why the check cannot be evaluated, "" if it can.
    """

    rows: int = 0
    checked: int = 0
    unexpected: int = 0
    samples: list[Mapping[str, object]] = field(default_factory=list)
    warning: bool = False
    error: str = ""

    def add(
        self, rows: int, checked: int, unexpected: int, samples: Sequence[Mapping[str, object]]
    ) -> None:
        """Add the counts of a chunk of rows."""
        self.rows += rows
        self.checked += checked
        self.unexpected += unexpected
        self.samples = [*self.samples, *samples][:MAX_SAMPLES]


def built_in_row_checks(
    subject: Subject, *, now: datetime, tolerance: timedelta
) -> tuple[RowCheck, ...]:
    """Return the built-in row-level checks for a subject."""
    checks = []
    if subject.key:
        checks.append(RowCheck(NULL_KEYS, subject.key))
    elif subject.event_time:
        checks.append(RowCheck(NULL_KEYS, (subject.event_time,)))
    if subject.event_time:
        checks.append(
            RowCheck(FUTURE_TIMES, (subject.event_time,), shift_time(now, tolerance), tolerance)
        )
        checks.append(RowCheck(EARLY_TIMES, (subject.event_time,), PLAUSIBLE_START))
    return tuple(checks)


def duplicate_keys_result(
    key: tuple[str, ...], *, rows: int, duplicated: int, samples: Sequence[Mapping[str, object]]
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
) -> list[dict[str, object]]:
    """Return a sample of the failing rows as dicts of the given columns."""
    row_numbers = pa.array(np.flatnonzero(failing)[:MAX_SAMPLES])
    # A key column may also be a column of the expectation, but is shown once.
    return to_python_rows(batch.select(list(dict.fromkeys(columns))).take(row_numbers))


def check_separately(
    validator: Validator, table: pa.Table, expectations: Sequence[Expectation]
) -> list[CheckOutcome]:
    """Return an outcome for each expectation, also for those that cannot be evaluated."""
    try:
        return validator.check(table, expectations) if expectations else []
    except InvalidExpectation as error:
        if len(expectations) == 1:
            return [CheckOutcome(error_result(expectations[0], error, rows=table.num_rows))]
    return [
        outcome
        for expectation in expectations
        for outcome in check_separately(validator, table, [expectation])
    ]


def error_result(
    expectation: Expectation, error: FeatureStoreError, *, rows: int
) -> ExpectationResult:
    """Return the result of an expectation that cannot be evaluated, with the text of the error."""
    reason = error.message.removeprefix(describe(expectation)).strip()
    return ExpectationResult(
        expectation, False, rows, row_level=False, message=reason, is_error=True
    )


@dataclass(frozen=True)
class RowExpectations:
    """Row-level expectations with their validator, and the key columns shown in samples."""

    expectations: tuple[Expectation, ...]
    validator: Validator | None
    key: tuple[str, ...] = ()

    def columns(self, expectation: Expectation) -> tuple[str, ...]:
        """Return the columns shown in samples of an expectation."""
        if self.validator is None:
            return self.key
        return tuple(dict.fromkeys([*self.key, *self.validator.columns(expectation)]))


@dataclass
class RowState:
    """The state of ``RowAccumulator``: counts of all checks, and buffered batches."""

    rules: RowExpectations
    rows: int = 0
    checks: list[CheckCounts] = field(default_factory=list)
    rule_counts: list[CheckCounts] = field(default_factory=list)
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    buffered_rows: int = 0
    buffered_bytes: int = 0

    def buffer_batch(self, batch: pa.RecordBatch) -> None:
        """Buffer a batch, and evaluate the expectations if a chunk is complete."""
        self.buffered.append(batch)
        self.buffered_rows += batch.num_rows
        self.buffered_bytes += batch.nbytes
        if self.buffered_rows >= _CHUNK_ROWS or self.buffered_bytes >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Evaluate the expectations on the buffered batches."""
        if not self.buffered or self.rules.validator is None:
            return
        table = pa.Table.from_batches(self.buffered)
        # The buffer is cleared before the validator is called, so that an error does not leave rows
        # that would be checked again.
        self.buffered, self.buffered_rows, self.buffered_bytes = [], 0, 0
        checked = [
            (expectation, counts)
            for expectation, counts in zip(self.rules.expectations, self.rule_counts, strict=True)
            if not counts.error
        ]
        outcomes = check_separately(
            self.rules.validator, table, [expectation for expectation, _ in checked]
        )
        for (expectation, counts), outcome in zip(checked, outcomes, strict=True):
            samples: Sequence[Mapping[str, object]] = []
            if outcome.result.is_error:
                counts.error = outcome.result.message
            if outcome.failing is not None:
                samples = sample_rows(table, outcome.failing, self.rules.columns(expectation))
            counts.warning = outcome.result.warning
            counts.add(table.num_rows, outcome.checked, outcome.result.unexpected, samples)

    def __reduce__(self) -> tuple[Callable[..., RowState], tuple[object, ...]]:
        self.flush()
        return RowState, (self.rules, self.rows, self.checks, self.rule_counts)


@dataclass(frozen=True)
class RowAccumulator(Accumulator[RowState, RowState]):
    """Accumulator that checks every row once."""

    checks: tuple[RowCheck, ...]
    rules: RowExpectations

    def start(self) -> RowState:
        """Return an empty state."""
        check_counts = [CheckCounts() for _ in self.checks]
        rule_counts = [CheckCounts() for _ in self.rules.expectations]
        return RowState(self.rules, 0, check_counts, rule_counts)

    def update(self, state: RowState, batch: pa.RecordBatch) -> RowState:
        """Run the built-in checks on a batch, and buffer the batch for the expectations."""
        state.rows += batch.num_rows
        for check, counts in zip(self.checks, state.checks, strict=True):
            failing = check.failing(batch)
            unexpected = int(failing.sum())
            samples: Sequence[Mapping[str, object]] = []
            if unexpected:
                samples = sample_rows(batch, failing, (*self.rules.key, *check.columns))
            counts.add(batch.num_rows, batch.num_rows, unexpected, samples)
        if self.rules.expectations and batch.num_rows:
            state.buffer_batch(batch)
        return state

    def merge(self, first: RowState, second: RowState) -> RowState:
        """Merge the second state into the first state and return it."""
        first.flush()
        second.flush()
        first.rows += second.rows
        first_counts = [*first.checks, *first.rule_counts]
        second_counts = [*second.checks, *second.rule_counts]
        for counts, added in zip(first_counts, second_counts, strict=True):
            counts.warning = counts.warning or added.warning
            counts.error = counts.error or added.error
            counts.add(added.rows, added.checked, added.unexpected, added.samples)
        return first

    def finish(self, state: RowState) -> RowState:
        """Evaluate the expectations on buffered rows and return the state."""
        if state.buffered:
            state.flush()
        return state
