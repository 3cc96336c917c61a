"""Operations on jobs: register, list, run, backfill, pause."""

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
from featurestore.jobs.loading import grant_execution, load_jobs, load_registered
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
from featurestore.jobs.target import find_target
from featurestore.jobs.window_jobs.rows import check_window_job, with_primary_key
from featurestore.model import display, times
from featurestore.model.arguments import warn_caller
from featurestore.model.display import Listing
from featurestore.model.job import JobSpec
from featurestore.model.runtime import usable_cores
from featurestore.model.times import Window, parse_moment
from featurestore.recovery import liveness
from featurestore.recovery.liveness import hold_job_lease
from featurestore.registry import alerts, jobs, monitors, runs, streams
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import Run
from featurestore.registry.streams import StreamStatus
from featurestore.session import Session
from featurestore.streams import check_stream_job

Choice = Callable[[Session, RegisteredJob], Sequence[Window]]
_MAX_PARALLEL_CHUNKS = 4


@dataclass(frozen=True)
class JobStatus:
    """A registered job with its counts of due and failed windows and its last run.

    ``stream`` is the progress of a stream job, None before its first run.
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
        last_state = None
        if self.last is not None:
            last_state = self.last.state
        counts = {"due": self.due, "failed": self.failed, "last_run": last_state}
        summary = {**self.job._summary(), **counts}
        if self.stream is not None:
            summary |= self.stream.summary()
        return summary

    def _repr_html_(self) -> str:
        return display.properties_table(self._summary(), caption="Job")


def register_jobs(
    session: Session, module_or_path: ModuleType | str | os.PathLike[str]
) -> list[RegisteredJob]:
    """Register every job of a module, file or folder; return the registered jobs by name."""
    definitions = load_jobs(module_or_path)
    _check_channels(session, [definition.spec for definition, _ in definitions.values()])
    specs = _specs_to_register(
        session, {name: each.spec for name, (each, _) in definitions.items()}
    )
    registered = []
    for name, (_, file) in sorted(definitions.items()):
        spec = specs[name]
        grant_execution(session.location, file)
        watermark = None
        if spec.stream is not None:
            check_stream_job(session, spec)
        elif spec.start is None:  # no catchup: the job begins with the window that is open now
            now = times.shifted(times.utc_now(), -spec.allowed_lateness)
            watermark = last_schedule_time(schedule_of(spec), now)
        with session.registry.transaction() as connection:
            earlier = jobs.find(connection, name)
            jobs.register(connection, spec, origin=file.origin, watermark=watermark)
            if earlier is None:
                restore(connection, session, spec)
            registered.append(jobs.get(connection, name))
    return Listing(registered)


def _specs_to_register(session: Session, specs: Mapping[str, JobSpec]) -> dict[str, JobSpec]:
    """Return the definitions to register; refuse those that are known to fail."""
    if all(spec.kind != "window" for spec in specs.values()):
        return dict(specs)
    with session.registry.reading() as connection:
        target_names = {job.spec.target for job in jobs.every(connection)}
    target_names.update([spec.target for spec in specs.values()])
    definitions = {}
    for name, spec in specs.items():
        definitions[name] = with_primary_key(session, spec)
        check_window_job(session, definitions[name], future_groups=target_names)
    return definitions


def _check_channels(session: Session, specs: Sequence[JobSpec]) -> None:
    """Refuse jobs with alert channels that the store does not have."""
    with session.registry.reading() as connection:
        channel_names = [each.name for each in alerts.channels(connection)]
    for spec in specs:
        unknown = [name for name in spec.alert if name not in channel_names]
        if unknown:
            raise InvalidJob(
                f"Job {spec.name!r}: alert= names {listing(unknown)}. Available channels: "
                f"{listing(channel_names)}.",
                hint=f"store.add_alert_channel({unknown[0]!r}, 'log')",
                command=f"featurestore alert add {unknown[0]} log",
            )


def get_jobs(session: Session, *, limit: int | None = None, offset: int = 0) -> list[JobStatus]:
    """Return registered jobs with their status, sorted by name; ``limit`` jobs from ``offset``."""
    with session.registry.reading() as connection:
        registered_jobs = jobs.every(connection, limit=limit, offset=offset)
    statuses = []
    for job in registered_jobs:
        try:
            statuses.append(status_of(session, job))
        except InvalidJob as error:  # an imported registry may contain invalid schedules
            warn_caller(f"The job {job.spec.name!r} is left out: {error.message}")
    return Listing(statuses)


def status_of(session: Session, job: RegisteredJob) -> JobStatus:
    """Return the status of a job."""
    with session.registry.reading() as connection:
        last = runs.last(connection, job.spec.name)
        failed = runs.windows_of(connection, job.spec.name, states=[runs.FAILED])
        stream = streams.status(connection, job.spec.name)
    due = len(find_due_windows(session, job))
    return JobStatus(job, due=due, failed=len(failed), last=last, stream=stream)


def get_job(session: Session, name: str) -> RegisteredJob:
    """Return a registered job; JobNotFound lists the registered ones."""
    with session.registry.reading() as connection:
        return jobs.get(connection, name)


def get_runs(session: Session, name: str) -> list[Run]:
    """Return the runs of a job, oldest first."""
    with session.registry.reading() as connection:
        jobs.get(connection, name)
        return Listing(runs.of_job(connection, name))


def set_paused(session: Session, name: str, *, paused: bool) -> None:
    """Pause or resume a job."""
    with session.registry.transaction() as connection:
        jobs.set_paused(connection, name, paused)


def find_due_windows(session: Session, job: RegisteredJob) -> list[Window]:
    """Return the windows of a job that are due now, oldest first.

    Due are the windows after the watermark and the failed ones.
    """
    spec, name = job.spec, job.spec.name
    if spec.stream is not None:  # its records have offsets, not windows
        return []
    with session.registry.reading() as connection:
        failed = runs.windows_of(connection, name, states=[runs.FAILED])
        computed = runs.windows_in(
            connection, name, states=[runs.DONE, runs.STALE], start=job.watermark
        )
    upcoming = due_windows(
        schedule_of(spec), watermark=job.watermark, now=times.utc_now(), computed=computed
    )
    windows = sorted({*failed, *upcoming})
    return windows if spec.catchup is None else windows[: spec.catchup]


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

    def choose_window(session: Session, job: RegisteredJob) -> list[Window]:
        job_window = resolve_window(job, window)
        _refuse_repeated_appends(session, job, [job_window])
        return [job_window]

    if due:
        choose: Choice = _all_due
    elif stale:
        choose = all_stale
    else:
        choose = choose_window
    stream = get_job(session, name).spec.stream
    if stream is not None:
        _refuse_windows(name, window is not None or stale)
    outcome = run_attempt(session, name, choose, call=call, due=due)
    send_waiting(session)
    return _raise_failures(session, name, outcome, stream=stream is not None)


def _refuse_windows(name: str, has_window_options: bool) -> None:
    if has_window_options:
        raise InvalidArgument(
            f"Job {name!r} reads a stream and has no windows.",
            hint=f"run_job({name!r}) reads the new records of its topic",
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
    range_start, range_end = (
        parse_moment(start, argument="start"),
        parse_moment(end, argument="end"),
    )
    _refuse_windows(name, get_job(session, name).spec.stream is not None)
    if range_start >= range_end:
        raise InvalidArgument(
            f"start={range_start.isoformat()} is not before end={range_end.isoformat()}."
        )

    def choose(session: Session, job: RegisteredJob) -> list[Window]:
        windows = find_complete_windows(job.spec, range_start, range_end)
        if not resume:
            _refuse_repeated_appends(session, job, windows)
            return windows
        computed = _computed_windows(session, job, range_start, range_end)
        return [window for window in windows if window not in computed]

    parallel = min(_MAX_PARALLEL_CHUNKS, usable_cores())
    outcome = run_attempt(session, name, choose, call=call, watch=watch, parallel=parallel)
    send_waiting(session)
    job_runs = _raise_failures(session, name, outcome)
    return Backfill(job_runs, note=_backfill_note(session, name, job_runs))


class Backfill(Listing[Run]):
    """The runs of a backfill. ``note`` summarizes the findings of a monitor, "" for other jobs."""

    def __init__(self, job_runs: Sequence[Run], *, note: str = "") -> None:
        super().__init__(job_runs)
        self.note = note

    def __repr__(self) -> str:
        text = super().__repr__()
        return f"{text}\n{self.note}" if self.note else text

    def _repr_html_(self) -> str:
        return super()._repr_html_() + (display.paragraph(self.note) if self.note else "")


def _backfill_note(session: Session, name: str, job_runs: Sequence[Run]) -> str:
    """Return a summary of the windows that a monitor evaluated, "" for other jobs."""
    if not job_runs or get_job(session, name).spec.kind != "monitor":
        return ""
    with session.registry.reading() as connection:
        states = monitors.states_of_runs(connection, name, [run.run_id for run in job_runs])
    evaluated = states.total() - states["learning"]
    out_of_bounds = states["alarm"] + states["suspect"]
    return (
        f"{evaluated:,} windows evaluated ({states['learning']:,} more had too little history), "
        f"{out_of_bounds:,} out of bounds, {states['alarm']:,} of them alarms. Alerts are sent for the "
        f"newest window only: featurestore monitor history {name} lists the others."
    )


def run_attempt(
    session: Session,
    name: str,
    choose: Choice,
    *,
    call: TrainingCall,
    watch: Watch | None = None,
    parallel: int = 1,
    due: bool = False,
) -> Outcome:
    """Take the lease of a job, recover its dead runs, and compute the windows that are chosen then.

    ``due`` skips a stream whose trigger interval has not passed.

    Raises:
        JobLeased: Another process runs the job.
    """
    job = get_job(session, name)
    definition = load_definition(session, job)
    if job.spec.stream is not None:
        return _attempt_stream(session, job, definition, watch=watch or Watch(), due=due)
    with hold_job_lease(session, name) as owner:
        recover(session, name)
        job = get_job(session, name)
        definition = load_definition(session, job)
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
    """Read the new records of a stream; the runners of a consumer group need no lease."""
    name = job.spec.name
    if due and not is_due(session, job):
        return Outcome()
    with ExitStack() as stack:
        assert job.spec.stream is not None
        if job.spec.stream.consumer_group is None:
            owner = stack.enter_context(hold_job_lease(session, name))
            recover(session, name)
        else:
            owner = stack.enter_context(liveness.heartbeat(session.registry, session.location))
            recover(session, name, shared=True)
        window = window_of(job)
        attempt = Attempt(job, definition, (window,), owner, no_training)
        return compute_stream(session, attempt, watch)


def load_definition(session: Session, job: RegisteredJob) -> JobDefinition:
    """Load the function or query of a job from the file where it was registered.

    Raises:
        InvalidJob: The definition in the file differs from the registered one.
    """
    if job.spec.kind == "monitor":  # a monitor has no code, so it needs no file
        return JobDefinition(job.spec)
    definition = load_registered(session.location, job.spec.name, job.origin)
    definition = replace(definition, spec=with_primary_key(session, definition.spec))
    if definition.spec.hash != job.spec.hash:
        raise InvalidJob(
            f"Job {job.spec.name!r} in {job.origin} differs from the registered version "
            f"{job.version}.",
            hint=f"featurestore job register {job.origin}",
        )
    return definition


def find_complete_windows(
    spec: JobSpec, start: datetime, end: datetime, *, limit: int | None = None
) -> list[Window]:
    """Return the windows of a range that are complete, allowed lateness included.

    Oldest first, ``limit`` at most.
    """
    now = times.utc_now()
    until = min(end, times.shifted(now, -spec.allowed_lateness))
    return windows_between(schedule_of(spec), start, until, limit=limit)


def _refuse_repeated_appends(
    session: Session, job: RegisteredJob, windows: Sequence[Window]
) -> None:
    """Refuse to compute windows of an appending job again, which would duplicate their rows."""
    if job.spec.mode != "append" or not windows:
        return
    computed = _computed_windows(session, job, windows[0].start, windows[-1].end)
    repeated = [window for window in windows if window in computed]
    if repeated:
        raise InvalidArgument(
            f"Job {job.spec.name!r} appends, and {job.spec.target!r} already has its window from "
            f"{repeated[0].start.isoformat()} to {repeated[0].end.isoformat()}: its rows would be "
            "duplicated.",
            hint=(
                "mode='replace_window' replaces the rows of a window; due=True and resume=True "
                "compute only missing windows"
            ),
        )


def _computed_windows(
    session: Session, job: RegisteredJob, start: datetime, end: datetime
) -> set[Window]:
    """Return the windows of a range that the target's latest version contains."""
    if job.spec.kind == "training":
        return set()
    if job.spec.kind == "monitor":
        with session.registry.reading() as connection:
            return runs.windows_in(
                connection, job.spec.name, start=start, end=end, states=[runs.DONE]
            )
    group = find_target(session, job.spec)
    if group is None:
        return set()
    states = [runs.DONE]
    if job.spec.mode == "append":  # the rows of stale windows are in the table, too
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
    return [] if job.paused else find_due_windows(session, job)


