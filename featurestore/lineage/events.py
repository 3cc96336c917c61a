"""OpenLineage events: start, completion or failure of a run, with its inputs and outputs."""

from __future__ import annotations

import hashlib
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
from featurestore.errors import JobLeased
from featurestore.lineage import column_origins, facets
from featurestore.lineage.column_origins import ColumnOrigins
from featurestore.lineage.facets import PRODUCER, Facets, dataset_identifier
from featurestore.lineage.origins import Dataset
from featurestore.lineage.query_origins import QueryTable
from featurestore.model.featuregroup import Commit
from featurestore.model.job import JobSpec, SqlWork, TransformWork, WindowWork
from featurestore.model.manifest import Manifest
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.reader_text import remove_machine_details
from featurestore.model.validation import ExpectationResult, ValidationReport, describe
from featurestore.plugins.observers import Work
from featurestore.registry.stored_errors import message_of
from featurestore.storage import StorePaths
from featurestore.storage.manifests import read_manifest

_TYPES = {"job": "JOB", "validate": "QUERY"}
_WRITES = ("create", "write")
_DROPS = ("delete", "remove")


def build_event(work: Work, timestamp: datetime, *, ended: bool) -> openlineage.RunEvent:
    """Build the START, COMPLETE, FAIL or ABORT event of an operation."""
    event_type = EventType.START
    if ended and work.error is None:
        event_type = EventType.COMPLETE
    elif ended:
        # Neither its code nor its data ended the operation: Ctrl+C, SIGTERM, a lost lease, a kill.
        is_interrupted = not isinstance(work.error, Exception)
        is_aborted = is_interrupted or work.process_died or isinstance(work.error, JobLeased)
        event_type = EventType.ABORT if is_aborted else EventType.FAIL
    inputs, outputs = build_datasets(work, ended=ended)
    return openlineage.RunEvent(
        eventType=event_type,
        eventTime=timestamp.isoformat(),
        producer=PRODUCER,
        run=Run(runId=_run_id(work), facets=_run_facets(work, ended=ended)),
        job=Job(namespace=namespace(), name=job_name(work), facets=_job_facets(work)),
        inputs=inputs,
        outputs=outputs,
    )


def namespace() -> str:
    """Return the job namespace from OpenLineage's settings."""
    return os.environ.get("OPENLINEAGE_NAMESPACE") or "default"


def job_name(work: Work) -> str:
    """Return the OpenLineage job name of an operation: the job name, or ``<kind>.<name>``.

    >>> job_name(Work("write", "weather", "", ""))
    'write.weather'
    """
    if work.kind == "job":
        return work.name
    return f"{work.kind}.{work.name}"


def _run_id(work: Work) -> str:
    # OpenLineage requires a UUID in its canonical form, with hyphens.
    return str(uuid.UUID(work.run_id))


def _run_facets(work: Work, *, ended: bool) -> dict[str, RunFacet]:
    """Return the window, parent and error of a run as facets."""
    facets: dict[str, RunFacet] = {}
    if work.window is not None:
        facets["nominalTime"] = nominal_time_run.NominalTimeRunFacet(
            nominalStartTime=work.window.start.isoformat(),
            nominalEndTime=work.window.end.isoformat(),
            producer=PRODUCER,
        )
    if work.parent is not None:
        facets["parent"] = _parent_facet(work, work.parent)
    if ended and work.error is not None:
        # The registry is not read for an event, whose inputs name objects anyway.
        message = remove_machine_details(message_of(work.error), location=work.location)
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=message, programmingLanguage="PYTHON", producer=PRODUCER
        )
    return facets


def _parent_facet(work: Work, parent: Work) -> parent_run.ParentRunFacet:
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
    """Return the type of a job and the text of its query as facets."""
    facets: dict[str, JobFacet] = {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType="BATCH",
            integration="FEATURESTORE",
            jobType=_TYPES.get(work.kind, "COMMAND"),
            producer=PRODUCER,
        )
    }
    if work.job is not None and isinstance(work.job.work, SqlWork):
        facets["sql"] = sql_job.SQLJobFacet(
            query=work.job.work.code, dialect="duckdb", producer=PRODUCER
        )
    return facets


