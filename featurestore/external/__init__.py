"""External data: source connections, and feature groups that are defined over sources."""

from __future__ import annotations

from featurestore.external.groups import (
    LiveSource,
    check_snapshot,
    keep_rows,
    live_sources,
    take_snapshot,
)

__all__ = ["LiveSource", "check_snapshot", "keep_rows", "live_sources", "take_snapshot"]
