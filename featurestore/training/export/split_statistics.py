"""Statistics of every split of an export, counted in one pass over its rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.model.arrow_rows import rows_at
from featurestore.model.manifest import Manifest
from featurestore.plugins.engine import Accumulator, Engine, Relation
from featurestore.statistics import (
    StatisticsAccumulator,
    StatisticsState,
    finish,
    is_sample_short,
    statistics_accumulator,
)
from featurestore.statistics.clusters import cluster_rows, rows_to_bytes
from featurestore.storage import files
from featurestore.training.export.assignment import Assignment
from featurestore.training.export.hashed_rows import groups_and_hashes

STATISTICS = "_statistics"
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
                part = rows_at(batch, rows)
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


def count_splits(
    engine: Engine,
    rows: Relation,
    assignment: Assignment,
    *,
    schema: pa.Schema,
    split_rows: tuple[int, ...],
) -> list[StatisticsState]:
    """Return the counted state of each split, whose rows are known.

    Each partition samples its share of a split's rows. Where copies make a sample too small, all is
    counted again without that bound.
    """
    bounded = tuple(statistics_accumulator(schema, rows=count) for count in split_rows)
    states = engine.aggregate(rows, SplitStatisticsAccumulator(assignment, bounded))
    if any(is_sample_short(bounded[split], state) for split, state in states.items()):
        unbounded = (statistics_accumulator(schema),) * len(bounded)
        states = engine.aggregate(rows, SplitStatisticsAccumulator(assignment, unbounded))
    result = []
    for split, accumulator in enumerate(bounded):
        result.append(states.get(split) or accumulator.start())
    return result


def write_statistics(
    directory: str, manifest: Manifest, states: list[StatisticsState]
) -> dict[str, Any]:
    """Write the statistics and the cluster sample of each split.

    Return what the manifest notes of them.
    """
    noted = {}
    for split, state in zip(manifest.splits, states, strict=True):
        result = finish(state, source={"training_dataset": manifest.name, "split": split.name})
        statistics = os.path.join(STATISTICS, f"{split.name}.json")
        sample = os.path.join(STATISTICS, f"{split.name}.sample.arrow")
        files.write_json(os.path.join(directory, statistics), result.to_json())
        files.write_atomically(os.path.join(directory, sample), rows_to_bytes(cluster_rows(state)))
        noted[split.name] = {**_noted(directory, statistics), "sample": _noted(directory, sample)}
    return noted


def _noted(directory: str, path: str) -> dict[str, Any]:
    return {"path": path, "sha256": files.sha256(os.path.join(directory, path))}
