"""Accumulator of row-level checks: built-in checks per batch, expectations per chunk.

A call of a validator takes tens of milliseconds, so batches are buffered into chunks. A state is
flushed before it is pickled (as the result of an executor): buffered rows are never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featurestore.plugins.engine import Accumulator
from featurestore.plugins.validator import Validator
from featurestore.validation.checks import CheckCounts, RowCheck, sample_rows

_CHUNK_ROWS = 1 << 20
_CHUNK_BYTES = 128 << 20


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

    def merge(self, left: RowState, right: RowState) -> RowState:
        """Add the right state to the left one in place."""
        left.flush()
        right.flush()
        left.rows += right.rows
        left_counts, right_counts = (
            [*left.checks, *left.rule_counts],
            [*right.checks, *right.rule_counts],
        )
        for counts, added in zip(left_counts, right_counts, strict=True):
            counts.warning = counts.warning or added.warning
            counts.add(added.rows, added.checked, added.unexpected, added.samples)
        return left

    def finish(self, state: RowState) -> RowState:
        """Check the buffered rows and return the state."""
        state.flush()
        return state
