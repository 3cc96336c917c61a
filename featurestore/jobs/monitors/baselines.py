"""What each subject of a window is compared with: the moving baseline and its anchor.

Windows with an alarm stay out of the moving baseline of their subject, and out of what counts as
usual, until a person accepts them. Earlier windows take their place, so that a change
that lasts never becomes its own baseline. The anchor is the moving baseline as it was when the
monitor was registered, or at the last acceptance: it shows drift too slow for any single window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from featurestore.jobs.monitors.windows import (
    alike,
    anchored,
    of_baseline,
    rolling,
    same_in_week,
)
from featurestore.model.monitor import Baseline
from featurestore.model.monitor_acceptance import Acceptance, Subject, subjects_out
from featurestore.model.monitor_report import Finding
from featurestore.model.window import Window
from featurestore.monitoring.profile import Profile
from featurestore.monitoring.rules import Anchor, ReferenceWindows

# A new baseline is judged by from so many windows on.
_FEWEST_WINDOWS = 3
LoadProfiles = Callable[[Iterable[Window]], Sequence[Profile]]


@dataclass(frozen=True)
class _Record:
    """The subjects of a window that were out of bounds, and those of them with an alarm."""

    out: frozenset[Subject]
    alarmed: frozenset[Subject]


@dataclass
class History:
    """Windows that were out of bounds, by subject, and what people accepted of them.

    A window is excluded from later baselines when it has an alarm, when it led to one (the
    ``confirm`` windows in a row), or while it is suspect. A suspicion that the next windows did not
    confirm is over: such windows show what the source does now and then.

    Attributes:
        before: Returns the windows of the schedule right before a window that confirm it.
        acceptances: Oldest first.
    """

    before: Callable[[Window], Sequence[Window]]
    acceptances: Sequence[Acceptance] = ()
    _records: dict[Window, _Record] = field(default_factory=dict)

    def record(self, window: Window, findings: Iterable[Finding]) -> None:
        """Replace what is known of a window."""
        self._records.pop(window, None)
        present = list(findings)
        out = subjects_out(present)
        if out:
            alarmed = subjects_out(each for each in present if each.alarm)
            self._records[window] = _Record(out, alarmed)

    def has(self, window: Window) -> bool:
        """Return whether a window was out of bounds."""
        return window in self._records

    def excluded(self, window: Window, subject: Subject) -> frozenset[Window]:
        """Return the windows before ``window`` that its baseline must not have."""
        excluded: set[Window] = set()
        for each, record in self._records.items():
            if subject in record.alarmed and each.end <= window.start:
                excluded |= {each, *self.before(each)}
        for each in self.before(window):
            if each in self._records and subject in self._records[each].out:
                excluded.add(each)
        for acceptance in self._accepted(window):
            excluded -= {each for each in excluded if acceptance.covers(each, subject)}
        return frozenset(excluded)

    def last_restart(self, window: Window, subject: Subject) -> tuple[datetime, datetime] | None:
        """Return start and end of the accepted windows that began the subject's baseline."""
        for acceptance in reversed(self._accepted(window)):
            start = acceptance.subjects.get(subject)
            if start is not None:
                return start, acceptance.until
        return None

    def _accepted(self, window: Window) -> list[Acceptance]:
        """Return the acceptances that apply to a window: those of windows before it."""
        return [each for each in self.acceptances if each.until < window.end]


@dataclass(frozen=True)
class FixedBaseline:
    """A baseline that does not move: its profile, and the newest event time in it."""

    profile: Profile
    until: datetime | None


@dataclass(frozen=True)
class Baselines:
    """Finds what the subjects of a window are compared with.

    Attributes:
        baseline: What the monitor compares with.
        fixed: Its profile, where it does not move.
        history: Windows out of bounds, and acceptances.
        load: Returns the profiles of windows, without those before the first row of the group.
        first: The first event time of the group, where it is known.
        registered: When the monitor was registered.
    """

    baseline: Baseline
    fixed: FixedBaseline | None
    history: History
    load: LoadProfiles
    first: datetime | None = None
    registered: datetime | None = None

    def around(self, window: Window) -> list[Window]:
        """Return the windows that a window is compared with while none is out of bounds."""
        windows = [*rolling(self.baseline, window), *same_in_week(window)]
        windows += [each for each, _ in alike(self.baseline, window)]
        if self.fixed is not None:
            windows += of_baseline(window, self.fixed.until)
        return windows

    def of(self, window: Window) -> WindowBaselines:
        """Return what the subjects of one window are compared with."""
        return WindowBaselines(self, window)


