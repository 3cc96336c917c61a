"""The order of an export.

Hash the rows, audit them, plan the shards, write them, the manifest last.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from featurestore.errors import DatasetDamaged
from featurestore.model.manifest import Manifest
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Engine, HoldsRows, Relation
from featurestore.readers.shardfiles import check_shards
from featurestore.statistics import StatisticsState
from featurestore.storage import files
from featurestore.storage.manifests import write_manifest
from featurestore.storage.selection import storage_for
from featurestore.storage.shardfile import is_temporary
from featurestore.training.export.assignment import SHARD
from featurestore.training.export.audit import (
    QUARANTINE,
    ExportChecks,
    audit_rows,
    write_quarantined,
)
from featurestore.training.export.data import ExportData
from featurestore.training.export.engine_hashes import assigned_by_engine
from featurestore.training.export.engine_records import assigned_for_records, write_records
from featurestore.training.export.hash_columns import HASH
from featurestore.training.export.hashed_rows import HashedRows, hash_rows
from featurestore.training.export.label_values import check_labels
from featurestore.training.export.manifest import (
    build_manifest,
    manifest_file,
    prefixes_of,
    summaries_by_split,
)
from featurestore.training.export.progress import ExportProgress
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import ShardPlan, plan_shards
from featurestore.training.export.shard_writer import PlannedShard, ShardSummary, ShardWriter
from featurestore.training.export.split_statistics import (
    ShardStatistics,
    count_splits,
    counting_writers,
    write_statistics,
)
from featurestore.training.export.split_values import fit_transformations

_CHANGED = "the source changed while it was read; run the export again"


@dataclass(frozen=True)
class ExportTarget:
    """Where an export goes.

    The directory of its version, one that is named after the run, and one for its staged rows.

    ``check_publishable`` is called just before the manifest is written; it raises where this export
    may not be published any more.
    """

    directory: str
    staging: str
    rows: str
    version: int
    check_publishable: Callable[[], None]


def export(
    engine: Engine,
    data: ExportData,
    request: ExportRequest,
    target: ExportTarget,
    *,
    checks: ExportChecks,
    progress: ExportProgress,
) -> tuple[Manifest, ValidationReport | None]:
    """Write a whole dataset into a claimed directory; whatever goes wrong, no manifest appears.

    Returns:
        The manifest as written, and the report of the audit where there was one.
    """
    progress.phase("compute rows")
    staged_rows = os.path.join(target.rows, "rows")
    rows = hash_rows(engine, data.relation(), request, plan=data.plan, directory=staged_rows)
    dropped = None
    if data.dropped_rows is not None:
        dropped = data.dropped_rows(engine.count(rows.source))
    if dropped:
        progress.phase(f"compute rows, {dropped:,} label rows dropped by join='inner'")
    relation = rows.relation(engine)
    audited = audit_rows(engine, relation, request, checks)
    if audited.relation is not relation:
        rows = HashedRows(audited.relation, None, request)
    progress.phase("plan shards")
    plan = plan_shards(engine, rows, request)
    bytes_per_row = request.format.bytes_per_row(plan.layout, ())
    directory, counted = target.directory, None
    records = assigned_for_records(engine, rows, request, plan, directory)
    if records is None:
        counted = counting_writers(engine, request, plan)
    with progress.writing(directory, rows=sum(plan.rows), bytes_per_row=bytes_per_row):
        summaries = write_shards(
            engine, rows, request, plan, directory=directory, statistics=counted, records=records
        )
    manifest = build_manifest(
        request,
        plan,
        summaries,
        version=target.version,
        run_id=os.path.basename(target.staging),
        provenance=data.provenance,
        dropped_rows=dropped,
    )
    if data.warn_of_nulls is not None:
        data.warn_of_nulls(sum(plan.rows), _nulls(manifest))
    check_labels(manifest, request.labels)
    if audited.quarantined is not None:
        write_quarantined(engine, audited.quarantined, directory=target.directory)
        reason = f"failing rows were put aside in {QUARANTINE}/"
        manifest = replace(manifest, reproducible=False, reproducible_reason=reason)
    if request.statistics:
        states = _split_states(engine, rows, request, plan, counted)
        noted = write_statistics(target.directory, manifest, states)
        manifest = replace(manifest, statistics=noted)
    if request.transformations:
        progress.phase("fit transformations")
        file = fit_transformations(
            engine, rows, plan.assignment, request, manifest, target.directory
        )
        manifest = replace(manifest, transformations=file)
    return publish(manifest, request, target), audited.report


def _split_states(
    engine: Engine,
    rows: HashedRows,
    request: ExportRequest,
    plan: ShardPlan,
    counted: ShardStatistics | None,
) -> list[StatisticsState]:
    """Return the counted state of each split; counted anew where the writers did not do it."""
    if counted is None:
        return count_splits(engine, rows, request, plan)
    states = counted.states()
    if states is None:
        states = count_splits(engine, rows, request, plan, with_copies=True)
    return states


def _nulls(manifest: Manifest) -> dict[str, int]:
    """Return how many nulls each column has in all splits."""
    nulls: dict[str, int] = {}
    for split in manifest.splits:
        for name, count in split.nulls.items():
            nulls[name] = nulls.get(name, 0) + count
    return nulls


def publish(manifest: Manifest, request: ExportRequest, target: ExportTarget) -> Manifest:
    """Write the format's own files and then, last and atomically, the manifest."""
    format_files = request.format.finish(target.directory, manifest)
    manifest = replace(
        manifest,
        files=tuple(map(manifest_file, format_files)),
        prefixes={**manifest.prefixes, **prefixes_of(format_files)},
    )
    target.check_publishable()
    if storage_for(target.directory).needs_claims:
        # Another registry may have removed shards before; from here on none is removed.
        for split in manifest.splits:
            check_shards(target.directory, split)
    write_manifest(target.directory, manifest)
    return manifest


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
    """Write every shard and return their summaries in order; empty shards are written here.

    ``statistics`` counts the rows as they are written. ``records`` are the rows where the engine
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
        written = write_records(engine, records, request, plan, shards, directory=directory)
    else:
        assigned = _assigned(engine, rows, request, plan)
        written = dict(
            engine.write_shards(
                assigned.rows,
                shard=SHARD,
                shard_count=len(shards),
                order=(HASH,),
                shard_ascends=assigned.shard_ascends,
                row_count=sum(plan.rows),
                write=writer,
            )
        )
    summaries = []
    for number in range(len(shards)):
        if number not in written:
            _, written[number] = writer(number, iter(()))
        summary = written[number]
        if statistics is not None and summary.state is not None:
            statistics.add(number, summary.state)
        summaries.append(replace(summary, state=None))
    _check_rows(shards, summaries)
    _check_splits(request, plan, summaries)
    _remove_leftovers(directory, request.rule.names)
    return summaries


class _AssignedRows(NamedTuple):
    """Rows with their shards; whether these ascend with the hash over all splits."""

    rows: Relation
    shard_ascends: bool


def _assigned(
    engine: Engine, rows: HashedRows, request: ExportRequest, plan: ShardPlan
) -> _AssignedRows:
    """Return all columns with the hash and the shard of each row."""
    if rows.by_engine:
        assigned = assigned_by_engine(engine, rows.source, request.rule, plan.assignment)
        if assigned is not None:
            return _AssignedRows(assigned, shard_ascends=True)
    schema = pa.schema([*request.schema, pa.field(HASH, pa.int64()), pa.field(SHARD, pa.int32())])
    assigned = rows.mapped(engine, plan.assignment, schema=schema)
    return _AssignedRows(assigned, shard_ascends=False)


def planned_shards(request: ExportRequest, plan: ShardPlan) -> tuple[PlannedShard, ...]:
    """Return path and rows of each shard, by shard number."""
    chosen = request.format
    ending = ""
    if chosen.extension:
        ending = f".{chosen.extension}"
    shards = []
    for split, sizes, boundaries in zip(
        request.rule.names, plan.shard_rows, plan.assignment.boundaries, strict=True
    ):
        # A shard begins at the boundary before it; empty ones at the end have none.
        skips = [0, *(boundary.offset for boundary in boundaries)]
        for index, rows in enumerate(sizes):
            path = f"{split}/{chosen.name}-{index:05d}-of-{len(sizes):05d}{ending}"
            skip = 0
            if index < len(skips):
                skip = skips[index]
            shards.append(PlannedShard(path, rows, skip))
    return tuple(shards)


def _check_rows(shards: Sequence[PlannedShard], summaries: Sequence[ShardSummary]) -> None:
    for shard, summary in zip(shards, summaries, strict=True):
        if summary.written.rows != shard.rows:
            raise DatasetDamaged(
                f"{shard.path} got {summary.written.rows:,} rows "
                f"where {shard.rows:,} were counted.",
                hint=_CHANGED,
            )


def _check_splits(
    request: ExportRequest, plan: ShardPlan, summaries: Sequence[ShardSummary]
) -> None:
    """Compare the rows that each split got with those that were counted.

    Splits are groups of the counting pass, which no two share a row or a ``split_by`` key; so where
    a split's rows have the sum of hashes that its group had, no row and no key is in two splits.
    """
    of_splits = summaries_by_split(plan, summaries)
    for name, expected, of_split in zip(request.rule.names, plan.hash_sums, of_splits, strict=True):
        hash_sum = sum(summary.hash_sum for summary in of_split) % 2**64
        hashes = list(_ends(of_split))
        if hash_sum != expected or hashes != sorted(hashes):
            raise DatasetDamaged(
                f"Split {name!r} got other rows than those that were counted.", hint=_CHANGED
            )


def _ends(summaries: Sequence[ShardSummary]) -> Iterator[int]:
    """Yield the first and the last hash of each shard with rows."""
    for summary in summaries:
        if summary.first_hash is not None and summary.last_hash is not None:
            yield summary.first_hash
            yield summary.last_hash


def _remove_leftovers(directory: str, splits: Sequence[str]) -> None:
    """Remove the temporary files of attempts that were killed.

    On a cluster a task that is tried again leaves those of its first attempt.
    """
    for split in splits:
        for name in files.list_directory(os.path.join(directory, split)):
            if is_temporary(name):
                files.remove(os.path.join(directory, split, name), below=directory)
