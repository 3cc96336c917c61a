"""Shards written by the engine itself, for formats that describe their records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.records import (
    DescribesRecords,
    RecordPlan,
    RecordShard,
    RecordTask,
    WritesRecords,
)
from featurestore.training.export.assignment import SHARD
from featurestore.training.export.engine_hashes import engine_assigned_rows
from featurestore.training.export.hash_columns import HASH
from featurestore.training.export.hashed_rows import HashedRows
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import ShardPlan
from featurestore.training.export.shard_writer import (
    MAX_LABEL_VALUES,
    PlannedShard,
    ShardSummary,
    label_text,
)


def assigned_for_records(
    engine: Engine, rows: HashedRows, request: ExportRequest, plan: ShardPlan, directory: str
) -> Relation | None:
    """Return rows with their shards for the engine to write; None if it cannot write them.

    Shard numbers ascend with the hash.
    """
    if not rows.by_engine or not isinstance(engine, WritesRecords):
        return None
    if _record_plan(request, plan) is None:
        return None
    assigned = engine_assigned_rows(engine, rows.source, request.rule, plan.assignment)
    if assigned is None or not engine.can_write_records(assigned.schema, directory):
        return None
    return assigned


def write_records(
    engine: Engine,
    assigned: Relation,
    request: ExportRequest,
    plan: ShardPlan,
    shards: Sequence[PlannedShard],
    *,
    directory: str,
) -> dict[int, ShardSummary]:
    """Write the shards that have rows and return their summaries."""
    records = _record_plan(request, plan)
    if records is None or not isinstance(engine, WritesRecords):
        raise TypeError("the engine does not write these records")
    task = RecordTask(
        directory=directory,
        plan=records,
        shards=[(shard.path, shard.rows) for shard in shards],
        shard=SHARD,
        hash=HASH,
        columns=request.columns,
        labels=request.labels,
        max_labels=MAX_LABEL_VALUES + 1,  # one of them may be null
    )
    return {shard.number: _summary(shard) for shard in engine.write_records(assigned, task)}


def _record_plan(request: ExportRequest, plan: ShardPlan) -> RecordPlan | None:
    if not isinstance(request.format, DescribesRecords):
        return None
    return request.format.record_plan(plan.layout)


def _summary(shard: RecordShard) -> ShardSummary:
    label_counts = {name: _label_counts(pairs) for name, pairs in shard.labels.items()}
    return ShardSummary(
        shard.written, shard.nulls, label_counts, shard.hash_sum, shard.first_hash, shard.last_hash
    )


def _label_counts(pairs: Sequence[tuple[Any, int]] | None) -> dict[str, int] | None:
    if pairs is None:
        return None
    counts: dict[str, int] = {}
    for value, rows in pairs:
        text = label_text(value)
        counts[text] = counts.get(text, 0) + rows
    if len(counts) > MAX_LABEL_VALUES:
        return None
    return counts
