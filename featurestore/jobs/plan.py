"""What a job would do: windows, rows and bytes of inputs, estimated time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidArgument
from featurestore.jobs.inputs import PinnedInput, parquet_files, pin, seen_by, volume
from featurestore.jobs.service import complete_between, due_of, get_job
from featurestore.model import html
from featurestore.model.job import JobSpec
from featurestore.model.times import parse_moment
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
    """The windows that a job would compute, what they read, and about how long that takes.

    ``seconds`` is None while there are no runs to tell it from. ``features`` says what a window job
    computes.
    """

    job: str
    windows: tuple[Window, ...]
    inputs: tuple[PlannedInput, ...]
    seconds: float | None
    paused: bool = False
    features: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """About how many rows are read."""
        return sum(each.rows for each in self.inputs)

    @property
    def bytes(self) -> int:
        """About how many bytes are read."""
        return sum(each.bytes for each in self.inputs)

    def _repr_html_(self) -> str:
        return html.preformatted(str(self))

    def __str__(self) -> str:
        name = self.job
        if self.paused:
            name += " (paused: no scheduler runs it)"
        if not self.windows:
            return f"{name}: nothing to do"
        if self.seconds is None:
            lasts = "no run to estimate the time from"
        else:
            lasts = f"about {self.seconds:.1f} s"
        first, last = self.windows[0], self.windows[-1]
        lines = [
            f"{name}: {len(self.windows)} windows from {first.start.isoformat()} to "
            f"{last.end.isoformat()}",
            f"reads about {self.rows:,} rows, {self.bytes:,} bytes; {lasts}",
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
    """Return the plan of what is due, or of the windows of a range."""
    job = get_job(session, name)
    if window is None:
        windows = due_of(session, job)
    else:
        windows = complete_between(job.spec, *_range(window))
    inputs, features = [], []
    for given in pin(session, job.spec):
        inputs.append(_planned(given, windows, job.spec))
        features += list(map(str, given.windows))
    with session.registry.reading() as connection:
        known = runs.of_job(connection, name, state=runs.DONE, last=_RECENT)
    return JobPlan(
        job=name,
        windows=tuple(windows),
        inputs=tuple(inputs),
        seconds=_seconds(known, len(windows)),
        paused=job.paused,
        features=tuple(features),
    )


def _range(window: Window | tuple[datetime | str, datetime | str]) -> tuple[datetime, datetime]:
    if isinstance(window, Window):
        return window.start, window.end
    if isinstance(window, str) or len(window) != 2:
        raise InvalidArgument(
            f"window={window!r} is no range of time.",
            hint="window=('2019-03-01T00:00:00Z', '2019-03-02T00:00:00Z')",
        )
    start, end = window
    return parse_moment(start, argument="start"), parse_moment(end, argument="end")


def _planned(given: PinnedInput, windows: Sequence[Window], spec: JobSpec) -> PlannedInput:
    rows, size = _volume(given, windows, seen_by(spec))
    return PlannedInput(given.name, given.source, given.version, given.delta_version, rows, size)


def _volume(
    given: PinnedInput,
    windows: Sequence[Window],
    range_of: Callable[[Window], tuple[int, int]],
) -> tuple[int, int]:
    """Return rows and bytes of the files that windows see, by the share of their times."""
    if not windows:
        return 0, 0
    first, last = range_of(windows[0])[0], range_of(windows[-1])[1]
    rows = size = 0.0
    for file_rows, file_bytes, bounds in _files(given):
        share = _share(bounds, first, last)
        rows += file_rows * share
        size += file_bytes * share
    return round(rows), round(size)


def _files(given: PinnedInput) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
    """Yield rows, bytes and, where known, the least and greatest time of each file."""
    if given.kind == "source":
        return  # planning connects to nothing
    if given.kind == "parquet":
        for path in parquet_files(given.path):
            yield volume(path, given.time)
        return
    state = read_snapshot(given.path, given.delta_version)
    times = None
    if given.time is not None:
        times = state.times(given.time)
    for number, file in enumerate(state.files):
        yield file.rows, file.bytes, times[number] if times else None


def _share(times: tuple[int, int] | None, first: int, last: int) -> float:
    """Return which part of a file's range of times lies in ``[first, last)``; unknown: all."""
    if times is None:
        return 1.0
    begin, end = times
    if end < first or begin >= last:
        return 0.0
    if end == begin:
        return 1.0
    return (min(end, last) - max(begin, first)) / (end - begin)


def _seconds(known: Sequence[Run], windows: int) -> float | None:
    spent, computed = 0.0, 0
    for run in known:
        spent += run.seconds or 0.0
        computed += run.windows
    if not computed:
        return None
    return spent / computed * windows
