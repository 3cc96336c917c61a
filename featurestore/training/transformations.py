"""The transformations of a training dataset: checked, fitted on its files, kept beside them.

Those that a dataset was made with are named by its manifest. Others may be fitted later; their
files are named by their own hash, so that what two programs fit at the same time is one file, and
nothing is ever overwritten with something else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.arrow_json import type_to_json
from featurestore.errors import (
    DatasetDamaged,
    FeatureNotFound,
    InvalidArgument,
    InvalidSplit,
    did_you_mean,
    listing,
)
from featurestore.model.manifest import Manifest
from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.storage import files
from featurestore.transform.counting import ColumnState, ValueCounts, to_sample
from featurestore.transform.fit import ColumnChain, check_chains, fit_on_sample, fit_without_rows
from featurestore.transform.fitted import TRANSFORMATIONS, FittedColumn, Transformations

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset

_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_transformations(
    asked: Mapping[str, Any],
    schema: pa.Schema,
    *,
    roles: Mapping[str, str],
    fit_on: str,
    splits: Sequence[str],
) -> tuple[ColumnChain, ...]:
    """Return what is asked for, checked against columns, roles and splits.

    Raises:
        InvalidSplit: There is no split to fit on.
        InvalidArgument: A chain cannot take its column, or the column is no input or label.
    """
    columns = check_chains(asked, schema)
    if columns and fit_on not in splits:
        raise InvalidSplit(
            f"Transformations are fitted on the split {fit_on!r}; there are {listing(splits)}.",
            hint=did_you_mean(fit_on, splits, write="fit_on={!r}") or f"fit_on={splits[0]!r}",
        )
    others = []
    for column in columns:
        if roles[column.name] not in ("feature", "label"):
            others.append(f"{column.name} ({roles[column.name]})")
    if others:
        raise InvalidArgument(
            f"Transformations are of inputs and labels, not of {listing(others)}.",
            hint=f"features={[name.split(' ')[0] for name in others]} makes inputs of them",
        )
    return columns


def fit_columns(
    asked: Sequence[ColumnChain],
    manifest: Manifest,
    statistics: Mapping[str, ColumnStatistics],
    count: Callable[[Sequence[str]], Mapping[str, ColumnState]],
) -> tuple[FittedColumn, ...]:
    """Return the fitted columns.

    Args:
        asked: What is asked for.
        manifest: Of the dataset, which says how its files hold the columns.
        statistics: Of the split, by column; empty where none were counted.
        count: Counts the different values of some columns, ``(names) -> {name: ColumnState}``;
            called once, and only where statistics do not tell enough.
    """
    chains, columns, known = {}, [], {}
    for column in asked:
        column = replace(column, narrow=manifest.column(column.name).tf_type == "float32")
        columns.append(column)
        known[column.name] = _narrowed(statistics.get(column.name), narrow=column.narrow)
        chains[column.name] = fit_without_rows(column, known[column.name])
    counts: Mapping[str, ColumnState] = {}
    missing = [name for name, chain in chains.items() if chain is None]
    if missing:
        counts = count(missing)
    fitted = []
    for column in columns:
        chain = chains[column.name]
        if chain is None:
            sample = to_sample(counts[column.name], column.form, narrow=column.narrow)
            chain = fit_on_sample(column, sample, known[column.name])
        kind = type_to_json(column.type)
        fitted.append(FittedColumn(column.name, kind, chain, column.narrow))
    return tuple(fitted)


def _narrowed(column: ColumnStatistics | None, *, narrow: bool) -> ColumnStatistics | None:
    """Return statistics with the ends of the range as files hold them."""
    if column is None or not narrow:
        return column
    ends: dict[str, Any] = {}
    for name in ("minimum", "maximum"):
        value = getattr(column, name)
        if isinstance(value, float):
            ends[name] = float(np.float32(value))
    return replace(column, **ends)


def statistics_by_column(directory: str, manifest: Manifest, split: str) -> dict[str, Any]:
    """Return the statistics that the export counted of a split's columns, if it did."""
    noted = manifest.statistics.get(split)
    if noted is None:
        return {}
    data = files.read_json(files.inside(directory, noted["path"]))
    return {column.name: column for column in Statistics.from_json(data).columns}


