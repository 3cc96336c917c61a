"""The manifest of an export, which is built from the written shards, and checks of its labels.

Warnings are issued once for each label that a model cannot or need not learn, with what to look at.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.repeated_columns import is_almost_unlabeled
from featurestore.arrow.schemas import type_from_json, type_to_json
from featurestore.errors import DataWarning, FeatureStoreError, InvalidArgument, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.manifest import (
    WEIGHT_ZERO,
    Manifest,
    ManifestColumn,
    ManifestFile,
    ManifestShard,
    ManifestSplit,
    MissingLabels,
)
from featurestore.model.roles import Role
from featurestore.model.times import utc_now
from featurestore.plugins.format import ColumnEncoding, Layout, WrittenFile, WrittenShard
from featurestore.plugins.native import RowCounts
from featurestore.readers.transformed import bytes_label_hint
from featurestore.training.export.request import (
    ExportRequest,
    RowProvenance,
)
from featurestore.training.export.shard_plan import ExportPlan
from featurestore.training.export.shards import Written
from featurestore.transform.fitted import Transformations
from featurestore.usersql import predicate
from featurestore.usersql.text import DIALECT, quote

_LIBRARIES = ("featurestore", "numpy", "pyarrow", "petastorm")


@dataclass(frozen=True)
class ExportContents:
    """What an export has written (``formats.DatasetContents``), before its manifest exists."""

    description: str
    columns: tuple[ManifestColumn, ...]
    layout: Layout
    splits: tuple[ManifestSplit, ...]


def describe_contents(
    request: ExportRequest, plan: ExportPlan, written: Sequence[Sequence[Written]]
) -> ExportContents:
    """Describe the written shards, with their null and label counts."""
    return ExportContents(
        description=request.training.description,
        columns=manifest_columns(
            request.schema, request.format.encodings(plan.layout), request.roles
        ),
        layout=plan.layout,
        splits=build_splits(request, plan, written),
    )


def build_manifest(
    request: ExportRequest,
    contents: ExportContents,
    written_files: Iterable[WrittenFile],
    format_files: Sequence[WrittenFile],
    *,
    version: int,
    run_id: str,
    provenance: RowProvenance,
    irreproducible: str | None,
    uncovered_rows: int,
    dropped_rows: int | None,
    missing_labels: MissingLabels | None,
    statistics: Mapping[str, Any],
    transformations: Mapping[str, str] | None,
) -> Manifest:
    """Build the manifest of an export, once all files are written.

    ``irreproducible`` is the reason why running the plan again does not reproduce the rows.
    """
    training, reason = request.training, irreproducible or provenance.irreproducible
    return Manifest(
        name=training.name,
        version=version,
        data_format=request.format.name,
        seed=training.seed,
        key=request.key,
        split_rule=request.rule.to_json(),
        block_rows=request.block_rows,
        compression=request.compression,
        columns=contents.columns,
        layout=contents.layout,
        splits=contents.splits,
        files=tuple(map(manifest_file, format_files)),
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
        uncovered_rows=uncovered_rows,
        dropped_rows=dropped_rows,
        prefixes={
            file.path: list(file.prefixes)
            for file in (*written_files, *format_files)
            if file.prefixes
        },
        view=provenance.view,
        reads=provenance.recorded_reads,
        max_lengths=request.max_lengths,
        missing_labels=missing_labels,
        statistics=statistics,
        transformations=transformations,
    )


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


def manifest_columns(
    schema: pa.Schema, encodings: Mapping[str, ColumnEncoding], roles: Mapping[str, Role]
) -> tuple[ManifestColumn, ...]:
    """Return the manifest entries of the columns."""
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
    request: ExportRequest, plan: ExportPlan, written: Sequence[Sequence[Written]]
) -> tuple[ManifestSplit, ...]:
    """Build the manifest entries of the splits, with their null and label counts."""
    splits = []
    for name, rows, split_shards in zip(request.rule.names, plan.rows, written, strict=True):
        shards = _shards([shard for shard, _ in split_shards])
        counts = [shard_counts for _, shard_counts in split_shards]
        labels = _label_counts(request.labels, counts)
        nulls = _sum_counts(shard_counts.nulls for shard_counts in counts)
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


def _shards(written: Sequence[WrittenShard]) -> tuple[ManifestShard, ...]:
    """Build the manifest entries of the shards of a split, with their first rows."""
    shards = []
    first_row = 0
    for shard in written:
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
    labels: Sequence[str], counts_of_shards: Sequence[RowCounts]
) -> dict[str, dict[str, int]]:
    """Return the row count of each label value; omit labels with too many values in any shard."""
    counts = {}
    for label in labels:
        counts_by_shard = [shard_counts.labels[label] for shard_counts in counts_of_shards]
        # A shard without counts has too many values, so the sum would be incomplete.
        if None not in counts_by_shard:
            counts[label] = _sum_counts(filter(None, counts_by_shard))
    return counts


def _sum_counts(all_counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by name, in ascending order of names."""
    total: dict[str, int] = {}
    for counts in all_counts:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    # Sorted, because shards report values in the order in which they occur.
    return dict(sorted(total.items()))


_ROWS_PER_CLASS = 10  # average from which on contiguous numbers count as class codes


