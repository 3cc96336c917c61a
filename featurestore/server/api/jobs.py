"""REST routes of jobs and their runs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from featurestore.jobs import service
from featurestore.registry import runs
from featurestore.server.api.answers import REFUSALS, Items, Limit, Name, Offset, items, record
from featurestore.server.context import Store
from featurestore.server.records import jobs as records

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=REFUSALS)


@router.get("")
def list_jobs(store: Store, limit: Limit = 100, offset: Offset = 0) -> Items:
    """List the jobs with their status."""
    return items(
        lambda count, skipped: list(store.get_jobs(limit=count, offset=skipped)),
        records.status_record,
        limit=limit,
        offset=offset,
    )


@router.get("/{name}")
def get_job(store: Store, name: Name) -> dict[str, Any]:
    """Return the definition (job.schema.json) and status of a job."""
    job = service.get_job(store.session, name)
    status = records.status_record(service.status_of(store.session, job))
    return record({**status, "version": job.version, "definition": job.spec.to_json()})


@router.get("/{name}/runs")
def list_runs(store: Store, name: Name, limit: Limit = 100) -> Items:
    """List the last runs of a job, newest first."""
    service.get_job(store.session, name)
    with store.session.registry.reading() as connection:
        job_runs = runs.of_job(connection, name, last=limit)[::-1]
    return Items(items=[record(records.run_record(job_run)) for job_run in job_runs], next=None)
