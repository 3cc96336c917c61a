"""Statistics of splits, computed by shard writers, by a separate pass, or after the export.

Transformations are fitted on these statistics, and on value counts of another pass if necessary.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from featurestore.arrow.batches import select_rows
from featurestore.arrow.repeated_columns import find_repeated
from featurestore.errors import DataWarning, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.json_object import JsonMapping
from featurestore.model.threads import independent_tasks
from featurestore.plugins.engine import Accumulator
from featurestore.plugins.format import DatasetContents
from featurestore.statistics import (
    ColumnStatistics,
    Statistics,
    StatisticsAccumulator,
    StatisticsState,
    finish,
    is_sample_short,
    statistics_accumulator,
)
from featurestore.statistics.clusters import rows_from_bytes, rows_to_bytes, select_cluster_rows
from featurestore.storage import files, storage_for
from featurestore.training.export.assignment import Assignment
from featurestore.training.export.boundaries import groups_and_hashes
from featurestore.training.export.hashed_rows import HashedRows
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import ExportPlan
from featurestore.training.transformations import (
    fit_columns,
    statistics_by_column,
    write_transformations,
)
from featurestore.transform.fit import ColumnState, ValueCounts
from featurestore.transform.fitted import Transformations

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset


STATISTICS = "_statistics"
# The batch size of the engines, so that both counting methods process the same batches.
_BATCH_ROWS = 65_536
_MIN_SHARD_ROWS = 32_768
_MAX_RETURNED_SHARDS = 256
# In splits with fewer rows, distinct values do not indicate row numbers.
_MIN_ROWS = 20
SplitStates = dict[int, StatisticsState]
State = TypeVar("State")
Result = TypeVar("Result")


@dataclass(frozen=True)
class SplitAccumulator(Accumulator[dict[int, State], dict[int, Result]]):
    """An accumulator that aggregates each split by a separate accumulator.

    Splits without an accumulator are skipped. Splits without rows have no state and no result.
    """

    assignment: Assignment
    accumulators: Mapping[int, Accumulator[State, Result]]

    def start(self) -> dict[int, State]:
        """Return the empty state."""
        return {}

    def update(self, state: dict[int, State], batch: pa.RecordBatch) -> dict[int, State]:
        """Update the state of each split with its rows of a batch."""
        row_splits = self.assignment.find_splits(*groups_and_hashes(batch))
        for split, accumulator in self.accumulators.items():
            rows = np.flatnonzero(row_splits == split)
            if not len(rows):
                continue
            split_batch = batch
            # Copies of rows are only made if a batch contains rows of several splits.
            if len(rows) < batch.num_rows:
                split_batch = select_rows(batch, rows)
            if split not in state:
                state[split] = accumulator.start()
            state[split] = accumulator.update(state[split], split_batch)
        return state

    def merge(self, state: dict[int, State], other_state: dict[int, State]) -> dict[int, State]:
        """Merge the states of each split."""
        for split, split_state in other_state.items():
            if split in state:
                state[split] = self.accumulators[split].merge(state[split], split_state)
            else:
                state[split] = split_state
        return state

    def finish(self, state: dict[int, State]) -> dict[int, Result]:
        """Return the result of each split that has rows."""
        return {
            split: self.accumulators[split].finish(split_state)
            for split, split_state in state.items()
        }


@dataclass(frozen=True)
class ShardCounting:
    """A picklable function that computes statistics of a shard while an executor writes it."""

    accumulators: tuple[StatisticsAccumulator, ...]
    splits: tuple[int, ...]

    def count_batches(
        self,
        number: int,
        batches: Iterator[pa.RecordBatch],
        report_state: Callable[[StatisticsState], None],
    ) -> Iterator[pa.RecordBatch]:
        """Count the batches of a shard and yield them; pass the final state to ``report_state``."""
        accumulator = self.accumulators[self.splits[number]]
        state = accumulator.start()
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                state = accumulator.update(state, batch.slice(start, _BATCH_ROWS))
            yield batch
        report_state(state)


class ShardStatistics:
    """The statistics of each split, merged from the statistics of its shards.

    States are merged in shard order rather than in order of completion, so that floating-point sums
    are deterministic.
    """

    def __init__(self, request: ExportRequest, plan: ExportPlan) -> None:
        splits: list[int] = []
        for split, shards in enumerate(plan.shards):
            splits += [split] * len(shards)
        self.counting = ShardCounting(_bounded_accumulators(request, plan), tuple(splits))
        self._next = list(plan.assignment.first_shard)
        self._states: SplitStates = {}
        self._waiting: SplitStates = {}
        # Engines report shards from several threads.
        self._lock = threading.Lock()

    def add(self, number: int, state: StatisticsState) -> None:
        """Add the state of a shard. Thread-safe."""
        with self._lock:
            self._waiting[number] = state
            self._merge(self.counting.splits[number])

    def states(self) -> list[StatisticsState] | None:
        """Return the state of each split, or None if duplicates make a sample too small."""
        result = []
        for split, accumulator in enumerate(self.counting.accumulators):
            # A split without rows has no state.
            state = accumulator.finish(self._states.get(split) or accumulator.start())
            if is_sample_short(accumulator, state):
                return None
            result.append(state)
        return result

    def _merge(self, split: int) -> None:
        """Merge the waiting states of a split that are next in shard order."""
        # A state waits until all earlier shards of its split are merged.
        while self._next[split] in self._waiting:
            state = self._waiting.pop(self._next[split])
            if split in self._states:
                state = self.counting.accumulators[split].merge(self._states[split], state)
            self._states[split] = state
            self._next[split] += 1


def make_shard_statistics(rows: HashedRows, plan: ExportPlan) -> ShardStatistics | None:
    """Create the statistics to compute while shards are written; None if a separate pass is better.

    A separate pass is better for small shards, since a small batch needs as many calls as a large
    one. It is also better for many shards on executors, since all states are in memory at once.
    """
    if not rows.request.training.statistics:
        return None
    shards = sum(map(len, plan.shards))
    if shards > _MAX_RETURNED_SHARDS and not rows.engine.runs_in_process:
        return None
    if sum(plan.rows) < shards * _MIN_SHARD_ROWS:
        return None
    return ShardStatistics(rows.request, plan)


def split_states(
    rows: HashedRows, plan: ExportPlan, shard_statistics: ShardStatistics | None
) -> list[StatisticsState]:
    """Return the statistics of each split from the shard writers, or else from a separate pass."""
    if shard_statistics is None:
        return count_splits(rows, plan)
    states = shard_statistics.states()
    if states is None:
        states = count_splits(rows, plan, with_copies=True)
    return states


def count_splits(
    rows: HashedRows, plan: ExportPlan, *, with_copies: bool = False
) -> list[StatisticsState]:
    """Compute the statistics of each split in one pass.

    The number of rows in each split is known, so each partition takes a proportional sample. If
    duplicates make a sample too small, rows are counted again without a bound on the sample.
    ``with_copies`` skips the bounded pass.
    """
    request = rows.request
    if not with_copies:
        bounded = _bounded_accumulators(request, plan)
        states = _aggregate_splits(rows, plan, bounded)
        if not any(is_sample_short(bounded[split], state) for split, state in states.items()):
            return _fill_missing_states(states, bounded)
    unbounded = statistics_accumulator(request.schema, roles=request.roles)
    accumulators = (unbounded,) * len(plan.rows)
    return _fill_missing_states(_aggregate_splits(rows, plan, accumulators), accumulators)


def _aggregate_splits(
    rows: HashedRows, plan: ExportPlan, accumulators: tuple[StatisticsAccumulator, ...]
) -> SplitStates:
    accumulator = SplitAccumulator(plan.assignment, dict(enumerate(accumulators)))
    columns = rows.request.columns
    return rows.aggregate(accumulator, columns=columns, threads=accumulator.threads)


def _bounded_accumulators(
    request: ExportRequest, plan: ExportPlan
) -> tuple[StatisticsAccumulator, ...]:
    accumulators = [
        statistics_accumulator(request.schema, rows=rows, roles=request.roles) for rows in plan.rows
    ]
    return tuple(accumulators)


def _fill_missing_states(
    states: SplitStates, accumulators: Sequence[StatisticsAccumulator]
) -> list[StatisticsState]:
    all_states = [
        states.get(split) or accumulator.start() for split, accumulator in enumerate(accumulators)
    ]
    return all_states


@dataclass(frozen=True)
class EncodedStatistics:
    """The statistics of a split, and the contents of its statistics and sample files.

    ``repeated_labels`` are the features that repeat a label, by label.
    """

    statistics: Statistics
    content: bytes
    sample: bytes
    repeated_labels: Mapping[str, Mapping[str, str]]


@contextmanager
def statistics_while_writing(
    rows: HashedRows, plan: ExportPlan, shard_statistics: ShardStatistics | None
) -> Iterator[Callable[[], list[EncodedStatistics]]]:
    """Yield a function that returns the statistics of each split, to be called after the block.

    The block writes the shards. A separate pass runs in a thread meanwhile if the rows are in this
    process, because the writers leave processors idle: they wait for the disk, and the last shards
    have fewer writers than processors.
    """
    training = rows.request.training

    def compute() -> list[EncodedStatistics]:
        states = split_states(rows, plan, shard_statistics)
        encoded = []
        for split, state in zip(rows.request.rule.names, states, strict=True):
            statistics = finish(state, source={"training_dataset": training.name, "split": split})
            sample = rows_to_bytes(select_cluster_rows(state))
            repeated_labels = find_repeated_labels(state)
            encoded.append(
                EncodedStatistics(statistics, statistics.to_bytes(), sample, repeated_labels)
            )
        return encoded

    needs_pass = training.statistics and shard_statistics is None
    if not needs_pass or not rows.engine.runs_in_process:
        yield compute
        return
    with independent_tasks(1, "featurestore-statistics") as pool:
        yield pool.submit(compute).result


def write_statistics(
    directory: str, dataset: str, splits: Sequence[str], encoded: Sequence[EncodedStatistics]
) -> dict[str, Any]:
    """Write the statistics and the cluster sample of each split; return their manifest entries.

    This function also warns about inputs that look like row numbers or repeat a label.
    """
    storage = storage_for(directory)
    entries = {}
    for split, statistics in zip(splits, encoded, strict=True):
        statistics_path = os.path.join(STATISTICS, f"{split}.json")
        sample_path = os.path.join(STATISTICS, f"{split}.sample.arrow")
        storage.write_atomically(os.path.join(directory, statistics_path), statistics.content)
        storage.write_atomically(os.path.join(directory, sample_path), statistics.sample)
        # The manifest stores the hash of each file, so that damage is detected.
        entries[split] = {
            **_manifest_entry(directory, statistics_path),
            "sample": _manifest_entry(directory, sample_path),
        }
    warn_about_row_ids([split.statistics for split in encoded])
    training_split = splits.index("train") if "train" in splits else 0
    warn_about_repeated_labels(dataset, encoded[training_split].repeated_labels)
    return entries


def find_repeated_labels(state: StatisticsState) -> dict[str, dict[str, str]]:
    """Return the features that repeat a label in the sample of a split, by label."""
    rows = state.sample.rows()
    features, labels = {}, {}
    for column in state.columns:
        # The sample has only the lengths of binary values and lists.
        if column.value_kind in ("binary", "list", "struct"):
            continue
        if column.role == "label":
            labels[column.name] = rows.column(column.name)
        elif column.role == "feature":
            features[column.name] = rows.column(column.name)
    return find_repeated(features, labels)


def warn_about_repeated_labels(dataset: str, repeated: Mapping[str, Mapping[str, str]]) -> None:
    """Warn about features from which a model can read the label, once for each label."""
    for label, correspondences in repeated.items():
        features = [f"{name!r} ({text})" for name, text in correspondences.items()]
        warn_caller(
            f"features of training dataset {dataset!r} repeat the label {label!r}: "
            f"{', '.join(features)}: look at how they are computed, and whether they are known "
            f"before the label; exclude={list(correspondences)} removes them",
            DataWarning,
        )


def warn_about_row_ids(splits: Sequence[Statistics]) -> None:
    """Warn about inputs that are distinct in every row, since a model could memorize rows by them.

    Only integers and strings are checked, since floating-point measurements rarely repeat anyway.
    """
    row_id_names = []
    for column in splits[0].columns:
        columns = [split.column(column.name) for split in splits]
        if column.role == "feature" and all(map(_is_row_id, columns, splits)):
            row_id_names.append(column.name)
    if row_id_names and sum(split.rows for split in splits) >= _MIN_ROWS:
        warn_caller(
            f"inputs with a distinct value in every row, such as row numbers: {listing(row_id_names)}; "
            f"exclude={row_id_names} removes them",
        )


def _is_row_id(column: ColumnStatistics, split: Statistics) -> bool:
    is_integer_or_text = column.kind == "text" or (column.kind == "number" and "int" in column.type)
    return is_integer_or_text and column.count == split.rows and column.distinct == split.rows


def _manifest_entry(directory: str, path: str) -> dict[str, Any]:
    return {"path": path, "sha256": files.sha256(os.path.join(directory, path))}


def fit_transformations(
    rows: HashedRows,
    plan: ExportPlan,
    contents: DatasetContents,
    *,
    version: int,
    statistics: JsonMapping,
    directory: str,
) -> dict[str, str]:
    """Fit the transformations of an export, write their file and return its manifest entry.

    ``statistics`` are the manifest entries of the statistics of splits.
    """
    request, fit_on = rows.request, rows.request.training.fit_on
    split = request.rule.names.index(fit_on)

    def count_values(names: Sequence[str]) -> dict[str, ColumnState]:
        counts = ValueCounts(tuple(names))
        # Only the split to fit on is counted, so that no other split influences the
        # transformations.
        accumulator = SplitAccumulator(plan.assignment, {split: counts})
        states = rows.aggregate(accumulator, columns=names, threads=accumulator.threads)
        return states.get(split) or counts.finish(counts.start())

    columns = fit_columns(
        request.transformations,
        contents.columns,
        statistics_by_column(directory, statistics.get(fit_on)),
        count_values,
    )
    fitted = Transformations(
        dataset=request.training.name,
        version=version,
        fit_on=fit_on,
        rows=plan.rows[split],
        columns=columns,
    )
    return write_transformations(directory, fitted)


def split_statistics(
    dataset: TrainingDataset, split: str | None, compare_with: str | None = None
) -> tuple[Statistics, Statistics | None]:
    """Return the statistics of a split (by default the first) and of the split to compare."""
    statistics = dataset.statistics(split or dataset.splits[0])
    if compare_with is None:
        return statistics, None
    return statistics, dataset.statistics(compare_with)


def cluster_sample(
    dataset: TrainingDataset, split: str | None
) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """Return a row sample of a split (by default the first) for clustering, and its source.

    The split is read if the export computed no statistics.
    """
    name = split or dataset.splits[0]
    source = {"training_dataset": dataset.name, "version": dataset.version, "split": name}
    sample = dataset.manifest.statistics.get(name, {}).get("sample")
    if sample is not None:
        path = storage_for(dataset.path).resolve_inside(dataset.path, sample["path"])
        return rows_from_bytes(storage_for(path).read_bytes(path)), source
    return select_cluster_rows(_count_split(dataset, name)), source


def count_split_statistics(dataset: TrainingDataset, split: str) -> Statistics:
    """Compute the statistics of a split from its rows."""
    return finish(
        _count_split(dataset, split), source={"training_dataset": dataset.name, "split": split}
    )


def _count_split(dataset: TrainingDataset, split: str) -> StatisticsState:
    frame = dataset.read(split)
    accumulator = statistics_accumulator(frame.schema, roles=dataset.roles)
    state = accumulator.start()
    for batch in frame.to_batches():
        state = accumulator.update(state, batch)
    return accumulator.finish(state)
