"""The recorded windows of a job, and the windows of any schedule that they cover."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from featurestore.jobs.schedule import has_overlapping_windows, windows_after
from featurestore.model import times
from featurestore.model.job import Schedule
from featurestore.model.times import Window
from featurestore.registry import runs
from featurestore.registry.runs import WindowState

# Stale windows were computed, too, so they are not gaps.
COMPUTED = (runs.DONE, runs.STALE)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Progress:
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


def list_stored_rows(progress: Progress) -> list[StoredRows]:
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
        position = bisect_right(self._ranges, window.start, key=lambda each: each.start) - 1
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
    first = bisect_left(windows, window.start, key=lambda each: each.end)
    last = bisect_right(windows, window.end, key=lambda each: each.start)
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
    return next(windows_after(schedule, before_end)) == window


# The comparison of a year of windows takes milliseconds, which each poll of a scheduler would need.
overlaps_itself = lru_cache(maxsize=256)(has_overlapping_windows)
