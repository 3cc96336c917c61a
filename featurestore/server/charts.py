"""SVG charts: metric curves, histograms, heatmaps, timelines; colors are in the style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from markupsafe import Markup

from featurestore.model.display import value_text
from featurestore.model.finding import Finding
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.statistics import PROBABILITIES, ColumnStatistics, Correlations
from featurestore.server.rendering import when

_HISTOGRAM_WIDTH, _HISTOGRAM_HEIGHT = 120, 28
_MAX_BARS, _CLIPPED_BARS = 12, 24
_CELL, _LABEL, _CHARACTER = 26, 12, 7
_MAX_COLUMNS = 60
# The colors of the scale at -1, 0 and 1.
# They are those of Moreland's diverging color map ("coolwarm" in matplotlib).
_NEGATIVE, _NEUTRAL, _POSITIVE = (59, 76, 192), (221, 221, 221), (180, 4, 38)
Series = Mapping[int, float]
_WIDTH, _HEIGHT = 420, 180
_MARGIN_LEFT, _MARGIN_RIGHT, _MARGIN_TOP, _MARGIN_BOTTOM = 64, 10, 10, 24
_TIMELINE_WIDTH, _TIMELINE_HEIGHT, _TIMELINE_LEFT, _TIMELINE_FOOT = 360, 120, 52, 100
# A far bound would press the values of a timeline into a line at its foot.
_MAX_BOUND_RATIO = 4.0
# About one point per pixel of the width.
_MAX_POINTS = 400


def histogram(column: ColumnStatistics | None) -> Markup:
    """Draw a histogram of a column; empty without statistics."""
    if column is None:
        return Markup("")
    counts, label, outliers = _bars(column)
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
    picture = opening + Markup("".join(bars)) + Markup("</svg>")
    if outliers:
        picture += Markup('<small class="outliers">about {:,} outside</small>').format(outliers)
    return picture


def _bars(column: ColumnStatistics) -> tuple[Sequence[float], str, int]:
    """Return the heights of the bars, the label, and the number of values outside the range."""
    clipped = _clip(column)
    if clipped is not None:
        return clipped
    if column.histogram is not None:
        edges = column.histogram.edges
        label = (
            f"distribution of {column.name} from {value_text(edges[0])} to {value_text(edges[-1])}"
        )
        return column.histogram.counts, label, 0
    top = column.top[:_MAX_BARS]
    examples = ", ".join(f"{value_text(entry.value)} ({entry.count})" for entry in top[:3])
    label = f"most frequent values of {column.name}: {examples}"
    return [entry.count for entry in top], label, 0


def _clip(column: ColumnStatistics) -> tuple[Sequence[float], str, int] | None:
    """Return the bars between the 0.5 % and 99.5 % quantiles; None if the tails are short.

    Equal bins over the complete range would put nearly all values into one bar. The bars are
    computed from the stored quantiles.
    """
    quantiles = [value for value in column.quantiles if isinstance(value, int | float)]
    if column.kind != "number" or len(quantiles) != len(PROBABILITIES):
        return None
    low, high = quantiles[1], quantiles[-2]
    # Halving the operands prevents an overflow of the difference to infinity.
    width, complete_width = high / 2 - low / 2, quantiles[-1] / 2 - quantiles[0] / 2
    if not 0 < width < complete_width / 2 or not math.isfinite(complete_width):
        return None
    edges = np.linspace(low, high, _CLIPPED_BARS + 1)
    shares = np.interp(edges, quantiles, PROBABILITIES)
    # Equal quantiles are one value, which belongs to the first or the last bar.
    shares[0], shares[-1] = PROBABILITIES[1], PROBABILITIES[-2]
    tails = (quantiles[0] < low) + (quantiles[-1] > high)
    values = column.count if column.sampled is None else column.sampled
    outliers = round(values * PROBABILITIES[1] * tails)
    label = (
        f"distribution of {column.name} from {value_text(low)} to {value_text(high)}, 99 % of the "
        f"values; about {outliers:,} are outside, from {value_text(quantiles[0])} to "
        f"{value_text(quantiles[-1])}"
    )
    return np.diff(shares).tolist(), label, outliers


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


@dataclass(frozen=True)
class FindingChart:
    """The newest finding of a measure, its chart, and the number of windows out of bounds."""

    finding: Finding
    picture: Markup
    windows_out: int
    is_current: bool

    @property
    def severity(self) -> tuple[bool, bool, int]:
        """A sort key: current alarms, current suspects, then by windows out of bounds."""
        is_out = self.is_current and self.finding.out
        return not (is_out and self.finding.alarm), not is_out, -self.windows_out


def chart_findings(history: Sequence[MonitorReport]) -> list[FindingChart]:
    """Draw each measure over the windows of a history (newest first), the most severe first."""
    reports = sorted(history, key=lambda report: report.window)
    timelines: dict[tuple[str, str, str], dict[int, Finding]] = {}
    for index, report in enumerate(reports):
        for finding in report.findings:
            timelines.setdefault(finding.key, {})[index] = finding
    charts = []
    for timeline in timelines.values():
        if all(finding.value is None for finding in timeline.values()):
            continue
        last_index = max(timeline)
        charts.append(
            FindingChart(
                finding=timeline[last_index],
                picture=_Timeline(reports, timeline).draw(),
                windows_out=sum(finding.out for finding in timeline.values()),
                is_current=last_index == len(reports) - 1,
            )
        )
    return sorted(charts, key=attrgetter("severity"))


class _Timeline:
    """The drawing of a measure over all windows; windows without the measure are gaps."""

    def __init__(self, reports: Sequence[MonitorReport], findings: Mapping[int, Finding]) -> None:
        self._reports, self._findings = reports, findings
        self._step = (_TIMELINE_WIDTH - _TIMELINE_LEFT - _MARGIN_RIGHT) / max(len(reports), 1)
        values = [finding.value for finding in findings.values() if finding.value is not None]
        self._low, self._high = min(0.0, *values), max(values)
        limit = _MAX_BOUND_RATIO * max(self._high, -self._low)
        for finding in findings.values():
            for bound in (finding.low, finding.high):
                if bound is not None and (abs(bound) <= limit or not limit):
                    self._low, self._high = min(self._low, bound), max(self._high, bound)
        if self._high <= self._low:
            self._high = self._low + 1.0

    def draw(self) -> Markup:
        """Draw dashed bounds, the values, and a shade for each window out of bounds."""
        last = self._findings[max(self._findings)]
        elements = [
            Markup('<svg class="timeline" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
                _TIMELINE_WIDTH, _TIMELINE_HEIGHT, f"{last}; over {len(self._reports)} windows"
            )
        ]
        elements += [self._shade(index) for index in self._findings]
        elements.append(
            Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(
                _TIMELINE_LEFT, _MARGIN_TOP, _TIMELINE_FOOT, _TIMELINE_WIDTH - _MARGIN_RIGHT
            )
        )
        for css, attribute in (("bound", "low"), ("bound", "high"), ("value", "value")):
            elements += self._lines(css, attribute)
        elements += self._labels(last)
        return Markup("").join([*elements, Markup("</svg>")])

    def _x(self, index: float) -> float:
        return round(_TIMELINE_LEFT + index * self._step, 1)

    def _y(self, value: float) -> float:
        fraction = (value - self._low) / (self._high - self._low)
        return round(_TIMELINE_FOOT - fraction * (_TIMELINE_FOOT - _MARGIN_TOP), 1)

    def _shade(self, index: int) -> Markup:
        """Draw the rectangle of a window, whose title describes the finding."""
        finding, state = self._findings[index], ""
        if finding.out:
            state = " alarmed" if finding.alarm else " suspected"
        size = Markup('x="{}" y="{}" width="{:.1f}" height="{}"').format(
            self._x(index), _MARGIN_TOP, self._step, _TIMELINE_FOOT - _MARGIN_TOP
        )
        start = when(self._reports[index].window.start)
        return Markup('<rect class="shade{}" {}><title>{}: {}</title></rect>').format(
            state, size, start, finding
        )

    def _lines(self, css: str, attribute: str) -> Iterator[Markup]:
        """Draw a line through consecutive windows; a single value is a point."""
        segments: list[list[str]] = [[]]
        for index in range(len(self._reports)):
            value = getattr(self._findings.get(index), attribute, None)
            if value is None or not self._low <= value <= self._high:
                segments.append([])
            elif css == "bound":
                # A bound is constant within its window.
                y = self._y(value)
                segments[-1] += [f"{self._x(index)},{y}", f"{self._x(index + 1)},{y}"]
            else:
                segments[-1].append(f"{self._x(index + 0.5)},{self._y(value)}")
        for points in filter(None, segments):
            if len(points) == 1:
                x, _, y_text = points[0].partition(",")
                yield Markup('<circle cx="{}" cy="{}" r="2"/>').format(x, y_text)
            else:
                line = Markup('<polyline class="{}" points="{}"/>')
                yield line.format(css, " ".join(points))

    def _labels(self, finding: Finding) -> Iterator[Markup]:
        """Draw the first and last window below the axis, and the range of values to its left."""
        label = Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>')
        start, end = self._reports[0].window.start, self._reports[-1].window.end
        yield label.format(_TIMELINE_LEFT, _TIMELINE_HEIGHT - 4, "start", when(start)[:16])
        yield label.format(
            _TIMELINE_WIDTH - _MARGIN_RIGHT, _TIMELINE_HEIGHT - 4, "end", when(end)[:16]
        )
        yield label.format(_TIMELINE_LEFT - 5, _TIMELINE_FOOT, "end", finding.format(self._low))
        yield label.format(_TIMELINE_LEFT - 5, _MARGIN_TOP + 8, "end", finding.format(self._high))
