"""Events of OpenLineage: start, completion or failure of a run, with inputs and outputs."""

from __future__ import annotations

import os
import uuid
from datetime import datetime

from openlineage.client import event_v2 as openlineage
from openlineage.client.facet_v2 import (
    error_message_run,
    job_type_job,
    nominal_time_run,
    parent_run,
    sql_job,
)
from openlineage.client.generated.base import EventType, Job, JobFacet, Run, RunFacet

from featurestore.errors import FeatureStoreError
from featurestore.lineage import datasets
from featurestore.lineage.facets import PRODUCER
from featurestore.plugins.observers import Work

_TYPES = {"job": "JOB", "validate": "QUERY"}


def event_of(work: Work, timestamp: datetime, *, ended: bool) -> openlineage.RunEvent:
    """Return the event of an operation: START, or COMPLETE or FAIL after its end."""
    kind = EventType.START
    if ended:
        kind = EventType.COMPLETE if work.error is None else EventType.FAIL
    inputs, outputs = datasets.datasets_of(work, ended=ended)
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
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=_message(work.error), programmingLanguage="PYTHON", producer=PRODUCER
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


def _message(error: BaseException) -> str:
    if isinstance(error, FeatureStoreError):
        return error.message
    return f"{type(error).__name__}: {error}"


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
