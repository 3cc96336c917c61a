"""Observers of operations: jobs, writes, exports, validations.

An operation runs in a ``with observed(work)`` block and sets the attributes of its ``Work``, from
which observers derive lineage events. Observers are called in the thread of the operation. They
must return immediately and must not raise exceptions, so that they neither slow down the operation
nor make it fail.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol

from featurestore import progress
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
    """An operation from its start to its end.

    Attributes:
        kind: The kind of operation.
        name: The name of the job, feature group or training dataset.
        run_id: The id of the run.
        location: The location of the store.
        version: The version of the group or dataset.
        parent: The enclosing operation.
        job: The specification of the job.
        window: The window of the job run.
        started: The start time.
        committed_version: The published Delta version or dataset version; set at the end.
        plan: The retrieval plan of the written rows, as JSON; set at the end.
        inputs: The pinned inputs of a job run, with the columns that filter them by time; set at
            the end.
        input_columns: The columns that a job query reads, by input name; set at the end.
        report: The validation report; set at the end.
        monitor_report: The monitor report; set at the end.
        error: The exception if the operation failed; set at the end.
        process_died: Whether the process of the operation died; set by the recovery.
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
    input_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    report: ValidationReport | None = None
    monitor_report: MonitorReport | None = None
    error: BaseException | None = None
    process_died: bool = False


class Observer(Protocol):
    """A listener for operations, called from many threads; it must not block or raise exceptions."""

    def began(self, work: Work) -> None:
        """Handle the start of an operation; attributes that are set at the end are not set yet."""

    def ended(self, work: Work, timestamp: datetime) -> None:
        """Handle the end of an operation; ``work`` is final, with ``work.error`` set on failure."""


_observers: list[Observer] = []
# A context variable, because each thread and task has its own current operation.
_current: ContextVar[Work | None] = ContextVar("featurestore_work", default=None)


def add_observer(observer: Observer) -> None:
    """Register an observer for all operations of this process."""
    _observers.append(observer)


def remove_observer(observer: Observer) -> None:
    """Unregister an observer."""
    with contextlib.suppress(ValueError):
        _observers.remove(observer)


def current() -> Work | None:
    """Return the current operation of this thread, or None."""
    return _current.get()


@contextlib.contextmanager
def observed(work: Work) -> Iterator[Work]:
    """Notify observers at the start and end of a ``with`` block.

    The operation has failed if the block raises an exception or sets ``work.error``.
    """
    work.parent = _current.get()
    progress.begin_phase(f"{work.kind} {work.name}")
    token = _current.set(work)
    # The tuple is a copy, because other threads may add or remove observers.
    for observer in tuple(_observers):
        observer.began(work)
    try:
        yield work
    except BaseException as error:
        work.error = error
        raise
    finally:
        _current.reset(token)
        notify_end(work)


def notify_end(work: Work) -> None:
    """Notify observers of the end of an operation, which may have begun in another process."""
    for observer in tuple(_observers):
        observer.ended(work, times.utc_now())


@contextlib.contextmanager
def observed_part(operation: WorkKind, name: str, *, version: int | None = None) -> Iterator[Work]:
    """Notify observers of a step within the current operation; a no-op without one.

    If the current operation has the same kind, it is yielded and observers are not notified.
    """
    parent = _current.get()
    if parent is None:
        # Callers set attributes of the operation without checking whether it is observed.
        yield Work(operation, name, "", "", version)
        return
    if parent.kind == operation:
        yield parent
        return
    with observed(Work(operation, name, uuid.uuid4().hex, parent.location, version)) as work:
        yield work
