"""The windows of a job: those that are recorded, computed or due, and those that cover others."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from featurestore.errors import InvalidArgument
from featurestore.jobs import schedule as jobs_schedule
from featurestore.jobs.target import find_target
from featurestore.model import times
from featurestore.model.job import JobSpec, RunOnceWork, Schedule, StreamWork, WindowedWork
from featurestore.model.times import Window, parse_moment
from featurestore.registry import runs
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import WindowState
from featurestore.session import Session

# Stale windows were computed, too, so they are not gaps.
COMPUTED = (runs.DONE, runs.STALE)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class JobProgress:
    """The recorded windows and the watermark of a job.

    ``version`` is the version of the target that the next run writes, None if it creates one.
    """

    states: Mapping[Window, WindowState]
    watermark: datetime | None
    version: int | None

    def windows(self, *states: str) -> list[Window]:
        """Return the windows in the given states."""
        return [window for window, state in self.states.items() if state.state in states]


@dataclass(frozen=True)
class StoredRows:
    """The rows of a computed window in the target; ``closed`` is the end that belongs to it."""

    window: Window
    closed: str

    @property
    def event_times(self) -> Window:
        """The range of event times, from the first to before the last microsecond."""
        return event_time_range(self.window, self.closed)


def event_time_range(window: Window, closed: str) -> Window:
    """Return the event times of a window's rows as a range that excludes its end."""
    if closed == "left":
        return window
    return Window(
        times.shift_time(window.start, _MICROSECOND), times.shift_time(window.end, _MICROSECOND)
    )


def list_stored_rows(progress: JobProgress) -> list[StoredRows]:
    """Return the windows whose rows are in the target, whether they are due again or not."""
    return [
        StoredRows(window, str(state.inputs.get("closed", "right")))
        for window, state in progress.states.items()
        if progress.version is not None and state.target_version == progress.version
    ]


class Coverage(Collection[Window]):
    """Computed windows; contains every window of a schedule whose time range they cover.

    After a change of the schedule, a day is covered by its 24 hours, and an hour by its day.
    Windows of a schedule that overlap each other are covered only by equal windows, because each of
    them is computed for itself.

    >>> from datetime import UTC, datetime
    >>> hours = [datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in range(4)]
    >>> computed = [Window(hours[0], hours[1]), Window(hours[1], hours[2])]
    >>> covered = Coverage(computed, Schedule("0 */2 * * *"))
    >>> Window(hours[0], hours[2]) in covered, Window(hours[0], hours[3]) in covered
    (True, False)
    """

    def __init__(self, windows: Iterable[Window], schedule: Schedule) -> None:
        self._windows = frozenset(windows)
        self._ranges = [] if overlaps_itself(schedule) else merge_ranges(self._windows)

    def __contains__(self, window: object) -> bool:
        if window in self._windows:
            return True
        if not isinstance(window, Window):
            return False
        position = bisect_right(self._ranges, window.start, key=lambda covered: covered.start) - 1
        return position >= 0 and self._ranges[position].end >= window.end

    def __iter__(self) -> Iterator[Window]:
        return iter(self._windows)

    def __len__(self) -> int:
        return len(self._windows)


def merge_ranges(windows: Iterable[Window]) -> list[Window]:
    """Return the time ranges of windows, sorted, with overlapping and adjacent ranges merged."""
    ranges: list[Window] = []
    for window in sorted(windows):
        if ranges and window.start <= ranges[-1].end:
            last = ranges.pop()
            window = Window(last.start, max(last.end, window.end))
        ranges.append(window)
    return ranges


def touching(windows: Sequence[Window], window: Window) -> Sequence[Window]:
    """Return the windows of a sorted sequence that overlap a window or are adjacent to it."""
    first = bisect_left(windows, window.start, key=lambda candidate: candidate.end)
    last = bisect_right(windows, window.end, key=lambda candidate: candidate.start)
    return windows[first:last]


