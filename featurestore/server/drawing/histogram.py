"""Small histogram of a column, or bars of its most frequent values."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from featurestore.model.printable import value_text
from featurestore.model.statistics import ColumnStatistics

_WIDTH, _HEIGHT = 120, 28
_MAX_BARS = 12


def histogram(column: ColumnStatistics | None) -> Markup:
    """Draw the histogram of a column; empty without statistics."""
    if column is None:
        return Markup("")
    counts, label = _bars(column)
    if not counts or max(counts) == 0:
        return Markup("")
    step = _WIDTH / len(counts)
    bars = []
    for position, count in enumerate(counts):
        height = _HEIGHT * count / max(counts)
        x, y = round(position * step, 1), round(_HEIGHT - height, 1)
        width, bar_height = round(max(step - 1, 1), 1), round(height, 1)
        bars.append(f'<rect x="{x}" y="{y}" width="{width}" height="{bar_height}"/>')
    opening = Markup(
        '<svg class="histogram" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        "<title>{label}</title>"
    ).format(width=_WIDTH, height=_HEIGHT, label=label)
    return opening + Markup("".join(bars)) + Markup("</svg>")


def _bars(column: ColumnStatistics) -> tuple[Sequence[int], str]:
    if column.histogram is not None:
        edges = column.histogram.edges
        label = (
            f"distribution of {column.name} from {value_text(edges[0])} to {value_text(edges[-1])}"
        )
        return column.histogram.counts, label
    top = column.top[:_MAX_BARS]
    examples = ", ".join(f"{value_text(entry.value)} ({entry.count})" for entry in top[:3])
    return [entry.count for entry in top], f"most frequent values of {column.name}: {examples}"
