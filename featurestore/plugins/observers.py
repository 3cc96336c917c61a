"""Observers of units of work: jobs, writes, exports, validations.

Code that does such work runs it within ``observed`` and fills in its ``Work``; observers derive
lineage events from it. An observer is called in the thread of the work, must return immediately and
must not raise, so that it can neither slow nor fail the work.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol

from featurestore.model import times

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from featurestore.model.job import JobSpec
    from featurestore.model.monitor_report import MonitorReport
    from featurestore.model.times import Window
    from featurestore.model.validation import ValidationReport

WorkKind = Literal["job", "create", "write", "delete", "export", "remove", "validate"]


@dataclass
class Work:
    """One unit of work, from start to end.

    Attributes:
        kind: The kind of work.
        name: The job, the feature group or the training dataset.
        run_id: The id of the run.
        location: The store's location.
        version: The version of the group or dataset.
        parent: The enclosing work.
        job: The job's specification.
        window: The job's window.
        started: The start time.
        committed_version: The published Delta version or dataset version; set at the end.
        plan: The retrieval plan of the written rows, as JSON; set at the end.
        inputs: The pinned inputs of a job; set at the end.
        report: The report of a validation; set at the end.
        monitor_report: The report of a monitor; set at the end.
        error: The exception if the work failed; set at the end.
    """

    kind: WorkKind
    name: str
    run_id: str
    location: str
    version: int | None = None
    parent: Work | None = None
    job: JobSpec | None = None
    window: Window | None = None
    started: datetime = field(default_factory=times.utc_now)
    committed_version: int | None = None
    plan: Mapping[str, Any] | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    report: ValidationReport | None = None
    monitor_report: MonitorReport | None = None
    error: BaseException | None = None


class Observer(Protocol):
    """A listener for work. It is called from many threads and must neither block nor raise."""

    def began(self, work: Work) -> None:
        """Handle the start of work; the attributes that are set at the end are still empty."""

    def ended(self, work: Work, timestamp: datetime) -> None:
        """Handle the end of work; ``work.error`` is set if it failed. ``work`` is final."""


_observers: list[Observer] = []
_current: ContextVar[Work | None] = ContextVar("featurestore_work", default=None)


def add_observer(observer: Observer) -> None:
    """Register an observer for all work of this process."""
    _observers.append(observer)


def remove_observer(observer: Observer) -> None:
    """Unregister an observer."""
    with contextlib.suppress(ValueError):
        _observers.remove(observer)


def current() -> Work | None:
    """Return the current work of this thread."""
    return _current.get()


@contextlib.contextmanager
def observed(work: Work) -> Iterator[Work]:
    """Notify observers when the work of the block starts, and when it ends or fails.

    Work has failed if the block raises or sets ``error``.
    """
    work.parent = _current.get()
    token = _current.set(work)
    for observer in tuple(_observers):
        observer.began(work)
    try:
        yield work
    except BaseException as error:
        work.error = error
        raise
    finally:
        _current.reset(token)
        for observer in tuple(_observers):
            observer.ended(work, times.utc_now())


@contextlib.contextmanager
def observed_part(kind: WorkKind, name: str, *, version: int | None = None) -> Iterator[Work]:
    """Notify observers of a step of this thread's current work; a no-op without current work.

    If the current work has the same kind, it is yielded itself and observers are not notified.
    """
    parent = _current.get()
    if parent is None:
        yield Work(kind, name, "", "", version)
        return
    if parent.kind == kind:
        yield parent
        return
    with observed(Work(kind, name, uuid.uuid4().hex, parent.location, version)) as work:
        yield work