def build_datasets(work: Work, *, ended: bool) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return the inputs and outputs of an operation, as far as they are known."""
    paths = StorePaths(work.location)
    if work.kind == "validate":
        return [_validated_dataset(work, paths)], []
    if work.kind == "job":
        return _build_inputs(work.inputs, paths, _finding_facets(work), job=work.job), []
    if work.kind in _DROPS:
        # A failed deletion may have removed nothing, so only a completed one is reported.
        if not ended or work.error is not None:
            return [], []
        drop: Facets = {"lifecycleStateChange": facets.lifecycle_facet("DROP")}
        return [], [OutputDataset(*dataset_identifier(_output_path(work, paths)), facets=drop)]
    # A start event contains only what was known at the start, although the thread may build it
    # after the commit. Otherwise the same operation could have different events.
    if not ended or work.committed_version is None:
        return [], [
            OutputDataset(*dataset_identifier(_output_path(work, paths)))
        ] if work.version else []
    if work.kind in _WRITES:
        return _group_commit_datasets(work, paths)
    return _export_datasets(work, paths)


Assertion = data_quality_assertions_dataset.Assertion


def report_to_assertions(report: ValidationReport) -> list[Assertion]:
    """Convert the results of a validation report to assertions."""
    return list(map(_result_to_assertion, report.results))


def _result_to_assertion(result: ExpectationResult) -> Assertion:
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


def findings_to_assertions(report: MonitorReport) -> list[Assertion]:
    """Convert the findings of a monitor report to assertions; alarms are failed assertions."""
    return [
        Assertion(
            assertion=f"{finding.kind}.{finding.measure}",
            success=not finding.alarm,
            column=finding.subject if finding.kind in ("drift", "nulls", "values") else None,
            severity="error",
            description=str(finding),
            actual=None if finding.value is None else str(finding.value),
            expected=_format_bounds(finding.low, finding.high),
        )
        for finding in report.findings
    ]


def _format_bounds(low: float | None, high: float | None) -> str | None:
    conditions = []
    if low is not None:
        conditions.append(f">= {low:.6g}")
    if high is not None:
        conditions.append(f"<= {high:.6g}")
    return " and ".join(conditions) or None


def _output_path(work: Work, paths: StorePaths) -> str:
    version = work.version or 1
    if work.kind in ("export", "remove"):
        return paths.training_dataset(work.name, version)
    return paths.featuregroup(work.name, version)


# -- outputs --------------------------------------------------------------------------------------


def _group_commit_datasets(
    work: Work, paths: StorePaths
) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return the inputs of a group commit, and the group as the output."""
    path = _output_path(work, paths)
    commit = _find_commit(path, work)
    state = read_snapshot(path, commit.delta_version)
    spec = commits.spec_of(state)
    dataset_facets = facets.standard_facets(path, work.name, work.version, spec.schema)
    dataset_facets["version"] = facets.version_facet(commit.delta_version)
    dataset_facets["dataQualityMetrics"] = facets.metrics_facet(state)
    lineage = _write_origins(work, paths, spec.schema.names)
    if lineage is not None:
        dataset_facets["columnLineage"] = facets.column_lineage_facet(
            lineage, paths, only=spec.schema.names
        )
    if work.kind == "create":
        dataset_facets["lifecycleStateChange"] = facets.lifecycle_facet("CREATE")
    statistics_facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=commit.rows_in, producer=PRODUCER
    )
    output = OutputDataset(
        *dataset_identifier(path),
        facets=dataset_facets,
        outputFacets={"outputStatistics": statistics_facet},
    )
    input_records = [*commit.inputs.values()]
    if lineage is not None:
        input_records += [{"dataset": dataset} for dataset in lineage.datasets]
    job = None if work.parent is None else work.parent.job
    return _build_inputs(input_records, paths, job=job), [output]


def _find_commit(path: str, work: Work) -> Commit:
    """Return the commit of a write, which may precede the last version because of compaction."""
    last = int(work.committed_version or 0)
    ids = {work.run_id}
    if work.parent is not None:
        # The commit of a job has the run id of the job instead of that of the write.
        ids |= {work.parent.run_id, f"job-{work.parent.run_id}"}
    for version in range(last, max(last - 3, -1), -1):
        commit = commits.commit_of(path, version)
        if commit.run_id in ids:
            return commit
    return commits.commit_of(path, last)


def _export_datasets(
    work: Work, paths: StorePaths
) -> tuple[list[InputDataset], list[OutputDataset]]:
    """Return the sources of an exported training dataset, and the dataset as the output."""
    path = _output_path(work, paths)
    manifest = read_manifest(path)
    schema = pa.schema([(column.name, type_from_json(column.type)) for column in manifest.columns])
    dataset_facets = facets.standard_facets(path, manifest.name, manifest.version, schema)
    dataset_facets["version"] = facets.version_facet(manifest.version)
    dataset_facets["dataQualityMetrics"] = _manifest_metrics(manifest)
    dataset_facets["lifecycleStateChange"] = facets.lifecycle_facet("CREATE")
    if manifest.plan is not None:
        lineage = column_origins.origins_of_plan(
            manifest.plan, column_origins.snapshot_columns(paths)
        )
        dataset_facets["columnLineage"] = facets.column_lineage_facet(
            lineage, paths, only=schema.names
        )
    rows, size = _dataset_size(manifest)
    shards = [len(split.shards) for split in manifest.splits]
    statistics_facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=rows, size=size, fileCount=sum(shards), producer=PRODUCER
    )
    output = OutputDataset(
        *dataset_identifier(path),
        facets=dataset_facets,
        outputFacets={"outputStatistics": statistics_facet},
    )
    return _build_inputs(manifest.sources, paths), [output]


