"""Windows of jobs: half-open ranges of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, order=True)
class Window:
    """The range ``[start, end)`` of aware UTC moments that one run computes."""

    start: datetime
    end: datetime
