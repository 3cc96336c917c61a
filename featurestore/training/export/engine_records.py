"""Shards that an engine writes itself, where the format says how its records are made."""

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
from featurestore.training.export.hash_columns import HASH
from featurestore.training.export.shard_writer import (
    MAX_LABEL_VALUES,
    ShardSummary,
    ShardWriter,
    label_text,
)


def written_by_engine(
    engine: Engine, assigned: Relation, writer: ShardWriter
) -> dict[int, ShardSummary] | None:
    """Return the summaries of the shards that have rows; None where the writer has to write them.

    ``assigned`` are rows whose shards ascend with their hash.
    """
    plan = _record_plan(writer)
    if plan is None or not isinstance(engine, WritesRecords) or writer.counting is not None:
        return None
    schema = assigned.schema
    if not engine.can_write_records(schema, writer.directory):
        return None
    task = RecordTask(
        directory=writer.directory,
        plan=plan,
        shards=[(shard.path, shard.rows) for shard in writer.shards],
        shard=SHARD,
        hash=HASH,
        columns=writer.columns,
        labels=writer.labels,
        most_labels=MAX_LABEL_VALUES + 1,  # one of them may be null
    )
    return {shard.number: _summary(shard) for shard in engine.write_records(assigned, task)}


def _record_plan(writer: ShardWriter) -> RecordPlan | None:
    if not isinstance(writer.format, DescribesRecords):
        return None
    return writer.format.record_plan(writer.layout)


def _summary(shard: RecordShard) -> ShardSummary:
    labels = {}
    for name, pairs in shard.labels.items():
        labels[name] = _label_counts(pairs)
    return ShardSummary(
        shard.written, shard.nulls, labels, shard.hash_sum, shard.first_hash, shard.last_hash
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
