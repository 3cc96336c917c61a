"""Which windows a window is compared with: arithmetic on times.

Windows of up to a day are compared with those of the same time of day, so that a night is not
compared with a noon; longer ones with those right before them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from featurestore.jobs.schedule import Schedule, last_schedule_time, window_ending
from featurestore.model.monitor import Baseline
from featurestore.model.window import Window

_DAY = timedelta(days=1)
_WEEK = timedelta(days=7)
_NO_TIME = timedelta(0)
# A day on which clocks change is a day.
_LONGEST_DAY = timedelta(hours=25)
_WEEKS = 8
# Windows of a fixed baseline's time that say how much windows differ.
_OTHERS = 13


def step_of(window: Window) -> timedelta:
    """Return how far apart the windows lie that a window is compared with.

    >>> from datetime import UTC
    >>> hour = Window(datetime(2024, 1, 1, 6, tzinfo=UTC), datetime(2024, 1, 1, 7, tzinfo=UTC))
    >>> step_of(hour)
    datetime.timedelta(days=1)
    """
    width = window.end - window.start
    if width <= _LONGEST_DAY:
        return _DAY
    return width


def rolling(
    baseline: Baseline, window: Window, *, excluded: Collection[Window] = ()
) -> list[Window]:
    """Return the windows of a rolling baseline, oldest first; none for a fixed one.

    ``excluded`` windows are skipped, and as many earlier windows take their place.
    """
    if baseline.last is None:
        return []
    step = step_of(window)
    if baseline.same_weekday:
        step = _in_weeks(step)
    return _before(window, step, baseline.last // step, excluded)


def alike(
    baseline: Baseline, window: Window, *, excluded: Collection[Window] = ()
) -> list[tuple[Window, int]]:
    """Return the windows of a rolling baseline's time, each with the number of its group.

    With ``same_weekday`` there is a group for each weekday, else one. ``excluded`` windows are
    skipped, and as many earlier windows take their place.
    """
    if baseline.last is None:
        return []
    step = step_of(window)
    return [
        (each, _weekday_group(baseline, window, each, step))
        for each in _before(window, step, baseline.last // step, excluded)
    ]


def anchored(
    baseline: Baseline, window: Window, begin: datetime
) -> tuple[list[Window], list[tuple[Window, int]]]:
    """Return the baseline that a rolling one was at an earlier time, and the windows of that time.

    Args:
        baseline: A rolling baseline.
        window: The window to compare; the others lie whole steps before it.
        begin: Start of the first window that the earlier baseline may have.

    Returns:
        The windows ``rolling`` returns, and the ones ``alike`` returns, of the time
        ``[begin, begin + baseline.last)``.
    """
    if baseline.last is None:
        return [], []
    step = step_of(window)
    end = begin + baseline.last
    count = max((window.start - begin) // step, 0)
    inside = [
        each for each in _before(window, step, count) if begin <= each.start and each.end <= end
    ]
    others = [(each, _weekday_group(baseline, window, each, step)) for each in inside]
    if not baseline.same_weekday:
        return inside, others
    member_step = _in_weeks(step)
    members = [each for each in inside if (window.start - each.start) % member_step == _NO_TIME]
    return members, others


def _weekday_group(baseline: Baseline, window: Window, earlier: Window, step: timedelta) -> int:
    if baseline.same_weekday and step < _WEEK:
        return (window.start - earlier.start) % _WEEK // step
    return 0


def of_baseline(window: Window, until: datetime | None) -> list[Window]:
    """Return windows like ``window`` that end at or before ``until``, oldest first.

    The last ones of a fixed baseline's time and of the same place in the week, never the window
    itself.
    """
    if until is None:
        return []
    step = _in_weeks(step_of(window))
    first = max(math.ceil((window.end - until) / step), 1)
    return [_back(window, step * number) for number in range(first + _OTHERS - 1, first - 1, -1)]


def same_in_week(window: Window, *, excluded: Collection[Window] = ()) -> list[Window]:
    """Return the windows at the same time of the week in eight weeks before, oldest first.

    Windows that are longer than a week: the eight before. ``excluded`` windows are skipped, and
    as many earlier windows take their place.
    """
    return _before(window, _in_weeks(step_of(window)), _WEEKS, excluded)


def with_windows_before(
    schedule: Schedule, windows: Sequence[Window], count: int
) -> list[list[Window]]:
    """Return each window after the ``count`` windows of the schedule before it."""
    chains: list[list[Window]] = []
    for window in windows:
        if chains and count and chains[-1][-1].end == _end_before(schedule, window):
            chains.append([*chains[-1][1:], window])
            continue
        chain = [window]
        for _ in range(count):
            chain.insert(0, window_ending(schedule, _end_before(schedule, chain[0])))
        chains.append(chain)
    return chains


def _end_before(schedule: Schedule, window: Window) -> datetime:
    return last_schedule_time(schedule, window.end - timedelta(microseconds=1))


def _before(
    window: Window, step: timedelta, count: int, excluded: Collection[Window] = ()
) -> list[Window]:
    """Return ``count`` windows that lie whole steps before a window, oldest first."""
    earlier: list[Window] = []
    number = 0
    while len(earlier) < count and number < count + len(excluded):
        number += 1
        candidate = _back(window, step * number)
        if candidate not in excluded:
            earlier.append(candidate)
    return earlier[::-1]


def _back(window: Window, by: timedelta) -> Window:
    return Window(window.start - by, window.end - by)


def _in_weeks(step: timedelta) -> timedelta:
    if step <= _WEEK:
        return _WEEK
    return step