def all_stale(session: Session, job: RegisteredJob) -> list[Window]:
    """Return the windows of a job whose inputs changed.

    Raises:
        InvalidArgument: The job appends, so its windows cannot be computed again.
    """
    if job.spec.mode == "append":
        raise InvalidArgument(
            f"Job {job.spec.name!r} appends, so its windows cannot be computed again.",
            hint="mode='replace_window' replaces the rows of a window",
        )
    return stale_windows(session, job.spec)


def resolve_window(job: RegisteredJob, window: Window | datetime | str | None) -> Window:
    """Return the window that an argument denotes; None denotes the latest complete one."""
    schedule = schedule_of(job.spec)
    if window is None:
        latest = latest_complete(schedule, times.utc_now())
        if latest is None:
            raise InvalidArgument(
                f"Job {job.spec.name!r} has no complete window yet.",
                hint=f"its first window begins at {job.spec.start}",
            )
        return latest
    if not isinstance(window, Window):
        return window_starting(schedule, parse_moment(window, argument="window"))
    matching_window = window_starting(schedule, window.start)
    if matching_window != window:
        raise InvalidArgument(
            f"window={window} is not a window of the job.",
            hint=f"the window from that start ends at {matching_window.end}",
        )
    return window


def _raise_failures(
    session: Session, name: str, outcome: Outcome, *, stream: bool = False
) -> list[Run]:
    if outcome.failed:
        failed_run = next(run for run in reversed(outcome.runs) if run.state == runs.FAILED)
        with session.registry.reading() as connection:
            failed_run = runs.get(connection, failed_run.run_id)
        hint = f"{failed_run.hint or 'the traceback is in the log'}; log: {failed_run.log}"
        if stream:
            raise JobFailed(f"Job {name!r}: {failed_run.error}", hint=hint)
        raise JobFailed(
            f"Job {name!r}: {len(outcome.failed)} windows could not be computed; the last one from "
            f"{failed_run.window.start.isoformat()}: {failed_run.error}",
            hint=hint,
        )
    return Listing(outcome.runs)
