"""Plans of jobs: the windows, rows and bytes of inputs, and the estimated time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidArgument
from featurestore.jobs.inputs import (
    PinnedInput,
    file_volume,
    parquet_files,
    pin_inputs,
    times_read_by,
)
from featurestore.jobs.service import find_complete_windows, find_due_windows, get_job
from featurestore.model import display
from featurestore.model.times import Window, parse_moment
from featurestore.registry import runs
from featurestore.registry.runs import Run
from featurestore.session import Session

# The number of runs that an estimate is based on.
_RECENT = 20


@dataclass(frozen=True)
class PlannedInput:
    """One input of a planned run: its version, and an estimate of the rows the windows read."""

    name: str
    source: str
    version: int | None
    delta_version: int | None
    rows: int
    bytes: int


@dataclass(frozen=True)
class JobPlan:
    """The windows that a job would compute, an estimate of their input, and of the time.

    ``seconds`` is None if there are no runs to estimate it from. ``features`` describes the
    features of a window job.
    """

    job: str
    windows: tuple[Window, ...]
    inputs: tuple[PlannedInput, ...]
    seconds: float | None
    paused: bool = False
    features: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The estimated number of rows to read."""
        return sum(each.rows for each in self.inputs)

    @property
    def bytes(self) -> int:
        """The estimated number of bytes to read."""
        return sum(each.bytes for each in self.inputs)

    def _repr_html_(self) -> str:
        return display.preformatted(str(self))

    def __str__(self) -> str:
        name = self.job
        if self.paused:
            name += " (paused: no scheduler runs it)"
        if not self.windows:
            return f"{name}: nothing to do"
        if self.seconds is None:
            duration = "no run to estimate the time from"
        else:
            duration = f"about {self.seconds:.1f} s"
        first, last = self.windows[0], self.windows[-1]
        lines = [
            f"{name}: {len(self.windows)} windows from {first.start.isoformat()} to "
            f"{last.end.isoformat()}",
            f"reads about {self.rows:,} rows, {self.bytes:,} bytes; {duration}",
        ]
        for each in self.inputs:
            source = each.source
            if each.delta_version is not None:
                source += f" at Delta version {each.delta_version}"
            lines.append(f"  {each.name}: {source}, rows: about {each.rows:,}")
        for feature in self.features:
            lines.append(f"  {feature}")
        return "\n".join(lines)


def plan_job(
    session: Session,
    name: str,
    *,
    window: Window | tuple[datetime | str, datetime | str] | None = None,
) -> JobPlan:
    """Return the plan of the due windows, or of the windows of a range."""
    job = get_job(session, name)
    if window is None:
        windows = find_due_windows(session, job)
    else:
        windows = find_complete_windows(job.spec, *_parse_range(window))
    inputs, features = [], []
    for pinned in pin_inputs(session, job.spec):
        rows, size = _estimate_volume(pinned, windows, times_read_by(job.spec))
        inputs.append(
            PlannedInput(
                pinned.name, pinned.source, pinned.version, pinned.delta_version, rows, size
            )
        )
        features += list(map(str, pinned.windows))
    with session.registry.reading() as connection:
        recent_runs = runs.of_job(connection, name, state=runs.DONE, last=_RECENT)
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
        return window.start, window.end
    if isinstance(window, str) or len(window) != 2:
        raise InvalidArgument(
            f"window={window!r} is not a range of time.",
            hint="window=('2019-03-01T00:00:00Z', '2019-03-02T00:00:00Z')",
        )
    start, end = window
    return parse_moment(start, argument="start"), parse_moment(end, argument="end")


def _estimate_volume(
    pinned: PinnedInput,
    windows: Sequence[Window],
    range_of: Callable[[Window], tuple[int, int]],
) -> tuple[int, int]:
    """Return rows and bytes that windows read, estimated by the overlap of files in time."""
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
    if pinned.kind == "source":
        return  # planning connects to nothing
    if pinned.kind == "parquet":
        for path in parquet_files(pinned.path):
            yield file_volume(path, pinned.time)
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
    return (min(end, last) - max(begin, first)) / (end - begin)


def _estimate_seconds(recent_runs: Sequence[Run], windows: int) -> float | None:
    seconds, computed = 0.0, 0
    for run in recent_runs:
        seconds += run.seconds or 0.0
        computed += run.windows
    if not computed:
        return None
    return seconds / computed * windows
