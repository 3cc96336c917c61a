"""Line charts of metrics over steps, with one line for each run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

Series = Mapping[int, float]
_WIDTH, _HEIGHT = 420, 180
_MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 64, 10, 10, 24
_MAX_POINTS = 400


@dataclass(frozen=True)
class _Scale:
    """Mapping of steps and values to coordinates."""

    first: int
    last: int
    low: float
    high: float

    def x(self, step: int) -> float:
        fraction = (step - self.first) / max(self.last - self.first, 1)
        return round(_MARGIN_LEFT + fraction * (_WIDTH - _MARGIN_LEFT - _MARGIN_RIGHT), 1)

    def y(self, value: float) -> float:
        fraction = 0.5  # all values are equal
        if self.high > self.low:
            # Halved operands avoid an overflow of the difference to infinity.
            fraction = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(
            _HEIGHT - _MARGIN_BOTTOM - fraction * (_HEIGHT - _MARGIN_TOP - _MARGIN_BOTTOM), 1
        )


def curves(metric: str, runs: Sequence[tuple[str, Series]]) -> Markup:
    """Return a chart of a metric over the steps of each run; empty without finite values."""
    scale = _scale([series for _, series in runs])
    if scale is None:
        return Markup("")
    label = f"{metric} of {', '.join(name for name, _ in runs)}"
    elements = [
        Markup(
            '<svg class="curves" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
            "<title>{label}</title>"
        ).format(width=_WIDTH, height=_HEIGHT, label=label)
    ]
    elements += _axes(scale)
    elements += [
        _polyline(line, scale, number)
        for number, (_, series) in enumerate(runs, 1)
        for line in _split_at_gaps(series)
    ]
    elements.append(Markup("</svg>"))
    return Markup("").join(elements)


def _scale(runs: Sequence[Series]) -> _Scale | None:
    points = [
        (step, value) for series in runs for step, value in series.items() if math.isfinite(value)
    ]
    if not points:
        return None
    steps, values = zip(*points, strict=True)
    return _Scale(min(steps), max(steps), min(values), max(values))


def _axes(scale: _Scale) -> list[Markup]:
    foot, right = _HEIGHT - _MARGIN_BOTTOM, _WIDTH - _MARGIN_RIGHT
    frame = f"M{_MARGIN_LEFT} {_MARGIN_TOP}V{foot}H{right}"
    elements = [Markup('<path class="axis" d="{}"/>').format(frame)]
    marks: list[tuple[float, float, str, str]] = [
        (_MARGIN_LEFT, _HEIGHT - 6, "start", f"{scale.first:,}"),
        (right, _HEIGHT - 6, "end", f"{scale.last:,}"),
    ]
    for value in sorted({scale.low, scale.high}):
        marks.append((_MARGIN_LEFT - 5, scale.y(value) + 4, "end", f"{value:.4g}"))
    for x, y, anchor, text in marks:
        elements.append(
            Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
        )
    return elements


def _split_at_gaps(series: Series) -> list[list[tuple[int, float]]]:
    """Split a series into lines at values that are not finite."""
    lines: list[list[tuple[int, float]]] = [[]]
    for step in sorted(series):
        if math.isfinite(series[step]):
            lines[-1].append((step, series[step]))
        elif lines[-1]:
            lines.append([])
    return [thin_out(line) for line in lines if line]


def thin_out(
    line: Sequence[tuple[int, float]], max_points: int = _MAX_POINTS
) -> list[tuple[int, float]]:
    """Reduce a line to the minimum and maximum of each range of steps.

    >>> thin_out([(step, float(step % 5)) for step in range(100)], max_points=4)
    [(0, 0.0), (4, 4.0), (50, 0.0), (54, 4.0)]
    """
    if len(line) <= max_points:
        return list(line)
    size = math.ceil(2 * len(line) / max_points)
    points = []
    for start in range(0, len(line), size):
        segment = line[start : start + size]
        ends = {min(segment, key=_value), max(segment, key=_value)}
        points += sorted(ends)
    return points


def _value(point: tuple[int, float]) -> float:
    return point[1]


def _polyline(line: Sequence[tuple[int, float]], scale: _Scale, number: int) -> Markup:
    points = [f"{scale.x(step)},{scale.y(value)}" for step, value in line]
    if len(points) == 1:
        x, y = points[0].split(",")
        return Markup('<circle class="run-{}" cx="{}" cy="{}" r="3"/>').format(number, x, y)
    return Markup('<polyline class="run-{}" points="{}"/>').format(number, " ".join(points))
