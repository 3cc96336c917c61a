"""Status of runs: status files, liveness of the driver, worker supervision, progress display."""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from featurestore.errors import RunDamaged, RunRunning
from featurestore.experiments.tasks import CHIEF, Member, has_ended, order_by_severity
from featurestore.model.display import escape_line
from featurestore.model.json_object import JsonMapping, MalformedJson
from featurestore.model.records import Record
from featurestore.model.run_record import State
from featurestore.plugins.launcher import RunningGang
from featurestore.storage import files, locks, storage_for
from featurestore.storage.appending import read_last_lines
from featurestore.storage.supervised import describe_exit

if TYPE_CHECKING:
    from featurestore.experiments.tasks import Task

Lines = Callable[[], None]
Listener = Callable[[list[str]], None]
# Returns the paths of the logs to display, by label.
Logs = Callable[[], Mapping[str, str]]
_WIDTH = 100
_NOTEBOOK_SECONDS = 0.25


_POLL_SECONDS = 0.05
# A worker that lost a peer may fail before the peer's exit is visible.
_GATHER_SECONDS = 1.0
_SAME_CALLS = (
    "All workers must make the same TensorFlow calls: context.save(model) instead of "
    "'if context.worker == 0: model.save(...)'."
)


_LOCK = "driver.lock"
_locked_paths: set[str] = set()  # closing a second handle of a locked file would release its lock


WORKERS = "workers"
# Errors of workers that lost a peer; the peer's failure is the cause.
_LOST_PEER = (
    "UnavailableError",
    "PSUnavailableError",
    "AbortedError",
    "CancelledError",
    "DeadlineExceededError",
)


@dataclass(frozen=True)
class WorkerStatus(Record):
    """The status of a worker in one attempt: running, finished, stopped or failed."""

    state: State
    attempt: int
    pid: int
    host: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    readers: tuple[JsonMapping, ...] = ()
    error: str | None = None
    message: str | None = None
    trace: str | None = None
    saved: Mapping[str, str] = field(default_factory=dict)

    @property
    def lost_a_peer(self) -> bool:
        """Whether the worker failed because another worker was lost."""
        return self.error in _LOST_PEER

    def ended(
        self,
        state: State,
        *,
        readers: Sequence[JsonMapping],
        saved: Mapping[str, str],
        metrics: Mapping[str, float] | None = None,
        error: BaseException | None = None,
    ) -> WorkerStatus:
        """Return the status of an ended worker.

        Args:
            state: The state.
            readers: The states of its readers.
            saved: The checksums of saved models, by path in the run's directory.
            metrics: The metrics that the function returned.
            error: The error with which the worker failed.
        """
        failure = {}
        if error is not None:
            failure = {
                "error": type(error).__name__,
                "message": str(error),
                "trace": "".join(traceback.format_exception(error)),
            }
        return replace(
            self,
            state=state,
            metrics=metrics or {},
            readers=tuple(readers),
            saved=dict(saved),
            **failure,  # type: ignore[arg-type]
        )


def status_path(run: str, number: int) -> str:
    """Return the path of a process's status file."""
    return os.path.join(run, WORKERS, f"worker-{number:05d}.json")


def write_status(task: Task, status: WorkerStatus) -> None:
    """Write the status file of a worker for the driver."""
    # The driver may read the file at any time, so it is replaced atomically.
    files.replace_json(status_path(task.run, task.number), status.to_json())


def read_status(run: str, number: int, *, attempt: int) -> WorkerStatus | None:
    """Read the status of a process in an attempt; None before it has started."""
    path = status_path(run, number)
    if not storage_for(path).exists(path):
        return None
    try:
        status = WorkerStatus.from_json(files.read_json(path))
    except MalformedJson as error:
        raise RunDamaged(f"The file {path!r} of a worker is damaged: {error}") from error
    # The file of an earlier attempt remains until the process writes its first status.
    return status if status.attempt == attempt else None


@contextmanager
def lock_driver(directory: str) -> Iterator[None]:
    """Hold the driver lock of a run for the duration of the block.

    Raises:
        RunRunning: Another process, or another thread of this one, drives the run.
    """
    if is_driven(directory):
        raise RunRunning(
            f"Run {os.path.basename(directory)!r} is still running.",
            hint="wait until it ends, or stop the process that drives it",
        )
    path = os.path.join(directory, _LOCK)
    handle = locks.acquire_lock(path)
    _locked_paths.add(path)
    try:
        yield
    finally:
        locks.remove_lock_file(handle, path, below=directory)
        _locked_paths.discard(path)


def is_driven(directory: str) -> bool:
    """Return True if a live process is driving the run."""
    path = os.path.join(directory, _LOCK)
    # Check this process first: ``is_locked`` opens the file, and closing it would release our own
    # lock (POSIX locks belong to the process).
    return path in _locked_paths or locks.is_locked(path)


@dataclass(frozen=True)
class AttemptEnd:
    """The end of one attempt of all processes.

    ``can_retry`` is True if a process died, so that another attempt may succeed.
    """

    state: State
    exits: tuple[str, ...]
    statuses: tuple[WorkerStatus | None, ...]
    reason: str | None = None
    trace: str | None = None
    can_retry: bool = False


