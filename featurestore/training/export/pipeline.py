"""The steps of an export: hash and audit the rows, plan and write shards, publish the manifest."""

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
from featurestore.training.export.engine_hashes import engine_assigned_rows
from featurestore.training.export.engine_records import assigned_for_records, write_records
from featurestore.training.export.hash_columns import HASH
from featurestore.training.export.hashed_rows import HashedRows, hash_rows
from featurestore.training.export.label_values import check_labels
from featurestore.training.export.manifest import (
    build_manifest,
    file_prefixes,
    manifest_file,
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
    """The directories of an export: of its version, of the run, and for its staged rows.

    ``check_publishable`` is called just before the manifest is written; it raises if this export
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
    """Write a dataset into a claimed directory; after any error the directory has no manifest.

    Returns:
        The written manifest, and the report of the audit if the rows were checked.
    """
    progress.phase("compute rows")
    staged_rows = os.path.join(target.rows, "rows")
    rows = hash_rows(engine, data.relation(), request, plan=data.plan, directory=staged_rows)
    dropped_rows = None
    if data.dropped_rows is not None:
        dropped_rows = data.dropped_rows(engine.count(rows.source))
    if dropped_rows:
        progress.phase(f"compute rows, {dropped_rows:,} label rows dropped by join='inner'")
    relation = rows.relation(engine)
    audited = audit_rows(engine, relation, request, checks)
    if audited.relation is not relation:
        rows = HashedRows(audited.relation, None, request)
    progress.phase("plan shards")
    plan = plan_shards(engine, rows, request)
    bytes_per_row = request.format.bytes_per_row(plan.layout, ())
    directory, shard_statistics = target.directory, None
    records = assigned_for_records(engine, rows, request, plan, directory)
    if records is None:
        shard_statistics = counting_writers(engine, request, plan)
    with progress.writing(directory, rows=sum(plan.rows), bytes_per_row=bytes_per_row):
        summaries = write_shards(
            engine,
            rows,
            request,
            plan,
            directory=directory,
            statistics=shard_statistics,
            records=records,
        )
    manifest = build_manifest(
        request,
        plan,
        summaries,
        version=target.version,
        run_id=os.path.basename(target.staging),
        provenance=data.provenance,
        dropped_rows=dropped_rows,
    )
    if data.warn_of_nulls is not None:
        data.warn_of_nulls(sum(plan.rows), _nulls(manifest))
    check_labels(manifest, request.labels)
    if audited.quarantined is not None:
        write_quarantined(engine, audited.quarantined, directory=target.directory)
        reason = f"failing rows were put aside in {QUARANTINE}/"
        manifest = replace(manifest, reproducible=False, reproducible_reason=reason)
    if request.statistics:
        states = _split_states(engine, rows, request, plan, shard_statistics)
        entries = write_statistics(target.directory, manifest, states)
        manifest = replace(manifest, statistics=entries)
    if request.transformations:
        progress.phase("fit transformations")
        transformations_entry = fit_transformations(
            engine, rows, plan.assignment, request, manifest, target.directory
        )
        manifest = replace(manifest, transformations=transformations_entry)
    return publish(manifest, request, target), audited.report


def _split_states(
    engine: Engine,
    rows: HashedRows,
    request: ExportRequest,
    plan: ShardPlan,
    shard_statistics: ShardStatistics | None,
) -> list[StatisticsState]:
    """Return the statistics of each split, from the writers if they counted, else from a pass."""
    if shard_statistics is None:
        return count_splits(engine, rows, request, plan)
    states = shard_statistics.states()
    if states is None:
        states = count_splits(engine, rows, request, plan, with_copies=True)
    return states


def _nulls(manifest: Manifest) -> dict[str, int]:
    """Return the number of nulls of each column over all splits."""
    nulls: dict[str, int] = {}
    for split in manifest.splits:
        for name, count in split.nulls.items():
            nulls[name] = nulls.get(name, 0) + count
    return nulls


def publish(manifest: Manifest, request: ExportRequest, target: ExportTarget) -> Manifest:
    """Write the format's own files, then the manifest atomically."""
    format_files = request.format.finish(target.directory, manifest)
    manifest = replace(
        manifest,
        files=tuple(map(manifest_file, format_files)),
        prefixes={**manifest.prefixes, **file_prefixes(format_files)},
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
        summaries_by_number = write_records(
            engine, records, request, plan, shards, directory=directory
        )
    else:
        assigned = _assigned(engine, rows, request, plan)
        summaries_by_number = dict(
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
        if number not in summaries_by_number:
            _, summaries_by_number[number] = writer(number, iter(()))
        summary = summaries_by_number[number]
        if statistics is not None and summary.state is not None:
            statistics.add(number, summary.state)
        summaries.append(replace(summary, state=None))
    _check_rows(shards, summaries)
    _check_splits(request, plan, summaries)
    _remove_leftovers(directory, request.rule.names)
    return summaries


class _AssignedRows(NamedTuple):
    """Rows with their shards, and whether shards ascend with the hash over all splits."""

    rows: Relation
    shard_ascends: bool


def _assigned(
    engine: Engine, rows: HashedRows, request: ExportRequest, plan: ShardPlan
) -> _AssignedRows:
    """Return all columns with the hash and the shard of each row."""
    if rows.by_engine:
        assigned = engine_assigned_rows(engine, rows.source, request.rule, plan.assignment)
        if assigned is not None:
            return _AssignedRows(assigned, shard_ascends=True)
    schema = pa.schema([*request.schema, pa.field(HASH, pa.int64()), pa.field(SHARD, pa.int32())])
    assigned = rows.mapped(engine, plan.assignment, schema=schema)
    return _AssignedRows(assigned, shard_ascends=False)


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


def _remove_leftovers(directory: str, splits: Sequence[str]) -> None:
    """Remove temporary files, which a retried task on a cluster leaves from its first attempt."""
    for split in splits:
        for name in files.list_directory(os.path.join(directory, split)):
            if is_temporary(name):
                files.remove(os.path.join(directory, split, name), below=directory)
