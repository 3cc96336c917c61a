"""SVG charts: metric curves, histograms and correlation heatmaps; colors are in the style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from featurestore.model.display import value_text
from featurestore.model.statistics import ColumnStatistics, Correlations

_HISTOGRAM_WIDTH, _HISTOGRAM_HEIGHT = 120, 28
_MAX_BARS = 12
_CELL, _LABEL, _CHARACTER = 26, 12, 7
_MAX_COLUMNS = 60
# The colors of the scale at -1, 0 and 1.
# They are those of Moreland's diverging color map ("coolwarm" in matplotlib).
_NEGATIVE, _NEUTRAL, _POSITIVE = (59, 76, 192), (221, 221, 221), (180, 4, 38)
Series = Mapping[int, float]
_WIDTH, _HEIGHT = 420, 180
_MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 64, 10, 10, 24
# About one point per pixel of the width.
_MAX_POINTS = 400


def histogram(column: ColumnStatistics | None) -> Markup:
    """Draw a histogram of a column; empty without statistics."""
    if column is None:
        return Markup("")
    counts, label = _bars(column)
    if not counts or max(counts) == 0:
        return Markup("")
    step = _HISTOGRAM_WIDTH / len(counts)
    bars = []
    for position, count in enumerate(counts):
        height = _HISTOGRAM_HEIGHT * count / max(counts)
        x, y = round(position * step, 1), round(_HISTOGRAM_HEIGHT - height, 1)
        width, bar_height = round(max(step - 1, 1), 1), round(height, 1)
        bars.append(f'<rect x="{x}" y="{y}" width="{width}" height="{bar_height}"/>')
    opening = Markup(
        '<svg class="histogram" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        "<title>{label}</title>"
    ).format(width=_HISTOGRAM_WIDTH, height=_HISTOGRAM_HEIGHT, label=label)
    return opening + Markup("".join(bars)) + Markup("</svg>")


def _bars(column: ColumnStatistics) -> tuple[Sequence[int], str]:
    """Return the heights of the bars and the label of a histogram."""
    if column.histogram is not None:
        edges = column.histogram.edges
        label = (
            f"distribution of {column.name} from {value_text(edges[0])} to {value_text(edges[-1])}"
        )
        return column.histogram.counts, label
    top = column.top[:_MAX_BARS]
    examples = ", ".join(f"{value_text(entry.value)} ({entry.count})" for entry in top[:3])
    return [entry.count for entry in top], f"most frequent values of {column.name}: {examples}"


def heatmap(correlations: Correlations, *, max_columns: int = _MAX_COLUMNS) -> Markup:
    """Draw a heatmap of the first columns' correlations; cell titles show the values."""
    names = correlations.columns[:max_columns]
    margin = _LABEL + _CHARACTER * min(max(map(len, names), default=0), 24)
    width, height = margin + _CELL * len(names), _CELL * len(names) + margin
    elements = [
        Markup(
            '<svg class="heatmap" viewBox="0 0 {width} {height}" width="{width}" '
            'height="{height}" role="img" aria-label="{method} correlations">'
        ).format(width=width, height=height, method=correlations.method)
    ]
    for row, row_name in enumerate(names):
        y = row * _CELL
        elements.append(_label(row_name, margin - 6, y + _CELL * 0.65))
        for column, column_name in enumerate(names):
            value = correlations.matrix[row][column]
            elements.append(_heatmap_cell(row_name, column_name, value, margin + column * _CELL, y))
    foot = _CELL * len(names) + 8
    for column, name in enumerate(names):
        x = margin + column * _CELL + _CELL * 0.65
        elements.append(_label(name, x, foot, is_vertical=True))
    elements.append(Markup("</svg>"))
    return Markup("").join(elements)


def color(value: float) -> str:
    """Return the color for a correlation.

    >>> color(0.0), color(-1.0), color(1.0)
    ('#dddddd', '#3b4cc0', '#b40426')
    """
    end = _POSITIVE if value >= 0 else _NEGATIVE
    strength = min(abs(value), 1.0)
    channels = (
        round(neutral_channel + (end_channel - neutral_channel) * strength)
        for neutral_channel, end_channel in zip(_NEUTRAL, end, strict=True)
    )
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def _heatmap_cell(
    row_name: str, column_name: str, value: float | None, x: float, y: float
) -> Markup:
    title = f"{row_name} and {column_name}: " + ("none" if value is None else f"{value:.3f}")
    shade = "none" if value is None else color(value)
    return Markup(
        '<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{shade}">'
        "<title>{title}</title></rect>"
    ).format(x=x, y=y, size=_CELL - 1, shade=shade, title=title)


def _label(text: str, x: float, y: float, *, is_vertical: bool = False) -> Markup:
    label = text if len(text) <= 24 else text[:23] + "…"
    rotation = Markup("")
    if is_vertical:
        rotation = Markup(' transform="rotate(-90 {x} {y})"').format(x=x, y=y)
    return Markup('<text x="{x}" y="{y}" text-anchor="end"{turn}>{shown}</text>').format(
        x=x, y=y, turn=rotation, shown=label
    )


@dataclass(frozen=True)
class _Scale:
    """Conversion of steps and values to coordinates."""

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
            # Halving the operands prevents an overflow of the difference to infinity.
            fraction = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(
            _HEIGHT - _MARGIN_BOTTOM - fraction * (_HEIGHT - _MARGIN_TOP - _MARGIN_BOTTOM), 1
        )


def curves(metric: str, runs: Sequence[tuple[str, Series]]) -> Markup:
    """Draw the curves of a metric over the steps of each run; empty without finite values."""
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
    """Return the scale of all finite values, None if there are none."""
    points = [
        (step, value) for series in runs for step, value in series.items() if math.isfinite(value)
    ]
    if not points:
        return None
    steps, values = zip(*points, strict=True)
    return _Scale(min(steps), max(steps), min(values), max(values))


def _axes(scale: _Scale) -> list[Markup]:
    """Draw the axes with the first and last step and the lowest and highest value."""
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
    """Split a series into lines, separated by values that are not finite."""
    lines: list[list[tuple[int, float]]] = [[]]
    for step in sorted(series):
        if math.isfinite(series[step]):
            lines[-1].append((step, series[step]))
        elif lines[-1]:
            lines.append([])
    return [downsample(line) for line in lines if line]


def downsample(
    line: Sequence[tuple[int, float]], max_points: int = _MAX_POINTS
) -> list[tuple[int, float]]:
    """Reduce a line to the minimum and maximum in each range of steps.

    >>> downsample([(step, float(step % 5)) for step in range(100)], max_points=4)
    [(0, 0.0), (4, 4.0), (50, 0.0), (54, 4.0)]
    """
    if len(line) <= max_points:
        return list(line)
    size = math.ceil(2 * len(line) / max_points)
    points = []
    for start in range(0, len(line), size):
        segment = line[start : start + size]
        # A mean would hide spikes.
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
