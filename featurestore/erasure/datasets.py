"""Erasure in training datasets: a new version without the rows replaces the old one.

The new version has the format, splits, seed and roles of the old one. Its rows are those of the old
files, so that it can be written although the versions of its sources were removed. Transformations
are fitted again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.erasure.areas import Scan
from featurestore.model.erasure import Action, ErasureFinding
from featurestore.model.manifest import Manifest
from featurestore.plugins.engine import Relation
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.recovery.pins import finished_datasets
from featurestore.registry import origins, training_datasets
from featurestore.registry.artifacts import models
from featurestore.registry.origins import DATASET, Object
from featurestore.storage import storage_for
from featurestore.storage.failures import warn_after_publication
from featurestore.storage.manifests import read_annotations, read_manifest
from featurestore.training.catalog import remove
from featurestore.training.create import (
    QUARANTINE,
    ExportProgress,
    export,
    publish,
)
from featurestore.training.export.assignment import ClassSplits
from featurestore.training.export.boundaries import groups_and_hashes
from featurestore.training.export.hashed_rows import HashRows
from featurestore.training.export.request import ExportData, ExportRequest, RowProvenance
from featurestore.training.export.shard_plan import LAST_HASH
from featurestore.training.reading import (
    dataset_schema,
    has_readable_rows,
    shard_batches_in_order,
)
from featurestore.training.recompute import export_request
from featurestore.training.transformations import read_registered
from featurestore.transform.fit import check_chains
from featurestore.transform.steps import Chain, Step

_REASON = "rows of entities were erased"


class TrainingDatasets:
    """All training datasets in the location, registered or not."""

    name = "training datasets"

    def search(self, scan: Scan) -> list[ErasureFinding]:
        findings = []
        for name, version in finished_datasets(scan.session):
            scan.scanned[self.name] += 1
            directory = scan.session.training_dataset_path(name, version)
            finding = _search_dataset(scan, name, read_manifest(directory), directory)
            if finding is not None:
                findings.append(finding)
                scan.affected_datasets.add((name, version))
        return findings

    def erase(self, scan: Scan) -> None:
        if scan.datasets == "keep":
            return
        for name, version in list(finished_datasets(scan.session)):
            directory = scan.session.training_dataset_path(name, version)
            manifest = read_manifest(directory)
            finding = _search_dataset(scan, name, manifest, directory)
            if finding is None or finding.action == "list" or not has_readable_rows(manifest):
                continue
            # A killed erasure may have written the new version before it removed the old one. A
            # second new version has the same rows.
            number = _export_without(scan, manifest, directory)
            scan.exported[f"{name}@v{version}"] = f"{name}@v{number}"
            remove(scan.session, name, version, force=True)


def _search_dataset(
    scan: Scan, name: str, manifest: Manifest, directory: str
) -> ErasureFinding | None:
    """Return the finding of a dataset; None if it has no rows of the entities."""
    title = f"{name}@v{manifest.version}"
    action: Action = "list" if scan.datasets == "keep" else "erase"
    schema = dataset_schema(manifest)
    columns = scan.entities.key_columns(schema.names, owner=name)
    scan.key_names.update(columns.values())
    if not scan.entities.is_searchable(columns):
        return _search_sources(scan, manifest, title)
    if not has_readable_rows(manifest):
        # Its rows are unknown. It can neither be written without some, nor be proven to have none.
        detail = f"{manifest.data_format} with compression {manifest.compression} cannot be read"
        return ErasureFinding(TrainingDatasets.name, title, detail, action)
    rows = 0
    for _, batch in _stored_batches(manifest, directory, columns=list(columns)):
        rows += scan.entities.matches(batch, columns).true_count
    quarantined = _count_quarantined(scan, name, directory)
    if not rows and not quarantined:
        return None
    detail = f"{rows:,} rows"
    if quarantined:
        detail += f", {quarantined:,} quarantined rows"
    if action == "erase":
        detail += f" of {sum(split.rows for split in manifest.splits):,}"
    return ErasureFinding(TrainingDatasets.name, title, detail, action, rows + quarantined)


def _search_sources(scan: Scan, manifest: Manifest, title: str) -> ErasureFinding | None:
    """Return the finding of a dataset that cannot be searched, but whose sources have matching rows."""
    sources = {(source["featuregroup"], source["version"]) for source in manifest.sources}
    affected = [f"{group}@v{version}" for group, version in sorted(sources & set(scan.key_rows))]
    if not affected:
        return None
    detail = f"cannot be searched for the keys; created from {', '.join(affected)}"
    return ErasureFinding(TrainingDatasets.name, title, detail, "list")


def _stored_batches(
    manifest: Manifest, directory: str, *, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of a dataset with the number of their split."""
    for number, split in enumerate(manifest.splits):
        for shard in split.shards:
            for batch in shard_batches_in_order(directory, manifest, shard, columns=columns):
                yield number, batch


