"""Statistics of every split of an export, counted in one pass over its rows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.arrow_rows import select_rows
from featurestore.errors import listing
from featurestore.model.callers import warn_caller
from featurestore.model.manifest import Manifest
from featurestore.plugins.engine import Accumulator, Engine, HoldsRows
from featurestore.statistics import (
    ColumnStatistics,
    Statistics,
    StatisticsAccumulator,
    StatisticsState,
    finish,
    is_sample_short,
    statistics_accumulator,
)
from featurestore.statistics.clusters import cluster_rows, rows_to_bytes
from featurestore.storage import files
from featurestore.training.export.assignment import Assignment
from featurestore.training.export.hash_columns import groups_and_hashes
from featurestore.training.export.hashed_rows import HashedRows
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import ShardPlan

STATISTICS = "_statistics"
# As many rows are counted at once as engines hand out.
_BATCH_ROWS = 65_536
_FEWEST_SHARD_ROWS = 32_768
_MOST_RETURNED_SHARDS = 256
# Among fewer rows any column may have no value twice.
_FEWEST_ROWS = 20
SplitStates = dict[int, StatisticsState]


@dataclass(frozen=True)
class SplitStatisticsAccumulator(Accumulator[SplitStates, SplitStates]):
    """Counts each split by its own accumulator; splits without rows have no state."""

    assignment: Assignment
    accumulators: tuple[StatisticsAccumulator, ...]

    def start(self) -> SplitStates:
        """Return the state of no rows."""
        return {}

    def update(self, state: SplitStates, batch: pa.RecordBatch) -> SplitStates:
        """Add each row to its split's statistics."""
        split_of = self.assignment.split_of(*groups_and_hashes(batch))
        for split, accumulator in enumerate(self.accumulators):
            rows = np.flatnonzero(split_of == split)
            if not len(rows):
                continue
            part = batch
            if len(rows) < batch.num_rows:
                part = select_rows(batch, rows)
            if split not in state:
                state[split] = accumulator.start()
            state[split] = accumulator.update(state[split], part)
        return state

    def merge(self, left: SplitStates, right: SplitStates) -> SplitStates:
        """Merge split by split."""
        for split, state in right.items():
            if split in left:
                left[split] = self.accumulators[split].merge(left[split], state)
            else:
                left[split] = state
        return left

    def finish(self, state: SplitStates) -> SplitStates:
        """Return the counted state of each split that has rows."""
        finished = {}
        for split, each in state.items():
            finished[split] = self.accumulators[split].finish(each)
        return finished