def fit_dataset(
    dataset: TrainingDataset, asked: Mapping[str, Any], *, fit_on: str
) -> Transformations:
    """Return transformations fitted on a split of a finished dataset, and keep their file."""
    from featurestore.training.reading import dataset_schema, split_batches

    manifest = dataset.manifest
    columns = check_transformations(
        asked,
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
        found = dataset.statistics(fit_on)
        statistics = {column.name: column for column in found.columns}
    fitted = Transformations(
        dataset=manifest.name,
        version=manifest.version,
        fit_on=fit_on,
        rows=dataset.num_rows(fit_on),
        columns=fit_columns(columns, manifest, statistics, count),
    )
    write_transformations(dataset.path, fitted)
    return fitted


def write_transformations(directory: str, fitted: Transformations) -> dict[str, str]:
    """Write the file of transformations, unless it is there; return what a manifest notes of it."""
    path = os.path.join(directory, fitted.path)
    if not files.exists(path) or files.sha256(path) != fitted.sha256:
        files.write_atomically(path, fitted.to_bytes())
    return {"path": fitted.path, "sha256": fitted.sha256}


def read_noted(directory: str, manifest: Manifest) -> Transformations | None:
    """Return the transformations that a dataset was made with.

    Raises:
        DatasetDamaged: Their file is not the one that the manifest names.
    """
    if manifest.transformations is None:
        return None
    return _read(directory, manifest.transformations["path"], manifest.transformations["sha256"])


def read_by_hash(directory: str, manifest: Manifest, sha256: object) -> Transformations:
    """Return transformations by the hash of their file.

    Raises:
        InvalidArgument: The text is no such hash.
        DatasetDamaged: The dataset has no such file, or another content in it.
    """
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise InvalidArgument(f"{sha256!r} is no hash of transformations.")
    noted = manifest.transformations
    if noted is not None and noted["sha256"] == sha256:
        return _read(directory, noted["path"], sha256)
    return _read(directory, f"{TRANSFORMATIONS}/{sha256}.json", sha256)


def of_dataset(dataset: TrainingDataset, wanted: object) -> Transformations | None:
    """Return what ``transformed=`` means: None and True take those the dataset was made with.

    Raises:
        InvalidArgument: There are none, or those given are of another dataset.
    """
    if wanted is False:
        return None
    if wanted is None:
        return dataset.transformations
    if wanted is True:
        found = dataset.transformations
        if found is None:
            raise InvalidArgument(
                f"Training dataset {dataset.name!r} version {dataset.version} was made without "
                "transformations.",
                hint="fitted = dataset.fit({...}); dataset.reader(..., transformed=fitted)",
            )
        return found
    if not isinstance(wanted, Transformations):
        raise InvalidArgument(
            f"transformed={wanted!r} is not True, False or fitted transformations.",
            hint="transformed=dataset.fit({...})",
        )
    if (wanted.dataset, wanted.version) != (dataset.name, dataset.version):
        raise InvalidArgument(
            f"These transformations were fitted on {wanted.dataset!r} version {wanted.version}, "
            f"not on {dataset.name!r} version {dataset.version}.",
            hint="dataset.fit({...})",
        )
    missing = []
    for column in wanted.columns:
        if column.name not in dataset.schema.names:
            missing.append(column.name)
    if missing:
        raise FeatureNotFound(f"The dataset has no columns {listing(missing)}.")
    return wanted


def _read(directory: str, relative: str, sha256: str) -> Transformations:
    path = files.inside(directory, relative)
    if not files.exists(path) or files.sha256(path) != sha256:
        raise DatasetDamaged(
            f"The transformations {path!r} are not those that are asked for.",
            hint="restore the file from a copy, or fit them again: dataset.fit(...)",
        )
    return Transformations.from_bytes(files.read_bytes(path), path=path)
