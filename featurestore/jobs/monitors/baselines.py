"""Baselines of a window: for each subject, the moving baseline and its anchor.

Windows with an alarm are excluded from the moving baseline and the history of their subject until a
person accepts them. Earlier windows replace excluded ones, so that a lasting change never becomes
its own baseline. The anchor is the moving baseline as of the monitor's registration or the last
acceptance; it reveals drift that is too slow for any single window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from featurestore.jobs.schedule import last_schedule_time, window_ending
from featurestore.model.finding import Finding
from featurestore.model.job import Schedule
from featurestore.model.monitor import Baseline
from featurestore.model.monitor_report import Acceptance, Subject, find_subjects_out_of_bounds
from featurestore.model.times import Window
from featurestore.monitoring.comparison import Anchor, ReferenceWindows
from featurestore.monitoring.profile import Profile

_DAY = timedelta(days=1)
_WEEK = timedelta(days=7)
_NO_TIME = timedelta(0)
# A day with a daylight saving change counts as one day.
_LONGEST_DAY = timedelta(hours=25)
_WEEKS = 8
# Number of windows near a fixed baseline for estimating the variation between windows.
_SPREAD_WINDOWS = 13
# Minimum number of windows of a new baseline.
_MIN_WINDOWS = 3


@dataclass
class History:
    """Windows that were out of bounds, by subject, and the recorded acceptances.

    A window is excluded from later baselines if it raised an alarm, if it was one of the
    ``confirm`` consecutive windows that led to an alarm, or while it is suspect. If the next
    windows do not confirm a suspicion, the suspect windows count as normal variation of the source.

    Attributes:
        before: Returns the windows of the schedule right before a window that confirm it.
        acceptances: The acceptances, oldest first.
    """

    before: Callable[[Window], Sequence[Window]]
    acceptances: Sequence[Acceptance] = ()
    _records: dict[Window, _Record] = field(default_factory=dict)

    def record(self, window: Window, findings: Iterable[Finding]) -> None:
        """Replace the record of a window."""
        self._records.pop(window, None)
        current = list(findings)
        out = find_subjects_out_of_bounds(current)
        if out:
            alarmed = find_subjects_out_of_bounds(finding for finding in current if finding.alarm)
            self._records[window] = _Record(out, alarmed)

    def has(self, window: Window) -> bool:
        """Return whether a window was out of bounds."""
        return window in self._records

    def excluded(self, window: Window, subject: Subject) -> frozenset[Window]:
        """Return the windows before ``window`` that are excluded from its baseline."""
        # The suspect windows before an alarm already contain its change, so they are excluded with
        # it.
        excluded: set[Window] = set()
        for recorded, record in self._records.items():
            if subject in record.alarmed and recorded.end <= window.start:
                excluded |= {recorded, *self.before(recorded)}
        # It is not known yet whether later windows will confirm these suspect windows.
        for earlier in self.before(window):
            if earlier in self._records and subject in self._records[earlier].out_of_bounds:
                excluded.add(earlier)
        for acceptance in self._accepted(window):
            excluded -= {
                excluded_window
                for excluded_window in excluded
                if acceptance.covers(excluded_window, subject)
            }
        return frozenset(excluded)

    def find_restart(self, window: Window, subject: Subject) -> tuple[datetime, datetime] | None:
        """Return the range of accepted windows that restarted the baseline of a subject, if any."""
        # The last acceptance of a subject replaces its earlier ones.
        for acceptance in reversed(self._accepted(window)):
            start = acceptance.subjects.get(subject)
            if start is not None:
                return start, acceptance.until
        return None

    def _accepted(self, window: Window) -> list[Acceptance]:
        """Return the acceptances of windows before ``window``, which apply to it."""
        # An acceptance does not apply to earlier windows, so that repeated checks give the same
        # findings.
        return [acceptance for acceptance in self.acceptances if acceptance.until < window.end]


@dataclass(frozen=True)
class _Record:
    """The subjects of a window that were out of bounds, and those with an alarm."""

    out_of_bounds: frozenset[Subject]
    alarmed: frozenset[Subject]


@dataclass(frozen=True)
class FixedBaseline:
    """A fixed baseline: its profile and its latest event time."""

    profile: Profile
    until: datetime | None


LoadProfiles = Callable[[Iterable[Window]], Sequence[Profile]]


@dataclass(frozen=True)
class Baselines:
    """The baselines of all subjects and windows of a monitor.

    Attributes:
        baseline: The baseline settings of the monitor.
        fixed: The fixed baseline, or None for a moving baseline.
        history: Windows out of bounds, and acceptances.
        load: Returns the profiles of windows, except windows before the first row of the group.
        first: A time at most a millisecond before the first row of the group, if known.
        registered: When the monitor was registered.
    """

    baseline: Baseline
    fixed: FixedBaseline | None
    history: History
    load: LoadProfiles
    first: datetime | None = None
    registered: datetime | None = None

    def comparison_windows(self, window: Window) -> list[Window]:
        """Return the baseline windows of a window, assuming that no window is out of bounds."""
        windows = [*rolling_windows(self.baseline, window), *same_weektime_windows(window)]
        windows += [similar for similar, _ in similar_windows(self.baseline, window)]
        if self.fixed is not None:
            windows += fixed_baseline_windows(window, self.fixed.until)
        return windows

    def for_window(self, window: Window) -> WindowBaselines:
        """Return the baselines for one window."""
        return WindowBaselines(self, window)


class WindowBaselines:
    """The baselines of all subjects of one window; implements ``comparison.Comparison``."""

    def __init__(self, baselines: Baselines, window: Window) -> None:
        self._baselines = baselines
        self._window = window
        # Most subjects have no window out of bounds, and share one reference.
        self._compared: dict[object, ReferenceWindows] = {}
        self._anchors: dict[object, Anchor | None] = {}

    def reference(self, subject: Subject | None = None) -> ReferenceWindows:
        """Return the reference of a subject; None: for a subject without windows out of bounds."""
        excluded: frozenset[Window] = frozenset()
        restart = None
        if subject is not None:
            excluded = self._baselines.history.excluded(self._window, subject)
            restart = self._baselines.history.find_restart(self._window, subject)
        key = excluded, restart
        if key not in self._compared:
            self._compared[key] = self._build_reference(excluded, restart)
        return self._compared[key]

    def anchor(self, subject: Subject) -> Anchor | None:
        """Return the anchor of a moving baseline, or None if it is missing or too short."""
        history = self._baselines.history
        excluded = history.excluded(self._window, subject)
        restart = history.find_restart(self._window, subject)
        key = excluded, restart
        if key not in self._anchors:
            self._anchors[key] = self._find_anchor(excluded, restart)
        return self._anchors[key]

    def _build_reference(
        self, excluded: frozenset[Window], restart: tuple[datetime, datetime] | None
    ) -> ReferenceWindows:
        """Build the reference of a subject, without its excluded windows."""
        baseline, fixed = self._baselines.baseline, self._baselines.fixed
        same_in_week_profiles = self._load(
            same_weektime_windows(self._window, excluded=excluded), restart
        )
        if fixed is not None and restart is None:
            similar = self._load(fixed_baseline_windows(self._window, fixed.until), None)
            return ReferenceWindows(
                (fixed.profile,), similar, (), 1, same_in_week_profiles, same_in_week_profiles
            )
        if fixed is not None and restart is not None:
            return self._build_accepted_reference(restart, same_in_week_profiles)
        windows = rolling_windows(baseline, self._window, excluded=excluded)
        members = self._load(windows, restart)
        groups = dict(similar_windows(baseline, self._window, excluded=excluded))
        similar = self._load(groups, restart)
        similar_groups = [
            groups[profile.window] for profile in similar if profile.window is not None
        ]
        # After an acceptance, a new baseline begins with the first accepted window. A few windows
        # complete it.
        expected = len(windows)
        if restart is not None:
            expected = min(expected, _MIN_WINDOWS)
        history = {profile.window: profile for profile in (*similar, *same_in_week_profiles)}
        return ReferenceWindows(
            members,
            similar,
            similar_groups,
            expected,
            same_in_week_profiles,
            list(history.values()),
        )

    def _build_accepted_reference(
        self, accepted: tuple[datetime, datetime], same: Sequence[Profile]
    ) -> ReferenceWindows:
        """Compare with the accepted windows, which replace a fixed baseline."""
        start, until = accepted
        daily = Baseline(last=until - start)
        members, _ = anchor_windows(daily, self._window, start)
        profiles = self._load(members, None)
        return ReferenceWindows(profiles, profiles, [0] * len(profiles), len(members), same, same)

    def _find_anchor(
        self, excluded: frozenset[Window], restart: tuple[datetime, datetime] | None
    ) -> Anchor | None:
        """Return the anchor, or None if the moving baseline still overlaps it."""
        baselines = self._baselines
        last, first = baselines.baseline.last, baselines.first
        if last is None or first is None:
            return None
        # Spark records milliseconds, so the time may be up to 999 µs before the first row. A window
        # that starts with the first row would not belong to the anchor.
        begin = first + timedelta(microseconds=-first.microsecond % 1000)
        if restart is not None:
            begin = restart[0]
        # The anchor ends when the monitor was registered. In a backfill of earlier windows, it is
        # the first complete baseline.
        elif baselines.registered is not None and self._window.end > baselines.registered:
            begin = max(begin, baselines.registered - last)
        members, similar = anchor_windows(baselines.baseline, self._window, begin)
        moving = set(rolling_windows(baselines.baseline, self._window, excluded=excluded))
        groups = {member: group for member, group in similar if member not in excluded}
        anchor_members = [member for member in members if member in groups]
        if len(moving & set(anchor_members)) * 2 > len(anchor_members):
            return None  # the moving baseline still overlaps the anchor
        profiles = self._load(groups, None)
        windows = set(anchor_members)
        member_profiles = [profile for profile in profiles if profile.window in windows]
        profile_groups = [
            groups[profile.window] for profile in profiles if profile.window is not None
        ]
        compared = ReferenceWindows(
            member_profiles, profiles, profile_groups, expected=len(members)
        )
        return Anchor(begin, begin + last, compared)

    def _load(
        self, windows: Iterable[Window], restart: tuple[datetime, datetime] | None
    ) -> list[Profile]:
        """Load the profiles of windows, from the restart of the baseline on."""
        start = None if restart is None else restart[0]
        return list(
            self._baselines.load(
                window for window in windows if start is None or window.start >= start
            )
        )


def baseline_step(window: Window) -> timedelta:
    """Return the time between consecutive baseline windows of a window.

    >>> from datetime import UTC
    >>> hour = Window(datetime(2024, 1, 1, 6, tzinfo=UTC), datetime(2024, 1, 1, 7, tzinfo=UTC))
    >>> baseline_step(hour)
    datetime.timedelta(days=1)
    """
    # Windows of up to a day are compared with windows at the same time of day.
    width = window.end - window.start
    if width <= _LONGEST_DAY:
        return _DAY
    return width


def rolling_windows(
    baseline: Baseline, window: Window, *, excluded: Collection[Window] = ()
) -> list[Window]:
    """Return the windows of a rolling baseline, oldest first; empty for a fixed baseline.

    ``excluded`` windows are skipped, and replaced with the same number of earlier windows.
    """
    if baseline.last is None:
        return []
    step = baseline_step(window)
    if baseline.same_weekday:
        step = _in_weeks(step)
    return _windows_before(window, step, baseline.last // step, excluded)


def similar_windows(
    baseline: Baseline, window: Window, *, excluded: Collection[Window] = ()
) -> list[tuple[Window, int]]:
    """Return the reference windows of a rolling baseline, each with its group number.

    With ``same_weekday`` there is one group per weekday, otherwise a single group. ``excluded``
    windows are skipped, and replaced with the same number of earlier windows.
    """
    if baseline.last is None:
        return []
    step = baseline_step(window)
    return [
        (earlier, _weekday_group(baseline, window, earlier, step))
        for earlier in _windows_before(window, step, baseline.last // step, excluded)
    ]


def anchor_windows(
    baseline: Baseline, window: Window, start: datetime
) -> tuple[list[Window], list[tuple[Window, int]]]:
    """Return the windows of an earlier rolling baseline, and its reference windows.

    Args:
        baseline: A rolling baseline.
        window: The window to compare; the returned windows are whole steps before it.
        start: The start of the first window of the earlier baseline.

    Returns:
        The results of ``rolling_windows`` and ``similar_windows`` for the time
        ``[start, start + baseline.last)``.
    """
    if baseline.last is None:
        return [], []
    step = baseline_step(window)
    end = start + baseline.last
    count = max((window.start - start) // step, 0)
    contained = [
        earlier
        for earlier in _windows_before(window, step, count)
        if start <= earlier.start and earlier.end <= end
    ]
    groups = [(member, _weekday_group(baseline, window, member, step)) for member in contained]
    if not baseline.same_weekday:
        return contained, groups
    member_step = _in_weeks(step)
    members = [
        member for member in contained if (window.start - member.start) % member_step == _NO_TIME
    ]
    return members, groups


def _weekday_group(baseline: Baseline, window: Window, earlier: Window, step: timedelta) -> int:
    if baseline.same_weekday and step < _WEEK:
        return (window.start - earlier.start) % _WEEK // step
    return 0


def fixed_baseline_windows(window: Window, until: datetime | None) -> list[Window]:
    """Return reference windows for a fixed baseline that end at or before ``until``.

    They are the last windows before the end of the baseline at the same time of the week as
    ``window``, oldest first, without ``window`` itself.
    """
    if until is None:
        return []
    step = _in_weeks(baseline_step(window))
    first = max(math.ceil((window.end - until) / step), 1)
    return [
        _shift_back(window, step * number)
        for number in range(first + _SPREAD_WINDOWS - 1, first - 1, -1)
    ]


def same_weektime_windows(window: Window, *, excluded: Collection[Window] = ()) -> list[Window]:
    """Return the windows at the same time of the week in the previous eight weeks, oldest first.

    For windows longer than a week, return the previous eight windows. ``excluded`` windows are
    skipped, and replaced with the same number of earlier windows.
    """
    return _windows_before(window, _in_weeks(baseline_step(window)), _WEEKS, excluded)


def with_windows_before(
    schedule: Schedule, windows: Sequence[Window], count: int
) -> list[list[Window]]:
    """Return a list for each window, with the ``count`` windows before it and the window itself."""
    chains: list[list[Window]] = []
    for window in windows:
        # Consecutive windows reuse the chain of the previous window, which needs one schedule time
        # per window instead of ``count``.
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
    # At most len(excluded) candidates are skipped, so the loop always ends.
    while len(earlier) < count and number < count + len(excluded):
        number += 1
        candidate = _shift_back(window, step * number)
        if candidate not in excluded:
            earlier.append(candidate)
    return earlier[::-1]


def _shift_back(window: Window, distance: timedelta) -> Window:
    return Window(window.start - distance, window.end - distance)


def _in_weeks(step: timedelta) -> timedelta:
    if step <= _WEEK:
        return _WEEK
    return step
