"""Build the manifest of written shards."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from featurestore.arrow.schemas import type_to_json
from featurestore.model.manifest import (
    Manifest,
    ManifestColumn,
    ManifestFile,
    ManifestShard,
    ManifestSplit,
)
from featurestore.model.times import utc_now
from featurestore.plugins.format import WrittenFile
from featurestore.training.export.data import Provenance
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import ShardPlan
from featurestore.training.export.shard_writer import ShardSummary

_LIBRARIES = ("featurestore", "numpy", "pyarrow", "petastorm")


def build_manifest(
    request: ExportRequest,
    plan: ShardPlan,
    summaries: Sequence[ShardSummary],
    *,
    version: int,
    run_id: str,
    provenance: Provenance,
    dropped_rows: int | None = None,
) -> Manifest:
    """Return the manifest of written shards."""
    written_files: list[WrittenFile] = []
    for summary in summaries:
        written_files += [summary.shard.file, *summary.shard.sidecars]
    return Manifest(
        name=request.name,
        version=version,
        data_format=request.format.name,
        seed=request.seed,
        key=request.key,
        split_rule=request.rule.to_json(),
        block_rows=request.block_rows,
        compression=request.compression,
        columns=_columns(request, plan),
        layout=plan.layout,
        splits=_splits(request, plan, summaries),
        files=(),
        plan=provenance.plan,
        plan_hash=provenance.plan_hash,
        sources=provenance.sources,
        reproducible=provenance.reproducible,
        reproducible_reason=provenance.reproducible_reason,
        description=request.description,
        tags=request.tags,
        created=utc_now().isoformat(),
        run_id=run_id,
        libraries=dict(library_versions(_LIBRARIES)),
        uncovered_rows=plan.uncovered,
        dropped_rows=dropped_rows,
        prefixes=file_prefixes(written_files),
        view=provenance.view,
        reads=tuple(read.to_json() for read in provenance.reads),
        max_lengths=request.max_lengths,
    )


def summaries_by_split(
    plan: ShardPlan, summaries: Sequence[ShardSummary]
) -> list[Sequence[ShardSummary]]:
    """Return the summaries of each split's shards."""
    result = []
    first = 0
    for sizes in plan.shard_rows:
        result.append(summaries[first : first + len(sizes)])
        first += len(sizes)
    return result


def file_prefixes(written_files: Iterable[WrittenFile]) -> dict[str, list[str]]:
    """Return the prefix digests of each file that has any, by path."""
    prefixes = {file.path: list(file.prefixes) for file in written_files if file.prefixes}
    return prefixes


def manifest_file(file: WrittenFile) -> ManifestFile:
    """Return the manifest entry of a written file."""
    return ManifestFile(file.path, file.bytes, file.sha256)


def class_weights(counts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, float]]:
    """Return balanced class weights per label: rows / (classes * rows of the class).

    >>> class_weights({"late": {"0": 3, "1": 1}})
    {'late': {'0': 0.6666666666666666, '1': 2.0}}
    """
    result: dict[str, dict[str, float]] = {}
    for name, values in counts.items():
        rows = sum(values.values())
        weights = {value: rows / (len(values) * count) for value, count in values.items()}
        result[name] = weights
    return result


@cache
def library_versions(names: tuple[str, ...]) -> Mapping[str, str]:
    """Return the installed versions of the libraries that determine the bytes of shards.

    Cached: each version is parsed from a metadata file.
    """
    versions = {"zlib": zlib.ZLIB_RUNTIME_VERSION}
    for name in names:
        try:
            versions[name] = installed_version(name)
        except PackageNotFoundError:
            continue
    return versions


def _columns(request: ExportRequest, plan: ShardPlan) -> tuple[ManifestColumn, ...]:
    encodings = request.format.encodings(plan.layout)
    columns = []
    for field in request.schema:
        encoding = encodings[field.name]
        columns.append(
            ManifestColumn(
                name=field.name,
                type=type_to_json(field.type),
                role=request.roles[field.name],
                tf_type=encoding.tf_type,
                shape=encoding.shape,
                null=encoding.null,
                loss=encoding.loss,
            )
        )
    return tuple(columns)


def _splits(
    request: ExportRequest, plan: ShardPlan, summaries: Sequence[ShardSummary]
) -> tuple[ManifestSplit, ...]:
    splits = []
    summaries_of_splits = summaries_by_split(plan, summaries)
    for name, rows, split_summaries in zip(
        request.rule.names, plan.rows, summaries_of_splits, strict=True
    ):
        shards = _shards(split_summaries)
        labels = _label_counts(request.labels, split_summaries)
        nulls = _sum_counts(summary.nulls for summary in split_summaries)
        splits.append(
            ManifestSplit(
                name=name,
                rows=rows,
                bytes=sum(shard.bytes for shard in shards),
                shards=shards,
                nulls=nulls,
                label_counts=labels,
                label_weights=class_weights(labels),
            )
        )
    return tuple(splits)


def _shards(summaries: Sequence[ShardSummary]) -> tuple[ManifestShard, ...]:
    shards = []
    first_row = 0
    for summary in summaries:
        shard = summary.shard
        shards.append(
            ManifestShard(
                path=shard.file.path,
                first_row=first_row,
                rows=shard.rows,
                bytes=shard.file.bytes,
                sha256=shard.file.sha256,
                sidecars=tuple(map(manifest_file, shard.sidecars)),
            )
        )
        first_row += shard.rows
    return tuple(shards)


def _label_counts(
    labels: Sequence[str], summaries: Sequence[ShardSummary]
) -> dict[str, dict[str, int]]:
    """Return the rows of each value of the labels that have few enough values in all shards."""
    counts = {}
    for label in labels:
        counts_by_shard = []
        for summary in summaries:
            shard_counts = summary.labels[label]
            if shard_counts is not None:
                counts_by_shard.append(shard_counts)
        if len(counts_by_shard) == len(summaries):
            counts[label] = _sum_counts(counts_by_shard)
    return counts


def _sum_counts(all_counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts by name, sorted by name."""
    total: dict[str, int] = {}
    for counts in all_counts:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
