"""Export: stage once with row hashes, count, cut, write shards where the rows are, manifest last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa

from featurestore.errors import DatasetDamaged
from featurestore.model.manifest import Manifest
from featurestore.model.plan import FeaturePlan
from featurestore.plugins.engine import Engine, Relation
from featurestore.storage import files
from featurestore.storage.manifests import write_manifest
from featurestore.storage.shardfile import is_temporary
from featurestore.training.export.boundaries import HASH, SHARD, Cut
from featurestore.training.export.hashed_rows import Prepared, prepare
from featurestore.training.export.manifest import build_manifest, manifest_file, prefixes_of
from featurestore.training.export.progress import ExportProgress
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import Shape, plan_shape
from featurestore.training.export.shards import Assignment, ShardSummary, ShardTask, ShardWriter

Dropped = Callable[[int], int | None]


def write(
    engine: Engine, staged: Prepared, request: ExportRequest, shape: Shape, *, directory: str
) -> list[ShardSummary]:
    """Write every shard and return their summaries in order; empty shards are written here."""
    writer = ShardWriter(
        directory,
        request.format,
        shape.layout,
        shard_tasks(request, shape),
        request.columns,
        request.labels,
    )
    schema = pa.schema([*request.schema, pa.field(HASH, pa.int64()), pa.field(SHARD, pa.int32())])
    assigned = staged.mapped(engine, shape.assignment, schema=schema)
    numbered = NumberedWriter(writer)
    results = dict(engine.write_shards(assigned, shard=SHARD, order=(HASH,), write=numbered))
    for number in range(len(writer.tasks)):
        if number not in results:
            results[number] = writer(number, iter(()))
    summaries = [results[number] for number in range(len(writer.tasks))]
    _check_written(writer.tasks, summaries, request=request, shape=shape)
    _remove_leftovers(directory, request.rule.names)
    return summaries


@dataclass(frozen=True)
class NumberedWriter:
    """A shard writer whose results tell their shard."""

    writer: ShardWriter

    def __call__(self, number: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, ShardSummary]:
        """Write the shard and return its number beside the summary."""
        return number, self.writer(number, batches)


def shard_tasks(request: ExportRequest, shape: Shape) -> tuple[ShardTask, ...]:
    """Return what each shard's writer must know, by shard number."""
    tasks = []
    ending = f".{request.format.extension}" if request.format.extension else ""
    for split, sizes, cuts in zip(
        request.rule.names, shape.shard_rows, shape.assignment.cuts, strict=True
    ):
        for index, rows in enumerate(sizes):
            path = f"{split}/{request.format.name}-{index:05d}-of-{len(sizes):05d}{ending}"
            tasks.append(ShardTask(path, rows, skip=_skip(cuts, index)))
    return tuple(tasks)


def finish(
    manifest: Manifest,
    request: ExportRequest,
    *,
    directory: str,
    check_held: Callable[[], None] | None = None,
) -> Manifest:
    """Write the format's own files and then, last and atomically, the manifest."""
    written = request.format.finish(directory, manifest)
    prefixes = {**manifest.prefixes, **prefixes_of(written)}
    manifest = replace(
        manifest, files=tuple(manifest_file(each) for each in written), prefixes=prefixes
    )
    if check_held is not None:
        check_held()
    write_manifest(directory, manifest)
    return manifest


def export(
    engine: Engine,
    relation: Relation,
    request: ExportRequest,
    *,
    directory: str,
    staging: str,
    plan: FeaturePlan | None,
    version: int,
    provenance: Mapping[str, Any],
    progress: ExportProgress,
    inspect: Inspect | None = None,
    dropped: Dropped | None = None,
    check_held: Callable[[], None] | None = None,
) -> Manifest:
    """Write a whole dataset into a claimed directory; whatever goes wrong, no manifest appears.

    ``inspect`` sees the staged rows before any shard is written (validation) and returns those to export, and the
    statistics to note. ``dropped`` tells from the number of rows how many label rows an inner join left out.
    ``check_held`` raises when another process has taken this one for dead; it is called just before the manifest.
    """
    progress.phase("compute rows")
    staged = prepare(engine, relation, request, plan=plan, directory=os.path.join(staging, "rows"))
    left_out = None if dropped is None else dropped(engine.count(staged.source))
    if left_out:
        progress.phase(f"compute rows, {left_out:,} label rows dropped by join='inner'")
    rows = staged.rows(engine)
    if inspect is not None and (passed := inspect.before(rows)) is not rows:
        staged, rows = Prepared(passed, None, request), passed
    progress.phase("count and cut")
    shape = plan_shape(engine, staged, request)
    with progress.writing(
        directory, rows=sum(shape.rows), bytes_per_row=_bytes_per_row(request, shape)
    ):
        summaries = write(engine, staged, request, shape, directory=directory)
    manifest = build_manifest(
        request,
        shape,
        summaries,
        version=version,
        provenance=provenance,
        run_id=os.path.basename(staging),
    )
    manifest = replace(manifest, dropped_rows=left_out)
    if inspect is not None:
        manifest = inspect.after(rows, shape.assignment, manifest, directory=directory)
    return finish(manifest, request, directory=directory, check_held=check_held)


class Inspect:
    """Looks at the staged rows of an export before and after the shards are written."""

    def before(self, staged: Relation) -> Relation:
        """Return the rows to export; raise to stop the export."""
        return staged

    def after(
        self, staged: Relation, assignment: Assignment, manifest: Manifest, *, directory: str
    ) -> Manifest:
        """Return the manifest with what was found noted."""
        return manifest


def _bytes_per_row(request: ExportRequest, shape: Shape) -> float:
    return request.format.bytes_per_row(shape.layout, ())


def _skip(cuts: Sequence[Cut], index: int) -> int:
    """Return how many rows of its first hash a shard leaves to the shards before it."""
    if index == 0 or index > len(cuts):
        return 0
    return cuts[index - 1].offset


def _check_written(
    tasks: Sequence[ShardTask],
    summaries: Sequence[ShardSummary],
    *,
    request: ExportRequest,
    shape: Shape,
) -> None:
    """Compare what was written with what was counted: rows of each shard, and which rows each split got.

    Splits are groups of the counting pass, which no two share a row or a ``split_by`` key; so where a split's rows have
    the sum of hashes that its group had, no row and no key is in two splits.
    """
    for task, summary in zip(tasks, summaries, strict=True):
        if summary.written.rows != task.rows:
            raise DatasetDamaged(
                f"{task.path} got {summary.written.rows:,} rows where {task.rows:,} were counted.",
                hint="the source changed while it was read; run the export again",
            )
    bounds = accumulate((len(sizes) for sizes in shape.shard_rows), initial=0)
    for name, expected, (begin, end) in zip(
        request.rule.names, shape.hash_sums, pairwise(bounds), strict=True
    ):
        mine = summaries[begin:end]
        places = [
            place
            for each in mine
            for place in (each.first_hash, each.last_hash)
            if place is not None
        ]
        if sum(each.hash_sum for each in mine) % 2**64 != expected or places != sorted(places):
            raise DatasetDamaged(
                f"Split {name!r} got other rows than those that were counted.",
                hint="the source changed while it was read; run the export again",
            )


def _remove_leftovers(directory: str, splits: Sequence[str]) -> None:
    """Remove the temporary files of attempts that were killed: on a cluster a retried task leaves its first one."""
    for split in splits:
        for name in files.list_directory(os.path.join(directory, split)):
            if is_temporary(name):
                files.remove(os.path.join(directory, split, name), below=directory)
