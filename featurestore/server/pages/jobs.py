"""Pages of jobs: list, windows and runs, logs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from featurestore.errors import JobNotFound
from featurestore.jobs import service
from featurestore.registry import runs, stored_errors
from featurestore.server.context import FullStore, Settings, Store
from featurestore.server.pages.paging import PageNumber, load_page
from featurestore.server.pages.rendering import csv_file, page
from featurestore.server.records import jobs as records
from featurestore.storage import files

router = APIRouter(prefix="/jobs")
_MAX_RUNS = 100


@router.get("")
def list_page(
    request: Request,
    store: Store,
    settings: Settings,
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """List the jobs with their status."""
    current_page = load_page(
        lambda limit, offset: list(store.get_jobs(limit=limit, offset=offset)),
        number=number,
        size=settings.page,
    )
    if format == "csv":
        job_records = [records.status_record(each) for each in current_page.items]
        return csv_file(
            "jobs",
            list(job_records[0]) if job_records else [],
            [list(each.values()) for each in job_records],
        )
    return page(request, "jobs.html", title="Jobs", current_page=current_page)


@router.get("/{name}")
def job_page(
    request: Request, store: Store, full_store: FullStore, name: str, format: str = "html"
) -> Response:
    """Show the windows of a job and its runs, newest first."""
    job = service.get_job(store.session, name)
    with store.session.registry.reading() as connection:
        job_runs = runs.of_job(connection, name, last=_MAX_RUNS)[::-1]
    if format == "csv":
        rows = [list(records.run_record(each).values()) for each in job_runs]
        columns = list(records.run_record(job_runs[0])) if job_runs else []
        return csv_file(f"{name}-runs", columns, rows)
    requested_run = request.app.state.job_runs.last(name)
    return page(
        request,
        "job.html",
        title=name,
        job=job,
        status=service.status_of(store.session, job),
        strip=records.window_strip(store, name),
        runs=job_runs,
        requested_run=requested_run,
        outcome=records.outcome_text(store, full_store, job, requested_run),
    )


@router.get("/{name}/runs/{run_id}/log")
def log_page(store: Store, name: str, run_id: str) -> PlainTextResponse:
    """Show the log of a run, unless it contains hidden names."""
    no_log = JobNotFound(f"Run {run_id!r} of job {name!r} has no log.")
    with store.session.registry.reading() as connection:
        run = runs.find(connection, run_id)
    log = run.log if run is not None and run.job == name else None
    # A manipulated registry must not expose other files of the machine.
    if log is None or not files.lies_below(log, store.session.logs_path) or not files.exists(log):
        raise no_log
    text = files.read_bytes(log).decode(errors="replace")
    if store.session.registry.is_hidden(text.replace(store.location, "")):
        raise no_log
    with store.session.registry.reading() as connection:
        return PlainTextResponse(stored_errors.shown(connection, text))
