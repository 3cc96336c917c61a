"""Operations on monitors: check now, read the history, accept changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.engine import Connection

from featurestore.alerts import incidents
from featurestore.alerts.incidents import send_waiting
from featurestore.errors import InvalidArgument, JobFailed, JobNotFound, did_you_mean, listing
from featurestore.jobs.execution import run_attempt
from featurestore.jobs.inputs import pin_inputs
from featurestore.jobs.monitors.run import evaluate_windows
from featurestore.jobs.registration import authorize_job
from featurestore.jobs.run import TrainingCall
from featurestore.jobs.schedule import check_schedule, latest_complete_window
from featurestore.jobs.service import run_job
from featurestore.jobs.windows import find_due_windows, resolve_window
from featurestore.model import display, times
from featurestore.model.display import Listing
from featurestore.model.job import MonitorWork
from featurestore.model.monitor_report import Acceptance, MonitorReport, find_acceptable_subjects
from featurestore.model.times import Window, parse_moment
from featurestore.monitoring.page import MonitorPage
from featurestore.registry import audit_log, jobs, reports, runs
from featurestore.registry.audit_log import Actor
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.origins import JOB
from featurestore.session import Session

# Freshness and schema have no baseline, so they cannot be accepted.
ACCEPTABLE = ("drift", "nulls", "values", "anchor", "volume", "metric")
_MAX_NOTE_LENGTH = 2000


@dataclass(frozen=True)
class MonitorStatus:
    """A registered monitor, its work and its latest report."""

    job: RegisteredJob
    work: MonitorWork
    last: MonitorReport | None

    __repr__ = display.record_repr

    @property
    def name(self) -> str:
        """The name of the monitor."""
        return self.job.spec.name

    @property
    def state(self) -> str:
        """The latest state: "ok", "suspect", "alarm" or "learning"; "new" before the first run."""
        return "new" if self.last is None else self.last.state

    def _summary(self) -> dict[str, object]:
        watched, window, alarms = self.work.watched, None, 0
        if self.last is not None:
            window, alarms = self.last.window.end, len(self.last.alarms)
        return {
            "name": self.name,
            "state": self.state,
            "alarms": alarms,
            "featuregroup": watched.featuregroup,
            "baseline": str(watched.baseline),
            "schedule": self.job.spec.schedule.cron,
            "window_end": window,
        }

    def _repr_html_(self) -> str:
        return display.properties_table(self._summary(), caption="Monitor")


def get_monitors(
    session: Session, *, limit: int | None = None, offset: int = 0
) -> list[MonitorStatus]:
    """Return registered monitors with their latest reports by name, at most ``limit``."""
    with session.registry.reading() as connection:
        statuses = [
            MonitorStatus(
                job, job.spec.work, reports.newest_monitor_report(connection, job.spec.name)
            )
            for job in jobs.list_all(connection, kind="monitor", limit=limit, offset=offset)
            if isinstance(job.spec.work, MonitorWork)
        ]
    session.record_reads(JOB, [(status.name, 1) for status in statuses])
    return Listing(statuses)


def check_monitor(
    session: Session,
    name: str,
    *,
    call: TrainingCall,
    window: Window | datetime | str | None = None,
) -> MonitorReport:
    """Run the due windows and the latest window, or one window, and return the last report."""
    job, _ = get_monitor(session, name)
    if window is None:
        outcome = run_attempt(session, name, _due_and_latest, call=call)
        send_waiting(session)
        if outcome.failed:
            failed_run = next(run for run in reversed(outcome.runs) if run.state == runs.FAILED)
            raise JobFailed(
                f"Monitor {name!r} could not run: {failed_run.error}",
                hint=failed_run.hint or f"log: {failed_run.log}",
            )
        checked_window = _latest_window(job)
    else:
        (run,) = run_job(session, name, call=call, window=window)
        checked_window = run.window
    return load_report(session, name, checked_window)


def load_report(session: Session, name: str, window: Window) -> MonitorReport:
    """Return the recorded report of a window, with the shares to plot.

    Raises:
        InvalidArgument: The monitor has not checked this window.
    """
    job, work = get_monitor(session, name)
    with session.registry.reading() as connection:
        recorded = reports.monitor_report_of_window(connection, name, window)
    if recorded is None:
        raise InvalidArgument(
            f"Monitor {name!r} has not checked the window from {window.start.isoformat()}.",
            hint=f"check_monitor({name!r})",
        )
    # Machines that only show reports have no grant. A monitor reads groups of the store, but the
    # registry of another store may name other inputs.
    if any("/" in reference for reference in job.spec.inputs.values()):
        authorize_job(session, job)
    # Reports are recorded without shares, which are recomputed from the stored profiles.
    (observed,) = evaluate_windows(
        session, job.spec, work, [window], pin_inputs(session, job.spec)
    ).reports
    return replace(recorded, shares=observed.shares)


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
    job, work = get_monitor(session, name)
    if window is not None and until is not None:
        raise InvalidArgument("window= and until= exclude each other.", hint="pass one of them")
    if len(note) > _MAX_NOTE_LENGTH:
        raise InvalidArgument(
            f"note= has {len(note):,} characters; the limit is {_MAX_NOTE_LENGTH:,}.",
            hint="write the details in a document, and link to it in note=",
        )
    accepted_window = None if window is None else resolve_window(job, window)
    end = None if until is None else parse_moment(until, argument="until")
    with session.registry.transaction() as connection:
        newest = reports.newest_monitor_report(connection, name)
        if accepted_window is not None:
            end = accepted_window.end
        elif end is None and newest is not None:
            end = newest.window.end
        accepted_reports = (
            [] if end is None else _reports_to_accept(connection, name, accepted_window, end)
        )
        subjects = find_acceptable_subjects(
            accepted_reports,
            recovery_reports=work.watched.confirm,
            restart=accepted_window is None,
            last=work.watched.baseline.last,
        )
        if not subjects or end is None:
            raise InvalidArgument(
                f"Monitor {name!r} has no out-of-bounds window to accept"
                f"{_range_text(accepted_window, end)}.",
                hint=f"store.get_monitor_history({name!r}) lists its windows",
                command=f"featurestore monitor history {name}",
            )
        acceptance = Acceptance(name, accepted_window, end, subjects, note, times.utc_now())
        reports.add_acceptance(connection, acceptance)
        audit_log.add(connection, actor, "accept monitor", name, acceptance.to_json())
        # The incident describes the newest window. If that window is not accepted, it may still be
        # out of bounds.
        if (
            newest is not None
            and newest.window.end <= end
            and accepted_window in (None, newest.window)
        ):
            reason = f"accepted by {actor.name}"
            if note:
                reason += f": {note}"
            incidents.end(connection, job.spec, ACCEPTABLE, reason=reason)
    send_waiting(session)
    return acceptance


def _reports_to_accept(
    connection: Connection, name: str, accepted_window: Window | None, end: datetime
) -> list[MonitorReport]:
    """Return the reports of the windows that an acceptance covers, oldest first."""
    if accepted_window is not None:
        report = reports.monitor_report_of_window(connection, name, accepted_window)
        return [] if report is None else [report]
    earlier = reports.acceptances(connection, name)
    # Windows up to the last acceptance of a range were already accepted by it.
    first = max(
        (acceptance.until for acceptance in earlier if acceptance.window is None), default=None
    )
    return [
        report
        for report in reversed(reports.monitor_reports(connection, name))
        if report.window.end <= end and (first is None or report.window.end > first)
    ]


def _range_text(accepted_window: Window | None, end: datetime | None) -> str:
    if accepted_window is not None:
        return f" at {accepted_window.start.isoformat()}"
    return "" if end is None else f" up to {end.isoformat()}"


def build_page(session: Session, name: str, *, windows: int = 60) -> MonitorPage:
    """Build the page of a monitor's latest window, with timelines of the windows before it."""
    window_reports = history(session, name, limit=windows)
    if not window_reports:
        raise InvalidArgument(f"Monitor {name!r} has not run yet.", hint=f"check_monitor({name!r})")
    return MonitorPage(load_report(session, name, window_reports[0].window), tuple(window_reports))