def _manifest_metrics(
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
    rows, size = _dataset_size(manifest)
    return data_quality_metrics_dataset.DataQualityMetricsDatasetFacet(
        columnMetrics=column_metrics, rowCount=rows, bytes=size, producer=PRODUCER
    )


def _dataset_size(manifest: Manifest) -> tuple[int, int]:
    rows = size = 0
    for split in manifest.splits:
        rows += split.rows
        size += split.bytes
    return rows, size


def _write_origins(work: Work, paths: StorePaths, names: Iterable[str]) -> ColumnOrigins | None:
    """Return the column origins of a write from its retrieval plan or its job, if known."""
    read_columns = column_origins.snapshot_columns(paths)
    if work.plan is not None:
        return column_origins.origins_of_plan(work.plan, read_columns)
    job = None if work.parent is None else work.parent.job
    if job is None or work.parent is None:
        return None
    run = work.parent
    tables = {
        str(record["input"]): QueryTable(
            dataset := _input_dataset(record, job),
            run.input_columns.get(str(record["input"])) or read_columns(dataset),
            record.get("time"),
        )
        for record in run.inputs
    }
    if isinstance(job.work, WindowWork):
        return column_origins.origins_of_window_job(job.work, tables.values())
    if isinstance(job.work, SqlWork):
        return column_origins.origins_of_query(job.work.code, tables, names)
    return None


# -- inputs ---------------------------------------------------------------------------------------


def _input_dataset(record: Mapping[str, Any], job: JobSpec | None) -> Dataset:
    """Return the dataset of an input record of a run or a commit."""
    if "dataset" in record:
        return Dataset(*record["dataset"])
    source = str(record.get("featuregroup") or record.get("source"))
    query = str(record.get("query", ""))[:12]
    source_input = None
    if job is not None and isinstance(job.work, TransformWork):
        source_input = job.work.sources.get(str(record.get("input")))
    if source_input is not None:
        # The hash of a query contains the window, but all runs of a job read the same dataset.
        digest = hashlib.sha256(str(source_input.sql).encode()).hexdigest()
        query = source_input.table or source_input.path or digest[:12]
    return Dataset(source, record.get("version"), query)


def _build_inputs(
    records: Iterable[Mapping[str, Any]],
    paths: StorePaths,
    input_facets: Facets | None = None,
    *,
    job: JobSpec | None = None,
) -> list[InputDataset]:
    """Convert input records to datasets without duplicates."""
    inputs: dict[tuple[str, str], InputDataset] = {}
    for record in records:
        dataset = _input_dataset(record, job)
        key = facets.input_identifier(dataset, paths)
        version = record.get("delta_version", record.get("snapshot"))
        dataset_facets: Facets = {}
        if not dataset.query and "/" not in dataset.source:
            path = paths.featuregroup(dataset.source, dataset.version or 1)
            dataset_facets["symlinks"] = facets.symlinks_facet(
                path, dataset.source, dataset.version
            )
        if version is not None:
            dataset_facets["version"] = facets.version_facet(version)
        # The sources of column lineage have no table version; a record with a version replaces
        # them.
        if key not in inputs or "version" in dataset_facets:
            inputs[key] = InputDataset(
                *key, facets=dataset_facets, inputFacets=dict(input_facets or {})
            )
    return list(inputs.values())


def _validated_dataset(work: Work, paths: StorePaths) -> InputDataset:
    """Return the validated dataset, with the validation results if they are known."""
    # A refused write raises its report with the error.
    report = work.report or getattr(work.error, "report", None)
    dataset_facets: Facets = {}
    input_facets: Facets = {}
    path = _output_path(work, paths)
    # The rows of an export belong to a dataset, not to the feature group of this name.
    if work.parent is not None and work.parent.kind == "export":
        path = paths.training_dataset(work.name, work.parent.version or 1)
    if work.committed_version is not None:
        dataset_facets["version"] = facets.version_facet(work.committed_version)
    if report is not None:
        input_facets["dataQualityAssertions"] = (
            data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
                assertions=report_to_assertions(report), producer=PRODUCER
            )
        )
        metrics = data_quality_metrics_input_dataset
        input_facets["dataQualityMetrics"] = metrics.DataQualityMetricsInputDatasetFacet(
            columnMetrics={}, rowCount=report.rows, producer=PRODUCER
        )
    return InputDataset(*dataset_identifier(path), facets=dataset_facets, inputFacets=input_facets)


def _finding_facets(work: Work) -> Facets:
    """Return the dataset facets for a monitor's findings."""
    if work.monitor_report is None:
        return {}
    facet = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
        assertions=findings_to_assertions(work.monitor_report), producer=PRODUCER
    )
    return {"dataQualityAssertions": facet}
