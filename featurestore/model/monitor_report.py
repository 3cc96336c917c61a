"""Monitor reports: findings of one window, and acceptance of windows as the new normal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Literal

from featurestore.model import display
from featurestore.model.finding import Finding
from featurestore.model.records import AS_ARRAY, INLINE, Record
from featurestore.model.times import Window

State = Literal["ok", "suspect", "alarm", "learning"]

# A subject with its own baseline: a feature, a metric, or the number of rows.
Subject = tuple[Literal["feature", "metric", "volume"], str]
REPORT_FORMAT = 1
_OF_FEATURES = ("drift", "nulls", "values")


@dataclass(frozen=True)
class BinShares:
    """Histograms of the baseline and the window as fractions of rows, for plots.

    ``labels`` name the bins: string values, or ranges of numbers.
    """

    feature: str
    labels: tuple[str, ...]
    before: tuple[float, ...]
    now: tuple[float, ...]


_REPORT_KEYS = (
    "monitor", "featuregroup", "version", "delta_version", "window", "rows", "state", "learning",
    "notes", "findings",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class MonitorReport(Record, format=REPORT_FORMAT, subject="The monitor report", keys=_REPORT_KEYS):
    """The findings of a monitor in one window, the most severe first.

    ``state`` is "alarm"; "suspect" if this window is out of bounds, but not the required number of
    consecutive windows; "learning" if there are too few earlier windows for a comparison and no
    finding is out of bounds; otherwise "ok". Only reports of ``check_monitor`` have ``shares``;
    reports in the history do not.

    >>> registered = store.register_jobs("monitors.py")
    >>> report = store.check_monitor("weather_watch", window="2013-01-01T06:00Z")
    >>> (report.state, report.rows, report.ok)
    ('learning', 2, True)
    """

    monitor: str
    featuregroup: str
    version: int
    delta_version: int
    window: Annotated[Window, INLINE]
    rows: int
    findings: tuple[Annotated[Finding, AS_ARRAY], ...] = ()
    learning: bool = False
    notes: tuple[str, ...] = ()
    shares: tuple[BinShares, ...] = field(default=(), compare=False)

    @property
    def ok(self) -> bool:
        """Whether the report contains no alarms."""
        return not self.alarms

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The findings that are out of bounds in the required number of consecutive windows."""
        return tuple(finding for finding in self.findings if finding.alarm)

    @property
    def suspects(self) -> tuple[Finding, ...]:
        """The findings that are out of bounds in this window, but did not yet raise an alarm."""
        return tuple(finding for finding in self.findings if finding.out and not finding.alarm)

    @property
    def state(self) -> State:
        """The state in one word."""
        if self.alarms:
            return "alarm"
        if self.suspects:
            return "suspect"
        if self.learning:
            return "learning"
        return "ok"

    def finding(self, kind: str, subject: str = "", measure: str | None = None) -> Finding | None:
        """Return a finding, or None if the monitor has no such check or no baseline for it.

        >>> registered = store.register_jobs("monitors.py")
        >>> report = store.check_monitor("weather_watch", window="2013-01-01T06:00Z")
        >>> report.finding("schema") is None  # no earlier window to compare with
        True
        """
        for candidate in self.findings:
            if (
                candidate.kind == kind
                and candidate.subject == subject
                and measure in (None, candidate.measure)
            ):
                return candidate
        return None

    def __str__(self) -> str:
        start, end = self.window.start.isoformat(), self.window.end.isoformat()
        lines = [f"{self.monitor}: {self.state}, {start} to {end}, {self.rows:,} rows"]
        lines += [f"  {alarm}" for alarm in self.alarms]
        for suspect in self.suspects:
            lines.append(f"  {suspect} (in this window, not yet confirmed)")
        for note in self.notes:
            lines.append(f"  {note}")
        return "\n".join(lines)

    __repr__ = __str__

    def _summary(self) -> dict[str, object]:
        return {
            "monitor": self.monitor,
            "state": self.state,
            "start": self.window.start,
            "end": self.window.end,
            "rows": self.rows,
            "alarms": [str(alarm) for alarm in self.alarms],
        }

    def _repr_html_(self) -> str:
        rows: list[dict[str, object]] = [
            {
                "kind": finding.kind,
                "subject": finding.subject,
                "measure": finding.measure,
                "value": finding.value,
                "bounds": finding.bounds_text,
                "state": _state_text(finding),
            }
            for finding in self.findings
        ]
        return display.records_table(rows, caption=str(self).partition("\n")[0])


