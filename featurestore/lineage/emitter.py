"""Emission of OpenLineage events; disabled unless OpenLineage's settings configure a transport.

Events are queued and sent by a background thread, so that lineage neither slows down writes nor
makes them fail. If the receiver is unavailable or too slow, the queue is full and events are
dropped. One warning is logged until an event is delivered again.
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
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from featurestore.errors import ThreadsUnavailable, missing_extra
from featurestore.model.threads import start_thread
from featurestore.plugins import observers
from featurestore.plugins.observers import Work
from featurestore.storage import storage_for

if TYPE_CHECKING:
    from featurestore.plugins.observers import Observer

_log = logging.getLogger("featurestore.lineage")
# The capacity of the queue; an event has a few kilobytes.
MAX_WAITING_EVENTS = 1000
# The maximum wait for queued events at process exit, unless the receiver has failed.
CLOSE_SECONDS = 3.0
_FILE = "openlineage.yml"
Send = Callable[[Any], None]


def start() -> None:
    """Start sending OpenLineage events if a transport is configured, otherwise stop.

    OpenLineage's settings are ``OPENLINEAGE_URL``, ``OPENLINEAGE_CONFIG``,
    ``OPENLINEAGE__TRANSPORT__...``, ``openlineage.yml`` in the working directory or in
    ``~/.openlineage``, and ``OPENLINEAGE_DISABLED``.
    """
    settings = _settings()
    # Threads do not survive a fork, so a forked child needs an emitter with its own thread.
    if (settings, os.getpid()) == (_Active.settings, _Active.process):
        return
    stop()
    _Active.settings, _Active.process = settings, os.getpid()
    if not settings:
        return
    if find_spec("openlineage") is None:
        _log.warning(
            "lineage events are not sent: %s", missing_extra("openlineage", "lineage").hint
        )
        return
    _Active.emitter = Emitter()
    observers.add_observer(_Active.emitter)


def stop(*, seconds: float = 0.0) -> None:
    """Stop sending events, after waiting at most ``seconds`` for queued events."""
    if _Active.emitter is not None:
        observers.remove_observer(_Active.emitter)
        _Active.emitter.close(seconds)
    _Active.emitter, _Active.settings = None, ()


def _settings() -> tuple[tuple[str, str], ...]:
    """Return the settings that configure a transport, () without a transport."""
    # The values are part of the result, so that start() also detects changed settings.
    entries = [entry for entry in sorted(os.environ.items()) if entry[0].startswith("OPENLINEAGE")]
    variables = dict(entries)
    if variables.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return ()
    for folder in (os.getcwd(), os.path.expanduser("~/.openlineage")):
        path = os.path.join(folder, _FILE)
        if storage_for(path).exists(path):
            entries.append((_FILE, path))
    if not any(name in variables for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")):
        transports = [name for name, _ in entries if name.startswith("OPENLINEAGE__TRANSPORT")]
        if not transports and not any(name == _FILE for name, _ in entries):
            return ()
    return tuple(entries)


class _Active:
    """The active emitter of this process and its settings."""

    emitter: Emitter | None = None
    settings: tuple[tuple[str, str], ...] = ()
    process: int = 0


class Emitter:
    """An observer that sends an event at the start and end of each operation.

    Args:
        send: A function that sends an event; None for OpenLineage's client.
        waiting: The capacity of the queue.
    """

    def __init__(self, send: Send | None = None, *, waiting: int = MAX_WAITING_EVENTS) -> None:
        self._send = send
        self._queue: queue.Queue[tuple[Work, datetime, bool] | None] = queue.Queue(waiting)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_down = False
        self._pending = 0
        self._closed = False
        self._is_abandoned = False
        atexit.register(self.close, CLOSE_SECONDS)

    def began(self, work: Work) -> None:
        """Queue the start event of an operation."""
        self._put(work, work.started, ended=False)

    def ended(self, work: Work, end: datetime) -> None:
        """Queue the end event of an operation."""
        self._put(work, end, ended=True)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Stop accepting events, and wait at most ``seconds`` for queued events.

        The remaining events are dropped, so the thread sends at most one more event.
        """
        atexit.unregister(self.close)
        self._closed = True
        if self._thread is None:
            return
        deadline = time.monotonic() + seconds
        # After a failure, the receiver would probably not accept the remaining events in time.
        while self._pending and not self._is_down and time.monotonic() < deadline:
            time.sleep(0.01)
        self._is_abandoned = True
        with contextlib.suppress(queue.Full):  # a full queue wakes the thread anyway
            self._queue.put_nowait(None)

    def _put(self, work: Work, timestamp: datetime, *, ended: bool) -> None:
        if self._closed:
            return
        try:
            self._start_thread()
        except ThreadsUnavailable as error:
            self._warn(error.message)
            return
        try:
            # Counted before the event is queued, because the thread may send it immediately.
            self._pending += 1
            self._queue.put_nowait((_copy_work(work), timestamp, ended))
        except queue.Full:
            self._pending -= 1
            self._warn("the queue is full")

    def _start_thread(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = start_thread(self._run, name="lineage")

    def _run(self) -> None:
        while True:
            queued_event = self._queue.get()
            if queued_event is None or self._is_abandoned:
                return
            try:
                self._emit(*queued_event)
                self._is_down = False
            except Exception as error:  # transports raise any exception of their libraries
                self._warn(f"{type(error).__name__}: {error}")
            finally:
                self._pending -= 1

    def _emit(self, work: Work, timestamp: datetime, ended: bool) -> None:
        # The client library is optional, so it is imported when the first event is sent.
        from featurestore.lineage import events

        if self._send is None:
            self._send = _configured_client()
        self._send(events.build_event(work, timestamp, ended=ended))

    def _warn(self, reason: str) -> None:
        """Log that events are dropped; repeated warnings are suppressed until an event is sent."""
        if not self._is_down:
            self._is_down = True
            _log.warning("lineage events are dropped: %s", reason)


def _copy_work(work: Work) -> Work:
    """Copy an operation and its parents, which may change before the event is built.

    >>> run = Work("job", "daily", "", "")
    >>> copy = _copy_work(run)
    >>> run.committed_version = 3
    >>> print(copy.committed_version)
    None
    """
    parent = None if work.parent is None else _copy_work(work.parent)
    return replace(work, parent=parent)


def _configured_client() -> Send:
    """Create an OpenLineage client from OpenLineage's settings, and return its ``emit`` method.

    The client writes parsed settings, including keys, to environment variables, where child
    processes and later calls would read them. These variables are removed.
    """
    from openlineage.client import OpenLineageClient

    previous_names = set(os.environ)
    client = OpenLineageClient()
    for name in set(os.environ) - previous_names:
        if name.startswith("OPENLINEAGE"):
            del os.environ[name]
    return client.emit


if TYPE_CHECKING:
    _contract: Observer = Emitter()