def history(
    session: Session, name: str, *, limit: int | None = 100, offset: int = 0
) -> list[MonitorReport]:
    """Return the reports of a monitor, newest window first."""
    get_monitor(session, name)
    with session.registry.reading() as connection:
        return Listing(reports.monitor_reports(connection, name, limit=limit, offset=offset))


def get_monitor(session: Session, name: str) -> tuple[RegisteredJob, MonitorWork]:
    """Return a registered monitor and its work; JobNotFound lists the registered monitors."""
    with session.registry.reading() as connection:
        job = jobs.find(connection, name)
        if job is not None and isinstance(job.spec.work, MonitorWork):
            # Reports contain values of the group.
            session.record_read(JOB, name)
            return job, job.spec.work
        monitor_names = [monitor.spec.name for monitor in jobs.list_all(connection, kind="monitor")]
    raise JobNotFound(
        f"Unknown monitor {name!r}. Available: {listing(monitor_names)}.",
        hint=did_you_mean(name, monitor_names) or "featurestore job register path/to/reports.py",
    )


def get_acceptances(session: Session, name: str) -> list[Acceptance]:
    """Return the acceptances of a monitor, oldest first."""
    get_monitor(session, name)
    with session.registry.reading() as connection:
        return reports.acceptances(connection, name)


def _latest_window(job: RegisteredJob) -> Window:
    """Return the latest complete window of a monitor; raise an error if none is complete."""
    latest = latest_complete_window(check_schedule(job.spec.schedule), times.utc_now())
    if latest is None:
        raise InvalidArgument(
            f"Monitor {job.spec.name!r} has no complete window yet.",
            hint=f"its first window begins at {job.spec.schedule.start}",
        )
    return latest


def _due_and_latest(session: Session, job: RegisteredJob) -> list[Window]:
    return sorted({*find_due_windows(session, job), _latest_window(job)})
