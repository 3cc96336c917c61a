"""Operations on jobs: list, plan, run, backfill, pause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from featurestore.alerts.incidents import send_waiting
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidArgument, InvalidJob, JobFailed
from featurestore.jobs import windows as jobs_windows
from featurestore.jobs.execution import AttemptOutcome, Watch, WindowSelector, run_attempt
from featurestore.jobs.inputs import (
    PinnedInput,
    make_read_range,
    parquet_files,
    pin_inputs,
    read_file_volume,
)
from featurestore.jobs.registration import authorize_job
from featurestore.jobs.run import TrainingCall
from featurestore.jobs.stale_windows import find_all_stale
from featurestore.model import display
from featurestore.model.display import Listing
from featurestore.model.job import MonitorWork, StreamWork
from featurestore.model.runtime import usable_cores
from featurestore.model.times import Window
from featurestore.registry import jobs, reports, runs
from featurestore.registry.jobs import RegisteredJob, StreamStatus
from featurestore.registry.origins import JOB
from featurestore.registry.runs import Run
from featurestore.session import Session

_MAX_PARALLEL_CHUNKS = 4
# Number of recent runs used to estimate the run time.
_RECENT = 20


@dataclass(frozen=True)
class JobStatus:
    """A registered job with its last run and the number of due and failed windows.

    ``stream`` is the progress of a stream job, None before its first run. ``error`` is the reason
    why the schedule of a registered job cannot be computed, and ``hint`` how to correct it; such a
    job has no due windows.
    """

    job: RegisteredJob
    due: int
    failed: int
    last: Run | None
    stream: StreamStatus | None = None
    error: str | None = None
    hint: str | None = None

    __repr__ = display.record_repr

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.job.spec.name

    @property
    def state(self) -> str:
        """Whether schedulers run the job: "active", "paused" or "invalid"."""
        return self.job.state if self.error is None else "invalid"

    def _summary(self) -> dict[str, object]:
        last_state = None
        if self.last is not None:
            last_state = self.last.state
        counts = {"due": self.due, "failed": self.failed, "last_run": last_state}
        summary = {**self.job._summary(), "state": self.state, **counts}
        if self.error is not None:
            summary |= {"error": self.error, "hint": self.hint}
        if self.stream is not None:
            summary |= self.stream.summary()
        return summary

    def _repr_html_(self) -> str:
        return display.properties_table(self._summary(), caption="Job")


def get_jobs(session: Session, *, limit: int | None = None, offset: int = 0) -> list[JobStatus]:
    """Return registered jobs with their status by name, at most ``limit`` from ``offset``."""
    with session.registry.reading() as connection:
        registered_jobs = jobs.list_all(connection, limit=limit, offset=offset)
    # The status has the errors of runs.
    session.record_reads(JOB, [(job.spec.name, 1) for job in registered_jobs])
    return Listing([load_status(session, job) for job in registered_jobs])


def load_status(session: Session, job: RegisteredJob) -> JobStatus:
    """Return the status of a job."""
    with session.registry.reading() as connection:
        last = runs.last(connection, job.spec.name)
        failed = runs.count_windows(connection, job.spec.name, states=[runs.FAILED])
        stream = jobs.stream_status(connection, job.spec.name)
    due = 0
    error: str | None = None
    hint: str | None = None
    try:
        due = len(jobs_windows.find_due_windows(session, job))
    # The registry may contain a schedule of another store.
    except InvalidJob as problem:
        error, hint = (
            problem.message,
            f"{problem.hint}, then: featurestore job register {job.origin}",
        )
    return JobStatus(job, due, failed, last, stream, error, hint)


def get_job(session: Session, name: str) -> RegisteredJob:
    """Return a registered job; JobNotFound lists the registered jobs."""
    with session.registry.reading() as connection:
        return jobs.get(connection, name)


def get_runs(session: Session, name: str, *, last: int | None = None) -> list[Run]:
    """Return the runs of a job, or the ``last`` newest ones, oldest first."""
    session.record_read(JOB, name)
    with session.registry.reading() as connection:
        jobs.get(connection, name)
        return Listing(runs.runs_of_job(connection, name, last=last))


def set_paused(session: Session, name: str, *, paused: bool) -> None:
    """Pause or resume a job."""
    with session.registry.transaction() as connection:
        jobs.set_paused(connection, name, paused)


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
            "window=, due= and stale= exclude each other.", hint="pass one of them"
        )

    def choose_window(session: Session, job: RegisteredJob) -> list[Window]:
        return [jobs_windows.resolve_window(job, window)]

    if due:
        choose: WindowSelector = _find_all_due
    elif stale:
        choose = find_all_stale
    else:
        choose = choose_window
    is_stream = isinstance(get_job(session, name).spec.work, StreamWork)
    if is_stream:
        _refuse_windows(name, window is not None or stale)
    # Alerts are sent after the lease is released, which slow channels must not extend.
    outcome = run_attempt(session, name, choose, call=call, due=due)
    send_waiting(session)
    return _raise_failures(session, name, outcome, stream=is_stream)


def _find_all_due(session: Session, job: RegisteredJob) -> list[Window]:
    return [] if job.paused else jobs_windows.find_due_windows(session, job)


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
    bounds = jobs_windows.parse_window_bounds(start, end)
    range_start, range_end = bounds.start, bounds.end
    _refuse_windows(name, isinstance(get_job(session, name).spec.work, StreamWork))
    if range_start >= range_end:
        raise InvalidArgument(
            f"start={range_start.isoformat()} is not before end={range_end.isoformat()}."
        )

    def choose(session: Session, job: RegisteredJob) -> list[Window]:
        windows = jobs_windows.find_complete_windows(job.spec, range_start, range_end)
        if not resume:
            return windows
        computed = jobs_windows.computed_windows(session, job, range_start, range_end)
        return [window for window in windows if window not in computed]

    parallel = min(_MAX_PARALLEL_CHUNKS, usable_cores())
    outcome = run_attempt(session, name, choose, call=call, watch=watch, parallel=parallel)
    send_waiting(session)
    job_runs = _raise_failures(session, name, outcome)
    return Backfill(job_runs, note=_backfill_note(session, name, job_runs))


class Backfill(Listing[Run]):
    """The runs of a backfill. ``note`` summarizes the findings of a monitor, else it is ""."""

    def __init__(self, job_runs: Sequence[Run], *, note: str = "") -> None:
        super().__init__(job_runs)
        self.note = note

    def __repr__(self) -> str:
        text = super().__repr__()
        return f"{text}\n{self.note}" if self.note else text

    def _repr_html_(self) -> str:
        return super()._repr_html_() + (display.paragraph(self.note) if self.note else "")


def _backfill_note(session: Session, name: str, job_runs: Sequence[Run]) -> str:
    """Summarize the windows that a monitor evaluated; return "" for other jobs."""
    if not job_runs or not isinstance(get_job(session, name).spec.work, MonitorWork):
        return ""
    with session.registry.reading() as connection:
        states = reports.count_window_states(connection, name, [run.run_id for run in job_runs])
    evaluated = states.total() - states["learning"]
    out_of_bounds = states["alarm"] + states["suspect"]
    return (
        f"{evaluated:,} windows evaluated ({states['learning']:,} more had too little history), "
        f"{out_of_bounds:,} out of bounds, {states['alarm']:,} of them alarms. Alerts are sent for the "
        f"newest window only: featurestore monitor history {name} lists the others."
    )


def _refuse_windows(name: str, has_window_options: bool) -> None:
    if has_window_options:
        raise InvalidArgument(
            f"Job {name!r} reads a stream and has no windows.",
            hint=f"run_job({name!r}) reads the new records of its topic",
            command=f"featurestore job run {name}",
        )


def _raise_failures(
    session: Session, name: str, outcome: AttemptOutcome, *, stream: bool = False
) -> list[Run]:
    """Return the runs of an attempt, or raise JobFailed for its last failed run."""
    if outcome.failed:
        failed_run = next(run for run in reversed(outcome.runs) if run.state == runs.FAILED)
        with session.registry.reading() as connection:
            # Errors are recorded with placeholders for lists of names, which are filled when they
            # are read.
            failed_run = runs.get(connection, failed_run.run_id)
        hint = f"{failed_run.hint or 'the traceback is in the log'}; log: {failed_run.log}"
        if stream:
            raise JobFailed(f"Job {name!r}: {failed_run.error}", hint=hint)
        count = len(outcome.failed)
        raise JobFailed(
            f"Job {name!r}: {count} {'window' if count == 1 else 'windows'} could not be computed; the last "
            "one from "
            f"{failed_run.window.start.isoformat()}: {failed_run.error}",
            hint=hint,
        )
    return Listing(outcome.runs)


@dataclass(frozen=True)
class PlannedInput:
    """An input of a planned run: its version, and an estimate of the rows to read."""

    name: str
    source: str
    version: int | None
    delta_version: int | None
    rows: int
    bytes: int

    __repr__ = display.record_repr


@dataclass(frozen=True)
class JobPlan:
    """The windows that a job would compute, with estimates of the input size and the run time.

    ``seconds`` is None if there are no runs to estimate it from. ``features`` describes the
    features of a window job.
    """

    job: str
    windows: tuple[Window, ...]
    inputs: tuple[PlannedInput, ...]
    seconds: float | None
    paused: bool = False
    features: tuple[str, ...] = ()

    __repr__ = display.record_repr

    @property
    def rows(self) -> int:
        """The estimated number of rows to read."""
        return sum(planned.rows for planned in self.inputs)

    @property
    def bytes(self) -> int:
        """The estimated number of bytes to read."""
        return sum(planned.bytes for planned in self.inputs)

    def _repr_html_(self) -> str:
        return display.preformatted(str(self))

    def __str__(self) -> str:
        name = self.job
        if self.paused:
            name += " (paused: no scheduler runs it)"
        if not self.windows:
            return f"{name}: nothing to do"
        if self.seconds is None:
            duration = "no earlier run to estimate the duration from"
        else:
            duration = f"about {self.seconds:.1f} s"
        first, last = self.windows[0], self.windows[-1]
        lines = [
            f"{name}: {len(self.windows)} windows from {first.start.isoformat()} to "
            f"{last.end.isoformat()}",
            f"reads about {self.rows:,} rows, {self.bytes:,} bytes; {duration}",
        ]
        for planned in self.inputs:
            source = planned.source
            if planned.delta_version is not None:
                source += f" at Delta version {planned.delta_version}"
            lines.append(f"  {planned.name}: {source}, rows: about {planned.rows:,}")
        for feature in self.features:
            lines.append(f"  {feature}")
        return "\n".join(lines)


def plan_job(
    session: Session,
    name: str,
    *,
    window: Window | tuple[datetime | str, datetime | str] | None = None,
) -> JobPlan:
    """Plan the due windows, or the windows of a range, without computing them.

    Raises:
        ConfigurationError: The job was not registered on this machine with this definition.
    """
    job = get_job(session, name)
    if window is None:
        windows = jobs_windows.find_due_windows(session, job)
    else:
        windows = jobs_windows.find_complete_windows(job.spec, *_parse_range(window))
    inputs, features = [], []
    # The estimate reads the files of the inputs.
    authorize_job(session, job)
    for pinned in pin_inputs(session, job.spec):
        rows, size = _estimate_volume(pinned, windows, make_read_range(job.spec))
        inputs.append(
            PlannedInput(
                pinned.name, pinned.source, pinned.version, pinned.delta_version, rows, size
            )
        )
        features += list(map(str, pinned.windows))
    with session.registry.reading() as connection:
        recent_runs = runs.runs_of_job(connection, name, state=runs.DONE, last=_RECENT)
    return JobPlan(
        job=name,
        windows=tuple(windows),
        inputs=tuple(inputs),
        seconds=_estimate_seconds(recent_runs, len(windows)),
        paused=job.paused,
        features=tuple(features),
    )


def _parse_range(
    window: Window | tuple[datetime | str, datetime | str],
) -> tuple[datetime, datetime]:
    if isinstance(window, Window):
        window = window.start, window.end
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise InvalidArgument(
            f"window={window!r} is not a time range.",
            hint="window=('2019-03-01T00:00:00Z', '2019-03-02T00:00:00Z')",
        )
    bounds = jobs_windows.parse_window_bounds(*window)
    return bounds.start, bounds.end


def _estimate_volume(
    pinned: PinnedInput,
    windows: Sequence[Window],
    range_of: Callable[[Window], tuple[int, int]],
) -> tuple[int, int]:
    """Estimate the rows and bytes that windows read, by the time overlap of each file."""
    if not windows:
        return 0, 0
    first, last = range_of(windows[0])[0], range_of(windows[-1])[1]
    rows = size = 0.0
    for file_rows, file_bytes, bounds in _file_volumes(pinned):
        share = _overlap_fraction(bounds, first, last)
        rows += file_rows * share
        size += file_bytes * share
    return round(rows), round(size)


def _file_volumes(pinned: PinnedInput) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
    """Yield rows, bytes and, if known, the minimum and maximum time of each file."""
    if pinned.source_type == "source":
        return  # planning connects to nothing
    if pinned.source_type == "parquet":
        for path in parquet_files(pinned.path):
            yield read_file_volume(path, pinned.time)
        return
    state = read_snapshot(pinned.path, pinned.delta_version)
    times = None
    if pinned.time is not None:
        times = state.times(pinned.time)
    for number, file in enumerate(state.files):
        yield file.rows, file.bytes, times[number] if times else None


def _overlap_fraction(times: tuple[int, int] | None, first: int, last: int) -> float:
    """Return the fraction of a file's time range in ``[first, last)``; 1 if it is unknown."""
    if times is None:
        return 1.0
    begin, end = times
    if end < first or begin >= last:
        return 0.0
    if end == begin:
        return 1.0
    # The rows of a file are assumed to be evenly distributed over its time range.
    return (min(end, last) - max(begin, first)) / (end - begin)


def _estimate_seconds(recent_runs: Sequence[Run], windows: int) -> float | None:
    seconds, computed = 0.0, 0
    for run in recent_runs:
        seconds += run.seconds or 0.0
        computed += run.windows
    if not computed:
        return None
    return seconds / computed * windows
