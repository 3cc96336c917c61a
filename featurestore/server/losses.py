"""The notice of objects that the registry lacks, on each page and in a header of each response."""

from __future__ import annotations

import time
from typing import NamedTuple

from featurestore.model.runtime import ForkSafeLock
from featurestore.registry import unregistered
from featurestore.registry.stores import rebuild_command
from featurestore.server.access.visitors import Visitor
from featurestore.session import Session

# A restored backup of the registry is noticed after this time.
_SECONDS = 10.0
_GENERAL = (
    "The registry lacks objects of this store, so lists are incomplete; an admin can rebuild it."
)


class Notice(NamedTuple):
    """What the registry lacks, and the command that restores it, None if the visitor cannot."""

    text: str
    command: str | None


class LostObjects:
    """The objects in a location that its registry lacks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = ForkSafeLock()
        self._next_check = 0.0
        self._text: str | None = None

    def notice(self, visitor: Visitor | None) -> Notice | None:
        """Return the notice for a visitor, None if the registry lacks nothing.

        Only visitors who see all objects read their names.
        """
        text = self._current_text()
        if text is None:
            return None
        if visitor is not None and not visitor.sees_all:
            return Notice(_GENERAL, None)
        return Notice(text, rebuild_command(self._session.location))

    def _current_text(self) -> str | None:
        with self._lock:
            if time.monotonic() >= self._next_check:
                self._text = unregistered.loss_of(self._session.registry)
                self._next_check = time.monotonic() + _SECONDS
            return self._text
