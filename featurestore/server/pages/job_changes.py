"""What people do to jobs in a browser: pause, resume, run, and backfill after a look at its plan."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from featurestore.errors import InvalidArgument, LimitExceeded
from featurestore.jobs import service
from featurestore.model.job import JobSpec
from featurestore.model.times import parse_moment
from featurestore.registry.runs import Run
from featurestore.server.access import roles
from featurestore.server.context import Settings, Store, Whole
from featurestore.server.guard import Asking, Form, actor_of, log_change
from featurestore.server.job_runs import JobRuns, Work
from featurestore.server.pages.rendering import page
from featurestore.server.settings import SPARK
from featurestore.store import FeatureStore

router = APIRouter(prefix="/jobs")


def changeable(name: str, store: Store, whole: Whole, visitor: Asking) -> FeatureStore:
    """Return the store in which a visitor may change and run a job that they may see."""
    service.get_job(store.session, name)
    if visitor is not None:
        visitor.check(roles.WRITER)
    return whole


Changeable = Annotated[FeatureStore, Depends(changeable)]


@router.post("/{name}/pause")
def pause(name: str, whole: Changeable, visitor: Asking) -> RedirectResponse:
    """Keep schedulers from running a job."""
    whole.pause_job(name)
    return _logged(whole, visitor, "pause job", name, {})


@router.post("/{name}/resume")
def resume(name: str, whole: Changeable, visitor: Asking) -> RedirectResponse:
    """Let a paused job go on."""
    whole.unpause_job(name)
    return _logged(whole, visitor, "resume job", name, {})


@router.post("/{name}/run")
def run(
    request: Request, name: str, whole: Changeable, visitor: Asking, form: Form
) -> RedirectResponse:
    """Run a job: what is due, what is stale, or its latest window anew."""
    chosen = form.get("what", "")
    works: dict[str, Work] = {
        "due": lambda: whole.run_job(name, due=True),
        "stale": lambda: whole.run_job(name, stale=True),
        "latest": lambda: whole.run_job(name),
    }
    if chosen not in works:
        raise InvalidArgument(f"what={chosen!r} is nothing to run.", hint="due, stale or latest")
    command = f"featurestore job run {name}"
    if chosen != "latest":
        command += f" --{chosen}"
    _check_runs_here(request, command)
    _runs(request).start(name, f"run: {chosen}", actor_of(visitor), works[chosen])
    return _logged(whole, visitor, "run job", name, {"what": chosen})


@router.get("/{name}/backfill")
def plan_page(
    request: Request,
    store: Store,
    settings: Settings,
    name: str,
    start: str = "",
    end: str = "",
) -> HTMLResponse:
    """Show which windows a range has, what they would read, and about how long they would take."""
    job = service.get_job(store.session, name)
    plan, command = None, ""
    if start.strip() and end.strip():
        window = _range(start, end)
        _check_windows(job.spec, *window, most=settings.windows)
        plan, command = store.plan_job(name, window=window), _backfill_command(name, *window)
    return page(
        request,
        "job_backfill.html",
        title=f"Backfill of {name}",
        job=job,
        start=start,
        end=end,
        plan=plan,
        command=command,
    )


@router.post("/{name}/backfill")
def backfill(
    request: Request,
    name: str,
    whole: Changeable,
    visitor: Asking,
    form: Form,
    settings: Settings,
) -> RedirectResponse:
    """Compute the windows of a range that were planned."""
    first, last = _range(form.get("start", ""), form.get("end", ""))
    _check_windows(service.get_job(whole.session, name).spec, first, last, most=settings.windows)
    anew = form.get("anew", "") == "yes"
    command = _backfill_command(name, first, last)
    _check_runs_here(request, f"{command} --anew" if anew else command)
    what = f"backfill from {first.isoformat()} to {last.isoformat()}"

    def work() -> list[Run]:
        return whole.backfill_job(name, first, last, resume=not anew)

    _runs(request).start(name, what, actor_of(visitor), work)
    told = {"start": first, "end": last, "anew": anew}
    return _logged(whole, visitor, "backfill job", name, told)


def _backfill_command(name: str, first: datetime, last: datetime) -> str:
    """Return what to type for it; its times have no spaces, whatever was typed in a browser."""
    return f"featurestore job backfill {name} --start {first.isoformat()} --end {last.isoformat()}"


def _range(start: str, end: str) -> tuple[datetime, datetime]:
    first = parse_moment(start.strip(), argument="start", warn=False)
    last = parse_moment(end.strip(), argument="end", warn=False)
    if first >= last:
        raise InvalidArgument(f"{first.isoformat()} is not before {last.isoformat()}.")
    return first, last


def _check_windows(spec: JobSpec, first: datetime, last: datetime, *, most: int) -> None:
    """Refuse a range of more windows than one plan may have."""
    if len(service.find_complete_windows(spec, first, last, limit=most + 1)) > most:
        raise LimitExceeded(
            f"The range has more than {most:,} windows, which is the bound of one plan.",
            hint="a shorter range, or the command line: featurestore job backfill",
        )


def _check_runs_here(request: Request, command: str) -> None:
    """Refuse a job of Spark: a server holds no session of a cluster.

    Raises:
        InvalidArgument: Says what to type.
    """
    if request.app.state.jobs_engine == SPARK:
        raise InvalidArgument(
            "Jobs of this store run on Spark, and not in the server.", hint=command
        )


def _runs(request: Request) -> JobRuns:
    found: JobRuns = request.app.state.job_runs
    return found


def _logged(
    whole: FeatureStore, visitor: Asking, action: str, name: str, told: dict[str, Any]
) -> RedirectResponse:
    log_change(whole, visitor, action, name, told)
    return RedirectResponse(f"/jobs/{name}", status_code=303)