def _count_quarantined(scan: Scan, name: str, directory: str) -> int:
    storage = storage_for(directory)
    from pyarrow import parquet

    rows = 0
    for file in storage.walk(os.path.join(directory, QUARANTINE)):
        if file.endswith(".parquet"):
            table = parquet.read_table(storage.open_complete(file))
            columns = scan.entities.key_columns(table.schema.names, owner=name)
            for batch in table.to_batches():
                if scan.entities.is_searchable(columns):
                    rows += scan.entities.matches(batch, columns).true_count
    return rows


# -- export -----------------------------------------------------------------------------------


def _export_without(scan: Scan, manifest: Manifest, directory: str) -> int:
    """Export the other rows of a dataset as its next version, and return the version."""
    session = scan.session
    request = _request_of(manifest, directory)
    with in_flight(session, operation="export", name=manifest.name, version=None) as run:
        with session.registry.transaction() as connection:
            # The manifest names neither what a job read nor which groups were deleted since.
            origins.record(
                connection,
                Object(DATASET, manifest.name, run.version),
                [Object(DATASET, manifest.name, manifest.version)],
            )
        session.storage.make_directory(session.paths.staging)
        relation = _stage_other_rows(scan, manifest, directory, run)
        provenance = RowProvenance(
            plan=_clean(scan, manifest.plan),
            plan_hash=manifest.plan_hash,
            sources=manifest.sources,
            irreproducible=_REASON,
            view=manifest.view,
            earlier_reads=_clean(scan, manifest.reads),
            uncovered_rows=manifest.uncovered_rows,
            dropped_rows=manifest.dropped_rows,
        )
        data = ExportData(lambda: relation, relation.schema, provenance)
        target = session.training_dataset_path(manifest.name, run.version)
        new_manifest, _ = export(
            session.engine,
            data,
            request,
            run,
            directory=target,
            progress=ExportProgress(None),
            classes=_find_class_splits(request, manifest, directory),
        )
        publish(new_manifest, run, directory=target, sources=[])
        run.committed_version = run.version
        with warn_after_publication(f"Training dataset {manifest.name!r} version {run.version}"):
            with session.registry.transaction() as connection:
                training_datasets.register(connection, new_manifest)
            run.registered = True
    return run.version


def _find_class_splits(
    request: ExportRequest, manifest: Manifest, directory: str
) -> dict[int, ClassSplits] | None:
    """Return the first hash of each split within each class of a dataset; None without classes.

    Splits are by rank within a class. Without erased rows, other rows would have these ranks.
    """
    if not request.rule.stratify:
        return None
    add_hashes = HashRows.of(request, with_columns=False)
    columns = [*dict.fromkeys([*request.key, *request.rule.columns])]
    starts: dict[int, list[int]] = {}
    for number, batch in _stored_batches(manifest, directory, columns=columns):
        groups, hashes = groups_and_hashes(add_hashes(batch))
        for group in np.unique(groups).tolist():
            first = int(hashes[groups == group].min())
            of_class = starts.setdefault(group, [LAST_HASH] * len(manifest.splits))
            # An empty split starts where the next one does.
            of_class[: number + 1] = [min(first, start) for start in of_class[: number + 1]]
    return {group: ClassSplits(tuple(of_class[1:])) for group, of_class in starts.items()}


def _request_of(manifest: Manifest, directory: str) -> ExportRequest:
    """Return the request of a dataset, with its annotations, and its transformations to fit."""
    annotations = read_annotations(directory, manifest)
    fitted = read_registered(directory, manifest)
    chains = {}
    for column in () if fitted is None else fitted.columns:
        steps = [Step(step.rule, step.options) for step in column.chain.steps]
        # A file has only the hash of a Python function, which must be passed again.
        if all(step.rule != "function" for step in steps):
            chains[column.name] = Chain(tuple(steps))
    return export_request(
        manifest,
        description=annotations.description,
        tags=annotations.tags,
        transformations=check_chains(chains, dataset_schema(manifest)),
        fit_on="train" if fitted is None else fitted.fit_on,
    )


def _stage_other_rows(scan: Scan, manifest: Manifest, directory: str, run: InFlight) -> Relation:
    engine, schema = scan.session.engine, dataset_schema(manifest)
    columns = scan.entities.key_columns(schema.names, owner=manifest.name)

    def batches() -> Iterator[pa.RecordBatch]:
        for _, batch in _stored_batches(manifest, directory):
            yield batch.filter(pc.invert(scan.entities.matches(batch, columns)))

    rows = engine.from_arrow(pa.RecordBatchReader.from_batches(schema, batches()))
    try:
        staged = engine.stage(rows, os.path.join(run.staging, "other_rows"))
    finally:
        engine.release(rows)
    return replace(staged, schema=schema)


def _clean(scan: Scan, value: Any) -> Any:
    """Return a JSON value whose strings contain no erased values."""
    if isinstance(value, str):
        return scan.entities.remove_from(value)
    if isinstance(value, Mapping):
        return {name: _clean(scan, item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_clean(scan, item) for item in value)
    return value


def trained_models(scan: Scan) -> list[str]:
    """Return the registered models that were trained on affected datasets, as ``name@v1``."""
    titles = set()
    with scan.session.registry.reading() as connection:
        for name, version in scan.affected_datasets:
            for model, number in models.of_dataset(connection, name, version):
                titles.add(f"{model}@v{number}")
    return sorted(titles)
