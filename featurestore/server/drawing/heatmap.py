"""A matrix of correlations as colored cells."""

from __future__ import annotations

from markupsafe import Markup

from featurestore.model.statistics import Correlations

_CELL, _LABEL, _CHARACTER = 26, 12, 7
_MOST = 60
# The ends of the scale: -1, 0 and 1.
_NEGATIVE, _NONE, _POSITIVE = (59, 76, 192), (221, 221, 221), (180, 4, 38)


def heatmap(found: Correlations, *, most: int = _MOST) -> Markup:
    """Return the correlations of the first columns; each cell tells its number."""
    names = found.columns[:most]
    margin = _LABEL + _CHARACTER * min(max(map(len, names), default=0), 24)
    width, height = margin + _CELL * len(names), _CELL * len(names) + margin
    parts = [
        Markup(
            '<svg class="heatmap" viewBox="0 0 {width} {height}" width="{width}" '
            'height="{height}" role="img" aria-label="{method} correlations">'
        ).format(width=width, height=height, method=found.method)
    ]
    for row, left in enumerate(names):
        y = row * _CELL
        parts.append(_name(left, margin - 6, y + _CELL * 0.65))
        for place, right in enumerate(names):
            value = found.matrix[row][place]
            parts.append(_cell(left, right, value, margin + place * _CELL, y))
    foot = _CELL * len(names) + 8
    for place, name in enumerate(names):
        x = margin + place * _CELL + _CELL * 0.65
        parts.append(_name(name, x, foot, turned=True))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def color(value: float) -> str:
    """Return the color of a correlation.

    >>> color(0.0), color(-1.0), color(1.0)
    ('#dddddd', '#3b4cc0', '#b40426')
    """
    end = _POSITIVE if value >= 0 else _NEGATIVE
    share = min(abs(value), 1.0)
    mixed = []
    for near, far in zip(_NONE, end, strict=True):
        mixed.append(round(near + (far - near) * share))
    return "#" + "".join(f"{each:02x}" for each in mixed)


def _cell(left: str, right: str, value: float | None, x: float, y: float) -> Markup:
    told = f"{left} and {right}: " + ("none" if value is None else f"{value:.3f}")
    shade = "none" if value is None else color(value)
    return Markup(
        '<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{shade}">'
        "<title>{told}</title></rect>"
    ).format(x=x, y=y, size=_CELL - 1, shade=shade, told=told)


def _name(text: str, x: float, y: float, *, turned: bool = False) -> Markup:
    shown = text if len(text) <= 24 else text[:23] + "…"
    turn = Markup("")
    if turned:
        turn = Markup(' transform="rotate(-90 {x} {y})"').format(x=x, y=y)
    return Markup('<text x="{x}" y="{y}" text-anchor="end"{turn}>{shown}</text>').format(
        x=x, y=y, turn=turn, shown=shown
    )
