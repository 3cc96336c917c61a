"""Write the shards of an export, and compare them with the plan.

A function inside the engine writes each shard (``shard_writer``). For formats that describe their
records, an engine may write the shards itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featurestore.errors import DatasetDamaged
from featurestore.plugins.engine import Engine, HoldsRows, Relation
from featurestore.plugins.records import (
    DescribesRecords,
    RecordPlan,
    RecordShard,
    RecordTask,
    WritesRecords,
)
from featurestore.storage import files
from featurestore.storage.shardfile import is_temporary
from featurestore.training.export.assignment import SHARD
from featurestore.training.export.boundaries import HASH
from featurestore.training.export.hashed_rows import HashedRows, engine_assigned_rows
from featurestore.training.export.manifest import summaries_by_split
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import ShardPlan
from featurestore.training.export.shard_writer import (
    MAX_LABEL_VALUES,
    PlannedShard,
    ShardSummary,
    ShardWriter,
    label_text,
)
from featurestore.training.export.split_statistics import ShardStatistics

_CHANGED = "the source changed while it was read; run the export again"


def write_shards(
    engine: Engine,
    rows: HashedRows,
    request: ExportRequest,
    plan: ShardPlan,
    *,
    directory: str,
    statistics: ShardStatistics | None = None,
    records: Relation | None = None,
) -> list[ShardSummary]:
    """Write all shards and return their summaries in order; empty shards are written here.

    ``statistics`` counts the rows while they are written. ``records`` are the rows if the engine
    writes their shards itself.
    """
    shards = planned_shards(request, plan)
    writer = ShardWriter(
        directory, request.format, plan.layout, shards, request.columns, request.labels
    )
    if statistics is not None:
        writer = replace(writer, counting=statistics.counting)
        if isinstance(engine, HoldsRows):
            writer = replace(writer, collect=statistics.add)
    if records is not None:
        summaries_by_number = _write_records(
            engine, records, request, plan, shards, directory=directory
        )
    else:
        summaries_by_number = _write_by_function(engine, rows, request, plan, writer)
    summaries = []
    for number in range(len(shards)):
        if number not in summaries_by_number:
            _, summaries_by_number[number] = writer(number, iter(()))
        summary = summaries_by_number[number]
        if statistics is not None and summary.state is not None:
            statistics.add(number, summary.state)
        summaries.append(replace(summary, state=None))
    _check_rows(shards, summaries)
    _check_splits(request, plan, summaries)
    # Temporary files are left by the first attempt of a task that a cluster retried.
    for split in request.rule.names:
        for name in files.list_directory(os.path.join(directory, split)):
            if is_temporary(name):
                files.remove(os.path.join(directory, split, name), below=directory)
    return summaries


def planned_shards(request: ExportRequest, plan: ShardPlan) -> tuple[PlannedShard, ...]:
    """Return the path and rows of each shard, by shard number."""
    dataset_format = request.format
    extension = ""
    if dataset_format.extension:
        extension = f".{dataset_format.extension}"
    shards = []
    for split, sizes, boundaries in zip(
        request.rule.names, plan.shard_rows, plan.assignment.boundaries, strict=True
    ):
        # Empty shards at the end have no boundary before them.
        skips = [0, *(boundary.offset for boundary in boundaries)]
        for index, rows in enumerate(sizes):
            path = f"{split}/{dataset_format.name}-{index:05d}-of-{len(sizes):05d}{extension}"
            skip = 0
            if index < len(skips):
                skip = skips[index]
            shards.append(PlannedShard(path, rows, skip))
    return tuple(shards)


def _write_by_function(
    engine: Engine, rows: HashedRows, request: ExportRequest, plan: ShardPlan, writer: ShardWriter
) -> dict[int, ShardSummary]:
    """Write the shards that have rows by a function inside the engine; return their summaries."""
    assigned = None
    if rows.by_engine:
        assigned = engine_assigned_rows(engine, rows.source, request.rule, plan.assignment)
    shard_ascends = assigned is not None  # by hash, over all splits
    if assigned is None:
        fields = [*request.schema, pa.field(HASH, pa.int64()), pa.field(SHARD, pa.int32())]
        assigned = rows.mapped(engine, plan.assignment, schema=pa.schema(fields))
    return dict(
        engine.write_shards(
            assigned,
            shard=SHARD,
            shard_count=len(writer.shards),
            order=(HASH,),
            shard_ascends=shard_ascends,
            row_count=sum(plan.rows),
            write=writer,
        )
    )


def _check_rows(shards: Sequence[PlannedShard], summaries: Sequence[ShardSummary]) -> None:
    for shard, summary in zip(shards, summaries, strict=True):
        if summary.shard.rows != shard.rows:
            raise DatasetDamaged(
                f"{shard.path} got {summary.shard.rows:,} rows where {shard.rows:,} were counted.",
                hint=_CHANGED,
            )


def _check_splits(
    request: ExportRequest, plan: ShardPlan, summaries: Sequence[ShardSummary]
) -> None:
    """Compare the written rows of each split with the counted ones.

    Splits are groups of the counting pass, and no row or ``split_by`` key is in two groups. So if
    the hash sum of a split equals that of its group, no row and no key is in two splits.
    """
    split_summaries = summaries_by_split(plan, summaries)
    for name, expected, summaries_of_split in zip(
        request.rule.names, plan.hash_sums, split_summaries, strict=True
    ):
        hash_sum = sum(summary.hash_sum for summary in summaries_of_split) % 2**64
        hashes = list(_ends(summaries_of_split))
        if hash_sum != expected or hashes != sorted(hashes):
            raise DatasetDamaged(f"Split {name!r} got other rows than were counted.", hint=_CHANGED)


def _ends(summaries: Sequence[ShardSummary]) -> Iterator[int]:
    """Yield the first and the last hash of each shard with rows."""
    for summary in summaries:
        if summary.first_hash is not None and summary.last_hash is not None:
            yield summary.first_hash
            yield summary.last_hash


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


def _write_records(
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
