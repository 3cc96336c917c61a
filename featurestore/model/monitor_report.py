"""Reports of monitors: findings of one window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from featurestore.model import html
from featurestore.model.json_object import parsing
from featurestore.model.times import parse_moment
from featurestore.model.window import Window

FindingKind = Literal[
    "drift", "nulls", "values", "anchor", "freshness", "volume", "schema", "metric"
]
State = Literal["ok", "suspect", "alarm", "learning"]


@dataclass(frozen=True)
class Finding:
    """One value and its bounds.

    ``subject`` is the feature or metric, "" for the whole window. ``out`` says that this window is
    out of bounds, ``alarm`` that as many windows in a row were as the monitor asks for. ``excess``
    orders findings: how far the value is from its bound, 1 on it.
    """

    kind: FindingKind
    subject: str
    measure: str
    value: float | None
    low: float | None = None
    high: float | None = None
    out: bool = False
    alarm: bool = False
    text: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What the finding is of, the same in every window."""
        return self.kind, self.subject, self.measure

    @property
    def excess(self) -> float:
        """How far the value is from its bound: 1 on it, above 1 beyond it."""
        if self.value is None:
            return 2.0 if self.out else 0.0
        if self.high:
            ratio = self.value / self.high
            if ratio > 1 or not self.low:
                return ratio
        if self.low and self.value < self.low:
            return self.low / max(self.value, self.low / 100)
        return 2.0 if self.out else 0.0

    def __str__(self) -> str:
        if self.text:
            return self.text
        name = f"{self.subject} {self.measure}".strip()
        if self.value is None:
            return name
        return f"{name} {self.value:.3g}, bounds {_bounds_text(self.low, self.high)}"


@dataclass(frozen=True)
class BinShares:
    """Shares of the rows in bins, of the baseline and of the window, to be drawn.

    ``labels`` name the bins: values of texts, ranges of numbers.
    """

    feature: str
    labels: tuple[str, ...]
    before: tuple[float, ...]
    now: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class MonitorReport:
    """What a monitor found in one window, the worst first.

    ``state`` is "alarm"; "suspect" where something is out of bounds in this window and not yet in
    as many as the monitor asks for; "learning" where there is too little before the window to
    compare it with, and nothing is out of bounds; else "ok". ``shares`` are there in the report of
    ``check_monitor``, not in the history.

    >>> registered = store.register_jobs("monitors.py")
    >>> report = store.check_monitor("weather_watch", window="2013-01-01T06:00Z")
    >>> (report.state, report.rows, report.ok)
    ('learning', 2, True)
    """

    monitor: str
    featuregroup: str
    version: int
    delta_version: int
    window: Window
    rows: int
    findings: tuple[Finding, ...] = ()
    learning: bool = False
    notes: tuple[str, ...] = ()
    shares: tuple[BinShares, ...] = field(default=(), compare=False)

    @property
    def ok(self) -> bool:
        """Whether nothing raised an alarm."""
        return not self.alarms

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """What is out of bounds, confirmed."""
        return tuple(each for each in self.findings if each.alarm)

    @property
    def suspects(self) -> tuple[Finding, ...]:
        """What is out of bounds in this window, and not confirmed by those before."""
        return tuple(each for each in self.findings if each.out and not each.alarm)

    @property
    def state(self) -> State:
        """The state as one word."""
        if self.alarms:
            return "alarm"
        if self.suspects:
            return "suspect"
        if self.learning:
            return "learning"
        return "ok"

    def finding(self, kind: str, subject: str = "", measure: str | None = None) -> Finding | None:
        """Return one finding, None if the monitor did not look or could not judge.

        >>> registered = store.register_jobs("monitors.py")
        >>> report = store.check_monitor("weather_watch", window="2013-01-01T06:00Z")
        >>> report.finding("schema") is None  # no earlier window to compare with
        True
        """
        for each in self.findings:
            if each.kind == kind and each.subject == subject and measure in (None, each.measure):
                return each
        return None

    def __str__(self) -> str:
        start, end = self.window.start.isoformat(), self.window.end.isoformat()
        lines = [f"{self.monitor}: {self.state}, {start} to {end}, {self.rows:,} rows"]
        for each in self.alarms:
            lines.append(f"  {each}")
        for each in self.suspects:
            lines.append(f"  {each} (in this window, not yet confirmed)")
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
            "alarms": [str(each) for each in self.alarms],
        }

    def _repr_html_(self) -> str:
        rows: list[dict[str, object]] = []
        for each in self.findings:
            rows.append(
                {
                    "kind": each.kind,
                    "of": each.subject,
                    "measure": each.measure,
                    "value": each.value,
                    "bounds": _bounds_text(each.low, each.high),
                    "state": _state_text(each),
                }
            )
        return html.records_table(rows, caption=str(self).partition("\n")[0])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that ``from_json`` reads back equal."""
        findings = []
        for each in self.findings:
            findings.append(
                [
                    each.kind,
                    each.subject,
                    each.measure,
                    each.value,
                    each.low,
                    each.high,
                    each.out,
                    each.alarm,
                    each.text,
                ]
            )
        return {
            "format": 1,
            "monitor": self.monitor,
            "featuregroup": self.featuregroup,
            "version": self.version,
            "delta_version": self.delta_version,
            "start": self.window.start.isoformat(),
            "end": self.window.end.isoformat(),
            "rows": self.rows,
            "state": self.state,
            "learning": self.learning,
            "notes": list(self.notes),
            "findings": findings,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MonitorReport:
        """Parse the output of ``to_json``; raise MalformedJson if invalid."""
        with parsing("a monitor's report"):
            start = parse_moment(data["start"], warn=False)
            end = parse_moment(data["end"], warn=False)
            return cls(
                monitor=str(data["monitor"]),
                featuregroup=str(data["featuregroup"]),
                version=int(data["version"]),
                delta_version=int(data["delta_version"]),
                window=Window(start, end),
                rows=int(data["rows"]),
                findings=tuple(map(_finding, data["findings"])),
                learning=bool(data["learning"]),
                notes=tuple(map(str, data["notes"])),
            )


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings with alarms first, then by how far they are from their bounds."""
    return tuple(sorted(findings, key=lambda each: (not each.alarm, not each.out, -each.excess)))


def _finding(data: Sequence[Any]) -> Finding:
    kind, subject, measure, value, low, high, out, alarm, text = data
    return Finding(
        kind, str(subject), str(measure), value, low, high, bool(out), bool(alarm), str(text)
    )


def _state_text(finding: Finding) -> str:
    if finding.alarm:
        return "alarm"
    return "out of bounds" if finding.out else "ok"


def _bounds_text(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return "none"
    if low is None:
        return f"up to {high:.3g}"
    if high is None:
        return f"from {low:.3g}"
    return f"{low:.3g} to {high:.3g}"
