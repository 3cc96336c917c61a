"""Heatmap of a correlation matrix."""

from __future__ import annotations

from markupsafe import Markup

from featurestore.model.statistics import Correlations

_CELL, _LABEL, _CHARACTER = 26, 12, 7
_MAX_COLUMNS = 60
# The ends of the scale: -1, 0 and 1.
_NEGATIVE, _NEUTRAL, _POSITIVE = (59, 76, 192), (221, 221, 221), (180, 4, 38)


def heatmap(correlations: Correlations, *, max_columns: int = _MAX_COLUMNS) -> Markup:
    """Draw the correlations of the first columns; the title of each cell shows the value."""
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
            elements.append(_cell(row_name, column_name, value, margin + column * _CELL, y))
    foot = _CELL * len(names) + 8
    for column, name in enumerate(names):
        x = margin + column * _CELL + _CELL * 0.65
        elements.append(_label(name, x, foot, is_vertical=True))
    elements.append(Markup("</svg>"))
    return Markup("").join(elements)


def color(value: float) -> str:
    """Return the color of a correlation.

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


def _cell(row_name: str, column_name: str, value: float | None, x: float, y: float) -> Markup:
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
