"""Statistics of the splits of an export, computed by its writers or in one pass over its rows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.batches import select_rows
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
# The batch size of the engines, so that both ways of counting see the same batches.
_BATCH_ROWS = 65_536
_MIN_SHARD_ROWS = 32_768
_MAX_RETURNED_SHARDS = 256
# Below this number of rows distinct values are no evidence of a row number.
_MIN_ROWS = 20
SplitStates = dict[int, StatisticsState]


@dataclass(frozen=True)
class SplitStatisticsAccumulator(Accumulator[SplitStates, SplitStates]):
    """Counts each split with its own accumulator; splits without rows have no state."""

    assignment: Assignment
    accumulators: tuple[StatisticsAccumulator, ...]

    def start(self) -> SplitStates:
        """Return the state of no rows."""
        return {}

    def update(self, state: SplitStates, batch: pa.RecordBatch) -> SplitStates:
        """Add each row to its split's statistics."""
        row_splits = self.assignment.split_of(*groups_and_hashes(batch))
        for split, accumulator in enumerate(self.accumulators):
            rows = np.flatnonzero(row_splits == split)
            if not len(rows):
                continue
            split_batch = batch
            if len(rows) < batch.num_rows:
                split_batch = select_rows(batch, rows)
            if split not in state:
                state[split] = accumulator.start()
            state[split] = accumulator.update(state[split], split_batch)
        return state

    def merge(self, state: SplitStates, other_state: SplitStates) -> SplitStates:
        """Merge split by split."""
        for split, split_state in other_state.items():
            if split in state:
                state[split] = self.accumulators[split].merge(state[split], split_state)
            else:
                state[split] = split_state
        return state

    def finish(self, state: SplitStates) -> SplitStates:
        """Return the counted state of each split that has rows."""
        finished = {split: self.accumulators[split].finish(each) for split, each in state.items()}
        return finished


@dataclass(frozen=True)
class ShardCounting:
    """Computes statistics of a shard while it is written; picklable, so it runs on executors."""

    accumulators: tuple[StatisticsAccumulator, ...]
    splits: tuple[int, ...]

    def count_batches(
        self,
        number: int,
        batches: Iterator[pa.RecordBatch],
        report_state: Callable[[StatisticsState], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a shard and count them; ``report_state`` receives the final state."""
        accumulator = self.accumulators[self.splits[number]]
        state = accumulator.start()
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                state = accumulator.update(state, batch.slice(start, _BATCH_ROWS))
            yield batch
        report_state(state)


class ShardStatistics:
    """The statistics of each split, merged from those of its shards without another pass.

    States are merged in shard order, not in the order of completion, so that sums of floats are
    deterministic.
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
        """Add the state of a shard; thread-safe."""
        with self._lock:
            self._waiting[number] = state
            self._merge(self.counting.splits[number])

    def states(self) -> list[StatisticsState] | None:
        """Return the state of each split; None if duplicates make a sample too small."""
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
    """Return the statistics to compute while shards are written; None if a separate pass is better.

    A separate pass is better for small shards, since a small batch costs as many calls as a large
    one, and for many shards from executors, since all of their states are in memory at once.
    """
    if not request.statistics:
        return None
    shards = sum(map(len, plan.shard_rows))
    if shards > _MAX_RETURNED_SHARDS and not isinstance(engine, HoldsRows):
        return None
    if sum(plan.rows) < shards * _MIN_SHARD_ROWS:
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
    """Return the statistics of each split in one pass; the rows of each split are known.

    Each partition samples in proportion to a split's rows. If duplicates make a sample too small,
    the rows are counted again without that bound; ``with_copies`` skips the bounded pass.
    """
    if not with_copies:
        bounded = _bounded(request, plan)
        states = _states(engine, rows, plan, bounded)
        if not any(is_sample_short(bounded[split], state) for split, state in states.items()):
            return _states_of_all_splits(states, bounded)
    unbounded = statistics_accumulator(request.schema, roles=request.roles)
    accumulators = (unbounded,) * len(plan.rows)
    return _states_of_all_splits(_states(engine, rows, plan, accumulators), accumulators)


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
    accumulators = [
        statistics_accumulator(request.schema, rows=rows, roles=request.roles) for rows in plan.rows
    ]
    return tuple(accumulators)


def _states_of_all_splits(
    states: SplitStates, accumulators: Sequence[StatisticsAccumulator]
) -> list[StatisticsState]:
    all_states = [
        states.get(split) or accumulator.start() for split, accumulator in enumerate(accumulators)
    ]
    return all_states


def write_statistics(
    directory: str, manifest: Manifest, states: list[StatisticsState]
) -> dict[str, Any]:
    """Write the statistics and the cluster sample of each split; return their manifest entries.

    Warns about inputs that look like row numbers.
    """
    entries, split_statistics = {}, []
    for split, state in zip(manifest.splits, states, strict=True):
        statistics = finish(state, source={"training_dataset": manifest.name, "split": split.name})
        split_statistics.append(statistics)
        statistics_path = os.path.join(STATISTICS, f"{split.name}.json")
        sample_path = os.path.join(STATISTICS, f"{split.name}.sample.arrow")
        files.write_atomically(os.path.join(directory, statistics_path), statistics.to_bytes())
        files.write_atomically(
            os.path.join(directory, sample_path), rows_to_bytes(cluster_rows(state))
        )
        entries[split.name] = {
            **_manifest_entry(directory, statistics_path),
            "sample": _manifest_entry(directory, sample_path),
        }
    warn_about_row_ids(split_statistics)
    return entries


def warn_about_row_ids(splits: Sequence[Statistics]) -> None:
    """Warn about inputs with a distinct value in every row, with which a model memorizes rows.

    Only integers and strings count; measured numbers rarely repeat anyway.
    """
    row_id_names = []
    for column in splits[0].columns:
        columns = [split.column(column.name) for split in splits]
        if column.role == "feature" and all(map(_is_row_id, columns, splits)):
            row_id_names.append(column.name)
    if row_id_names and sum(split.rows for split in splits) >= _MIN_ROWS:
        warn_caller(
            f"inputs with a distinct value in every row, like row numbers: {listing(row_id_names)}; "
            f"exclude={row_id_names} removes them",
        )


def _is_row_id(column: ColumnStatistics, split: Statistics) -> bool:
    is_integer_or_text = column.kind == "text" or (column.kind == "number" and "int" in column.type)
    return is_integer_or_text and column.count == split.rows and column.distinct == split.rows


def _manifest_entry(directory: str, path: str) -> dict[str, Any]:
    return {"path": path, "sha256": files.sha256(os.path.join(directory, path))}