def find_overlapping(
    schedule: Schedule, windows: Sequence[Window], computed: Iterable[Window]
) -> list[Window]:
    """Return the computed windows whose rows the computation of windows of a schedule replaces.

    They overlap one of these windows. If windows of the schedule overlap each other, only equal
    windows are replaced, because each window has rows of its own.
    """
    if overlaps_itself(schedule):
        return sorted({*computed}.intersection(windows))
    ranges = merge_ranges(windows)
    return [window for window in computed if any(map(window.overlaps, touching(ranges, window)))]


def is_scheduled(schedule: Schedule, window: Window) -> bool:
    """Return whether a window is one of the windows of a schedule."""
    before_end = times.shift_time(window.end, -_MICROSECOND)
    return next(jobs_schedule.windows_after(schedule, before_end)) == window


# The comparison of a year of windows takes milliseconds, which each poll of a scheduler would need.
overlaps_itself = lru_cache(maxsize=256)(jobs_schedule.has_overlapping_windows)


def resolve_window(job: RegisteredJob, window: Window | datetime | str | None) -> Window:
    """Resolve a window argument; None selects the latest complete window."""
    schedule = jobs_schedule.check_schedule(job.spec.schedule)
    if window is None:
        latest = jobs_schedule.latest_complete_window(schedule, times.utc_now())
        if latest is None:
            raise InvalidArgument(
                f"Job {job.spec.name!r} has no complete window yet.",
                hint=f"its first window begins at {schedule.start}",
            )
        return latest
    if not isinstance(window, Window):
        return jobs_schedule.window_starting(schedule, parse_moment(window, argument="window"))
    window = parse_window_bounds(window.start, window.end)
    matching_window = jobs_schedule.window_starting(schedule, window.start)
    if matching_window != window:
        raise InvalidArgument(
            f"window={window} is not a window of the job.",
            hint=f"the window that starts then ends at {matching_window.end}",
        )
    return window


def parse_window_bounds(start: object, end: object) -> Window:
    """Return the time range of two times, as ``parse_moment`` reads them."""
    return Window(parse_moment(start, argument="start"), parse_moment(end, argument="end"))


def find_due_windows(session: Session, job: RegisteredJob) -> list[Window]:
    """Return the due windows of a job, oldest first.

    They are the complete windows after the watermark and the failed windows.
    """
    spec, name = job.spec, job.spec.name
    if isinstance(spec.work, StreamWork):  # its records have offsets, not windows
        return []
    schedule = jobs_schedule.check_schedule(spec.schedule)
    with session.registry.reading() as connection:
        failed = runs.find_windows(connection, name, states=[runs.FAILED])
        # Stale windows are not due: they are computed again only on request.
        computed = runs.find_windows(connection, name, states=COMPUTED, start=job.watermark)
        replaced = runs.find_windows(connection, name, states=[runs.REPLACED])
        replacing = set()
        if replaced:
            replacing = runs.find_windows(connection, name, states=COMPUTED)
    windows = jobs_schedule.due_windows(
        schedule,
        watermark=job.watermark,
        now=times.utc_now(),
        computed=Coverage(computed, schedule),
        # Pages list jobs of years: later windows are not enumerated.
        limit=None if replaced else schedule.catchup,
    )
    # Registries of earlier releases contain failed windows of earlier schedules.
    failed = {window for window in failed if is_scheduled(schedule, window)}
    if failed:
        windows = sorted({*failed, *windows})
    if replaced:
        windows = without_open_replacements(schedule, windows, replaced, replacing)
    # Rows of an earlier schedule may be replaced only by several windows together.
    return windows if schedule.catchup is None or replaced else windows[: schedule.catchup]


def without_open_replacements(
    schedule: Schedule,
    windows: Sequence[Window],
    replaced: Collection[Window],
    computed: Collection[Window],
) -> list[Window]:
    """Return the due windows that replace earlier rows completely, with the computed windows.

    A computed window of an earlier schedule may extend beyond the last complete window. Until the
    next window is complete, its rows cannot be replaced without counting some rows twice.
    """
    windows = list(windows)
    while True:
        covered = Coverage([*windows, *computed], schedule)
        open_ranges = merge_ranges(window for window in replaced if window not in covered)
        replacing = [
            window
            for window in windows
            if not any(map(window.overlaps, touching(open_ranges, window)))
        ]
        if len(replacing) == len(windows):
            return windows
        windows = replacing


