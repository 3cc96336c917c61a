"""Vacuum: removal of unneeded data files. Spark's own VACUUM cannot keep selected versions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from featurestore.delta.maintenance import remove_unneeded_files


def vacuum(path: str, *, keep_versions: Sequence[int], retain: datetime) -> list[str]:
    """Remove files that neither versions since ``retain`` nor ``keep_versions`` need.

    Returns their paths.
    """
    return remove_unneeded_files(path, keep_versions=keep_versions, retain=retain)
