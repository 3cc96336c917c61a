"""Monitors in the store: check now, read the history, accept changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.engine import Connection

from featurestore.alerts import incidents
from featurestore.alerts.outbox import send_waiting
from featurestore.errors import InvalidArgument, JobFailed, JobNotFound, listing
from featurestore.jobs import service
from featurestore.jobs.inputs import pin
from featurestore.jobs.monitors.run import observe
from featurestore.jobs.run import TrainingCall
from featurestore.jobs.schedule import latest_complete
from featurestore.jobs.specs import schedule_of
from featurestore.model import html, times
from featurestore.model.html import Listing
from featurestore.model.monitor_acceptance import Acceptance, acceptable_subjects
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.times import parse_moment
from featurestore.model.window import Window
from featurestore.monitoring.page import MonitorPage
from featurestore.registry import audit_log, jobs, monitors, runs
from featurestore.registry.audit_log import Actor
from featurestore.registry.jobs import RegisteredJob
from featurestore.session import Session

# Ages and columns have no baseline: nothing about them can be accepted.
ACCEPTABLE = ("drift", "nulls", "values", "anchor", "volume", "metric")
_LONGEST_NOTE = 2000


@dataclass(frozen=True)
class MonitorStatus:
    """A registered monitor and what it found last."""

    job: RegisteredJob
    last: MonitorReport | None

    @property
    def name(self) -> str:
        """The name of the monitor."""
        return self.job.spec.name

    @property
    def state(self) -> str:
        """What it found last: "ok", "suspect", "alarm" or "learning"; "new" before the first run."""
        return "new" if self.last is None else self.last.state

    def _summary(self) -> dict[str, object]:
        watched, window, alarms = self.job.spec.watched, None, 0
        if self.last is not None:
            window, alarms = self.last.window.end, len(self.last.alarms)
        return {
            "name": self.name,
            "state": self.state,
            "alarms": alarms,
            "featuregroup": None if watched is None else watched.featuregroup,
            "baseline": None if watched is None else str(watched.baseline),
            "schedule": self.job.spec.schedule,
            "window_end": window,
        }

    def _repr_html_(self) -> str:
        return html.facts(self._summary(), caption="Monitor")


def get_monitors(session: Session) -> list[MonitorStatus]:
    """Return every registered monitor and what it found last, by name."""
    found = []
    with session.registry.reading() as connection:
        for job in jobs.every(connection):
            if job.spec.kind == "monitor":
                found.append(MonitorStatus(job, monitors.newest(connection, job.spec.name)))
    return Listing(found)


def check_monitor(
    session: Session,
    name: str,
    *,
    call: TrainingCall,
    window: Window | datetime | str | None = None,
) -> MonitorReport:
    """Run what is due of a monitor and its latest window, or one window, and return the report."""
    job = get_monitor(session, name)
    if window is None:
        outcome = service.attempt(session, name, _due_and_latest, call=call)
        send_waiting(session)
        if outcome.failed:
            worst = next(run for run in reversed(outcome.runs) if run.state == runs.FAILED)
            raise JobFailed(
                f"Monitor {name!r} could not look: {worst.error}",
                hint=worst.hint or f"log: {worst.log}",
            )
        asked = _latest(job)
    else:
        (run,) = service.run_job(session, name, call=call, window=window)
        asked = run.window
    return report_of(session, name, asked)


def report_of(session: Session, name: str, window: Window) -> MonitorReport:
    """Return what was recorded of a window, with the shares to draw.

    Raises:
        InvalidArgument: The monitor has not looked at this window.
    """
    job = get_monitor(session, name)
    with session.registry.reading() as connection:
        found = monitors.of_window(connection, name, window)
    if found is None:
        raise InvalidArgument(
            f"Monitor {name!r} has not looked at the window from {window.start.isoformat()}.",
            hint=f"check_monitor({name!r})",
        )
    (seen,) = observe(session, job.spec, [window], pin(session, job.spec)).reports
    return replace(found, shares=seen.shares)


def accept(
    session: Session,
    name: str,
    *,
    window: Window | datetime | str | None = None,
    until: datetime | str | None = None,
    note: str = "",
    actor: Actor,
) -> Acceptance:
    """Accept windows out of bounds; see ``FeatureStore.accept_monitor``."""
    job = get_monitor(session, name)
    spec = job.spec
    if window is not None and until is not None:
        raise InvalidArgument("window= and until= exclude each other.", hint="give one of them")
    if len(note) > _LONGEST_NOTE:
        raise InvalidArgument(
            f"note= has {len(note):,} characters; the limit is {_LONGEST_NOTE:,}.",
            hint="put the details into a document, and its address into note=",
        )
    only = None if window is None else service.resolve_window(job, window)
    end = None if until is None else parse_moment(until, argument="until")
    with session.registry.transaction() as connection:
        newest = monitors.newest(connection, name)
        if only is not None:
            end = only.end
        elif end is None and newest is not None:
            end = newest.window.end
        reports = [] if end is None else _to_accept(connection, name, only, end)
        confirm, last = 1, None
        if spec.watched is not None:
            confirm, last = spec.watched.confirm, spec.watched.baseline.last
        subjects = acceptable_subjects(reports, confirm=confirm, restart=only is None, last=last)
        if not subjects or end is None:
            raise InvalidArgument(
                f"Monitor {name!r} has no window out of bounds that could be accepted"
                f"{_range_text(only, end)}.",
                hint=f"store.get_monitor_history({name!r}) lists its windows",
                command=f"featurestore monitor history {name}",
            )
        acceptance = Acceptance(name, only, end, subjects, note, times.utc_now())
        monitors.add_acceptance(connection, acceptance)
        audit_log.add(connection, actor, "accept monitor", name, acceptance.to_json())
        if newest is not None and newest.window.end <= end and only in (None, newest.window):
            reason = f"accepted by {actor.name}"
            if note:
                reason += f": {note}"
            incidents.end(connection, spec, ACCEPTABLE, reason=reason)
    send_waiting(session)
    return acceptance


def _to_accept(
    connection: Connection, name: str, only: Window | None, end: datetime
) -> list[MonitorReport]:
    """Return the reports of the windows that an acceptance judges, oldest first."""
    if only is not None:
        report = monitors.of_window(connection, name, only)
        return [] if report is None else [report]
    earlier = monitors.acceptances(connection, name)
    first = max((each.until for each in earlier if each.window is None), default=None)
    reports = []
    for report in reversed(monitors.history(connection, name)):
        if report.window.end <= end and (first is None or report.window.end > first):
            reports.append(report)
    return reports


def _range_text(only: Window | None, end: datetime | None) -> str:
    if only is not None:
        return f" at {only.start.isoformat()}"
    return "" if end is None else f" up to {end.isoformat()}"


def page_of(session: Session, name: str, *, windows: int = 60) -> MonitorPage:
    """Return the page of a monitor's newest window, with the windows before it as timelines."""
    found = history(session, name, limit=windows)
    if not found:
        raise InvalidArgument(
            f"Monitor {name!r} has not looked yet.", hint=f"check_monitor({name!r})"
        )
    return MonitorPage(report_of(session, name, found[0].window), tuple(found))