def find_complete_windows(
    spec: JobSpec, start: datetime, end: datetime, *, limit: int | None = None
) -> list[Window]:
    """Return the complete windows of a range, including allowed lateness.

    The result is sorted oldest first, with at most ``limit`` windows.
    """
    now = times.utc_now()
    until = min(end, times.shift_time(now, -spec.schedule.allowed_lateness))
    return jobs_schedule.windows_between(
        jobs_schedule.check_schedule(spec.schedule), start, until, limit=limit
    )


def refuse_repeated_rows(session: Session, job: RegisteredJob, windows: Sequence[Window]) -> None:
    """Raise an error if computing windows would duplicate or delete rows of other windows.

    An appending job cannot compute a window again. Other jobs replace the rows of a window, and the
    rows of windows of earlier schedules only if the new windows contain them completely.
    """
    spec, schedule = job.spec, jobs_schedule.check_schedule(job.spec.schedule)
    group = find_target(session, spec.work) if isinstance(spec.work, WindowedWork) else None
    if group is None:
        return
    with session.registry.reading() as connection:
        stored_windows = runs.find_windows(
            connection,
            spec.name,
            start=windows[0].start,
            until=windows[-1].end,
            stored_in=group.spec.version,
        )
        failed = runs.find_windows(connection, spec.name, states=[runs.FAILED])
        replaced = runs.find_windows(connection, spec.name, states=[runs.REPLACED])
        computed = set()
        if replaced:
            computed = runs.find_windows(connection, spec.name, states=COMPUTED)
    if spec.appends:
        # The table accepts the transaction of an appended window only once.
        appended = stored_windows - failed.intersection(windows)
        repeated = min(find_overlapping(schedule, windows, appended), default=None)
        if repeated is not None:
            raise InvalidArgument(
                f"Job {spec.name!r} appends, and {spec.target!r} already contains the window "
                f"from {repeated.start.isoformat()} to {repeated.end.isoformat()}, so its rows "
                "would be duplicated.",
                hint=(
                    "mode='replace_window' replaces the rows of a window; due=True and "
                    "resume=True compute only missing windows"
                ),
            )
        return
    covered = Coverage(windows, schedule)
    # Windows that replace the rows of an earlier schedule may be computed in several runs.
    replacing = Coverage(computed.union(windows), schedule)
    partly_replaced = [
        window
        for window in stored_windows
        if window not in (replacing if window in replaced else covered)
    ]
    repeated = min(find_overlapping(schedule, windows, partly_replaced), default=None)
    if repeated is not None:
        first = next(jobs_schedule.windows_after(schedule, repeated.start))
        last = next(
            jobs_schedule.windows_after(schedule, times.shift_time(repeated.end, -_MICROSECOND))
        )
        start, end = first.start.isoformat(), last.end.isoformat()
        raise InvalidArgument(
            f"Job {spec.name!r}: a window to compute contains only a part of the window from "
            f"{repeated.start.isoformat()} to {repeated.end.isoformat()}, which an earlier "
            "definition computed, so rows would be counted twice.",
            hint=f"backfill_job({spec.name!r}, {start!r}, {end!r}, resume=False)",
            command=f"featurestore job backfill {spec.name} --start {start} --end {end} --anew",
        )


def computed_windows(
    session: Session, job: RegisteredJob, start: datetime, end: datetime
) -> Collection[Window]:
    """Return the windows of a range that the latest target version contains.

    The result contains every window that these windows cover.
    """
    spec = job.spec
    if isinstance(spec.work, RunOnceWork):
        return ()
    version, states = None, [runs.DONE]
    if isinstance(spec.work, WindowedWork):  # a monitor has no target group
        group = find_target(session, spec.work)
        if group is None:
            return ()
        version = group.spec.version
    if spec.appends:  # the rows of stale windows are in the table, too
        states.append(runs.STALE)
    with session.registry.reading() as connection:
        computed = runs.find_windows(
            connection, spec.name, start=start, until=end, states=states, target_version=version
        )
    return Coverage(computed, jobs_schedule.check_schedule(spec.schedule))
