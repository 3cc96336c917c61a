"""What stands beside pictures: titles, names short enough to read, sizes of letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featurestore.model.statistics import ColumnStatistics, Statistics

_LONGEST_NAME = 22


def title_of(statistics: Statistics, subject: str) -> str:
    """Return a title: what was counted, then what is drawn of it."""
    return f"{source_name(statistics.source)} {subject}".strip()


def source_name(source: Mapping[str, Any]) -> str:
    """Return what was counted, as people call it.

    >>> source_name({"featuregroup": "weather", "version": 2, "delta_version": 7})
    'weather v2 (Delta 7)'
    """
    parts = []
    name = source.get("featuregroup") or source.get("training_dataset")
    if name:
        parts.append(str(name))
    if source.get("version") is not None:
        parts.append(f"v{source['version']}")
    if source.get("split"):
        parts.append(str(source["split"]))
    if source.get("delta_version") is not None:
        parts.append(f"(Delta {source['delta_version']})")
    return " ".join(parts)


def panel_title(column: ColumnStatistics, rows: int) -> str:
    """Return the name of a column, with its share of missing values where there are any."""
    name = short(column.name)
    if not column.missing or not rows:
        return name
    return f"{name}  ({share_text(column.missing / rows)} missing)"


def short(name: str, longest: int = _LONGEST_NAME) -> str:
    """Return a name cut in its middle: names often differ at their end."""
    if len(name) <= longest:
        return name
    tail = (longest - 1) // 2
    return f"{name[: longest - 1 - tail]}…{name[-tail:]}"


def share_text(share: float) -> str:
    """Return a share as per cent; a small one is not shown as zero, a large one not as all.

    >>> share_text(0.5), share_text(0.00001), share_text(0.99999), share_text(1.0)
    ('50 %', '<0.1 %', '>99.9 %', '100 %')
    """
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    return f"{100 * share:.3g} %"


def font_size(count: int) -> float:
    """Return the size of letters for so many labels."""
    return max(5.0, min(10.0, 10.5 - 0.045 * count))