def history(
    session: Session, name: str, *, limit: int | None = 100, offset: int = 0
) -> list[MonitorReport]:
    """Return what a monitor found, newest window first."""
    get_monitor(session, name)
    with session.registry.reading() as connection:
        return Listing(monitors.history(connection, name, limit=limit, offset=offset))


def get_monitor(session: Session, name: str) -> RegisteredJob:
    """Return a registered monitor; JobNotFound lists those there are."""
    with session.registry.reading() as connection:
        found = jobs.find(connection, name)
        if found is not None and found.spec.kind == "monitor":
            return found
        known = [each.spec.name for each in jobs.every(connection) if each.spec.kind == "monitor"]
    raise JobNotFound(
        f"There is no monitor {name!r}; registered are {listing(known)}.",
        hint="featurestore job register path/to/monitors.py",
    )


def get_acceptances(session: Session, name: str) -> list[Acceptance]:
    """Return what people accepted of a monitor, oldest first."""
    get_monitor(session, name)
    with session.registry.reading() as connection:
        return monitors.acceptances(connection, name)


def _latest(job: RegisteredJob) -> Window:
    latest = latest_complete(schedule_of(job.spec), times.utc_now())
    if latest is None:
        raise InvalidArgument(
            f"Monitor {job.spec.name!r} has no complete window yet.",
            hint=f"its first one begins {job.spec.start}",
        )
    return latest


def _due_and_latest(session: Session, job: RegisteredJob) -> list[Window]:
    return sorted({*service.due_of(session, job), _latest(job)})
