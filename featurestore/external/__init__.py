"""External data: source connections, and feature groups that are defined over sources."""

from __future__ import annotations

from featurestore.external.groups import (
    LiveSource,
    check_snapshot,
    find_live_sources,
    grant_rows,
    keep_rows,
    take_snapshot,
)

__all__ = [
    "LiveSource",
    "check_snapshot",
    "find_live_sources",
    "grant_rows",
    "keep_rows",
    "take_snapshot",
]
