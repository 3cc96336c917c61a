"""The manifest of an export, which is built from the written shards, and checks of label values.

``infer_record_schema`` builds a manifest for a dataframe without files, to infer its TFRecord schema.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any

import pyarrow as pa

from featurestore.arrow.schemas import type_to_json
from featurestore.ingest import open_relation, peek_language
from featurestore.model.manifest import (
    Manifest,
    ManifestColumn,
    ManifestFile,
    ManifestShard,
    ManifestSplit,
    MissingLabels,
)
from featurestore.model.roles import Role
from featurestore.model.times import utc_now
from featurestore.plugins.format import ColumnEncoding, WrittenFile, find_format
from featurestore.session import Session
from featurestore.training.export.label_checks import class_values
from featurestore.training.export.profiles import ProfileAccumulator
from featurestore.training.export.request import (
    DEFAULT_BLOCK_ROWS,
    ExportRequest,
    RowProvenance,
    refuse_untyped_columns,
)
from featurestore.training.export.shard_plan import ShardPlan
from featurestore.training.export.shards import ShardSummary, summaries_by_split

_LIBRARIES = ("featurestore", "numpy", "pyarrow", "petastorm")


def build_manifest(
    request: ExportRequest,
    plan: ShardPlan,
    summaries: Sequence[ShardSummary],
    splits: tuple[ManifestSplit, ...],
    *,
    version: int,
    run_id: str,
    provenance: RowProvenance,
    irreproducible: str | None = None,
    dropped_rows: int | None = None,
    missing_labels: MissingLabels | None = None,
    statistics: Mapping[str, Any] | None = None,
) -> Manifest:
    """Build the manifest of a dataset from its splits and the summaries of its shards.

    ``irreproducible`` is the reason why running the plan again does not reproduce the rows.
    """
    training, reason = request.training, irreproducible or provenance.irreproducible
    written_files: list[WrittenFile] = []
    for summary in summaries:
        written_files += [summary.shard.file, *summary.shard.sidecars]
    return Manifest(
        name=training.name,
        version=version,
        data_format=request.format.name,
        seed=training.seed,
        key=request.key,
        split_rule=request.rule.to_json(),
        block_rows=request.block_rows,
        compression=request.compression,
        columns=_columns(request.schema, request.format.encodings(plan.layout), request.roles),
        layout=plan.layout,
        splits=splits,
        files=(),
        plan=provenance.plan,
        plan_hash=provenance.plan_hash,
        sources=provenance.sources,
        reproducible=reason is None,
        reproducible_reason=reason,
        description=training.description,
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
        missing_labels=missing_labels,
        statistics=statistics or {},
    )


def file_prefixes(written_files: Iterable[WrittenFile]) -> dict[str, list[str]]:
    """Return the prefix digests of files by path; files without prefix digests are omitted."""
    prefixes = {file.path: list(file.prefixes) for file in written_files if file.prefixes}
    return prefixes


def manifest_file(file: WrittenFile) -> ManifestFile:
    """Return the manifest entry of a written file."""
    return ManifestFile(file.path, file.bytes, file.sha256)


def class_weights(counts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, float]]:
    """Return the balanced class weights of each label: rows / (classes * rows of the class).

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

    The result is cached, since each version is parsed from a metadata file.
    """
    versions = {"zlib": zlib.ZLIB_RUNTIME_VERSION}
    for name in names:
        try:
            versions[name] = installed_version(name)
        except PackageNotFoundError:
            # petastorm is an optional dependency.
            continue
    return versions


def _columns(
    schema: pa.Schema, encodings: Mapping[str, ColumnEncoding], roles: Mapping[str, Role]
) -> tuple[ManifestColumn, ...]:
    columns = []
    for field in schema:
        encoding = encodings[field.name]
        columns.append(
            ManifestColumn(
                name=field.name,
                type=type_to_json(field.type),
                role=roles[field.name],
                tf_type=encoding.tf_type,
                shape=encoding.shape,
                null=encoding.null,
                loss=encoding.loss,
            )
        )
    return tuple(columns)


def build_splits(
    request: ExportRequest, plan: ShardPlan, summaries: Sequence[ShardSummary]
) -> tuple[ManifestSplit, ...]:
    """Build the manifest entries of the splits, with their null and label counts."""
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
                label_weights=class_weights(
                    {
                        name: class_values(counts, request.schema.field(name).type)
                        for name, counts in labels.items()
                    }
                ),
            )
        )
    return tuple(splits)


def _shards(summaries: Sequence[ShardSummary]) -> tuple[ManifestShard, ...]:
    """Build the manifest entries of the shards of a split, with their first rows."""
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
        # Readers address rows by their number within the split.
        first_row += shard.rows
    return tuple(shards)


def _label_counts(
    labels: Sequence[str], summaries: Sequence[ShardSummary]
) -> dict[str, dict[str, int]]:
    """Return the row count of each label value; omit labels with too many values in any shard."""
    counts = {}
    for label in labels:
        counts_by_shard = []
        for summary in summaries:
            shard_counts = summary.labels[label]
            if shard_counts is not None:
                counts_by_shard.append(shard_counts)
        # A shard without counts has too many values, so the sum would be incomplete.
        if len(counts_by_shard) == len(summaries):
            counts[label] = _sum_counts(counts_by_shard)
    return counts


def _sum_counts(all_counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by name, in ascending order of names."""
    total: dict[str, int] = {}
    for counts in all_counts:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    # Sorted, because shards report values in the order in which they occur.
    return dict(sorted(total.items()))


def infer_record_schema(session: Session, df: object) -> dict[str, Any]:
    """Infer ``{column: tf.io feature}`` for a dataframe.

    The rows are read once to count nulls and measure lengths. No file is written.

    Raises:
        UnsupportedType: TFRecord does not support a column type; the message lists all columns.
    """
    tfrecord = find_format("tfrecord")
    df, language = peek_language(df)
    with open_relation(df, engine=session.engine) as rows:
        schema = rows.schema
        refuse_untyped_columns(schema, language=language)
        tfrecord.check(schema, compression=None)
        profiles = session.engine.aggregate(rows, ProfileAccumulator(tuple(schema.names)))
    layout = tfrecord.layout(schema, profiles, compression=None, block_rows=DEFAULT_BLOCK_ROWS)
    roles: dict[str, Role] = dict.fromkeys(schema.names, "feature")
    nulls = {profile.name: profile.nulls for profile in profiles if profile.nulls}
    split = ManifestSplit("all", rows=profiles[0].rows, bytes=0, shards=(), nulls=nulls)
    # This manifest is not written; only its columns and layout determine the result.
    manifest = Manifest(
        name="dataframe",
        version=1,
        data_format="tfrecord",
        seed=0,
        key=(),
        split_rule={},
        block_rows=DEFAULT_BLOCK_ROWS,
        compression=None,
        columns=_columns(schema, tfrecord.encodings(layout), roles),
        layout=layout,
        splits=(split,),
        files=(),
        plan=None,
        plan_hash=None,
        sources=(),
        reproducible=False,
        reproducible_reason="it is a dataframe",
    )
    return tfrecord.feature_spec(manifest)
