"""Status file of a worker in the run's directory."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from featurestore.errors import RunDamaged
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.storage import files

if TYPE_CHECKING:
    from featurestore.experiments.tasks import Task

WORKERS = "workers"
# Errors of workers that lost a peer; the failure of the peer is the cause.
_LOST_PEER = (
    "UnavailableError",
    "PSUnavailableError",
    "AbortedError",
    "CancelledError",
    "DeadlineExceededError",
)


@dataclass(frozen=True)
class WorkerStatus:
    """A worker of one attempt: running, finished, stopped or failed with an error."""

    state: str
    attempt: int
    pid: int
    host: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    readers: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None
    message: str | None = None
    trace: str | None = None
    saved: Mapping[str, str] = field(default_factory=dict)

    @property
    def lost_a_peer(self) -> bool:
        """Whether it failed because another worker was lost."""
        return self.error in _LOST_PEER

    def ended(self, state: str, *, metrics: Mapping[str, float] | None = None) -> WorkerStatus:
        """Return the status at the end."""
        return replace(self, state=state, metrics=metrics or {})

    def failed(self, error: BaseException) -> WorkerStatus:
        """Return the status after an error."""
        trace = "".join(traceback.format_exception(error))
        kind = type(error).__name__
        return replace(self, state="failed", error=kind, message=str(error), trace=trace)

    def with_saved(self, saved: Mapping[str, str]) -> WorkerStatus:
        """Return the status with the checksums of saved models, by path in the run's directory."""
        return replace(self, saved=dict(saved))

    def with_readers(self, states: list[dict[str, Any]]) -> WorkerStatus:
        """Return the status with the position of each reader."""
        return replace(self, readers=tuple(states))


def status_path(run: str, number: int) -> str:
    """Return the file of a process."""
    return os.path.join(run, WORKERS, f"worker-{number:05d}.json")


def write_status(task: Task, status: WorkerStatus) -> None:
    """Write the status of a worker for its driver."""
    files.replace_json(status_path(task.run, task.number), vars(status))


def read_status(run: str, number: int, *, attempt: int) -> WorkerStatus | None:
    """Return the status of a process of an attempt, None before it has started."""
    path = status_path(run, number)
    if not files.exists(path):
        return None
    try:
        data = JsonObject.from_value(files.read_json(path))
        status = WorkerStatus(
            state=data.text("state"),
            attempt=data.number("attempt"),
            pid=data.number("pid"),
            host=data.text("host"),
            metrics=data.object("metrics").each(JsonObject.real),
            readers=tuple(each.data for each in data.objects("readers")),
            error=data.optional_text("error"),
            message=data.optional_text("message"),
            trace=data.optional_text("trace"),
            saved=data.object("saved").each(JsonObject.text),
        )
    except MalformedJson as error:
        raise RunDamaged(f"The file {path!r} of a worker is damaged: {error}") from error
    return status if status.attempt == attempt else None
