"""Sends events from a thread of its own: what watches never slows or fails a write.

What is to be sent waits in a bounded queue. Where the receiver is down, or slower than the work,
events are dropped, which is said once; the next one that arrives ends that.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from featurestore.plugins.observers import Work

if TYPE_CHECKING:
    from featurestore.plugins.observers import Observer

_log = logging.getLogger("featurestore.lineage")
# Events that may wait; one is some kilobytes.
WAITING = 1000
# How long the end of a process waits for events, where the receiver has not failed.
PATIENCE = 3.0
Send = Callable[[Any], None]


class Emitter:
    """Observes work and sends an event when it begins and when it ends.

    Args:
        send: Sends one event; None: OpenLineage's client, as its settings configure it.
        waiting: How many events may wait.
    """

    def __init__(self, send: Send | None = None, *, waiting: int = WAITING) -> None:
        self._send = send
        self._queue: queue.Queue[tuple[Work, datetime, bool] | None] = queue.Queue(waiting)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._down = False
        self._pending = 0
        self._closed = False
        self._given_up = False
        atexit.register(self.close, PATIENCE)

    def began(self, work: Work) -> None:
        """Send the event of a beginning."""
        self._put(work, work.begun, ended=False)

    def ended(self, work: Work, at: datetime) -> None:
        """Send the event of an end."""
        self._put(work, at, ended=True)

    def close(self, seconds: float = PATIENCE) -> None:
        """Take no more events, and wait for those that are on their way, for at most so long.

        What still waits then is dropped: a thread never outlives its use by more than one event.
        """
        atexit.unregister(self.close)
        self._closed = True
        if self._thread is None:
            return
        until = time.monotonic() + seconds
        while self._pending and not self._down and time.monotonic() < until:
            time.sleep(0.01)
        self._given_up = True
        with contextlib.suppress(queue.Full):  # then it need not be woken
            self._queue.put_nowait(None)

    def _put(self, work: Work, at: datetime, *, ended: bool) -> None:
        if self._closed:
            return
        self._started()
        try:
            self._pending += 1
            self._queue.put_nowait((_as_it_is(work), at, ended))
        except queue.Full:
            self._pending -= 1
            self._warn("more events wait than can be sent")

    def _started(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            found = self._queue.get()
            if found is None or self._given_up:
                return
            try:
                self._emit(*found)
                self._down = False
            except Exception as error:  # transports raise what their libraries raise
                self._warn(f"{type(error).__name__}: {error}")
            finally:
                self._pending -= 1

    def _emit(self, work: Work, at: datetime, ended: bool) -> None:
        from featurestore.lineage import events

        if self._send is None:
            self._send = _configured_client()
        self._send(events.event_of(work, at, ended=ended))

    def _warn(self, reason: str) -> None:
        """Say once that events are lost, until one arrives again."""
        if not self._down:
            self._down = True
            _log.warning("lineage events are dropped: %s", reason)


def _as_it_is(work: Work) -> Work:
    """Return work, and what it is part of, as known now: its event is made later, while it goes on.

    >>> run = Work("job", "daily", "", "")
    >>> told = _as_it_is(run)
    >>> run.landed = 3
    >>> told.landed is None
    True
    """
    parent = None if work.parent is None else _as_it_is(work.parent)
    return replace(work, parent=parent)


def _configured_client() -> Send:
    """Return how OpenLineage's client sends an event, by its own settings.

    It writes what it understood of them into the environment, keys too, where child processes and
    later starts would take it for settings of theirs; so that is taken out again.
    """
    from openlineage.client import OpenLineageClient

    before = set(os.environ)
    client = OpenLineageClient()
    for name in set(os.environ) - before:
        if name.startswith("OPENLINEAGE"):
            del os.environ[name]
    return client.emit


if TYPE_CHECKING:
    _contract: Observer = Emitter()
