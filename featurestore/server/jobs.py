"""Jobs and monitors: status, run and window records, REST routes and pages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from featurestore.errors import InvalidJob, JobNotFound
from featurestore.jobs import service
from featurestore.jobs.monitors import service as monitor_service
from featurestore.jobs.run import definition_words
from featurestore.jobs.windows import find_due_windows
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.reader_text import remove_location
from featurestore.model.times import Window, parse_moment
from featurestore.registry import overview, runs, stored_errors
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import Run
from featurestore.server.access import visitors
from featurestore.server.charts import chart_findings
from featurestore.server.guard import CurrentVisitor, Form, FullStore, Settings, Store, actor_of
from featurestore.server.job_actions import RequestedRun
from featurestore.server.rendering import PageNumber, csv_file, load_page, page
from featurestore.server.rest import REFUSALS, Items, Limit, Name, Offset, items, record
from featurestore.server.routes import Router
from featurestore.store import FeatureStore

api = Router(prefix="/jobs", tags=["jobs"], responses=REFUSALS)
pages = Router(prefix="/jobs")
monitor_pages = Router(prefix="/monitors")
_CHARTED_WINDOWS = 120
_MAX_RUNS = 100


@dataclass(frozen=True)
class JobWindow:
    """A job window; ``state`` is "done", "failed", "stale" or "due"."""

    window: Window
    state: str


def status_record(job_status: service.JobStatus) -> dict[str, Any]:
    """Convert a job status to a record."""
    last_run = job_status.last
    return {
        "name": job_status.name,
        "kind": job_status.job.spec.kind,
        "state": job_status.state,
        "schedule": job_status.job.spec.schedule.cron,
        "target": job_status.job.spec.target,
        "inputs": dict(job_status.job.spec.inputs),
        "watermark": job_status.job.watermark,
        "due": job_status.due,
        "failed": job_status.failed,
        "error": job_status.error,
        "hint": job_status.hint,
        "last_state": last_run.state if last_run else None,
        "last_error": last_run.error if last_run else None,
        "last_ended": last_run.ended if last_run else None,
    }


def with_visible_error(store: FeatureStore, status: service.JobStatus) -> service.JobStatus:
    """Return the status of a job with the text of its error for readers."""
    if status.error is None:
        return status
    error = InvalidJob(status.error, hint=status.hint)
    text = stored_errors.text_for_readers(store.session.registry, error)
    return replace(status, error=text.message, hint=text.hint)


def visible_jobs(store: FeatureStore, *, limit: int, offset: int) -> list[service.JobStatus]:
    """Return the status of jobs with the texts of their errors for readers."""
    return [with_visible_error(store, job) for job in store.get_jobs(limit=limit, offset=offset)]


def run_record(job_run: Run) -> dict[str, Any]:
    """Convert a run to a record, without the path of its log."""
    return {
        "run_id": job_run.run_id,
        "job": job_run.job,
        "job_version": job_run.job_version,
        "state": job_run.state,
        "start": job_run.window.start,
        "end": job_run.window.end,
        "windows": job_run.windows,
        "rows": job_run.rows,
        "delta_version": job_run.delta_version,
        "started": job_run.started,
        "ended": job_run.ended,
        "seconds": job_run.seconds,
        "memory": job_run.memory,
        "error": job_run.error,
        "hint": job_run.hint,
    }


def outcome_text(
    store: FeatureStore,
    full_store: FeatureStore,
    job: RegisteredJob,
    requested_run: RequestedRun | None,
) -> str:
    """Return the outcome of a requested run, without names that are hidden from the visitor."""
    if requested_run is None:
        return ""
    if requested_run.error is None:
        return requested_run.outcome_text
    stored_text = stored_errors.text_for_readers(
        full_store.session.registry, requested_run.error, allowed_names=definition_words(job.spec)
    )
    with store.session.registry.reading() as connection:
        return stored_errors.restore_names(connection, str(stored_text))


@dataclass(frozen=True)
class WindowStrip:
    """Windows of a job, oldest first, and the number of due windows after them."""

    windows: list[JobWindow]
    later_due: int


def window_strip(store: FeatureStore, name: str, *, limit: int = 400) -> WindowStrip:
    """Return the newest recorded windows of a job, with the due windows next to them.

    A schedule that ends long after the data has many due windows; they must not displace the
    windows that were computed.
    """
    session = store.session
    job = service.get_job(session, name)
    with session.registry.reading() as connection:
        states = dict(overview.newest_windows(connection, name, limit=limit))
    due_windows = []
    with suppress(InvalidJob):  # the page displays the error of the schedule
        due_windows = sorted(find_due_windows(session, job))
    shown_due, later_due = due_windows[-limit:], 0
    if states:
        first, last = min(states), max(states)
        later = [window for window in due_windows if window > last]
        # The due windows after the data take at most a quarter of the strip.
        shown_due = [window for window in due_windows if first <= window <= last]
        shown_due += later[: limit // 4]
        later_due = max(0, len(later) - limit // 4)
    for window in shown_due:
        # Failed windows are due as well; their recorded state is displayed.
        states.setdefault(window, "due")
    windows = [JobWindow(window, states[window]) for window in sorted(states)[-limit:]]
    return WindowStrip(windows, later_due)


@api.get("")
def list_jobs(store: Store, limit: Limit = 100, offset: Offset = 0) -> Items:
    """List all jobs with their status."""
    return items(partial(visible_jobs, store), status_record, limit=limit, offset=offset)


@api.get("/{name}")
def get_job(store: Store, name: Name) -> dict[str, Any]:
    """Return the definition (job.schema.json) and status of a job."""
    job = service.get_job(store.session, name)
    status = status_record(with_visible_error(store, service.load_status(store.session, job)))
    return record({**status, "version": job.version, "definition": job.spec.to_json()})


@api.get("/{name}/runs")
def list_runs(store: Store, name: Name, limit: Limit = 100) -> Items:
    """List the newest runs of a job, newest first."""
    service.get_job(store.session, name)
    with store.session.registry.reading() as connection:
        job_runs = runs.runs_of_job(connection, name, last=limit)[::-1]
    return Items(items=[record(run_record(job_run)) for job_run in job_runs], next=None)


@pages.get("")
def list_page(
    request: Request, store: Store, settings: Settings, number: PageNumber = 1, format: str = "html"
) -> Response:
    """List all jobs with their status."""
    current_page = load_page(partial(visible_jobs, store), number=number, size=settings.page)
    if format == "csv":
        job_records = [status_record(job_record) for job_record in current_page.items]
        return csv_file(
            "jobs",
            list(job_records[0]) if job_records else [],
            [list(job_record.values()) for job_record in job_records],
        )
    with store.session.registry.reading() as connection:
        job_names = [job.name for job in current_page.items]
        done = overview.count_computed_windows(connection, job_names)
    return page(request, "jobs.html", title="Jobs", current_page=current_page, done=done)


@pages.get("/{name}")
def job_page(
    request: Request, store: Store, full_store: FullStore, name: str, format: str = "html"
) -> Response:
    """Display the windows of a job and its runs, newest first."""
    job = service.get_job(store.session, name)
    with store.session.registry.reading() as connection:
        job_runs = runs.runs_of_job(connection, name, last=_MAX_RUNS)[::-1]
        done = overview.count_computed_windows(connection, [name])
    if format == "csv":
        rows = [list(run_record(job_run).values()) for job_run in job_runs]
        columns = list(run_record(job_runs[0])) if job_runs else []
        return csv_file(f"{name}-runs", columns, rows)
    requested_run = request.app.state.job_runs.last(name)
    strip = window_strip(store, name)
    return page(
        request,
        "job.html",
        title=name,
        job=job,
        status=with_visible_error(store, service.load_status(store.session, job)),
        strip=strip.windows,
        later_due=strip.later_due,
        done=done.get(name, 0),
        runs=job_runs,
        requested_run=requested_run,
        outcome=outcome_text(store, full_store, job, requested_run),
    )


@pages.get("/{name}/runs/{run_id}/log")
def log_page(store: Store, name: str, run_id: str) -> PlainTextResponse:
    """Display the log of a run, unless it contains hidden names."""
    no_log = JobNotFound(f"Run {run_id!r} of job {name!r} has no log.")
    with store.session.registry.reading() as connection:
        run = runs.find(connection, run_id)
    log = run.log if run is not None and run.job == name else None
    storage = store.session.storage
    # A manipulated registry must not expose other files on the machine.
    if log is None or not storage.is_below(log, store.session.logs_path) or not storage.exists(log):
        raise no_log
    text = storage.read_bytes(log).decode(errors="replace")
    # The location is removed first, since its folders may be named like hidden objects.
    if store.session.registry.has_hidden_name(remove_location(text, location=store.location)):
        raise no_log
    with store.session.registry.reading() as connection:
        return PlainTextResponse(stored_errors.restore_names(connection, text))


@monitor_pages.get("")
def list_monitors(
    request: Request, store: Store, settings: Settings, number: PageNumber = 1, format: str = "html"
) -> Response:
    """List all monitors with their last findings."""
    current_page = load_page(store.get_monitors, number=number, size=settings.page)
    if format == "csv":
        summaries = [monitor._summary() for monitor in current_page.items]
        columns = list(summaries[0]) if summaries else []
        return csv_file("monitors", columns, [list(summary.values()) for summary in summaries])
    return page(request, "monitors.html", title="Monitors", current_page=current_page)


@monitor_pages.get("/{name}")
def monitor_page(
    request: Request,
    store: Store,
    settings: Settings,
    name: str,
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """Display the findings of a monitor as charts over time, and its windows, newest first."""
    job, _ = monitor_service.get_monitor(store.session, name)
    current_page = load_page(
        partial(store.get_monitor_history, name), number=number, size=settings.page
    )
    if format == "csv":
        return _findings_file(name, current_page.items)
    history = store.get_monitor_history(name, limit=_CHARTED_WINDOWS)
    return page(
        request,
        "monitor.html",
        title=name,
        name=name,
        job=job,
        last=history[0] if history else None,
        charts=chart_findings(history),
        windows=len(history),
        current_page=current_page,
        acceptances=monitor_service.get_acceptances(store.session, name)[::-1],
    )


@monitor_pages.post("/{name}/accept")
def accept(
    name: str, store: Store, full_store: FullStore, visitor: CurrentVisitor, form: Form
) -> RedirectResponse:
    """Accept the out-of-bounds windows of a monitor up to a time."""
    # A hidden monitor raises the error of a missing one before the role is checked.
    monitor_service.get_monitor(store.session, name)
    if visitor is not None:
        visitor.check(visitors.WRITER)
    until = parse_moment(form.get("until", ""), argument="until", warn=False)
    note = form.get("note", "").strip()
    monitor_service.accept(
        full_store.session, name, until=until, note=note, actor=actor_of(visitor)
    )
    return RedirectResponse(f"/monitors/{name}", status_code=303)


def _findings_file(name: str, reports: list[MonitorReport]) -> Response:
    """Return a CSV file with one row per finding."""
    columns = ["window_start", "window_end", "rows", "kind", "subject", "measure"]
    columns += ["value", "low", "high", "out", "alarm", "text"]
    rows: list[list[object]] = []
    for report in reports:
        for finding in report.findings:
            row = [
                report.window.start,
                report.window.end,
                report.rows,
                finding.kind,
                finding.subject,
            ]
            row += [
                finding.measure,
                finding.value,
                finding.low,
                finding.high,
                finding.out,
                finding.alarm,
                str(finding),
            ]
            rows.append(row)
    return csv_file(f"{name}-findings", columns, rows)