def sort_by_severity(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with alarms first, then in descending order of excess."""
    return tuple(
        sorted(findings, key=lambda finding: (not finding.alarm, not finding.out, -finding.excess))
    )


@dataclass(frozen=True)
class Acceptance:
    """An acceptance of windows that were out of bounds.

    Attributes:
        monitor: The name of the monitor.
        window: The only accepted window, or None for all windows up to ``until``.
        until: The end of the last accepted window.
        subjects: The accepted subjects and the starts of their new baselines. If None, the accepted
            windows join the existing baseline.
        note: The reason.
        created: The time of the acceptance.
    """

    monitor: str
    window: Window | None
    until: datetime
    subjects: Mapping[Subject, datetime | None] = field(default_factory=dict)
    note: str = ""
    created: datetime | None = None

    __repr__ = display.record_repr

    def covers(self, window: Window, subject: Subject) -> bool:
        """Return whether a window that was out of bounds is accepted for a subject."""
        if subject not in self.subjects:
            return False
        return window == self.window if self.window is not None else window.end <= self.until

    def __str__(self) -> str:
        names = []
        for (subject_kind, name), start in self.subjects.items():
            label = name or "rows"
            if subject_kind == "metric":
                label = f"metric {name}"
            if start is not None:
                label += f" (new baseline from {start.isoformat()})"
            names.append(label)
        text = f"{self.monitor}: accepted up to {self.until.isoformat()}: {', '.join(names)}"
        return f"{text}; {self.note}" if self.note else text

    def to_json(self) -> dict[str, object]:
        """Return a JSON object."""
        window = None
        if self.window is not None:
            window = [self.window.start.isoformat(), self.window.end.isoformat()]
        return {
            "monitor": self.monitor,
            "window": window,
            "until": self.until.isoformat(),
            "subjects": [
                [subject_kind, name, None if start is None else start.isoformat()]
                for (subject_kind, name), start in self.subjects.items()
            ],
            "note": self.note,
        }


def finding_subject(finding: Finding) -> Subject | None:
    """Return the subject whose baseline a finding is compared with, or None without a baseline.

    >>> finding_subject(Finding("nulls", "temp", "null_share", 0.5))
    ('feature', 'temp')
    """
    if finding.kind in _OF_FEATURES:
        return "feature", finding.subject
    if finding.kind == "metric":
        return "metric", finding.subject
    if finding.kind == "volume":
        return "volume", ""
    return None


def find_subjects_out_of_bounds(findings: Iterable[Finding]) -> frozenset[Subject]:
    """Return the subjects with a finding that is out of bounds."""
    return frozenset(
        subject
        for finding in findings
        if finding.out and (subject := finding_subject(finding)) is not None
    )


def find_acceptable_subjects(
    reports: Collection[MonitorReport],
    *,
    recovery_reports: int,
    restart: bool,
    last: timedelta | None,
) -> dict[Subject, datetime | None]:
    """Return the subjects that are out of bounds in the reports, with their new baseline starts.

    Args:
        reports: The reports of the windows to accept, in any order.
        recovery_reports: The number of consecutive windows in bounds that ends a change.
        restart: Whether a change that is ongoing in the newest report starts a new baseline at the
            first window of the change.
        last: The width of the moving baseline. If a baseline drifted from its anchor, it becomes
            the new anchor, and starts this duration before the end of the newest report.
    """
    # The start of a change is found by following the windows in time.
    sorted_reports = sorted(reports, key=lambda report: report.window)
    starts: dict[Subject, datetime | None] = {}
    for report in sorted_reports:
        for finding in report.findings:
            if finding.kind == "anchor" and finding.out and restart and last is not None:
                starts["feature", finding.subject] = sorted_reports[-1].window.end - last
    for subject in sorted(
        {
            subject
            for report in sorted_reports
            for subject in find_subjects_out_of_bounds(report.findings)
        }
    ):
        start = _find_change_start(sorted_reports, subject, recovery_reports)
        if restart and start is not None:
            starts[subject] = start
        else:
            starts.setdefault(subject, None)
    return starts


def _state_text(finding: Finding) -> str:
    if finding.alarm:
        return "alarm"
    return "out of bounds" if finding.out else "ok"


def _find_change_start(
    ordered: Iterable[MonitorReport], subject: Subject, recovery_reports: int
) -> datetime | None:
    """Return when the ongoing change started, or None if it has ended."""
    start, in_range_count = None, 0
    for report in ordered:
        findings = [finding for finding in report.findings if finding_subject(finding) == subject]
        if any(finding.out for finding in findings):
            start, in_range_count = start or report.window.start, 0
        # A report without findings for the subject neither continues nor ends the change.
        elif findings:
            in_range_count += 1
        if in_range_count >= recovery_reports:
            start = None
    return start
