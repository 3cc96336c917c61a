"""Acceptances: a person's decision that windows out of bounds are the new normal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from featurestore.model.monitor_report import Finding, MonitorReport
from featurestore.model.window import Window

# What has a baseline of its own: a feature, a metric, or the number of rows.
Subject = tuple[Literal["feature", "metric", "volume"], str]
_OF_FEATURES = ("drift", "nulls", "values")


@dataclass(frozen=True)
class Acceptance:
    """A decision on windows that were out of bounds.

    Attributes:
        monitor: Name of the monitor.
        window: The only window that was accepted; None: all windows up to ``until``.
        until: End of the last accepted window.
        subjects: What was accepted, and where its baseline starts anew. None: the accepted
            windows join the baseline that is there.
        note: Why.
        created: When it was accepted.
    """

    monitor: str
    window: Window | None
    until: datetime
    subjects: Mapping[Subject, datetime | None] = field(default_factory=dict)
    note: str = ""
    created: datetime | None = None

    def covers(self, window: Window, subject: Subject) -> bool:
        """Return whether a window that was out of bounds is accepted for a subject."""
        if subject not in self.subjects:
            return False
        return window == self.window if self.window is not None else window.end <= self.until

    def __str__(self) -> str:
        names = []
        for (kind, name), start in self.subjects.items():
            label = name or "rows"
            if kind == "metric":
                label = f"metric {name}"
            if start is not None:
                label += f" (new baseline from {start.isoformat()})"
            names.append(label)
        text = f"{self.monitor}: accepted up to {self.until.isoformat()}: {', '.join(names)}"
        return f"{text}; {self.note}" if self.note else text

    def to_json(self) -> dict[str, object]:
        """Return the acceptance as a JSON object."""
        window = None
        if self.window is not None:
            window = [self.window.start.isoformat(), self.window.end.isoformat()]
        return {
            "monitor": self.monitor,
            "window": window,
            "until": self.until.isoformat(),
            "subjects": [
                [kind, name, None if start is None else start.isoformat()]
                for (kind, name), start in self.subjects.items()
            ],
            "note": self.note,
        }


def subject_of(finding: Finding) -> Subject | None:
    """Return the subject whose baseline a finding is judged by, None for one without a baseline.

    >>> subject_of(Finding("nulls", "temp", "null_share", 0.5))
    ('feature', 'temp')
    """
    if finding.kind in _OF_FEATURES:
        return "feature", finding.subject
    if finding.kind == "metric":
        return "metric", finding.subject
    if finding.kind == "volume":
        return "volume", ""
    return None


def subjects_out_of_bounds(findings: Iterable[Finding]) -> frozenset[Subject]:
    """Return the subjects that are out of bounds by some findings."""
    return frozenset(
        subject
        for finding in findings
        if finding.out and (subject := subject_of(finding)) is not None
    )


def acceptable_subjects(
    reports: Collection[MonitorReport], *, confirm: int, restart: bool, last: timedelta | None
) -> dict[Subject, datetime | None]:
    """Return the subjects that are out of bounds in some reports, with their new baselines' starts.

    Args:
        reports: Reports of the windows to accept, in any order.
        confirm: So many windows in bounds in a row end a change.
        restart: Whether a change that lasts until the newest report starts a new baseline. It
            starts with the first window of the change.
        last: Width of the moving baseline. A baseline that drifted from its anchor becomes the
            new anchor: it starts so long before the end of the newest report.
    """
    sorted_reports = sorted(reports, key=lambda report: report.window)
    starts: dict[Subject, datetime | None] = {}
    for report in sorted_reports:
        for finding in report.findings:
            if finding.kind == "anchor" and finding.out and restart and last is not None:
                starts["feature", finding.subject] = sorted_reports[-1].window.end - last
    for subject in sorted(
        {each for report in sorted_reports for each in subjects_out_of_bounds(report.findings)}
    ):
        start = _change_start(sorted_reports, subject, confirm)
        if restart and start is not None:
            starts[subject] = start
        else:
            starts.setdefault(subject, None)
    return starts


def _change_start(
    ordered: Iterable[MonitorReport], subject: Subject, confirm: int
) -> datetime | None:
    """Return the start of the change that lasts until the last report; None if it ended before."""
    start, within = None, 0
    for report in ordered:
        findings = [each for each in report.findings if subject_of(each) == subject]
        if any(each.out for each in findings):
            start, within = start or report.window.start, 0
        elif findings:
            within += 1
        if within >= confirm:
            start = None
    return start