def watch(
    running: RunningGang,
    read: Callable[[int], WorkerStatus | None],
    *,
    team: Sequence[Member],
    each_poll: Callable[[], None],
) -> AttemptEnd:
    """Wait until a run ends or cannot continue, then stop all of its processes.

    Args:
        running: The processes.
        read: Returns the status of a process by its number.
        team: The members of the run, one for each process.
        each_poll: Called at each poll.
    """
    try:
        exits = running.poll()
        while not has_ended(exits, team):
            each_poll()
            time.sleep(_POLL_SECONDS)
            exits = running.poll()
        # Workers and servers of a chief never exit on their own.
        chief_is_done = team[0].role == CHIEF and exits[0] == 0
        if any(exits) and not chief_is_done:
            # Wait a little for the exits of the other processes.
            end = time.monotonic() + _GATHER_SECONDS
            while None in (exits := running.poll()) and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
    finally:
        running.stop()
    # Read after the stop, when no process can write its status anymore.
    statuses = [read(worker) for worker in range(len(exits))]
    return evaluate_attempt(exits, statuses, team)


def evaluate_attempt(
    exits: Sequence[int | None], statuses: Sequence[WorkerStatus | None], team: Sequence[Member]
) -> AttemptEnd:
    """Return the end of an attempt from the exits and status files of its processes.

    >>> from featurestore.experiments.tasks import members
    >>> done, team = WorkerStatus("finished", 1, 100, "here"), members("multiworker", 2, 0)
    >>> evaluate_attempt([0, -9], [done, None], team).reason
    'worker 1 was lost: killed by SIGKILL'
    >>> evaluate_attempt([0, 0], [done, done], team).state
    'finished'
    """
    exit_texts = tuple("stopped" if status is None else describe_exit(status) for status in exits)
    final_statuses = tuple(statuses)
    first = final_statuses[0]
    if team[0].role == CHIEF and exits[0] == 0 and first is not None:
        return AttemptEnd(
            first.state, exit_texts, final_statuses
        )  # the chief finished without the workers that it lost
    # An error of the function is the cause; processes that were lost later are consequences.
    for member, status in zip(team, final_statuses, strict=True):
        if status is not None and status.state == "failed" and not status.lost_a_peer:
            reason = f"{member}: {status.error}: {status.message}"
            if len(team) > 1 and "Collective ops is aborted" in str(status.message):
                reason += f"\n{_SAME_CALLS}"
            return AttemptEnd("failed", exit_texts, final_statuses, reason, status.trace)
    # A killed process leaves no final status, or one that contradicts its exit status.
    for number in order_by_severity(team):
        status = final_statuses[number]
        ended_well = status is not None and status.state in ("finished", "stopped")
        lost = exits[number] is not None and (exits[number] != 0 or not ended_well)
        if lost and not (status is not None and status.lost_a_peer):
            reason = f"{team[number]} was lost: {exit_texts[number]}"
            return AttemptEnd("failed", exit_texts, final_statuses, reason, can_retry=True)
    for member, status in zip(team, final_statuses, strict=True):
        if status is not None and status.lost_a_peer:
            other_statuses = [other for other in final_statuses if other is not status]
            if all(
                other is not None and other.state in ("finished", "stopped")
                for other in other_statuses
            ):
                # The others finished, so another attempt would end in the same way.
                reason = f"{member} waited for workers that had finished: {status.error}. "
                reason += _SAME_CALLS
                return AttemptEnd("failed", exit_texts, final_statuses, reason, status.trace)
            reason = f"{member} lost another process: {status.error}: {status.message}"
            return AttemptEnd("failed", exit_texts, final_statuses, reason, can_retry=True)
    return AttemptEnd("finished" if first is None else first.state, exit_texts, final_statuses)


@contextmanager
def show_logs(logs: Logs, progress: bool | Listener | None) -> Iterator[Lines]:
    """Yield a function that displays the last line of each log.

    True displays them in the notebook or terminal, None only if there is one, and a function
    receives the lines.
    """
    if callable(progress):
        yield lambda: progress(_progress_lines(logs))
        return
    if not (progress or ((progress is None and sys.stderr.isatty()) or _is_notebook())):
        yield lambda: None
        return
    if _is_notebook():
        yield _notebook_display(logs)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), refresh_per_second=4) as live:
        yield lambda: live.update(Text("\n".join(_progress_lines(logs))))


def _notebook_display(logs: Logs) -> Lines:
    """Return a function that updates the lines below the notebook cell."""
    display = importlib.import_module("IPython.display").display
    displayed, last_refresh = "", 0.0
    handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show() -> None:
        nonlocal displayed, last_refresh
        if time.monotonic() - last_refresh < _NOTEBOOK_SECONDS:
            return
        text = "\n".join(_progress_lines(logs))
        last_refresh = time.monotonic()
        if text != displayed:
            displayed = text
            handle.update({"text/plain": text}, raw=True)

    return show


def _progress_lines(logs: Logs) -> list[str]:
    progress_lines = []
    for name, path in logs().items():
        log_lines = [line for line in read_last_lines(path, 20) if line.strip()]
        # Progress bars overwrite their line after a carriage return. Logs may contain escape
        # sequences, which a terminal would execute.
        last = escape_line(log_lines[-1].split("\r")[-1]) if log_lines else ""
        progress_lines.append(f"{escape_line(name)}: {last}"[:_WIDTH])
    return progress_lines


def _is_notebook() -> bool:
    """Return True if this process runs a notebook kernel, rather than merely importing it."""
    if "ipykernel" not in sys.modules:
        return False
    kernel = importlib.import_module("ipykernel.kernelapp").IPKernelApp
    return bool(kernel.initialized())
