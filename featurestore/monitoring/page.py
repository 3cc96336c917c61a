"""HTML page of a monitor: small multiples of distributions and timelines, worst first.

The page is plain HTML and SVG without scripts, supports light and dark mode, and works standalone
or in a notebook. All text is escaped.
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from featurestore.model.display import escape_line
from featurestore.model.finding import Finding
from featurestore.model.monitor_report import BinShares, MonitorReport
from featurestore.model.times import format_duration
from featurestore.storage import storage_for

_WIDTH, _HEIGHT, _LOW = 180.0, 60.0, 36.0
_MAX_BARS = 20
# Margins of a timeline, so that the first and last points are not clipped.
_SIDE = 3.0
# Fallbacks for clients that remove styles (mail, some notebooks); page styles override them.
_GRAY = 'fill="#b1b8c0"'
_LINES = {
    "now": 'fill="none" stroke="#0969da"',
    "value": 'fill="none" stroke="#0969da"',
    "bound": 'fill="none" stroke="#8c959f" stroke-dasharray="3 2"',
}


def draw_shares(shares: BinShares) -> str:
    """Draw the baseline shares as gray bars, and the window shares as a line.

    >>> "rect" in draw_shares(BinShares("x", ("low", "high"), (0.5, 0.5), (0.2, 0.8)))
    True
    """
    before, now = shares.before[:_MAX_BARS], shares.now[:_MAX_BARS]
    if not before:
        return ""
    highest = max(*before, *now, 1e-9)
    width = _WIDTH / len(before)
    elements, line = [], []
    for index, (old, new) in enumerate(zip(before, now, strict=True)):
        x = index * width
        height = old / highest * (_HEIGHT - 4)
        label = html.escape(escape_line(shares.labels[index]), quote=True)
        elements.append(
            f'<rect class="before" {_GRAY} x="{x + 1:.1f}" y="{_HEIGHT - height:.1f}" '
            f'width="{max(width - 2, 0.5):.1f}" height="{height:.1f}">'
            f"<title>{label}: {old:.1%}, now {new:.1%}</title></rect>"
        )
        level = _HEIGHT - new / highest * (_HEIGHT - 4)
        line += [f"{x:.1f},{level:.1f}", f"{x + width:.1f},{level:.1f}"]
    elements.append(f'<polyline class="now" {_LINES["now"]} points="{" ".join(line)}"/>')
    return _render_svg(_HEIGHT, elements)


def draw_timeline(findings: Sequence[Finding | None]) -> str:
    """Draw a value over windows as a line, its bounds as dashed lines, and outliers as points."""
    with_value = [shown for shown in findings if shown is not None and shown.value is not None]
    if not with_value:
        return ""
    highest = 1e-9
    for shown in with_value:
        highest = max(highest, shown.value or 0.0, _visible_bound(shown))
    step = (_WIDTH - 2 * _SIDE) / max(len(findings) - 1, 1)
    elements = []
    # Bounds are drawn first, so that the line of the values is above them.
    for name in ("low", "high"):
        bounds = [None if shown is None else getattr(shown, name) for shown in findings]
        elements.append(_draw_line("bound", bounds, step, highest))
    values = [None if shown is None else shown.value for shown in findings]
    elements.append(_draw_line("value", values, step, highest))
    for index, finding in enumerate(findings):
        if finding is not None and finding.out and finding.value is not None:
            y = _y_coordinate(finding.value, highest)
            elements.append(
                f'<circle class="point" fill="#cf222e" cx="{_SIDE + index * step:.1f}" '
                f'cy="{y:.1f}" r="2.2"/>'
            )
    return _render_svg(_LOW, elements)


def _visible_bound(finding: Finding) -> float:
    """Return the upper bound, or 0 if it is too large for the scale of the drawing."""
    if finding.high is None or finding.high > 20 * max(finding.value or 0.0, 1e-9):
        return 0.0
    return finding.high


def _draw_line(name: str, values: Sequence[float | None], step: float, highest: float) -> str:
    """Draw a line through the values, with gaps for missing values."""
    lines: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{_SIDE + index * step:.1f},{_y_coordinate(value, highest):.1f}")
    segments = [" ".join(points) for points in lines if points]
    return "".join(
        f'<polyline class="{name}" {_LINES[name]} points="{points}"/>' for points in segments
    )


def _y_coordinate(value: float, highest: float) -> float:
    return _LOW - 2 - min(max(value / highest, 0.0), 1.2) * (_LOW - 8)


def _render_svg(height: float, elements: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img">{"".join(elements)}</svg>'


_STYLE = """
.fsm{--ink:#1f2328;--dim:#656d76;--line:#d0d7de;--before:#b1b8c0;--now:#0969da;--bad:#cf222e;
--maybe:#9a6700;--back:#ffffff;--card:#f6f8fa;color:var(--ink);background:var(--back);
font:13px/1.4 system-ui,sans-serif;padding:16px}
@media(prefers-color-scheme:dark){.fsm{--ink:#e6edf3;--dim:#8d96a0;--line:#30363d;--before:#59636e;
--now:#4493f8;--bad:#f85149;--maybe:#d29922;--back:#0d1117;--card:#161b22}}
.fsm h1{font-size:18px;margin:0 0 4px}.fsm h2{font-size:14px;margin:18px 0 8px}
.fsm p{margin:2px 0;color:var(--dim)}.fsm ul{margin:4px 0;padding-left:18px}
.fsm .alarm{color:var(--bad)}.fsm .suspect{color:var(--maybe)}
.fsm .grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(190px,1fr));gap:10px}
.fsm .card{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:8px}
.fsm .card b{display:block;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.fsm .card small{color:var(--dim)}.fsm svg{display:block;width:100%;height:auto}
.fsm .before{fill:var(--before)}.fsm .now{fill:none;stroke:var(--now);stroke-width:1.6}
.fsm .value{fill:none;stroke:var(--now);stroke-width:1.4}
.fsm .bound{fill:none;stroke:var(--dim);stroke-width:1;stroke-dasharray:3 2}
.fsm .point{fill:var(--bad)}.fsm .key{display:inline-block;width:10px;height:10px}
"""
# Blocks scripts and remote content, even if a text was not escaped.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Further findings are only shown as charts, which are also sorted worst first.
_MAX_LINES = 20
_FEATURE_KINDS = ("drift", "nulls", "values")


@dataclass(frozen=True)
class MonitorPage:
    """The page of a report with earlier reports, for files and notebooks.

    ``history`` is sorted newest first, starting with the report itself.
    """

    report: MonitorReport
    history: tuple[MonitorReport, ...]

    def __str__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return f'<style>{_STYLE}</style><div class="fsm">{_render_body(self.report, self.history)}</div>'

    def to_html(self) -> str:
        """Render the page as HTML.

        >>> registered = store.register_jobs("monitors.py")
        >>> report = store.check_monitor("weather_watch", window="2013-01-01T06:00Z")
        >>> page = store.visualize_monitor("weather_watch")
        >>> page.to_html().startswith("<!doctype html>")
        True
        """
        title = _escape(f"{self.report.monitor}: {self.report.state}")
        head = (
            f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            f'<meta name="color-scheme" content="light dark"><title>{title}</title>'
        )
        return f"<!doctype html><html><head>{head}</head><body>{self._repr_html_()}</body></html>"

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the page to a file and return its path.

        >>> registered = store.register_jobs("monitors.py")
        >>> report = store.check_monitor("weather_watch", window="2013-01-01T06:00Z")
        >>> store.visualize_monitor("weather_watch").save("weather.html")
        'weather.html'
        """
        target = os.fspath(path)
        path = os.path.abspath(target)
        storage_for(path).write_atomically(path, self.to_html().encode())
        return target


def _render_body(report: MonitorReport, history: Sequence[MonitorReport]) -> str:
    window = report.window
    sections = [
        f"<h1>{_escape(report.monitor)}: <span class='{report.state}'>{report.state}</span></h1>",
        f"<p>{_escape(report.featuregroup)} version {report.version}, "
        f"{window.start.isoformat()} to {window.end.isoformat()}, {report.rows:,} rows</p>",
        _render_finding_list(report),
        _render_window_cards(report, history),
        _render_feature_cards(report, history),
    ]
    return "".join(sections)


def _render_finding_list(report: MonitorReport) -> str:
    lines = [f"<li class='alarm'>{_escape(str(finding))}</li>" for finding in report.alarms]
    lines += [
        f"<li class='suspect'>{_escape(str(finding))} (not yet confirmed)</li>"
        for finding in report.suspects
    ]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"<li>and {len(lines) - _MAX_LINES} more, below</li>"]
    lines += [f"<li>{_escape(note)}</li>" for note in report.notes]
    if not lines:
        return "<p>nothing is out of bounds</p>"
    return f"<ul>{''.join(lines)}</ul>"


