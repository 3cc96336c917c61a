"""Events of OpenLineage: start, completion or failure of a run, with its inputs and outputs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
from openlineage.client import event_v2 as openlineage
from openlineage.client.facet_v2 import (
    data_quality_assertions_dataset,
    data_quality_metrics_dataset,
    data_quality_metrics_input_dataset,
    error_message_run,
    job_type_job,
    nominal_time_run,
    output_statistics_output_dataset,
    parent_run,
    sql_job,
)
from openlineage.client.generated.base import (
    EventType,
    InputDataset,
    Job,
    JobFacet,
    OutputDataset,
    Run,
    RunFacet,
)

from featurestore.arrow.schemas import type_from_json
from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError
from featurestore.lineage import column_origins, facets
from featurestore.lineage.column_origins import ColumnOrigins
from featurestore.lineage.facets import PRODUCER, Facets, dataset_identifier
from featurestore.model.featuregroup import Commit
from featurestore.model.job import JobSpec, WindowJob
from featurestore.model.manifest import Manifest
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.paths import StorePaths
from featurestore.model.validation import ExpectationResult, ValidationReport, describe
from featurestore.plugins.observers import Work
from featurestore.storage.manifests import read_manifest

_TYPES = {"job": "JOB", "validate": "QUERY"}
_WRITES = ("create", "write")
_DROPS = ("delete", "remove")


def event_of(work: Work, timestamp: datetime, *, ended: bool) -> openlineage.RunEvent:
    """Return the event of an operation: START, or COMPLETE or FAIL after its end."""
    kind = EventType.START
    if ended:
        kind = EventType.COMPLETE if work.error is None else EventType.FAIL
    inputs, outputs = datasets_of(work, ended=ended)
    return openlineage.RunEvent(
        eventType=kind,
        eventTime=timestamp.isoformat(),
        producer=PRODUCER,
        run=Run(runId=_run_id(work), facets=_run_facets(work, ended=ended)),
        job=Job(namespace=namespace(), name=job_name(work), facets=_job_facets(work)),
        inputs=inputs,
        outputs=outputs,
    )


def namespace() -> str:
    """Return the namespace of jobs, from the setting of OpenLineage."""
    return os.environ.get("OPENLINEAGE_NAMESPACE") or "default"


def job_name(work: Work) -> str:
    """Return the job name of an operation: that of a job, else ``<kind>.<name>``.

    >>> job_name(Work("write", "weather", "", ""))
    'write.weather'
    """
    if work.kind == "job":
        return work.name
    return f"{work.kind}.{work.name}"


def _run_id(work: Work) -> str:
    return str(uuid.UUID(work.run_id))


def _run_facets(work: Work, *, ended: bool) -> dict[str, RunFacet]:
    facets: dict[str, RunFacet] = {}
    if work.window is not None:
        facets["nominalTime"] = nominal_time_run.NominalTimeRunFacet(
            nominalStartTime=work.window.start.isoformat(),
            nominalEndTime=work.window.end.isoformat(),
            producer=PRODUCER,
        )
    if work.parent is not None:
        facets["parent"] = _parent(work, work.parent)
    if ended and work.error is not None:
        message = f"{type(work.error).__name__}: {work.error}"
        if isinstance(work.error, FeatureStoreError):
            message = work.error.message
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=message, programmingLanguage="PYTHON", producer=PRODUCER
        )
    return facets


def _parent(work: Work, parent: Work) -> parent_run.ParentRunFacet:
    root = work
    while root.parent is not None:
        root = root.parent
    return parent_run.ParentRunFacet(
        run=parent_run.Run(runId=_run_id(parent)),
        job=parent_run.Job(namespace=namespace(), name=job_name(parent)),
        root=parent_run.Root(
            run=parent_run.RootRun(runId=_run_id(root)),
            job=parent_run.RootJob(namespace=namespace(), name=job_name(root)),
        ),
        producer=PRODUCER,
    )


def _job_facets(work: Work) -> dict[str, JobFacet]:
    facets: dict[str, JobFacet] = {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType="BATCH",
            integration="FEATURESTORE",
            jobType=_TYPES.get(work.kind, "COMMAND"),
            producer=PRODUCER,
        )
    }
    if work.job is not None and work.job.kind == "sql":
        facets["sql"] = sql_job.SQLJobFacet(
            query=work.job.code, dialect="duckdb", producer=PRODUCER
        )
    return facets


def datasets_of(work: Work, *, ended: bool) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return the inputs and outputs of an operation that are known so far."""
    paths = StorePaths(work.location)
    if work.kind == "validate":
        return [_validated_dataset(work, paths)], []
    if work.kind == "job":
        return _inputs(work.inputs, paths, _finding_facets(work)), []
    if work.kind in _DROPS:
        if not ended or work.error is not None:
            return [], []
        drop: Facets = {"lifecycleStateChange": facets.lifecycle("DROP")}
        return [], [OutputDataset(*dataset_identifier(_path(work, paths)), facets=drop)]
    if not ended or work.committed_version is None:
        return [], [OutputDataset(*dataset_identifier(_path(work, paths)))] if work.version else []
    if work.kind in _WRITES:
        return _group_commit_datasets(work, paths)
    return _export_datasets(work, paths)


