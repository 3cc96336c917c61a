"""A small histogram of a feature, or the bars of its most frequent values."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from featurestore.model.printable import value_text
from featurestore.model.statistics import ColumnStatistics

_WIDTH, _HEIGHT = 120, 28
_MOST_BARS = 12


def histogram(column: ColumnStatistics | None) -> Markup:
    """Return a column's histogram; nothing where its values were not counted."""
    if column is None:
        return Markup("")
    counts, told = _bars(column)
    if not counts or max(counts) == 0:
        return Markup("")
    step = _WIDTH / len(counts)
    bars = []
    for position, count in enumerate(counts):
        height = _HEIGHT * count / max(counts)
        x, y = round(position * step, 1), round(_HEIGHT - height, 1)
        width, tall = round(max(step - 1, 1), 1), round(height, 1)
        bars.append(f'<rect x="{x}" y="{y}" width="{width}" height="{tall}"/>')
    opening = Markup(
        '<svg class="histogram" viewBox="0 0 {width} {height}" role="img" aria-label="{told}">'
        "<title>{told}</title>"
    ).format(width=_WIDTH, height=_HEIGHT, told=told)
    return opening + Markup("".join(bars)) + Markup("</svg>")


def _bars(column: ColumnStatistics) -> tuple[Sequence[int], str]:
    if column.histogram is not None:
        edges = column.histogram.edges
        told = (
            f"distribution of {column.name} from {value_text(edges[0])} to {value_text(edges[-1])}"
        )
        return column.histogram.counts, told
    top = column.top[:_MOST_BARS]
    named = ", ".join(f"{value_text(each.value)} ({each.count})" for each in top[:3])
    return [each.count for each in top], f"most frequent values of {column.name}: {named}"
