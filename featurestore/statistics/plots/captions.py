"""Titles, shortened names and font sizes of plots."""

from __future__ import annotations

from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.model.statistics_text import share_text, source_name
from featurestore.model.statistics_text import short as shorten_middle

_MAX_NAME = 22


def figure_title(statistics: Statistics, subject: str) -> str:
    """Return a title: the name of the table, then the subject of the figure."""
    return f"{source_name(statistics.source)} {subject}".strip()


def panel_title(column: ColumnStatistics, rows: int) -> str:
    """Return the name of a column, with its share of missing values if there are any."""
    name = shorten_name(column.name)
    if not column.missing or not rows:
        return name
    return f"{name}  ({share_text(column.missing / rows)} missing)"


def shorten_name(name: str, longest: int = _MAX_NAME) -> str:
    """Shorten a name in the middle to fit a label."""
    return shorten_middle(name, longest)


def font_size(count: int) -> float:
    """Return the font size for ``count`` labels."""
    return max(5.0, min(10.0, 10.5 - 0.045 * count))
