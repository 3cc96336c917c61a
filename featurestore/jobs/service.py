"""What the store offers for jobs: register, look, run, backfill, pause."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from types import ModuleType

from featurestore.alerts.outbox import send_waiting
from featurestore.errors import InvalidArgument, InvalidJob, JobFailed, listing
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.execution import Outcome, Watch, compute_stream, compute_windows
from featurestore.jobs.loading import load, load_registered, trust
from featurestore.jobs.recovery import recover, restore
from featurestore.jobs.run import Attempt, TrainingCall, no_training
from featurestore.jobs.schedule import (
    due_windows,
    last_schedule_time,
    latest_complete,
    window_starting,
    windows_between,
)
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.stale import stale_windows
from featurestore.jobs.streams.run import is_due, window_of
from featurestore.jobs.target import target
from featurestore.jobs.window_jobs.rows import check, with_its_key
from featurestore.model import html, times
from featurestore.model.callers import warn_caller
from featurestore.model.cores import usable_cores
from featurestore.model.html import Listing
from featurestore.model.job import JobSpec
from featurestore.model.times import parse_moment
from featurestore.model.window import Window
from featurestore.recovery import owners
from featurestore.recovery.leases import hold_job_lease
from featurestore.registry import alerts, jobs, monitors, runs, streams
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import Run
from featurestore.registry.streams import StreamStatus
from featurestore.session import Session
from featurestore.streams import check_stream_job

Choice = Callable[[Session, RegisteredJob], Sequence[Window]]
_MOST_AT_ONCE = 4


@dataclass(frozen=True)
class JobStatus:
    """A registered job and how it stands: how many windows are due or failed, and its last run.

    ``stream`` is how a stream job stands, None before its first look at its topic.
    """

    job: RegisteredJob
    due: int
    failed: int
    last: Run | None
    stream: StreamStatus | None = None

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.job.spec.name

    def _summary(self) -> dict[str, object]:
        last = None
        if self.last is not None:
            last = self.last.state
        counts = {"due": self.due, "failed": self.failed, "last_run": last}
        told = {**self.job._summary(), **counts}
        if self.stream is not None:
            told |= self.stream.summary()
        return told

    def _repr_html_(self) -> str:
        return html.facts(self._summary(), caption="Job")


def register_jobs(
    session: Session, module_or_path: ModuleType | str | os.PathLike[str]
) -> list[RegisteredJob]:
    """Register every job of a module, file or folder; return them as registered, by name."""
    found = load(module_or_path)
    _check_channels(session, [definition.spec for definition, _ in found.values()])
    specs = _as_registered(session, {name: each.spec for name, (each, _) in found.items()})
    registered = []
    for name, (_, file) in sorted(found.items()):
        spec = specs[name]
        trust(session.location, file)
        begin = None
        if spec.stream is not None:
            check_stream_job(session, spec)
        elif spec.start is None:  # the past is left alone: the job begins with the window open now
            now = times.shifted(times.utc_now(), -spec.allowed_lateness)
            begin = last_schedule_time(schedule_of(spec), now)
        with session.registry.transaction() as connection:
            known = jobs.find(connection, name)
            jobs.register(connection, spec, origin=file.origin, watermark=begin)
            if known is None:
                restore(connection, session, spec)
            registered.append(jobs.get(connection, name))
    return Listing(registered)


def _as_registered(session: Session, given: Mapping[str, JobSpec]) -> dict[str, JobSpec]:
    """Return jobs as they are registered: what can be known to fail is refused."""
    if all(spec.kind != "window" for spec in given.values()):
        return dict(given)
    with session.registry.reading() as connection:
        coming = {job.spec.target for job in jobs.every(connection)}
    coming.update([spec.target for spec in given.values()])
    specs = {}
    for name, spec in given.items():
        specs[name] = with_its_key(session, spec)
        check(session, specs[name], coming=coming)
    return specs


def _check_channels(session: Session, specs: Sequence[JobSpec]) -> None:
    """Refuse jobs that would tell channels which nobody added."""
    with session.registry.reading() as connection:
        known = [each.name for each in alerts.channels(connection)]
    for spec in specs:
        unknown = [name for name in spec.alert if name not in known]
        if unknown:
            raise InvalidJob(
                f"Job {spec.name!r}: alert= names {listing(unknown)}, and the store has the "
                f"channels {listing(known)}.",
                hint=f"store.add_alert_channel({unknown[0]!r}, 'log')",
                command=f"featurestore alert add {unknown[0]} log",
            )


def get_jobs(session: Session, *, limit: int | None = None, offset: int = 0) -> list[JobStatus]:
    """Return registered jobs and how they stand, by name: all of them, or a page."""
    with session.registry.reading() as connection:
        found = jobs.every(connection, limit=limit, offset=offset)
    statuses = []
    for job in found:
        try:
            statuses.append(status_of(session, job))
        except InvalidJob as error:  # a registry from elsewhere may hold any schedule
            warn_caller(f"The job {job.spec.name!r} is left out: {error.message}")
    return Listing(statuses)


def status_of(session: Session, job: RegisteredJob) -> JobStatus:
    """Return how a job stands."""
    with session.registry.reading() as connection:
        last = runs.last(connection, job.spec.name)
        failed = runs.windows_of(connection, job.spec.name, states=[runs.FAILED])
        stream = streams.status(connection, job.spec.name)
    due = len(due_of(session, job))
    return JobStatus(job, due=due, failed=len(failed), last=last, stream=stream)


def get_job(session: Session, name: str) -> RegisteredJob:
    """Return a registered job; JobNotFound lists those there are."""
    with session.registry.reading() as connection:
        return jobs.get(connection, name)


def get_runs(session: Session, name: str) -> list[Run]:
    """Return the runs of a job, oldest first."""
    with session.registry.reading() as connection:
        jobs.get(connection, name)
        return Listing(runs.of_job(connection, name))


def set_paused(session: Session, name: str, *, paused: bool) -> None:
    """Pause a job, or let it go on."""
    with session.registry.transaction() as connection:
        jobs.set_paused(connection, name, paused)


def due_of(session: Session, job: RegisteredJob) -> list[Window]:
    """Return the windows of a job that are due now, oldest first.

    Those after the watermark, and those that failed.
    """
    spec, name = job.spec, job.spec.name
    if spec.stream is not None:  # its records have offsets, not windows
        return []
    with session.registry.reading() as connection:
        failed = runs.windows_of(connection, name, states=[runs.FAILED])
        done = runs.windows_in(
            connection, name, states=[runs.DONE, runs.STALE], start=job.watermark
        )
    ahead = due_windows(schedule_of(spec), watermark=job.watermark, now=times.utc_now(), done=done)
    known = set(ahead)
    found = sorted([*(each for each in failed if each not in known), *ahead])
    return found if spec.catchup is None else found[: spec.catchup]


def run_job(
    session: Session,
    name: str,
    *,
    call: TrainingCall,
    window: Window | datetime | str | None = None,
    due: bool = False,
    stale: bool = False,
) -> list[Run]:
    """Run a job now and return its runs; see ``FeatureStore.run_job``."""
    if sum((window is not None, due, stale)) > 1:
        raise InvalidArgument(
            "window=, due= and stale= exclude each other.", hint="give one of them"
        )

    def one(session: Session, job: RegisteredJob) -> list[Window]:
        found = resolve_window(job, window)
        _refuse_to_append_again(session, job, [found])
        return [found]

    if due:
        choose: Choice = _all_due
    elif stale:
        choose = all_stale
    else:
        choose = one
    stream = get_job(session, name).spec.stream
    if stream is not None:
        _refuse_windows(name, window is not None or stale)
    outcome = attempt(session, name, choose, call=call, due=due)
    send_waiting(session)
    return _checked(session, name, outcome, stream=stream is not None)


def _refuse_windows(name: str, asked: bool) -> None:
    if asked:
        raise InvalidArgument(
            f"Job {name!r} reads a stream, which has no windows.",
            hint=f"run_job({name!r}) reads what its topic has now",
            command=f"featurestore job run {name}",
        )


def backfill_job(
    session: Session,
    name: str,
    start: datetime | str,
    end: datetime | str,
    *,
    call: TrainingCall,
    resume: bool = True,
    watch: Watch | None = None,
) -> list[Run]:
    """Compute the windows of a range and return the runs; see ``FeatureStore.backfill_job``."""
    first, last = parse_moment(start, argument="start"), parse_moment(end, argument="end")
    _refuse_windows(name, get_job(session, name).spec.stream is not None)
    if first >= last:
        raise InvalidArgument(f"start={first.isoformat()} is not before end={last.isoformat()}.")

    def choose(session: Session, job: RegisteredJob) -> list[Window]:
        found = complete_between(job.spec, first, last)
        if not resume:
            _refuse_to_append_again(session, job, found)
            return found
        held = _held(session, job, first, last)
        return [window for window in found if window not in held]

    parallel = min(_MOST_AT_ONCE, usable_cores())
    outcome = attempt(session, name, choose, call=call, watch=watch, parallel=parallel)
    send_waiting(session)
    done = _checked(session, name, outcome)
    return Backfill(done, note=_backfill_note(session, name, done))


class Backfill(Listing[Run]):
    """The runs of a backfill. ``note`` says in a sentence what a monitor found, "" for other jobs."""

    def __init__(self, done: Sequence[Run], *, note: str = "") -> None:
        super().__init__(done)
        self.note = note

    def __repr__(self) -> str:
        text = super().__repr__()
        return f"{text}\n{self.note}" if self.note else text

    def _repr_html_(self) -> str:
        return super()._repr_html_() + (html.paragraph(self.note) if self.note else "")


def _backfill_note(session: Session, name: str, done: Sequence[Run]) -> str:
    """Return how many windows a monitor judged in some runs, and how many were out of bounds."""
    if not done or get_job(session, name).spec.kind != "monitor":
        return ""
    with session.registry.reading() as connection:
        states = monitors.states_of_runs(connection, name, [run.run_id for run in done])
    judged = states.total() - states["learning"]
    out = states["alarm"] + states["suspect"]
    return (
        f"{judged:,} windows judged ({states['learning']:,} more had too little before them), "
        f"{out:,} out of bounds, {states['alarm']:,} of them alarms. Alerts are sent for the "
        f"newest window only: featurestore monitor history {name} lists the others."
    )


def attempt(
    session: Session,
    name: str,
    choose: Choice,
    *,
    call: TrainingCall,
    watch: Watch | None = None,
    parallel: int = 1,
    due: bool = False,
) -> Outcome:
    """Take the lease of a job, recover what dead processes left, compute the windows chosen then.

    ``due`` leaves a stream alone whose trigger has not passed.

    Raises:
        JobLeased: Another process runs the job.
    """
    job = get_job(session, name)
    definition = definition_of(session, job)
    if job.spec.stream is not None:
        return _attempt_stream(session, job, definition, watch=watch or Watch(), due=due)
    with hold_job_lease(session, name) as owner:
        recover(session, name)
        job = get_job(session, name)
        definition = definition_of(session, job)
        windows = tuple(choose(session, job))
        if not windows:
            return Outcome()
        return compute_windows(
            session, Attempt(job, definition, windows, owner, call), watch=watch, parallel=parallel
        )


def _attempt_stream(
    session: Session,
    job: RegisteredJob,
    definition: JobDefinition,
    *,
    watch: Watch,
    due: bool,
) -> Outcome:
    """Read what a stream has now; runners of a consumer group share it, and need no lease."""
    name = job.spec.name
    if due and not is_due(session, job):
        return Outcome()
    with ExitStack() as held:
        assert job.spec.stream is not None
        if job.spec.stream.consumer_group is None:
            owner = held.enter_context(hold_job_lease(session, name))
            recover(session, name)
        else:
            owner = held.enter_context(owners.heartbeat(session.registry, session.location))
            recover(session, name, shared=True)
        window = window_of(job)
        attempt = Attempt(job, definition, (window,), owner, no_training)
        return compute_stream(session, attempt, watch)


def definition_of(session: Session, job: RegisteredJob) -> JobDefinition:
    """Return a job's function or query from where it was registered.

    Raises:
        InvalidJob: What is there now is not what was registered.
    """
    if job.spec.kind == "monitor":  # nothing of it is executed, so it needs no file
        return JobDefinition(job.spec)
    definition = load_registered(session.location, job.spec.name, job.origin)
    definition = replace(definition, spec=with_its_key(session, definition.spec))
    if definition.spec.hash != job.spec.hash:
        raise InvalidJob(
            f"Job {job.spec.name!r} in {job.origin} differs from the registered version "
            f"{job.version}.",
            hint=f"featurestore job register {job.origin}",
        )
    return definition


def complete_between(
    spec: JobSpec, start: datetime, end: datetime, *, limit: int | None = None
) -> list[Window]:
    """Return the windows of a range that are complete, allowed lateness included.

    Oldest first, ``limit`` at most.
    """
    now = times.utc_now()
    until = min(end, times.shifted(now, -spec.allowed_lateness))
    return windows_between(schedule_of(spec), start, until, limit=limit)


def _refuse_to_append_again(
    session: Session, job: RegisteredJob, windows: Sequence[Window]
) -> None:
    """Refuse to compute windows anew whose rows would then be in the table twice."""
    if job.spec.mode != "append" or not windows:
        return
    held = _held(session, job, windows[0].start, windows[-1].end)
    again = [window for window in windows if window in held]
    if again:
        raise InvalidArgument(
            f"Job {job.spec.name!r} appends, and {job.spec.target!r} has its window from "
            f"{again[0].start.isoformat()} to {again[0].end.isoformat()} already: its rows would "
            "be there twice.",
            hint=(
                "mode='replace_window' computes windows anew; due=True and resume=True take only "
                "what is missing"
            ),
        )


def _held(session: Session, job: RegisteredJob, start: datetime, end: datetime) -> set[Window]:
    """Return the windows of a range that the present version of the target holds."""
    if job.spec.kind == "training":
        return set()
    if job.spec.kind == "monitor":
        with session.registry.reading() as connection:
            return runs.windows_in(
                connection, job.spec.name, start=start, end=end, states=[runs.DONE]
            )
    group = target(session, job.spec)
    if group is None:
        return set()
    states = [runs.DONE]
    if job.spec.mode == "append":  # the rows of a stale window are there, too
        states.append(runs.STALE)
    with session.registry.reading() as connection:
        return runs.windows_in(
            connection,
            job.spec.name,
            start=start,
            end=end,
            states=states,
            target_version=group.spec.version,
        )


def _all_due(session: Session, job: RegisteredJob) -> list[Window]:
    return [] if job.paused else due_of(session, job)


def all_stale(session: Session, job: RegisteredJob) -> list[Window]:
    """Return the windows of a job whose inputs changed.

    Raises:
        InvalidArgument: The job appends, so that no window of it can be computed anew.
    """
    if job.spec.mode == "append":
        raise InvalidArgument(
            f"Job {job.spec.name!r} appends, so its windows cannot be computed anew.",
            hint="mode='replace_window' lets late data in",
        )
    return stale_windows(session, job.spec)


def resolve_window(job: RegisteredJob, asked: Window | datetime | str | None) -> Window:
    """Return the window of a job that an argument means; None means the latest complete one."""
    schedule = schedule_of(job.spec)
    if asked is None:
        latest = latest_complete(schedule, times.utc_now())
        if latest is None:
            raise InvalidArgument(
                f"Job {job.spec.name!r} has no complete window yet.",
                hint=f"its first one begins {job.spec.start}",
            )
        return latest
    if not isinstance(asked, Window):
        return window_starting(schedule, parse_moment(asked, argument="window"))
    found = window_starting(schedule, asked.start)
    if found != asked:
        raise InvalidArgument(
            f"window={asked} is none of the job's.", hint=f"the one from there ends {found.end}"
        )
    return asked


def _checked(session: Session, name: str, outcome: Outcome, *, stream: bool = False) -> list[Run]:
    if outcome.failed:
        worst = next(run for run in reversed(outcome.runs) if run.state == runs.FAILED)
        with session.registry.reading() as connection:
            worst = runs.get(connection, worst.run_id)
        hint = f"{worst.hint or 'the traceback is in the log'}; log: {worst.log}"
        if stream:
            raise JobFailed(f"Job {name!r}: {worst.error}", hint=hint)
        raise JobFailed(
            f"Job {name!r}: {len(outcome.failed)} windows could not be computed; the last one from "
            f"{worst.window.start.isoformat()}: {worst.error}",
            hint=hint,
        )
    return Listing(outcome.runs)