Assertion = data_quality_assertions_dataset.Assertion


def assertions_of_report(report: ValidationReport) -> list[Assertion]:
    """Return the expectations of a validation."""
    return [_assertion_of_result(each) for each in report.results]


def _assertion_of_result(result: ExpectationResult) -> Assertion:
    expectation = result.expectation
    column = expectation.get("kwargs", {}).get("column")
    return Assertion(
        assertion=str(expectation["type"]),
        success=bool(result.success),
        column=column if isinstance(column, str) else None,
        severity="warn" if result.warning else "error",
        description=describe(expectation),
        actual=f"{result.unexpected} of {result.rows} rows" if result.row_level else None,
    )


def assertions_of_findings(report: MonitorReport) -> list[Assertion]:
    """Return the findings of a monitor's latest window; alarms are failed assertions."""
    return [
        Assertion(
            assertion=f"{each.kind}.{each.measure}",
            success=not each.alarm,
            column=each.subject if each.kind in ("drift", "nulls", "values") else None,
            severity="error",
            description=str(each),
            actual=None if each.value is None else str(each.value),
            expected=_bounds(each.low, each.high),
        )
        for each in report.findings
    ]


def _bounds(low: float | None, high: float | None) -> str | None:
    conditions = []
    if low is not None:
        conditions.append(f">= {low:.6g}")
    if high is not None:
        conditions.append(f"<= {high:.6g}")
    return " and ".join(conditions) or None


def _path(work: Work, paths: StorePaths) -> str:
    version = work.version or 1
    if work.kind in ("export", "remove"):
        return paths.training_dataset(work.name, version)
    return paths.featuregroup(work.name, version)


# -- outputs --------------------------------------------------------------------------------------


def _group_commit_datasets(
    work: Work, paths: StorePaths
) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return the inputs of a commit, and the group after the commit."""
    path = _path(work, paths)
    commit = _commit_of(path, work)
    state = read_snapshot(path, commit.delta_version)
    spec = commits.spec_of(state)
    dataset_facets = facets.standard_facets(path, work.name, work.version, spec.schema)
    dataset_facets["version"] = facets.version_of(commit.delta_version)
    dataset_facets["dataQualityMetrics"] = facets.metrics_of(state)
    lineage = _origins_of_write(work, spec.schema)
    if lineage is not None:
        dataset_facets["columnLineage"] = facets.column_lineage(
            lineage, paths, only=spec.schema.names
        )
    if work.kind == "create":
        dataset_facets["lifecycleStateChange"] = facets.lifecycle("CREATE")
    statistics_facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=commit.rows_in, producer=PRODUCER
    )
    output = OutputDataset(
        *dataset_identifier(path),
        facets=dataset_facets,
        outputFacets={"outputStatistics": statistics_facet},
    )
    input_records = [*commit.inputs.values(), *_groups_of(lineage)]
    return _inputs(input_records, paths), [output]


def _commit_of(path: str, work: Work) -> Commit:
    """Return the commit of a write; a later commit may have merged small files."""
    last = int(work.committed_version or 0)
    ids = {work.run_id}
    if work.parent is not None:
        ids |= {work.parent.run_id, f"job-{work.parent.run_id}"}
    for version in range(last, max(last - 3, -1), -1):
        commit = commits.commit_of(path, version)
        if commit.run_id in ids:
            return commit
    return commits.commit_of(path, last)


def _export_datasets(
    work: Work, paths: StorePaths
) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return the sources of a training dataset, and the dataset of its manifest."""
    path = _path(work, paths)
    manifest = read_manifest(path)
    schema = pa.schema([(each.name, type_from_json(each.type)) for each in manifest.columns])
    dataset_facets = facets.standard_facets(path, manifest.name, manifest.version, schema)
    dataset_facets["version"] = facets.version_of(manifest.version)
    dataset_facets["dataQualityMetrics"] = _metrics_of(manifest)
    dataset_facets["lifecycleStateChange"] = facets.lifecycle("CREATE")
    if manifest.plan is not None:
        lineage = column_origins.origins_of_plan(manifest.plan)
        dataset_facets["columnLineage"] = facets.column_lineage(lineage, paths, only=schema.names)
    rows, size = _size_of(manifest)
    shards = [len(split.shards) for split in manifest.splits]
    statistics_facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=rows, size=size, fileCount=sum(shards), producer=PRODUCER
    )
    output = OutputDataset(
        *dataset_identifier(path),
        facets=dataset_facets,
        outputFacets={"outputStatistics": statistics_facet},
    )
    return _inputs(manifest.sources, paths), [output]