@dataclass(frozen=True)
class ShardCounting:
    """Counts the batches that a shard is written of, where that is; picklable."""

    accumulators: tuple[StatisticsAccumulator, ...]
    splits: tuple[int, ...]

    def counted(
        self,
        number: int,
        batches: Iterator[pa.RecordBatch],
        done: Callable[[StatisticsState], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a shard and count them; ``done`` gets the state at their end."""
        accumulator = self.accumulators[self.splits[number]]
        state = accumulator.start()
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                state = accumulator.update(state, batch.slice(start, _BATCH_ROWS))
            yield batch
        done(state)


class ShardStatistics:
    """The statistics of each split from the counts of its shards.

    The rows are then not read once more. States are merged in the order of the shards, whichever
    is written first, so that sums of floats come out the same every time.
    """

    def __init__(self, request: ExportRequest, plan: ShardPlan) -> None:
        splits: list[int] = []
        for split, sizes in enumerate(plan.shard_rows):
            splits += [split] * len(sizes)
        self.counting = ShardCounting(_bounded(request, plan), tuple(splits))
        self._next = list(plan.assignment.first_shard)
        self._states: SplitStates = {}
        self._waiting: SplitStates = {}
        self._lock = threading.Lock()

    def add(self, number: int, state: StatisticsState) -> None:
        """Take the state of a shard; any thread may."""
        with self._lock:
            self._waiting[number] = state
            self._merge(self.counting.splits[number])

    def states(self) -> list[StatisticsState] | None:
        """Return the state of each split; None where copies make a sample too small."""
        result = []
        for split, accumulator in enumerate(self.counting.accumulators):
            state = accumulator.finish(self._states.get(split) or accumulator.start())
            if is_sample_short(accumulator, state):
                return None
            result.append(state)
        return result

    def _merge(self, split: int) -> None:
        while self._next[split] in self._waiting:
            state = self._waiting.pop(self._next[split])
            if split in self._states:
                state = self.counting.accumulators[split].merge(self._states[split], state)
            self._states[split] = state
            self._next[split] += 1


def counting_writers(
    engine: Engine, request: ExportRequest, plan: ShardPlan
) -> ShardStatistics | None:
    """Return what counts the rows while they are written; None where a pass of its own is better.

    That is so where shards are small: a batch costs as many calls as a large one. And where many
    come from elsewhere: the states of all are here at once then.
    """
    if not request.statistics:
        return None
    shards = sum(map(len, plan.shard_rows))
    if shards > _MOST_RETURNED_SHARDS and not isinstance(engine, HoldsRows):
        return None
    if sum(plan.rows) < shards * _FEWEST_SHARD_ROWS:
        return None
    return ShardStatistics(request, plan)


def count_splits(
    engine: Engine,
    rows: HashedRows,
    request: ExportRequest,
    plan: ShardPlan,
    *,
    with_copies: bool = False,
) -> list[StatisticsState]:
    """Return the counted state of each split, whose rows are known.

    Each partition samples its share of a split's rows. Where copies make a sample too small
    (``with_copies``: that is known), all is counted again without that bound.
    """
    if not with_copies:
        bounded = _bounded(request, plan)
        states = _states(engine, rows, plan, bounded)
        if not any(is_sample_short(bounded[split], state) for split, state in states.items()):
            return _of_every_split(states, bounded)
    unbounded = statistics_accumulator(request.schema, roles=request.roles)
    accumulators = (unbounded,) * len(plan.rows)
    return _of_every_split(_states(engine, rows, plan, accumulators), accumulators)


def _states(
    engine: Engine,
    rows: HashedRows,
    plan: ShardPlan,
    accumulators: tuple[StatisticsAccumulator, ...],
) -> SplitStates:
    accumulator = SplitStatisticsAccumulator(plan.assignment, accumulators)
    columns = rows.request.columns
    return rows.aggregate(engine, accumulator, columns=columns, threads=accumulator.threads)


def _bounded(request: ExportRequest, plan: ShardPlan) -> tuple[StatisticsAccumulator, ...]:
    accumulators = []
    for rows in plan.rows:
        accumulators.append(statistics_accumulator(request.schema, rows=rows, roles=request.roles))
    return tuple(accumulators)


def _of_every_split(
    states: SplitStates, accumulators: Sequence[StatisticsAccumulator]
) -> list[StatisticsState]:
    result = []
    for split, accumulator in enumerate(accumulators):
        result.append(states.get(split) or accumulator.start())
    return result


def write_statistics(
    directory: str, manifest: Manifest, states: list[StatisticsState]
) -> dict[str, Any]:
    """Write the statistics and the cluster sample of each split.

    Return what the manifest notes of them. Warn of inputs that look like numbers of rows.
    """
    noted, results = {}, []
    for split, state in zip(manifest.splits, states, strict=True):
        result = finish(state, source={"training_dataset": manifest.name, "split": split.name})
        results.append(result)
        statistics = os.path.join(STATISTICS, f"{split.name}.json")
        sample = os.path.join(STATISTICS, f"{split.name}.sample.arrow")
        files.write_atomically(os.path.join(directory, statistics), result.to_bytes())
        files.write_atomically(os.path.join(directory, sample), rows_to_bytes(cluster_rows(state)))
        noted[split.name] = {**_noted(directory, statistics), "sample": _noted(directory, sample)}
    warn_of_row_ids(results)
    return noted


def warn_of_row_ids(splits: Sequence[Statistics]) -> None:
    """Warn of inputs that have another value in every row: a model learns rows by heart there.

    Whole numbers and texts only; measured numbers rarely repeat.
    """
    found = []
    for column in splits[0].columns:
        of_splits = [split.column(column.name) for split in splits]
        if column.role == "feature" and all(map(_is_row_id, of_splits, splits)):
            found.append(column.name)
    if found and sum(split.rows for split in splits) >= _FEWEST_ROWS:
        warn_caller(
            f"inputs that have another value in every row, as row numbers have: {listing(found)}; "
            f"exclude={found} takes them away",
        )


def _is_row_id(column: ColumnStatistics, split: Statistics) -> bool:
    whole = column.kind == "text" or (column.kind == "number" and "int" in column.type)
    return whole and column.count == split.rows and column.distinct == split.rows


def _noted(directory: str, path: str) -> dict[str, Any]:
    return {"path": path, "sha256": files.sha256(os.path.join(directory, path))}
