"""What a job would do, told before it does it: windows, rows and bytes of inputs, estimated time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from featurestore.delta import deltalog
from featurestore.jobs.footers import parquet_files, volume
from featurestore.jobs.inputs import PinnedInput, pin
from featurestore.jobs.service import complete_between, due_of, get_job
from featurestore.model.job import JobSpec
from featurestore.model.times import parse_moment, to_micros
from featurestore.model.window import Window
from featurestore.registry import runs
from featurestore.registry.runs import Run
from featurestore.session import Session

# The runs that an estimate is made from.
_RECENT = 20


@dataclass(frozen=True)
class PlannedInput:
    """One input of a planned run: at which version, and about how much of it the windows see."""

    name: str
    source: str
    version: int | None
    delta_version: int | None
    rows: int
    bytes: int


@dataclass(frozen=True)
class JobPlan:
    """The windows that a job would compute, what they read, and about how long it takes (None: no runs yet)."""

    job: str
    windows: tuple[Window, ...]
    inputs: tuple[PlannedInput, ...]
    seconds: float | None

    @property
    def rows(self) -> int:
        """About how many rows are read."""
        return sum(each.rows for each in self.inputs)

    @property
    def bytes(self) -> int:
        """About how many bytes are read."""
        return sum(each.bytes for each in self.inputs)

    def __str__(self) -> str:
        lasts = (
            "no run to estimate the time from"
            if self.seconds is None
            else f"about {self.seconds:.1f} s"
        )
        if not self.windows:
            return f"{self.job}: nothing to do"
        first, last = self.windows[0], self.windows[-1]
        lines = [
            f"{self.job}: {len(self.windows)} windows from {first.start.isoformat()} to {last.end.isoformat()}",
            f"reads about {self.rows:,} rows, {self.bytes:,} bytes; {lasts}",
        ]
        for each in self.inputs:
            version = (
                "" if each.delta_version is None else f" at Delta version {each.delta_version}"
            )
            lines.append(f"  {each.name}: {each.source}{version}, rows: about {each.rows:,}")
        return "\n".join(lines)


def plan_job(
    session: Session,
    name: str,
    *,
    window: Window | tuple[datetime | str, datetime | str] | None = None,
) -> JobPlan:
    """Return the plan of what is due, or of the windows of a range."""
    job = get_job(session, name)
    if window is None:
        windows = due_of(session, job)
    else:
        start, end = (window.start, window.end) if isinstance(window, Window) else window
        windows = complete_between(
            job.spec, parse_moment(start, argument="start"), parse_moment(end, argument="end")
        )
    inputs = tuple(_planned(each, windows, job.spec) for each in pin(session, job.spec))
    with session.registry.reading() as connection:
        known = runs.of_job(connection, name, state=runs.DONE)
    return JobPlan(name, tuple(windows), inputs, _seconds(known[-_RECENT:], len(windows)))


def _planned(given: PinnedInput, windows: Sequence[Window], spec: JobSpec) -> PlannedInput:
    rows, size = _volume(given, windows, spec.lookback)
    return PlannedInput(given.name, given.source, given.version, given.delta_version, rows, size)


def _volume(given: PinnedInput, windows: Sequence[Window], lookback: timedelta) -> tuple[int, int]:
    """Return rows and bytes of the files that windows see, in proportion to the time that they share."""
    if not windows:
        return 0, 0
    first, last = to_micros(windows[0].start - lookback), to_micros(windows[-1].end)
    rows = size = 0.0
    for file_rows, file_bytes, bounds in _files(given):
        share = 1.0 if bounds is None else _share(*bounds, first, last)
        rows += file_rows * share
        size += file_bytes * share
    return round(rows), round(size)


def _files(given: PinnedInput) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
    """Yield rows, bytes and the least and greatest time of each file of an input (None: not told)."""
    if given.kind == "parquet":
        for path in parquet_files(given.path):
            yield volume(path, given.time)
        return
    state = deltalog.table_state(given.path, given.delta_version)
    bounds = None if given.time is None else state.times(given.time)
    for number, file in enumerate(state.files):
        yield file.rows, file.bytes, None if bounds is None else bounds[number]


def _share(begin: int, end: int, first: int, last: int) -> float:
    """Return which part of the time from ``begin`` to ``end`` lies in ``[first, last)``."""
    if end < first or begin >= last:
        return 0.0
    if end == begin:
        return 1.0
    return (min(end, last) - max(begin, first)) / (end - begin)


def _seconds(known: Sequence[Run], windows: int) -> float | None:
    spent = sum(run.seconds or 0.0 for run in known)
    computed = sum(run.windows for run in known)
    return spent / computed * windows if computed else None