def _metrics_of(
    manifest: Manifest,
) -> data_quality_metrics_dataset.DataQualityMetricsDatasetFacet:
    nulls = dict.fromkeys([column.name for column in manifest.columns], 0)
    for split in manifest.splits:
        for name, count in split.nulls.items():
            nulls[name] = nulls.get(name, 0) + count
    column_metrics = {
        name: data_quality_metrics_dataset.ColumnMetrics(nullCount=count)
        for name, count in nulls.items()
    }
    rows, size = _size_of(manifest)
    return data_quality_metrics_dataset.DataQualityMetricsDatasetFacet(
        columnMetrics=column_metrics, rowCount=rows, bytes=size, producer=PRODUCER
    )


def _size_of(manifest: Manifest) -> tuple[int, int]:
    rows = size = 0
    for split in manifest.splits:
        rows += split.rows
        size += split.bytes
    return rows, size


def _origins_of_write(work: Work, schema: pa.Schema) -> ColumnOrigins | None:
    """Return the origins of the columns of a write, from its retrieval or job."""
    if work.plan is not None:
        return column_origins.origins_of_plan(work.plan)
    job = None if work.parent is None else work.parent.job
    if job is None or work.parent is None:
        return None
    if job.kind == "window":
        return column_origins.origins_of_window_job(WindowJob.from_spec(job))
    if job.kind == "sql":
        return column_origins.origins_of_query(job.code, _tables(job, work.parent), schema.names)
    return None


def _tables(job: JobSpec, run: Work) -> dict[str, column_origins.Group]:
    """Return the groups and versions of the tables of a job's query."""
    groups: dict[str, column_origins.Group] = {}
    for each in run.inputs:
        name = str(each["input"])
        if each.get("version") is not None and name in job.inputs:
            groups[name] = str(each["source"]), int(each["version"])
    return groups


def _groups_of(lineage: ColumnOrigins | None) -> Iterable[Mapping[str, Any]]:
    if lineage is None:
        return
    origins = [*lineage.rows]
    for column_sources in lineage.columns.values():
        origins += column_sources
    for name, version in dict.fromkeys(each.group for each in origins):
        yield {"featuregroup": name, "version": version}


# -- inputs ---------------------------------------------------------------------------------------


def _inputs(
    records: Iterable[Mapping[str, Any]], paths: StorePaths, input_facets: Facets | None = None
) -> list[InputDataset]:
    """Return the groups, tables, folders and sources that were read, without duplicates."""
    inputs: dict[tuple[str, str], InputDataset] = {}
    for each in records:
        source = str(each.get("featuregroup") or each.get("source"))
        dataset_facets: Facets = {}
        if source.startswith("source:"):
            key = source, str(each.get("query", ""))[:12]
            version = each.get("snapshot")
        elif "/" in source:
            key, version = dataset_identifier(source), each.get("delta_version")
        else:
            path = paths.featuregroup(source, each.get("version") or 1)
            key, version = dataset_identifier(path), each.get("delta_version")
            dataset_facets["symlinks"] = facets.symlinks(path, source, each.get("version"))
        if version is not None:
            dataset_facets["version"] = facets.version_of(version)
        if key not in inputs or "version" in dataset_facets:
            inputs[key] = InputDataset(
                *key, facets=dataset_facets, inputFacets=dict(input_facets or {})
            )
    return list(inputs.values())


def _validated_dataset(work: Work, paths: StorePaths) -> InputDataset:
    """Return the validated dataset, at the end with its expectations."""
    report = work.report or getattr(work.error, "report", None)
    dataset_facets: Facets = {}
    input_facets: Facets = {}
    path = _path(work, paths)
    if work.parent is not None and work.parent.kind == "export":
        path = paths.training_dataset(work.name, work.parent.version or 1)
    if work.committed_version is not None:
        dataset_facets["version"] = facets.version_of(work.committed_version)
    if report is not None:
        input_facets["dataQualityAssertions"] = (
            data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
                assertions=assertions_of_report(report), producer=PRODUCER
            )
        )
        metrics = data_quality_metrics_input_dataset
        input_facets["dataQualityMetrics"] = metrics.DataQualityMetricsInputDatasetFacet(
            columnMetrics={}, rowCount=report.rows, producer=PRODUCER
        )
    return InputDataset(*dataset_identifier(path), facets=dataset_facets, inputFacets=input_facets)


def _finding_facets(work: Work) -> Facets:
    """Return the findings of a monitor as assertions on its group."""
    if work.monitor_report is None:
        return {}
    facet = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
        assertions=assertions_of_findings(work.monitor_report), producer=PRODUCER
    )
    return {"dataQualityAssertions": facet}
