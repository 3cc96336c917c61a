"""The manifest of shards as written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from featurestore.model.arrow_json import type_to_json
from featurestore.model.manifest import (
    Manifest,
    ManifestColumn,
    ManifestFile,
    ManifestShard,
    ManifestSplit,
)
from featurestore.model.times import utc_now
from featurestore.plugins.format import WrittenFile
from featurestore.training.export.request import (
    ExportRequest,
    class_weights,
    labels_json,
    library_versions,
)
from featurestore.training.export.shard_plan import Shape
from featurestore.training.export.shards import ShardSummary

LIBRARIES = ("featurestore", "numpy", "pyarrow", "petastorm")


def build_manifest(
    request: ExportRequest,
    shape: Shape,
    summaries: Sequence[ShardSummary],
    *,
    version: int,
    provenance: Mapping[str, Any],
    run_id: str,
) -> Manifest:
    """Return the manifest of written shards; ``provenance`` holds plan, sources and reproducibility."""
    encodings = request.format.encodings(shape.layout)
    columns = tuple(
        ManifestColumn(
            field.name,
            type_to_json(field.type),
            request.roles[field.name],
            encodings[field.name].tf_type,
            encodings[field.name].shape,
            encodings[field.name].null,
            encodings[field.name].loss,
        )
        for field in request.schema
    )
    return Manifest(
        name=request.name,
        version=version,
        data_format=request.format.name,
        seed=request.seed,
        key=request.key,
        split_rule=request.rule.to_json(),
        block_rows=request.block_rows,
        compression=request.compression,
        columns=columns,
        layout=shape.layout,
        splits=_manifest_splits(request, shape, summaries),
        files=(),
        uncovered_rows=shape.uncovered,
        description=request.description,
        tags=request.tags,
        created=utc_now().isoformat(),
        run_id=run_id,
        libraries=library_versions(LIBRARIES),
        prefixes=prefixes_of(
            [file for each in summaries for file in (each.written.file, *each.written.sidecars)]
        ),
        **provenance,
    )


def _manifest_splits(
    request: ExportRequest, shape: Shape, summaries: Sequence[ShardSummary]
) -> tuple[ManifestSplit, ...]:
    result = []
    bounds = list(accumulate((len(sizes) for sizes in shape.shard_rows), initial=0))
    for name, rows, (begin, end) in zip(
        request.rule.names, shape.rows, pairwise(bounds), strict=True
    ):
        mine = summaries[begin:end]
        counts = labels_json(_merge_labels(request.labels, mine))
        shards = _manifest_shards(mine)
        nulls: dict[str, int] = {}
        for summary in mine:
            for column, count in summary.nulls.items():
                nulls[column] = nulls.get(column, 0) + count
        sized = sum(shard.bytes for shard in shards)
        result.append(
            ManifestSplit(
                name,
                rows,
                sized,
                shards,
                dict(sorted(nulls.items())),
                counts,
                class_weights(counts),
            )
        )
    return tuple(result)


def _manifest_shards(summaries: Sequence[ShardSummary]) -> tuple[ManifestShard, ...]:
    shards, first = [], 0
    for summary in summaries:
        file = summary.written.file
        sidecars = tuple(manifest_file(each) for each in summary.written.sidecars)
        shards.append(
            ManifestShard(file.path, first, summary.written.rows, file.bytes, file.sha256, sidecars)
        )
        first += summary.written.rows
    return tuple(shards)


def _merge_labels(
    labels: Sequence[str], summaries: Sequence[ShardSummary]
) -> dict[str, Mapping[str, int] | None]:
    merged: dict[str, Mapping[str, int] | None] = {}
    for label in labels:
        total: dict[str, int] | None = {}
        for summary in summaries:
            counts = summary.labels[label]
            if counts is None or total is None:
                total = None
                continue
            for value, count in counts.items():
                total[value] = total.get(value, 0) + count
        merged[label] = total
    return merged


def prefixes_of(written: Iterable[WrittenFile]) -> dict[str, list[str]]:
    """Return the prefixes of the files that have any."""
    return {file.path: list(file.prefixes) for file in written if file.prefixes}


def manifest_file(written: WrittenFile) -> ManifestFile:
    """Return a written file as the manifest lists it."""
    return ManifestFile(written.path, written.bytes, written.sha256)