def check_labels(
    request: ExportRequest,
    splits: Sequence[ManifestSplit],
    missing_labels: MissingLabels | None,
    *,
    is_frame: bool,
) -> None:
    """Refuse rows without label, and warn about labels that no model can learn.

    Warnings concern datasets without rows, labels with a single class or NaN, labels that are null
    in almost all rows, and classes that are missing in the training split. ``is_frame`` is
    False for rows of a dataframe of another library.

    Raises:
        InvalidArgument: A label is null in every row, or in some rows without a policy for them.
    """
    name = request.training.name
    rows = sum(split.rows for split in splits)
    dropped = 0
    if missing_labels is not None and missing_labels.policy != WEIGHT_ZERO:
        dropped = missing_labels.rows
    if not rows:
        if dropped:
            raise _empty_label_error(listing(request.labels), dropped)
        warn_caller(f"training dataset {name!r} has no rows", DataWarning)
        return
    if is_almost_unlabeled(rows, rows + dropped):
        _warn_unlabeled(name, listing(request.labels), dropped, rows + dropped, "were dropped")
    for label in request.labels:
        nulls = sum(split.nulls.get(label, 0) for split in splits)
        if nulls == rows:
            raise _empty_label_error(repr(label), rows)
        if nulls and request.training.missing_labels == "error":
            raise _missing_label_error(
                request, label, f"{nulls:,} of {rows:,} rows", is_frame=is_frame
            )
        if is_almost_unlabeled(rows - nulls, rows):
            _warn_unlabeled(name, repr(label), nulls, rows, "have the weight 0")
        _warn_about_classes(request, splits, label)


def _warn_unlabeled(dataset: str, label: str, nulls: int, rows: int, result: str) -> None:
    warn_caller(
        f"the label {label} of training dataset {dataset!r} is null in {nulls:,} of {rows:,} "
        f"rows, which {result}: look at the join that computes it, at the types of its keys, and "
        "at the times of the rows",
        DataWarning,
    )


def describe_text_labels(manifest: Manifest, transform: Transformations | None) -> str | None:
    """Describe which models take the labels that are text, None without such labels."""
    labels = [
        column.name
        for column in manifest.columns
        if column.role == "label"
        and pat.is_string(type_from_json(column.type))
        and (transform is None or column.name not in transform)
    ]
    if not labels:
        return None
    return (
        f"text:     {', '.join(labels)}; models of scikit-learn take it, and those of Keras and "
        f"PyTorch need\n          {bytes_label_hint(manifest, labels)}"
    )


def _empty_label_error(label: str, rows: int) -> InvalidArgument:
    return InvalidArgument(
        f"The label {label} is null in all {rows:,} rows.",
        hint="check the name of the label and the join that computes it",
    )


def _missing_label_error(
    request: ExportRequest, label: str, rows: str, *, is_frame: bool
) -> InvalidArgument:
    """Return the error for rows without label, with the line that removes them."""
    hint = 'missing_labels="drop", or missing_labels="weight_zero" to store these rows with the weight 0'
    line = None
    if is_frame:
        condition = f"{label} is not null"
        try:
            predicate(condition, schema=request.schema, dialect=DIALECT)
        except FeatureStoreError:  # a reserved word of SQL
            condition = f"{quote(label)} is not null"
        line = f"frame = frame.filter({condition!r})"
    return InvalidArgument(
        f"The label {label!r} is null in {rows}, and a model would learn them as zeros.",
        hint=hint if line is None else f"{line}, or {hint}",
    )


def _warn_about_classes(
    request: ExportRequest, splits: Sequence[ManifestSplit], label: str
) -> None:
    """Warn about NaN labels, single classes, and classes that the training split lacks."""
    name, label_type = request.training.name, request.schema.field(label).type
    totals: Counter[str] = Counter()
    for split in splits:
        totals.update(split.value_counts(label) or {})
    classes = class_values(totals, label_type)
    nan_count = sum(totals.values()) - sum(classes.values())
    if nan_count:
        warn_caller(
            f"the label {label!r} of training dataset {name!r} is NaN in {nan_count:,} rows: "
            f"the loss and then the model become NaN; df.dropna(subset=[{label!r}]) "
            "removes them",
            DataWarning,
        )
    training_split = next((split for split in splits if split.name == "train"), splits[0])
    training_classes = class_values(training_split.value_counts(label) or {}, label_type)
    if len(training_classes) == 1:
        ((value, rows),) = training_classes.items()
        where = "" if len(classes) == 1 else f" in split {training_split.name!r}"
        warn_caller(
            f"the label {label!r} of training dataset {name!r} has a single value{where}: "
            f"{value} in {sum(classes.values()) if not where else rows:,} rows: look at the "
            "filters, the times and the join that select these rows",
            DataWarning,
        )
    if not training_classes or pat.is_temporal(label_type) or not _are_class_values(classes):
        return
    for split in splits:
        split_classes = class_values(split.value_counts(label) or {}, label_type)
        missing_classes = sorted(value for value in split_classes if value not in training_classes)
        if missing_classes:
            warn_caller(
                f"the label {label!r} of training dataset {name!r} has classes in split "
                f"{split.name!r} that are missing in the training split: {listing(missing_classes)}; "
                f"stratify={label!r} divides each class among the splits",
                DataWarning,
            )


def class_values(counts: Mapping[str, int], label_type: pa.DataType) -> dict[str, int]:
    """Return the counts of classes: all label values, except the NaN of a floating-point type."""
    return {
        value: count
        for value, count in counts.items()
        if not (value == "nan" and pat.is_floating(label_type))
    }


def _are_class_values(counts: Mapping[str, int]) -> bool:
    """Return whether label values are classes: strings, booleans, or the codes 0..n or 1..n.

    Times and other numbers are quantities. Codes with few rows each, such as ages, are quantities
    too, since a test split normally has some values that the training split lacks.
    """
    try:
        codes = sorted({float(value) for value in counts})
    except ValueError:
        return True
    contiguous = bool(codes) and codes[0] in (0, 1) and codes[-1] - codes[0] == len(codes) - 1
    return contiguous and sum(counts.values()) >= _ROWS_PER_CLASS * len(codes)
