"""Arithmetic on times that selects the windows of a baseline.

Windows of up to a day are compared with those of the same time of day, so that a night is not
compared with a noon; longer ones with those right before them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from featurestore.jobs.schedule import Schedule, last_schedule_time, window_ending
from featurestore.model.monitor import Baseline
from featurestore.model.times import Window

_DAY = timedelta(days=1)
_WEEK = timedelta(days=7)
_NO_TIME = timedelta(0)
# A day with a change of daylight saving counts as a day.
_LONGEST_DAY = timedelta(hours=25)
_WEEKS = 8
# Windows of a fixed baseline's time that estimate the variation between windows.
_OTHERS = 13


def step_of(window: Window) -> timedelta:
    """Return the distance between the windows of a window's baseline.

    >>> from datetime import UTC
    >>> hour = Window(datetime(2024, 1, 1, 6, tzinfo=UTC), datetime(2024, 1, 1, 7, tzinfo=UTC))
    >>> step_of(hour)
    datetime.timedelta(days=1)
    """
    width = window.end - window.start
    if width <= _LONGEST_DAY:
        return _DAY
    return width


def rolling_windows(
    baseline: Baseline, window: Window, *, excluded: Collection[Window] = ()
) -> list[Window]:
    """Return the windows of a rolling baseline, oldest first; empty for a fixed one.

    ``excluded`` windows are skipped, and as many earlier windows replace them.
    """
    if baseline.last is None:
        return []
    step = step_of(window)
    if baseline.same_weekday:
        step = _in_weeks(step)
    return _windows_before(window, step, baseline.last // step, excluded)


def similar_windows(
    baseline: Baseline, window: Window, *, excluded: Collection[Window] = ()
) -> list[tuple[Window, int]]:
    """Return the windows of a rolling baseline's time, each with the number of its group.

    With ``same_weekday`` there is a group for each weekday, else one. ``excluded`` windows are
    skipped, and as many earlier windows replace them.
    """
    if baseline.last is None:
        return []
    step = step_of(window)
    return [
        (each, _weekday_group(baseline, window, each, step))
        for each in _windows_before(window, step, baseline.last // step, excluded)
    ]


def anchor_windows(
    baseline: Baseline, window: Window, start: datetime
) -> tuple[list[Window], list[tuple[Window, int]]]:
    """Return an earlier state of a rolling baseline, and the windows of that time.

    Args:
        baseline: A rolling baseline.
        window: The window to compare; the others are whole steps before it.
        start: Start of the first window of the earlier baseline.

    Returns:
        The windows ``rolling`` returns, and the ones ``alike`` returns, of the time
        ``[begin, begin + baseline.last)``.
    """
    if baseline.last is None:
        return [], []
    step = step_of(window)
    end = start + baseline.last
    count = max((window.start - start) // step, 0)
    contained = [
        each
        for each in _windows_before(window, step, count)
        if start <= each.start and each.end <= end
    ]
    groups = [(each, _weekday_group(baseline, window, each, step)) for each in contained]
    if not baseline.same_weekday:
        return contained, groups
    member_step = _in_weeks(step)
    members = [each for each in contained if (window.start - each.start) % member_step == _NO_TIME]
    return members, groups


def _weekday_group(baseline: Baseline, window: Window, earlier: Window, step: timedelta) -> int:
    if baseline.same_weekday and step < _WEEK:
        return (window.start - earlier.start) % _WEEK // step
    return 0


def fixed_baseline_windows(window: Window, until: datetime | None) -> list[Window]:
    """Return windows like ``window`` that end at or before ``until``, oldest first.

    They are the last ones before the end of a fixed baseline, at the same time of the week, without
    the window itself.
    """
    if until is None:
        return []
    step = _in_weeks(step_of(window))
    first = max(math.ceil((window.end - until) / step), 1)
    return [
        _shifted_back(window, step * number) for number in range(first + _OTHERS - 1, first - 1, -1)
    ]


def same_in_week(window: Window, *, excluded: Collection[Window] = ()) -> list[Window]:
    """Return the windows at the same time of the week in the eight weeks before, oldest first.

    For windows longer than a week: the eight windows before. ``excluded`` windows are skipped, and
    as many earlier windows replace them.
    """
    return _windows_before(window, _in_weeks(step_of(window)), _WEEKS, excluded)


def with_windows_before(
    schedule: Schedule, windows: Sequence[Window], count: int
) -> list[list[Window]]:
    """Return each window together with the ``count`` windows of the schedule before it."""
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


def _windows_before(
    window: Window, step: timedelta, count: int, excluded: Collection[Window] = ()
) -> list[Window]:
    """Return ``count`` windows that are whole steps before a window, oldest first."""
    earlier: list[Window] = []
    number = 0
    while len(earlier) < count and number < count + len(excluded):
        number += 1
        candidate = _shifted_back(window, step * number)
        if candidate not in excluded:
            earlier.append(candidate)
    return earlier[::-1]


def _shifted_back(window: Window, distance: timedelta) -> Window:
    return Window(window.start - distance, window.end - distance)


def _in_weeks(step: timedelta) -> timedelta:
    if step <= _WEEK:
        return _WEEK
    return step
