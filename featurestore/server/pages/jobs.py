"""The list of jobs, and the page of one: its windows and runs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from featurestore.errors import JobNotFound
from featurestore.jobs import service
from featurestore.registry import runs, stored_errors
from featurestore.server.context import Settings, Store, Whole
from featurestore.server.pages.paging import PageNumber, one_page
from featurestore.server.pages.rendering import csv_file, page
from featurestore.server.records import jobs as records
from featurestore.storage import files

router = APIRouter(prefix="/jobs")
_RUNS = 100


@router.get("")
def list_page(
    request: Request,
    store: Store,
    settings: Settings,
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """Show the jobs and how they stand."""
    found = one_page(
        lambda limit, offset: list(store.get_jobs(limit=limit, offset=offset)),
        number=number,
        size=settings.page,
    )
    if format == "csv":
        told = [records.status(each) for each in found.items]
        return csv_file(
            "jobs", list(told[0]) if told else [], [list(each.values()) for each in told]
        )
    return page(request, "jobs.html", title="Jobs", found=found)


@router.get("/{name}")
def job_page(
    request: Request, store: Store, whole: Whole, name: str, format: str = "html"
) -> Response:
    """Show the windows of a job and its runs, the newest first."""
    job = service.get_job(store.session, name)
    with store.session.registry.reading() as connection:
        found = runs.of_job(connection, name, last=_RUNS)[::-1]
    if format == "csv":
        rows = [list(records.run(each).values()) for each in found]
        columns = list(records.run(found[0])) if found else []
        return csv_file(f"{name}-runs", columns, rows)
    asked = request.app.state.job_runs.last(name)
    return page(
        request,
        "job.html",
        title=name,
        job=job,
        status=service.status_of(store.session, job),
        strip=records.strip(store, name),
        runs=found,
        asked=asked,
        outcome=records.outcome(store, whole, job, asked),
    )


@router.get("/{name}/runs/{run_id}/log")
def log_page(store: Store, name: str, run_id: str) -> PlainTextResponse:
    """Show the log of a run, unless it names what is hidden."""
    no_log = JobNotFound(f"There is no log of run {run_id!r} of job {name!r}.")
    with store.session.registry.reading() as connection:
        run = runs.find(connection, run_id)
    log = run.log if run is not None and run.job == name else None
    # The registry's word is no leave to read any file of the machine.
    if log is None or not files.lies_below(log, store.session.logs_path) or not files.exists(log):
        raise no_log
    text = files.read_bytes(log).decode(errors="replace")
    if store.session.registry.is_hidden(text.replace(store.location, "")):
        raise no_log
    with store.session.registry.reading() as connection:
        return PlainTextResponse(stored_errors.shown(connection, text))
