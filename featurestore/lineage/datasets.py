"""Datasets of events: what a piece of work read and wrote, and what is known of it.

All of it is read from what lies in the store by then: the log of a table, the manifest of a
training dataset, the notes of commits. A dataset is named by where it lies, as OpenLineage asks for,
and has its name in the store as a symbolic link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from openlineage.client.facet_v2 import (
    data_quality_assertions_dataset,
    data_quality_metrics_dataset,
    data_quality_metrics_input_dataset,
    output_statistics_output_dataset,
)
from openlineage.client.generated.base import InputDataset, OutputDataset

from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.lineage import assertions, column_origins, facets
from featurestore.lineage.column_origins import Columns
from featurestore.lineage.facets import PRODUCER, Facets, named
from featurestore.model.arrow_json import type_from_json
from featurestore.model.featuregroup import Commit
from featurestore.model.job import JobSpec
from featurestore.model.manifest import Manifest
from featurestore.model.paths import StorePaths
from featurestore.model.window_job import WindowJob
from featurestore.plugins.observers import Work
from featurestore.storage.manifests import read_manifest

_WRITES = ("create", "write")
_DROPS = ("delete", "remove")


def datasets_of(work: Work, *, ended: bool) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return what a piece of work read and wrote, as far as it is known by now."""
    paths = StorePaths(work.location)
    if work.kind == "validate":
        return [_validated(work, paths)], []
    if work.kind == "job":
        return _inputs(work.inputs, paths, _found(work)), []
    if work.kind in _DROPS:
        return [], [_dropped(work, paths)] if ended and work.error is None else []
    if not ended or work.landed is None:
        return [], [OutputDataset(*named(_path(work, paths)))] if work.version else []
    if work.kind in _WRITES:
        return _written_group(work, paths)
    return _written_dataset(work, paths)


def _path(work: Work, paths: StorePaths) -> str:
    version = work.version or 1
    if work.kind in ("export", "remove"):
        return paths.training_dataset(work.name, version)
    return paths.featuregroup(work.name, version)


# -- what was written -----------------------------------------------------------------------------


def _written_group(work: Work, paths: StorePaths) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return the inputs of a commit, and the group as it is after it."""
    path = _path(work, paths)
    commit = _commit_of(path, work)
    state = read_snapshot(path, commit.delta_version)
    spec = commits.spec_of(state)
    told = facets.described(path, work.name, work.version, spec.schema)
    told["version"] = facets.version_of(commit.delta_version)
    told["dataQualityMetrics"] = facets.metrics_of(state)
    lineage = _columns_of(work, spec.schema)
    if lineage is not None:
        told["columnLineage"] = facets.column_lineage(lineage, paths, only=spec.schema.names)
    if work.kind == "create":
        told["lifecycleStateChange"] = facets.lifecycle("CREATE")
    added = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=commit.rows_in, producer=PRODUCER
    )
    output = OutputDataset(*named(path), facets=told, outputFacets={"outputStatistics": added})
    read = [*commit.inputs.values(), *_groups_of(lineage)]
    return _inputs(read, paths), [output]


def _commit_of(path: str, work: Work) -> Commit:
    """Return the commit of a write: small files may have been merged by another one after it."""
    last = int(work.landed or 0)
    ids = {work.run_id}
    if work.parent is not None:
        ids |= {work.parent.run_id, f"job-{work.parent.run_id}"}
    for version in range(last, max(last - 3, -1), -1):
        commit = commits.commit_of(path, version)
        if commit.run_id in ids:
            return commit
    return commits.commit_of(path, last)


def _written_dataset(
    work: Work, paths: StorePaths
) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return the sources of a training dataset, and the dataset as its manifest tells it."""
    path = _path(work, paths)
    manifest = read_manifest(path)
    fields = []
    for column in manifest.columns:
        fields.append(pa.field(column.name, type_from_json(column.type)))
    schema = pa.schema(fields)
    told = facets.described(path, manifest.name, manifest.version, schema)
    told["version"] = facets.version_of(manifest.version)
    told["dataQualityMetrics"] = _metrics_of(manifest)
    told["lifecycleStateChange"] = facets.lifecycle("CREATE")
    if manifest.plan is not None:
        lineage = column_origins.of_plan(manifest.plan)
        told["columnLineage"] = facets.column_lineage(lineage, paths, only=schema.names)
    rows, size = _size_of(manifest)
    shards = [len(split.shards) for split in manifest.splits]
    written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=rows, size=size, fileCount=sum(shards), producer=PRODUCER
    )
    output = OutputDataset(*named(path), facets=told, outputFacets={"outputStatistics": written})
    return _inputs(manifest.sources, paths), [output]


