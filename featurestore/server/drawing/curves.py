"""Metrics over steps as lines, those of several runs over one another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

Series = Mapping[int, float]
_WIDTH, _HEIGHT = 420, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 10, 10, 24
_MOST_POINTS = 400


@dataclass(frozen=True)
class _Scale:
    """Where values of a picture lie: steps from left to right, values from bottom to top."""

    first: int
    last: int
    low: float
    high: float

    def x(self, step: int) -> float:
        share = (step - self.first) / max(self.last - self.first, 1)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = 0.5  # all values are one
        if self.high > self.low:
            # Halves, as the distance of two numbers may be no number.
            share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def curves(metric: str, runs: Sequence[tuple[str, Series]]) -> Markup:
    """Return the values of a metric over the steps of each run; nothing where none is a number."""
    scale = _scale([series for _, series in runs])
    if scale is None:
        return Markup("")
    told = f"{metric} of {', '.join(name for name, _ in runs)}"
    parts = [
        Markup(
            '<svg class="curves" viewBox="0 0 {width} {height}" role="img" aria-label="{told}">'
            "<title>{told}</title>"
        ).format(width=_WIDTH, height=_HEIGHT, told=told)
    ]
    parts += _axes(scale)
    for number, (_, series) in enumerate(runs, 1):
        for line in _lines(series):
            parts.append(_line(line, scale, number))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def _scale(runs: Sequence[Series]) -> _Scale | None:
    steps: list[int] = []
    values: list[float] = []
    for series in runs:
        for step, value in series.items():
            if math.isfinite(value):
                steps.append(step)
                values.append(value)
    if not steps:
        return None
    return _Scale(min(steps), max(steps), min(values), max(values))


def _axes(scale: _Scale) -> list[Markup]:
    foot, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    frame = f"M{_LEFT} {_TOP}V{foot}H{right}"
    parts = [Markup('<path class="axis" d="{}"/>').format(frame)]
    marks: list[tuple[float, float, str, str]] = [
        (_LEFT, _HEIGHT - 6, "start", f"{scale.first:,}"),
        (right, _HEIGHT - 6, "end", f"{scale.last:,}"),
    ]
    for value in sorted({scale.low, scale.high}):
        marks.append((_LEFT - 5, scale.y(value) + 4, "end", f"{value:.4g}"))
    for x, y, anchor, text in marks:
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
        )
    return parts


def _lines(series: Series) -> list[list[tuple[int, float]]]:
    """Return a series as lines without gaps: it is cut where a value is no number."""
    lines: list[list[tuple[int, float]]] = [[]]
    for step in sorted(series):
        if math.isfinite(series[step]):
            lines[-1].append((step, series[step]))
        elif lines[-1]:
            lines.append([])
    return [thinned(line) for line in lines if line]


def thinned(line: Sequence[tuple[int, float]], most: int = _MOST_POINTS) -> list[tuple[int, float]]:
    """Return a line of fewer points: of each range of steps its least and its greatest value.

    >>> thinned([(step, float(step % 5)) for step in range(100)], most=4)
    [(0, 0.0), (4, 4.0), (50, 0.0), (54, 4.0)]
    """
    if len(line) <= most:
        return list(line)
    size = math.ceil(2 * len(line) / most)
    kept = []
    for start in range(0, len(line), size):
        part = line[start : start + size]
        ends = {min(part, key=_value), max(part, key=_value)}
        kept += sorted(ends)
    return kept


def _value(point: tuple[int, float]) -> float:
    return point[1]


def _line(line: Sequence[tuple[int, float]], scale: _Scale, number: int) -> Markup:
    points = []
    for step, value in line:
        points.append(f"{scale.x(step)},{scale.y(value)}")
    if len(points) == 1:
        x, y = points[0].split(",")
        return Markup('<circle class="run-{}" cx="{}" cy="{}" r="3"/>').format(number, x, y)
    return Markup('<polyline class="run-{}" points="{}"/>').format(number, " ".join(points))
