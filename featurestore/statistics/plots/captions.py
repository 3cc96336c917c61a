"""What stands beside pictures: titles, names short enough to read, sizes of letters."""

from __future__ import annotations

from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.model.statistics_text import share_text, source_name
from featurestore.model.statistics_text import short as cut_in_the_middle

_LONGEST_NAME = 22


def title_of(statistics: Statistics, subject: str) -> str:
    """Return a title: what was counted, then what is drawn of it."""
    return f"{source_name(statistics.source)} {subject}".strip()


def panel_title(column: ColumnStatistics, rows: int) -> str:
    """Return the name of a column, with its share of missing values where there are any."""
    name = short(column.name)
    if not column.missing or not rows:
        return name
    return f"{name}  ({share_text(column.missing / rows)} missing)"


def short(name: str, longest: int = _LONGEST_NAME) -> str:
    """Return a name cut in its middle, short enough to stand beside a picture."""
    return cut_in_the_middle(name, longest)


def font_size(count: int) -> float:
    """Return the size of letters for so many labels."""
    return max(5.0, min(10.0, 10.5 - 0.045 * count))
