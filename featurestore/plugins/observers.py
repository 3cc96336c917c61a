"""Who is told when work begins and ends: jobs, writes, exports, validations.

Whatever does such work says so by ``observed``, and fills what it comes to know into its ``Work``;
observers make of it what they like (lineage events). An observer is called in the thread of the
work, must return at once and must not raise: nothing that watches may slow or fail what it watches.
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
    from featurestore.model.validation import ValidationReport
    from featurestore.model.window import Window

WorkKind = Literal["job", "create", "write", "delete", "export", "remove", "validate"]


@dataclass
class Work:
    """One piece of work, from its beginning to its end.

    ``name`` is the job, the group or the training dataset, ``version`` that of the group or
    dataset; ``location`` is the store's. ``parent`` is the work that this one is part of.

    What is known in the end: ``committed_version`` (the Delta version, or the version of the dataset, that was
    published), ``plan`` (of the retrieval whose rows were written, as JSON), ``inputs`` (what a job
    read, pinned), ``report`` (of a validation), ``found`` (of a monitor), ``error``.
    """

    kind: WorkKind
    name: str
    run_id: str
    location: str
    version: int | None = None
    parent: Work | None = None
    job: JobSpec | None = None
    window: Window | None = None
    begun: datetime = field(default_factory=times.utc_now)
    committed_version: int | None = None
    plan: Mapping[str, Any] | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    report: ValidationReport | None = None
    found: MonitorReport | None = None
    error: BaseException | None = None


class Observer(Protocol):
    """Is told of work. It is called from many threads, and neither waits nor raises."""

    def began(self, work: Work) -> None:
        """Work begins: only what its caller knows is filled."""

    def ended(self, work: Work, at: datetime) -> None:
        """Work has ended; ``work.error`` says whether it failed. Nothing changes it any more."""


_observers: list[Observer] = []
_current: ContextVar[Work | None] = ContextVar("featurestore_work", default=None)


def add_observer(observer: Observer) -> None:
    """Tell an observer of all work of this process from now on."""
    _observers.append(observer)


def remove_observer(observer: Observer) -> None:
    """Tell an observer nothing any more."""
    with contextlib.suppress(ValueError):
        _observers.remove(observer)


def current() -> Work | None:
    """Return the work that this thread is doing."""
    return _current.get()


@contextlib.contextmanager
def observed(work: Work) -> Iterator[Work]:
    """Tell observers of work: when it begins, and when it ends or fails.

    What leaves by an exception has failed, as has what set ``error`` itself.
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
    """Tell observers of a part of the work of this thread; of nothing where there is none.

    Work that is observed as a whole by its caller has no part of its own kind.
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