def _render_window_cards(report: MonitorReport, history: Sequence[MonitorReport]) -> str:
    """Render the timelines of rows, ages and metrics."""
    cards = []
    for finding in report.findings:
        if finding.kind in ("volume", "freshness", "metric"):
            title = finding.subject or "rows"
            cards.append(
                _render_card(title, finding, draw_timeline(_finding_history(finding, history)))
            )
    if not cards:
        return ""
    return f"<h2>Windows</h2><div class='grid'>{''.join(cards)}</div>"


def _render_feature_cards(report: MonitorReport, history: Sequence[MonitorReport]) -> str:
    """Render a card for each feature, worst first."""
    worst: dict[str, Finding] = {}
    for finding in report.findings:  # the worst first
        if finding.kind in _FEATURE_KINDS:
            worst.setdefault(finding.subject, finding)
    shares = {share.feature: share for share in report.shares}
    cards = []
    for name, finding in worst.items():
        svg = ""
        if name in shares:
            svg = draw_shares(shares[name])
        svg += draw_timeline(_finding_history(finding, history))
        cards.append(_render_card(name, finding, svg))
    if not cards:
        return ""
    keys = "<span class='key' style='background:var(--before)'></span> baseline, "
    keys += "<span class='key' style='border:1.6px solid var(--now)'></span> window; "
    keys += "below: the measure over time, its bound dashed"
    return f"<h2>Features</h2><p>{keys}</p><div class='grid'>{''.join(cards)}</div>"


def _render_card(title: str, finding: Finding, svg: str) -> str:
    state = ""
    if finding.out:
        state = "alarm" if finding.alarm else "suspect"
    value = _format_value(finding, finding.value)
    bound = ""
    if finding.high is not None:
        bound = f" of {_format_value(finding, finding.high)}"
    name = _escape(title)
    return (
        f"<div class='card'><b class='{state}' title='{name}'>{name}</b>"
        f"<small>{_escape(finding.measure)} {value}{bound}</small>{svg}</div>"
    )


def _format_value(finding: Finding, value: float | None) -> str:
    """Format a value; ages are formatted as durations."""
    if value is None:
        return ""
    if finding.kind == "freshness":
        return format_duration(timedelta(seconds=round(value)))
    return f"{value:.3g}"


def _finding_history(finding: Finding, history: Sequence[MonitorReport]) -> list[Finding | None]:
    """Return the same finding in each window, oldest first; None if it was not evaluated."""
    timeline: list[Finding | None] = []
    for report in reversed(history):
        matches = [other for other in report.findings if other.key == finding.key]
        timeline.append(matches[0] if matches else None)
    return timeline


def _escape(text: str) -> str:
    return html.escape(escape_line(text), quote=True)
