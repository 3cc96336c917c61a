"""Fit the transformations of an export on the rows of one split, inside the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featurestore.arrow.batches import select_rows
from featurestore.model.manifest import Manifest
from featurestore.plugins.engine import Accumulator, Engine
from featurestore.training.export.assignment import Assignment
from featurestore.training.export.hash_columns import groups_and_hashes
from featurestore.training.export.hashed_rows import HashedRows
from featurestore.training.export.request import ExportRequest
from featurestore.training.transformations import (
    fit_columns,
    statistics_by_column,
    write_transformations,
)
from featurestore.transform.counting import ColumnState, CountStates, ValueCounts
from featurestore.transform.fitted import Transformations


@dataclass(frozen=True)
class SplitValueCounts(Accumulator[CountStates, CountStates]):
    """Counts the distinct values of the rows of one split."""

    assignment: Assignment
    split: int
    counts: ValueCounts

    def start(self) -> CountStates:
        """Return the state of no rows."""
        return self.counts.start()

    def update(self, state: CountStates, batch: pa.RecordBatch) -> CountStates:
        """Count the values of the split's rows in a batch."""
        row_splits = self.assignment.split_of(*groups_and_hashes(batch))
        rows = np.flatnonzero(row_splits == self.split)
        if not len(rows):
            return state
        if len(rows) < batch.num_rows:
            batch = select_rows(batch, rows)
        return self.counts.update(state, batch)

    def merge(self, state: CountStates, other_state: CountStates) -> CountStates:
        """Merge column by column."""
        return self.counts.merge(state, other_state)

    def finish(self, state: CountStates) -> CountStates:
        """Return the counts by distinct value."""
        return self.counts.finish(state)


def fit_transformations(
    engine: Engine,
    rows: HashedRows,
    assignment: Assignment,
    request: ExportRequest,
    manifest: Manifest,
    directory: str,
) -> dict[str, str]:
    """Fit and write the transformations of an export; return their manifest entry."""
    split = request.rule.names.index(request.fit_on)

    def count(names: Sequence[str]) -> dict[str, ColumnState]:
        accumulator = SplitValueCounts(assignment, split, ValueCounts(tuple(names)))
        return rows.aggregate(engine, accumulator, columns=names, threads=accumulator.threads)

    statistics = statistics_by_column(directory, manifest, request.fit_on)
    fitted = Transformations(
        dataset=manifest.name,
        version=manifest.version,
        fit_on=request.fit_on,
        rows=manifest.split(request.fit_on).rows,
        columns=fit_columns(request.transformations, manifest, statistics, count),
    )
    return write_transformations(directory, fitted)