class WindowBaselines:
    """What the subjects of one window are compared with; see ``rules.Comparison``."""

    def __init__(self, baselines: Baselines, window: Window) -> None:
        self._baselines = baselines
        self._window = window
        # Most subjects have no window out of bounds, and share one comparison.
        self._compared: dict[object, ReferenceWindows] = {}
        self._anchors: dict[object, Anchor | None] = {}

    def reference(self, subject: Subject | None = None) -> ReferenceWindows:
        """Return what a subject is compared with; None: one without windows out of bounds."""
        excluded: frozenset[Window] = frozenset()
        restart = None
        if subject is not None:
            excluded = self._baselines.history.excluded(self._window, subject)
            restart = self._baselines.history.last_restart(self._window, subject)
        key = excluded, restart
        if key not in self._compared:
            self._compared[key] = self._compare(excluded, restart)
        return self._compared[key]

    def anchor(self, subject: Subject) -> Anchor | None:
        """Return the anchor of a moving baseline; None where there is none, or too little of it."""
        history = self._baselines.history
        excluded = history.excluded(self._window, subject)
        restart = history.last_restart(self._window, subject)
        key = excluded, restart
        if key not in self._anchors:
            self._anchors[key] = self._find_anchor(excluded, restart)
        return self._anchors[key]

    def _compare(
        self, excluded: frozenset[Window], restart: tuple[datetime, datetime] | None
    ) -> ReferenceWindows:
        baseline, fixed = self._baselines.baseline, self._baselines.fixed
        same = self._load(same_in_week(self._window, excluded=excluded), restart)
        if fixed is not None and restart is None:
            others = self._load(of_baseline(self._window, fixed.until), None)
            return ReferenceWindows((fixed.profile,), others, (), 1, same, same)
        if fixed is not None and restart is not None:
            return self._compare_with_accepted(restart, same)
        windows = rolling(baseline, self._window, excluded=excluded)
        members = self._load(windows, restart)
        groups = dict(alike(baseline, self._window, excluded=excluded))
        others = self._load(groups, restart)
        other_groups = [groups[each.window] for each in others if each.window is not None]
        expected = len(windows)
        if restart is not None:
            expected = min(expected, _FEWEST_WINDOWS)
        history = {each.window: each for each in (*others, *same)}
        return ReferenceWindows(
            members, others, other_groups, expected, same, list(history.values())
        )

    def _compare_with_accepted(
        self, accepted: tuple[datetime, datetime], same: Sequence[Profile]
    ) -> ReferenceWindows:
        """Compare with the accepted windows, which replace a baseline that does not move."""
        start, until = accepted
        daily = Baseline(last=until - start)
        members, _ = anchored(daily, self._window, start)
        profiles = self._load(members, None)
        return ReferenceWindows(profiles, profiles, [0] * len(profiles), len(members), same, same)

    def _find_anchor(
        self, excluded: frozenset[Window], restart: tuple[datetime, datetime] | None
    ) -> Anchor | None:
        baselines = self._baselines
        last = baselines.baseline.last
        begin = baselines.first
        if last is None or begin is None:
            return None
        if restart is not None:
            begin = restart[0]
        elif baselines.registered is not None and self._window.end > baselines.registered:
            begin = max(begin, baselines.registered - last)
        members, others = anchored(baselines.baseline, self._window, begin)
        moving = set(rolling(baselines.baseline, self._window, excluded=excluded))
        groups = {each: group for each, group in others if each not in excluded}
        kept = [each for each in members if each in groups]
        if len(moving & set(kept)) * 2 > len(kept):
            return None  # the moving baseline has not left it yet
        profiles = self._load(groups, None)
        windows = set(kept)
        inside = [each for each in profiles if each.window in windows]
        profile_groups = [groups[each.window] for each in profiles if each.window is not None]
        compared = ReferenceWindows(inside, profiles, profile_groups, expected=len(members))
        return Anchor(begin, begin + last, compared)

    def _load(
        self, windows: Iterable[Window], restart: tuple[datetime, datetime] | None
    ) -> list[Profile]:
        start = None if restart is None else restart[0]
        return list(
            self._baselines.load(each for each in windows if start is None or each.start >= start)
        )
