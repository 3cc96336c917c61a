"""SVG drawings of a monitor's page: bin shares, and a value over time with its bounds."""

from __future__ import annotations

import html
from collections.abc import Sequence

from featurestore.model.monitor_report import BinShares, Finding
from featurestore.model.printable import printable_line

_WIDTH, _HEIGHT, _LOW = 180.0, 60.0, 36.0
_MAX_BARS = 20
# Margins of a timeline, so that the first and last point are not clipped.
_SIDE = 3.0
# Fallbacks for clients that remove styles (mail, some notebooks); the page's style overrides them.
_GRAY = 'fill="#b1b8c0"'
_LINES = {
    "now": 'fill="none" stroke="#0969da"',
    "value": 'fill="none" stroke="#0969da"',
    "bound": 'fill="none" stroke="#8c959f" stroke-dasharray="3 2"',
}


def draw_shares(shares: BinShares) -> str:
    """Draw the baseline's shares as gray bars, and the window's shares as a line over them.

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
        label = html.escape(printable_line(shares.labels[index]), quote=True)
        elements.append(
            f'<rect class="before" {_GRAY} x="{x + 1:.1f}" y="{_HEIGHT - height:.1f}" '
            f'width="{max(width - 2, 0.5):.1f}" height="{height:.1f}">'
            f"<title>{label}: {old:.1%}, now {new:.1%}</title></rect>"
        )
        level = _HEIGHT - new / highest * (_HEIGHT - 4)
        line += [f"{x:.1f},{level:.1f}", f"{x + width:.1f},{level:.1f}"]
    elements.append(f'<polyline class="now" {_LINES["now"]} points="{" ".join(line)}"/>')
    return _svg(_HEIGHT, elements)


def draw_timeline(findings: Sequence[Finding | None]) -> str:
    """Draw a value over windows as a line, its bounds dashed, and outliers as points."""
    with_value = [each for each in findings if each is not None and each.value is not None]
    if not with_value:
        return ""
    highest = 1e-9
    for each in with_value:
        highest = max(highest, each.value or 0.0, _visible_bound(each))
    step = (_WIDTH - 2 * _SIDE) / max(len(findings) - 1, 1)
    elements = []
    for name in ("low", "high"):
        bounds = [None if each is None else getattr(each, name) for each in findings]
        elements.append(_line("bound", bounds, step, highest))
    values = [None if each is None else each.value for each in findings]
    elements.append(_line("value", values, step, highest))
    for index, finding in enumerate(findings):
        if finding is not None and finding.out and finding.value is not None:
            y = _level(finding.value, highest)
            elements.append(
                f'<circle class="point" fill="#cf222e" cx="{_SIDE + index * step:.1f}" '
                f'cy="{y:.1f}" r="2.2"/>'
            )
    return _svg(_LOW, elements)


def _visible_bound(finding: Finding) -> float:
    """Return the upper bound, or 0 if it is too large to scale the drawing by."""
    if finding.high is None or finding.high > 20 * max(finding.value or 0.0, 1e-9):
        return 0.0
    return finding.high


def _line(name: str, values: Sequence[float | None], step: float, highest: float) -> str:
    """Draw a line through the values, with gaps for missing ones."""
    lines: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{_SIDE + index * step:.1f},{_level(value, highest):.1f}")
    segments = [" ".join(points) for points in lines if points]
    return "".join(
        f'<polyline class="{name}" {_LINES[name]} points="{points}"/>' for points in segments
    )


def _level(value: float, highest: float) -> float:
    return _LOW - 2 - min(max(value / highest, 0.0), 1.2) * (_LOW - 8)


def _svg(height: float, elements: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img">{"".join(elements)}</svg>'
