"""Validation, fitting and storage of a training dataset's transformations.

The manifest refers to the transformations that a dataset was created with. Others may be fitted
later. Each file is named by its hash, so programs that fit the same transformations concurrently
write the same file, and no file is overwritten with different content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.schemas import type_to_json
from featurestore.errors import (
    DatasetDamaged,
    FeatureNotFound,
    InvalidArgument,
    InvalidSplit,
    did_you_mean,
    listing,
)
from featurestore.model.json_object import JsonMapping
from featurestore.model.manifest import Manifest, ManifestColumn
from featurestore.model.names import NamedColumn, check_distinct_names, mask_name
from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.storage import files, storage_for
from featurestore.transform.fit import (
    ColumnChain,
    ColumnState,
    ValueCounts,
    check_chains,
    fit_on_sample,
    fit_without_rows,
    to_sample,
)
from featurestore.transform.fitted import TRANSFORMATIONS, FittedColumn, Transformations

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset

_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_transformations(
    chains: Mapping[str, Any],
    schema: pa.Schema,
    *,
    roles: Mapping[str, str],
    fit_on: str,
    splits: Sequence[str],
) -> tuple[ColumnChain, ...]:
    """Check the requested chains against columns, roles and splits, and return them.

    Raises:
        InvalidSplit: The split to fit on does not exist.
        InvalidArgument: A chain does not support its column, or the column is not an input or
            label.
        ColumnConflict: An input has the name of the mask of a transformed column.
    """
    columns = check_chains(chains, schema)
    if columns and fit_on not in splits:
        raise InvalidSplit(
            f"Unknown split fit_on={fit_on!r}. Available: {listing(splits)}.",
            hint=did_you_mean(fit_on, splits, write="fit_on={!r}") or f"fit_on={splits[0]!r}",
        )
    wrong_roles = [
        f"{column.name} ({roles[column.name]})"
        for column in columns
        if roles[column.name] not in ("feature", "label")
    ]
    if wrong_roles:
        raise InvalidArgument(
            f"Transformations apply to inputs and labels, not to {listing(wrong_roles)}.",
            hint=f"features={[name.split(' ')[0] for name in wrong_roles]} makes them inputs",
        )
    # Preprocessors would read an input with the name of a mask as this mask.
    names = [name for name in schema.names if roles[name] == "feature"]
    inputs = [NamedColumn(name, f"column {name!r}") for name in names]
    masks = [
        NamedColumn(mask_name(column.name), f"the mask of column {column.name!r}")
        for column in columns
    ]
    check_distinct_names(
        [*inputs, *masks],
        hint=lambda mask: (
            f"rename the column before the dataset is created: '{mask.name} as {mask.name}_2' in "
            "get_features"
        ),
    )
    return columns


def fit_columns(
    requested_columns: Sequence[ColumnChain],
    stored_columns: Iterable[ManifestColumn],
    statistics: Mapping[str, ColumnStatistics],
    count: Callable[[Sequence[str]], Mapping[str, ColumnState]],
) -> tuple[FittedColumn, ...]:
    """Fit the requested chains and return the fitted columns.

    Args:
        requested_columns: The columns with their chains.
        stored_columns: The columns of the dataset, with the stored type of each.
        statistics: Statistics of the split by column; empty if none were computed.
        count: Counts the distinct values of columns, ``(names) -> {name: ColumnState}``. It is
            called at most once, and only if the statistics are not sufficient.
    """
    chains, columns, statistics_by_name = {}, [], {}
    narrow_names = {column.name for column in stored_columns if column.tf_type == "float32"}
    for column in requested_columns:
        # Files store float32, so the chain must be fitted on the values that readers yield.
        column = replace(column, narrow=column.name in narrow_names)
        columns.append(column)
        statistics_by_name[column.name] = _round_extremes(
            statistics.get(column.name), narrow=column.narrow
        )
        # Chains that need no value counts are fitted from the stored statistics, without reading
        # rows.
        chains[column.name] = fit_without_rows(column, statistics_by_name[column.name])
    counts: Mapping[str, ColumnState] = {}
    missing = [name for name, chain in chains.items() if chain is None]
    # All missing columns are counted in one pass.
    if missing:
        counts = count(missing)
    fitted = []
    for column in columns:
        chain = chains[column.name]
        if chain is None:
            sample = to_sample(counts[column.name], column.form, narrow=column.narrow)
            chain = fit_on_sample(column, sample, statistics_by_name[column.name])
        json_type = type_to_json(column.type)
        fitted.append(FittedColumn(column.name, json_type, chain, column.narrow))
    return tuple(fitted)


def _round_extremes(column: ColumnStatistics | None, *, narrow: bool) -> ColumnStatistics | None:
    """Round the minimum and maximum of column statistics as the values are rounded in files."""
    if column is None or not narrow:
        return column
    ends: dict[str, Any] = {}
    # Statistics were computed before rounding; a scaled maximum could exceed its bound otherwise.
    for name in ("minimum", "maximum"):
        value = getattr(column, name)
        if isinstance(value, float):
            ends[name] = float(np.float32(value))
    return replace(column, **ends)


def statistics_by_column(directory: str, entry: JsonMapping | None) -> dict[str, Any]:
    """Return the column statistics of a manifest entry; empty if the export computed none."""
    if entry is None:
        return {}
    data = files.read_json(storage_for(directory).resolve_inside(directory, entry["path"]))
    return {column.name: column for column in Statistics.from_json(data).columns}


def fit_dataset(
    dataset: TrainingDataset, chains: Mapping[str, Any], *, fit_on: str
) -> Transformations:
    """Fit transformations on a split of a finished dataset, store their file and return them."""
    from featurestore.training.reading import dataset_schema, split_batches

    manifest = dataset.manifest
    columns = check_transformations(
        chains,
        dataset_schema(manifest),
        roles={column.name: column.role for column in manifest.columns},
        fit_on=fit_on,
        splits=dataset.splits,
    )

    def count(names: Sequence[str]) -> dict[str, ColumnState]:
        counts = ValueCounts(tuple(names))
        state = counts.start()
        for batch in split_batches(dataset.path, manifest, fit_on, columns=names):
            state = counts.update(state, batch)
        return counts.finish(state)

    statistics: Mapping[str, ColumnStatistics] = {}
    if manifest.split(fit_on).name in manifest.statistics:
        split_statistics = dataset.statistics(fit_on)
        statistics = {column.name: column for column in split_statistics.columns}
    fitted = Transformations(
        dataset=manifest.name,
        version=manifest.version,
        fit_on=fit_on,
        rows=dataset.num_rows(fit_on),
        columns=fit_columns(columns, manifest.columns, statistics, count),
    )
    write_transformations(dataset.path, fitted)
    return fitted


def write_transformations(directory: str, fitted: Transformations) -> dict[str, str]:
    """Write the transformations file unless it exists, and return its manifest entry."""
    storage = storage_for(directory)
    path = os.path.join(directory, fitted.path)
    # Files are named by their content, so an intact file needs no rewrite.
    if not storage.exists(path) or files.sha256(path) != fitted.sha256:
        storage.write_atomically(path, fitted.to_bytes())
    return {"path": fitted.path, "sha256": fitted.sha256}


def read_registered(directory: str, manifest: Manifest) -> Transformations | None:
    """Read the transformations that a dataset was created with, if any.

    Raises:
        DatasetDamaged: The SHA-256 of the file differs from the manifest.
    """
    if manifest.transformations is None:
        return None
    return _read(directory, manifest.transformations["path"], manifest.transformations["sha256"])


def read_by_hash(directory: str, manifest: Manifest, sha256: object) -> Transformations:
    """Read the transformations whose file has this hash.

    Raises:
        InvalidArgument: The argument is not a SHA-256 in hexadecimal.
        DatasetDamaged: The file is missing, or its SHA-256 differs.
    """
    # The hash becomes a file name, so only hexadecimal digits are allowed.
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise InvalidArgument(f"{sha256!r} is not the SHA-256 of a transformations file.")
    entry = manifest.transformations
    if entry is not None and entry["sha256"] == sha256:
        return _read(directory, entry["path"], sha256)
    return _read(directory, f"{TRANSFORMATIONS}/{sha256}.json", sha256)


def resolve_transformations(
    dataset: TrainingDataset, transformed: object
) -> Transformations | None:
    """Resolve the argument ``transformed=``; None and True mean the dataset's transformations.

    Raises:
        InvalidArgument: The dataset has no transformations, or the argument belongs to another
            dataset.
    """
    if transformed is False:
        return None
    if transformed is None:
        return dataset.transformations
    if transformed is True:
        fitted = dataset.transformations
        if fitted is None:
            raise InvalidArgument(
                f"Training dataset {dataset.name!r} version {dataset.version} was created without "
                "transformations.",
                hint="fitted = dataset.fit({...}); dataset.reader(..., transformed=fitted)",
            )
        return fitted
    if not isinstance(transformed, Transformations):
        raise InvalidArgument(
            f"transformed={transformed!r} is not True, False or fitted transformations.",
            hint="transformed=dataset.fit({...})",
        )
    # Equal columns are not sufficient: scales and vocabularies depend on the rows of the dataset.
    if (transformed.dataset, transformed.version) != (dataset.name, dataset.version):
        raise InvalidArgument(
            f"These transformations were fitted on {transformed.dataset!r} version {transformed.version}, "
            f"not on {dataset.name!r} version {dataset.version}.",
            hint="dataset.fit({...})",
        )
    missing = [
        column.name for column in transformed.columns if column.name not in dataset.schema.names
    ]
    if missing:
        raise FeatureNotFound(f"The dataset has no columns {listing(missing)}.")
    return transformed


def _read(directory: str, relative: str, sha256: str) -> Transformations:
    path = storage_for(directory).resolve_inside(directory, relative)
    storage = storage_for(path)
    if not storage.exists(path) or files.sha256(path) != sha256:
        raise DatasetDamaged(
            f"The SHA-256 of the transformations file {path!r} differs from the expected one.",
            hint="restore the file from a copy, or fit them again: dataset.fit(...)",
        )
    return Transformations.from_bytes(storage.read_bytes(path), path=path)