def _metrics_of(
    manifest: Manifest,
) -> data_quality_metrics_dataset.DataQualityMetricsDatasetFacet:
    nulls = dict.fromkeys([column.name for column in manifest.columns], 0)
    for split in manifest.splits:
        for name, count in split.nulls.items():
            nulls[name] = nulls.get(name, 0) + count
    told = {}
    for name, count in nulls.items():
        told[name] = data_quality_metrics_dataset.ColumnMetrics(nullCount=count)
    rows, size = _size_of(manifest)
    return data_quality_metrics_dataset.DataQualityMetricsDatasetFacet(
        columnMetrics=told, rowCount=rows, bytes=size, producer=PRODUCER
    )


def _size_of(manifest: Manifest) -> tuple[int, int]:
    rows = size = 0
    for split in manifest.splits:
        rows += split.rows
        size += split.bytes
    return rows, size


def _dropped(work: Work, paths: StorePaths) -> OutputDataset:
    told: Facets = {"lifecycleStateChange": facets.lifecycle("DROP")}
    return OutputDataset(*named(_path(work, paths)), facets=told)


def _columns_of(work: Work, schema: pa.Schema) -> Columns | None:
    """Return the origins of the columns of a write: of a retrieval, or of the job that makes it."""
    if work.plan is not None:
        return column_origins.of_plan(work.plan)
    job = None if work.parent is None else work.parent.job
    if job is None or work.parent is None:
        return None
    if job.kind == "window":
        return column_origins.of_windows(WindowJob.of(job))
    if job.kind == "sql":
        return column_origins.of_query(job.code, _tables(job, work.parent), schema.names)
    return None


def _tables(job: JobSpec, run: Work) -> dict[str, column_origins.Group]:
    """Return the groups behind the tables of a job's query, at the versions that it read."""
    found: dict[str, column_origins.Group] = {}
    for each in run.inputs:
        name = str(each["input"])
        if each.get("version") is not None and name in job.inputs:
            found[name] = str(each["source"]), int(each["version"])
    return found


def _groups_of(lineage: Columns | None) -> Iterable[Mapping[str, Any]]:
    if lineage is None:
        return
    origins = [*lineage.rows]
    for found in lineage.columns.values():
        origins += found
    for name, version in dict.fromkeys(each.group for each in origins):
        yield {"featuregroup": name, "version": version}


# -- what was read --------------------------------------------------------------------------------


def _inputs(
    given: Iterable[Mapping[str, Any]], paths: StorePaths, found_of_it: Facets | None = None
) -> list[InputDataset]:
    """Return groups, tables, folders and registered sources that were read, each once."""
    found: dict[tuple[str, str], InputDataset] = {}
    for each in given:
        source = str(each.get("featuregroup") or each.get("source"))
        told: Facets = {}
        if source.startswith("source:"):
            key = source, str(each.get("query", ""))[:12]
            version = each.get("snapshot")
        elif "/" in source:
            key, version = named(source), each.get("delta_version")
        else:
            path = paths.featuregroup(source, each.get("version") or 1)
            key, version = named(path), each.get("delta_version")
            told["symlinks"] = facets.symlinks(path, source, each.get("version"))
        if version is not None:
            told["version"] = facets.version_of(version)
        if key not in found or "version" in told:
            found[key] = InputDataset(*key, facets=told, inputFacets=dict(found_of_it or {}))
    return list(found.values())


def _validated(work: Work, paths: StorePaths) -> InputDataset:
    """Return what was validated, at the end with what was expected of it."""
    report = work.report or getattr(work.error, "report", None)
    told: Facets = {}
    expected: Facets = {}
    path = _path(work, paths)
    if work.parent is not None and work.parent.kind == "export":
        path = paths.training_dataset(work.name, work.parent.version or 1)
    if work.landed is not None:
        told["version"] = facets.version_of(work.landed)
    if report is not None:
        expected["dataQualityAssertions"] = (
            data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
                assertions=assertions.of_report(report), producer=PRODUCER
            )
        )
        metrics = data_quality_metrics_input_dataset
        expected["dataQualityMetrics"] = metrics.DataQualityMetricsInputDatasetFacet(
            columnMetrics={}, rowCount=report.rows, producer=PRODUCER
        )
    return InputDataset(*named(path), facets=told, inputFacets=expected)


def _found(work: Work) -> Facets:
    """Return what a monitor found, as assertions on what it watches."""
    if work.found is None:
        return {}
    facet = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
        assertions=assertions.of_findings(work.found), producer=PRODUCER
    )
    return {"dataQualityAssertions": facet}
