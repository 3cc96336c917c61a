"""The gate and the statistics of an export: what is looked at between staging and manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.errors import InvalidArgument
from featurestore.model.arrow_rows import rows_at
from featurestore.model.featuregroup import VALIDATION_POLICIES
from featurestore.model.manifest import Manifest
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Accumulator, Relation
from featurestore.plugins.validator import find_validator
from featurestore.registry import reports
from featurestore.registry.training_datasets import KIND
from featurestore.session import Session
from featurestore.statistics import (
    StatisticsAccumulator,
    StatisticsState,
    finish,
    statistics_accumulator,
)
from featurestore.statistics.clusters import cluster_rows, rows_to_bytes
from featurestore.storage import files
from featurestore.training.export.boundaries import columns_of
from featurestore.training.export.pipeline import Inspect
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shards import Assignment
from featurestore.validation import Subject, audit, report_to_json

QUARANTINE = "_quarantine"
STATISTICS = "_statistics"


class Gate(Inspect):
    """Audits staged rows before a shard is written, and counts statistics of every split afterwards.

    Args:
        session: The store.
        request: The export.
        expectations: As for feature groups; None or empty: nothing is audited.
        policy: "strict", "warn", "quarantine" or "off". Quarantined rows lie as Parquet in the dataset's folder.
        statistics: Whether to count statistics.
    """

    def __init__(
        self,
        session: Session,
        request: ExportRequest,
        *,
        expectations: object,
        policy: str,
        statistics: bool,
    ) -> None:
        if policy not in VALIDATION_POLICIES:
            raise InvalidArgument(
                f"validation={policy!r} is no policy.",
                hint=f"one of {', '.join(VALIDATION_POLICIES)}",
            )
        self._session = session
        self._request = request
        self._policy = policy
        self._statistics = statistics
        self._validator = find_validator() if expectations else None
        self._expectations = (
            self._validator.normalize(expectations) if self._validator is not None else ()
        )
        self._report: ValidationReport | None = None
        self._quarantined: Relation | None = None

    def before(self, staged: Relation) -> Relation:
        """Return the rows that may be exported.

        Raises:
            ValidationFailed: Under "strict" an expectation failed.
        """
        if not self._expectations or self._policy == "off":
            return staged
        outcome = audit(
            staged,
            spec=Subject(self._request.name, 0, self._request.schema),
            validation=self._policy,
            engine=self._session.engine,
            expectations=self._expectations,
            validator=self._validator,
        )
        self._report = outcome.report
        self._quarantined = outcome.quarantined
        return outcome.good

    def after(
        self, staged: Relation, assignment: Assignment, manifest: Manifest, *, directory: str
    ) -> Manifest:
        """Write quarantined rows and statistics beside the shards, and note them."""
        if self._quarantined is not None:
            columns = {
                name: name
                for name in self._quarantined.schema.names
                if not name.startswith("__fs_")
            }
            rows = self._session.engine.select(self._quarantined, columns)
            self._session.engine.stage(rows, os.path.join(directory, QUARANTINE))
            manifest = replace(
                manifest,
                reproducible=False,
                reproducible_reason=f"failing rows were put aside in {QUARANTINE}/",
            )
        if not self._statistics:
            return manifest
        states = self._count(staged, assignment, manifest)
        noted = {}
        for split, state in zip(manifest.splits, states, strict=True):
            found = finish(state, source={"training_dataset": manifest.name, "split": split.name})
            path, sample = (
                os.path.join(STATISTICS, f"{split.name}.{end}") for end in ("json", "sample.arrow")
            )
            files.write_json(os.path.join(directory, path), found.to_json())
            files.write_atomically(
                os.path.join(directory, sample), rows_to_bytes(cluster_rows(state))
            )
            noted[split.name] = {**_noted(directory, path), "sample": _noted(directory, sample)}
        return replace(manifest, statistics=noted)

    def _count(
        self, staged: Relation, assignment: Assignment, manifest: Manifest
    ) -> list[StatisticsState]:
        """Return the counted state of each split.

        Each partition samples its share of a split's rows. Where copies make a sample too small, all is counted again
        without that bound.
        """
        schema, engine = self._request.schema, self._session.engine
        bounded = tuple(
            statistics_accumulator(schema, rows=split.rows) for split in manifest.splits
        )
        states = engine.aggregate(staged, SplitStatisticsAccumulator(assignment, bounded))
        if any(
            is_sample_short(accumulator, states.get(number))
            for number, accumulator in enumerate(bounded)
        ):
            unbounded = (statistics_accumulator(schema),) * len(bounded)
            states = engine.aggregate(staged, SplitStatisticsAccumulator(assignment, unbounded))
        return [
            states.get(number) or accumulator.start() for number, accumulator in enumerate(bounded)
        ]

    def record(self, manifest: Manifest) -> None:
        """Keep the validation report in the registry."""
        if self._report is None:
            return
        report = replace(self._report, version=manifest.version, run_id=manifest.run_id)
        with self._session.registry.transaction() as connection:
            reports.add_validation(connection, KIND, report_to_json(report))


def is_sample_short(accumulator: StatisticsAccumulator, state: StatisticsState | None) -> bool:
    """Tell whether a bounded accumulator sampled too few rows, because many are copies."""
    if accumulator.bound is None or state is None:
        return False
    state.sample.compact()
    return len(state.sample.weights()) < accumulator.limit


def _noted(directory: str, path: str) -> dict[str, Any]:
    return {"path": path, "sha256": files.sha256(os.path.join(directory, path))}


@dataclass(frozen=True)
class SplitStatisticsAccumulator(
    Accumulator[dict[int, StatisticsState], dict[int, StatisticsState]]
):
    """Statistics of each split in one pass, each by its own accumulator; state: ``{split number: state}``."""

    assignment: Assignment
    statistics: tuple[StatisticsAccumulator, ...]

    def start(self) -> dict[int, StatisticsState]:
        """Return the state of no rows."""
        return {}

    def update(
        self, state: dict[int, StatisticsState], batch: pa.RecordBatch
    ) -> dict[int, StatisticsState]:
        """Add each row to its split's statistics."""
        split_of = self.assignment.split_of(*columns_of(batch))
        for split, accumulator in enumerate(self.statistics):
            mine = np.flatnonzero(split_of == split)
            if len(mine):
                part = batch if len(mine) == batch.num_rows else rows_at(batch, mine)
                state[split] = accumulator.update(state.get(split) or accumulator.start(), part)
        return state

    def merge(
        self, left: dict[int, StatisticsState], right: dict[int, StatisticsState]
    ) -> dict[int, StatisticsState]:
        """Merge split by split."""
        for split, state in right.items():
            left[split] = (
                self.statistics[split].merge(left[split], state) if split in left else state
            )
        return left

    def finish(self, state: dict[int, StatisticsState]) -> dict[int, StatisticsState]:
        """Return the counted state of each split that has rows."""
        return state
