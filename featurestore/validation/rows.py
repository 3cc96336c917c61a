"""Row-level checks as an accumulator.

Built-in ones batch by batch, expectations chunk by chunk of the needed columns.

A validator costs tens of milliseconds a call, so batches are gathered into chunks. A state that
leaves its process (an executor's result) checks what it still holds first: gathered rows never
travel.
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
    """What was found so far, and the batches that wait to be checked together."""

    rules: RowExpectations
    rows: int = 0
    checks: list[CheckCounts] = field(default_factory=list)
    found: list[CheckCounts] = field(default_factory=list)
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0

    def gather(self, batch: pa.RecordBatch) -> None:
        """Keep a batch until a chunk is full."""
        self.waiting.append(batch)
        self.waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        if self.waiting_rows >= _CHUNK_ROWS or self.waiting_bytes >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Check the batches that wait."""
        if not self.waiting or self.rules.validator is None:
            return
        table = pa.Table.from_batches(self.waiting)
        self.waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0
        outcomes = self.rules.validator.check(table, self.rules.expectations)
        for expectation, found, outcome in zip(
            self.rules.expectations, self.found, outcomes, strict=True
        ):
            samples: list[dict[str, Any]] = []
            if outcome.failing is not None:
                samples = sample_rows(table, outcome.failing, self.rules.columns(expectation))
            found.warning = outcome.result.warning
            found.add(table.num_rows, outcome.checked, outcome.result.unexpected, samples)

    def __reduce__(self) -> tuple[Callable[..., RowState], tuple[Any, ...]]:
        self.flush()
        return RowState, (self.rules, self.rows, self.checks, self.found)


@dataclass(frozen=True)
class RowAccumulator(Accumulator[RowState, RowState]):
    """Checks every row once."""

    checks: tuple[RowCheck, ...]
    rules: RowExpectations

    def start(self) -> RowState:
        """Return the state of no rows."""
        of_checks = [CheckCounts() for _ in self.checks]
        of_rules = [CheckCounts() for _ in self.rules.expectations]
        return RowState(self.rules, 0, of_checks, of_rules)

    def update(self, state: RowState, batch: pa.RecordBatch) -> RowState:
        """Check a batch, or keep it until a chunk is full."""
        state.rows += batch.num_rows
        for check, found in zip(self.checks, state.checks, strict=True):
            failing = check.failing(batch)
            unexpected = int(failing.sum())
            samples: list[dict[str, Any]] = []
            if unexpected:
                samples = sample_rows(batch, failing, (*self.rules.key, *check.columns))
            found.add(batch.num_rows, batch.num_rows, unexpected, samples)
        if self.rules.expectations and batch.num_rows:
            state.gather(batch)
        return state

    def merge(self, left: RowState, right: RowState) -> RowState:
        """Add the right state to the left one in place."""
        left.flush()
        right.flush()
        left.rows += right.rows
        lefts, rights = [*left.checks, *left.found], [*right.checks, *right.found]
        for mine, theirs in zip(lefts, rights, strict=True):
            mine.warning = mine.warning or theirs.warning
            mine.add(theirs.rows, theirs.checked, theirs.unexpected, theirs.samples)
        return left

    def finish(self, state: RowState) -> RowState:
        """Check the rows that wait and return the state."""
        state.flush()
        return state
