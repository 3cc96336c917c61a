"""Jobs: how they stand, their runs."""

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
    """Return the jobs and how they stand."""
    return items(
        lambda count, skipped: list(store.get_jobs(limit=count, offset=skipped)),
        records.status,
        limit=limit,
        offset=offset,
    )


@router.get("/{name}")
def get_job(store: Store, name: Name) -> dict[str, Any]:
    """Return the definition of a job (job.schema.json) and how it stands."""
    job = service.get_job(store.session, name)
    status = records.status(service.status_of(store.session, job))
    return record({**status, "version": job.version, "definition": job.spec.to_json()})


@router.get("/{name}/runs")
def list_runs(store: Store, name: Name, limit: Limit = 100) -> Items:
    """Return the last runs of a job, the newest first."""
    service.get_job(store.session, name)
    with store.session.registry.reading() as connection:
        found = runs.of_job(connection, name, last=limit)[::-1]
    return Items(items=[record(records.run(each)) for each in found], next=None)
