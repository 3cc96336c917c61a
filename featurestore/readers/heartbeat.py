"""Heartbeats of training workers, which detect stalled workers, and clean exits of workers.

Each worker writes its step number to its own file in a shared directory, where it remains after the
worker is killed. If a worker has not finished a step for ``timeout`` seconds, its watchdog reports
the last steps of all workers. The slowest worker is the one that the others are waiting for.

Three threads share the work, so that nothing that hangs in a worker can stop the watchdog. One
writes the steps, and may wait for the storage. One checks the time and does no I/O. The last is a
timer of ``faulthandler``, which needs no interpreter: TensorFlow holds the GIL while it waits for
the other workers at the start of a strategy.

A TensorFlow thread that requests the GIL during interpreter shutdown never returns. An iterator
that waits for such a thread, for example one abandoned in the middle of an epoch, would block
forever. Therefore an exit handler rejects new calls and waits for running ones.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Annotated, Literal, ParamSpec, TypeVar

from featurestore.errors import StorageError, ThreadsUnavailable, WorkerStalled
from featurestore.model.json_object import MalformedJson
from featurestore.model.records import Record, Valid
from featurestore.model.runtime import ForkSafeLock, reset_in_children
from featurestore.model.threads import start_thread
from featurestore.storage import files, storage_for
from featurestore.storage.appending import OverwrittenFile

EXIT_STALLED = 75  # EX_TEMPFAIL of sysexits.h: try again
_WRITE_SECONDS = 1.0
# A report reads the files of all workers, for which it waits at most this long.
_REPORT_SECONDS = 30.0
# The content is padded to this size, so that a short entry overwrites a long one completely.
_FILE_BYTES = 512
_log = logging.getLogger(__name__)
P = ParamSpec("P")
Result = TypeVar("Result")
# After its Python code ends, a call needs some time to return to its thread, and the next call
# needs some time to arrive here.
_QUIET_SECONDS = 0.1
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class WorkerStep(Record):
    """The last reported position of a worker, which has finished ``step`` steps of ``epoch``."""

    worker: int
    epoch: int
    step: int
    time: Annotated[float, Valid(math.isfinite, "a finite number")]
    host: str
    pid: int


class Heartbeat:
    """A recorder of this worker's steps, with a watchdog that detects stalls.

    Args:
        directory: Directory shared by all workers. Each step is written to a local directory, one
            step per second to a URI.
        worker: Number of this worker, from 0.
        workers: Number of workers.
        timeout: Seconds without a step after which the worker counts as stalled; the first step
            includes compiling. If no Python thread can run for a quarter longer, the process
            prints its stack traces and ends with code 1.
        on_stall: "exit" reports and ends the process with code 75, since a collective operation
            cannot be interrupted; "report" reports, and the next ``beat`` raises WorkerStalled.
        clock: Seconds since 1970.

    Use it as a context manager, or call ``start`` and ``stop``. ``fit`` of a checkpoint has its own
    heartbeat. A strategy that is created before waits for all workers, so it needs one, too:

    >>> import tempfile
    >>> with Heartbeat(tempfile.mkdtemp(), worker=0, workers=2, timeout=600):
    ...     pass  # strategy = tf.distribute.MultiWorkerMirroredStrategy()
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        worker: int = 0,
        workers: int = 1,
        timeout: float = 600.0,
        on_stall: Literal["exit", "report"] = "exit",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory, self.worker, self.workers = os.fspath(directory), worker, workers
        self._timeout, self._on_stall, self._clock = timeout, on_stall, clock
        self._last = clock()
        self._last_step: tuple[int, int] | None = None
        self._durable_step: tuple[int, int] | None = None
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stall: WorkerStalled | None = None
        self._file: OverwrittenFile | None = None
        self._is_unwritable = False
        self._host = socket.gethostname()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error_type is not None and self.workers > 1:
            # The error of a collective operation does not name the worker that stopped, but the
            # last steps show it.
            _log.critical(
                "Worker %d failed with %s.\n%s", self.worker, error_type.__name__, self.report()
            )

    def start(self) -> None:
        """Start watching."""
        # A file of an earlier start would report its last step as a step of this one.
        storage_for(self.directory).remove(
            _step_file(self.directory, self.worker), below=self.directory
        )
        self._last = self._clock()
        self._stopped.clear()
        self._start_timer()
        try:
            for target in (self._watch, self._write_periodically):
                self._threads.append(start_thread(target, name="featurestore-heartbeat"))
        except ThreadsUnavailable:
            self.stop()
            raise

    def extend(self) -> None:
        """Record that this worker works without finishing a step, for example in an evaluation."""
        self._last = self._clock()

    def beat(self, epoch: int, step: int) -> None:
        """Record that this worker has finished ``step`` steps of ``epoch``.

        This takes about ten microseconds, since a thread syncs the file to disk later.

        Raises:
            WorkerStalled: The worker has stalled, with ``on_stall="report"``.
        """
        self._last, self._last_step = self._clock(), (epoch, step)
        self._overwrite(self._last_step)
        if self._stall is not None:
            stall, self._stall = self._stall, None
            raise stall

    def write(self) -> None:
        """Write the last step to storage if it is new; a thread calls this every second."""
        storage = storage_for(self.directory)
        last_step = self._last_step
        if last_step is None or last_step == self._durable_step:
            return
        self._durable_step = last_step
        try:
            if self._file is not None:
                self._file.sync()
            elif not storage.supports_appending:
                storage.write_atomically(
                    _step_file(self.directory, self.worker), self._encode_step(last_step)
                )
        except StorageError as error:
            # A failed heartbeat must not stop the training.
            _log.warning("The heartbeat cannot be written: %s", error)

    def _overwrite(self, step: tuple[int, int]) -> None:
        """Overwrite the step in this worker's file, creating the file if necessary."""
        if self._is_unwritable or not storage_for(self.directory).supports_appending:
            return
        try:
            if self._file is None:
                path = _step_file(self.directory, self.worker)
                self._file = OverwrittenFile(path, size=_FILE_BYTES)
            self._file.write(self._encode_step(step))
        except StorageError as error:
            # Log the problem once and not at each step.
            self._is_unwritable = True
            _log.warning("The heartbeat cannot be written: %s", error)

    def _encode_step(self, position: tuple[int, int]) -> bytes:
        step = WorkerStep(self.worker, *position, self._last, self._host, os.getpid())
        return json.dumps(vars(step)).encode()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._threads:
            for thread in self._threads:
                thread.join()
            self._threads = []
            if self._on_stall == "exit":
                faulthandler.cancel_dump_traceback_later()
            self.write()
        if self._file is not None:
            self._file.close()
            self._file = None

    def report(self) -> str:
        """Describe the last step of each worker, one worker per line."""
        self.write()
        steps = read_steps(self.directory, workers=self.workers)
        return describe_steps(steps, workers=self.workers, now=self._clock())

    def stalled(self) -> WorkerStalled | None:
        """Return a stall error if the last step is older than the timeout, else None."""
        seconds_without_step = self._clock() - self._last
        if seconds_without_step < self._timeout:
            return None
        reports: list[str] = []
        # A worker that cannot start a thread must end, too.
        with suppress(ThreadsUnavailable):
            reader = start_thread(lambda: reports.append(self.report()), name="report")
            reader.join(min(_REPORT_SECONDS, self._timeout))
        # A storage that does not respond must not delay the end of this worker.
        report = reports[0] if reports else f"The steps in {self.directory} cannot be read."
        return WorkerStalled(
            f"Worker {self.worker} of {self.workers} has not finished a step for "
            f"{seconds_without_step:.0f} s.\n{report}",
            hint="restart all workers; they resume from the last checkpoint",
        )

    def _write_periodically(self) -> None:
        """Write the steps until the heartbeat is stopped."""
        while not self._stopped.wait(min(_WRITE_SECONDS, self._timeout / 4)):
            self.write()

    def _watch(self) -> None:
        """Check for a stall until the heartbeat is stopped."""
        # Frequent checks, so that a stall is reported at most a quarter of the timeout late.
        while not self._stopped.wait(min(_WRITE_SECONDS, self._timeout / 4)):
            self._start_timer()
            stall = self.stalled()
            if stall is None:
                continue
            _log.critical("%s", stall)
            if self._on_stall == "exit":
                # ``os._exit`` flushes nothing. An exception in this thread would not end the main
                # thread, which may wait in a collective operation.
                logging.shutdown()
                sys.stderr.flush()
                os._exit(EXIT_STALLED)
            self._stall = stall
            return

    def _start_timer(self) -> None:
        """Restart the timer that ends this process if no Python thread can run."""
        # ``__stderr__`` has a file descriptor also in a notebook; a service may have none.
        errors = sys.__stderr__
        if self._on_stall != "exit" or errors is None:
            return
        try:
            faulthandler.dump_traceback_later(
                self._timeout + max(self._timeout / 4, 1.0), exit=True, file=errors
            )
        except (OSError, RuntimeError, ValueError):
            _log.debug("The timer of the heartbeat cannot be started.", exc_info=True)


def read_steps(directory: str, *, workers: int) -> dict[int, WorkerStep]:
    """Read the last step of each worker; omit workers whose file is missing or damaged.

    Damaged files are not an error, so that the other workers can still be reported.
    """
    steps = {}
    for worker in range(workers):
        path = _step_file(directory, worker)
        try:
            if storage_for(path).exists(path):
                steps[worker] = WorkerStep.from_json(files.read_json(path))
        except (MalformedJson, StorageError) as error:
            _log.warning("The heartbeat of worker %d cannot be read: %r", worker, error)
    return steps


def describe_steps(steps: dict[int, WorkerStep], *, workers: int, now: float) -> str:
    """Describe each worker's last step on its own line, and mark the slowest workers.

    >>> print(describe_steps({0: WorkerStep(0, 1, 7, 90.0, "a", 1)}, workers=2, now=100.0))
      worker 0: epoch 1, step 7, 10 s ago (a, process 1)
      worker 1: no step yet  <- the others wait for it
    """
    progress, lines = [], []
    for worker in range(workers):
        last_step = steps.get(worker)
        if last_step is None:
            progress.append((-1, -1))
            lines.append(f"  worker {worker}: no step yet")
            continue
        progress.append((last_step.epoch, last_step.step))
        position = (
            f"epoch {last_step.epoch}, step {last_step.step}, {now - last_step.time:.0f} s ago"
        )
        lines.append(f"  worker {worker}: {position} ({last_step.host}, process {last_step.pid})")
    slowest = min(progress)
    if slowest < max(progress):
        for worker in range(workers):
            if progress[worker] == slowest:
                lines[worker] += "  <- the others wait for it"
    return "\n".join(lines)


def _step_file(directory: str, worker: int) -> str:
    return os.path.join(directory, f"worker-{worker:05d}.json")


class _RunningCalls:
    """A counter of running calls that can wait for their end."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._running = 0
        self._changed_at = -math.inf
        self._is_closed = False
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Forget the calls of threads that a forked child does not have."""
        self._running = 0

    def begin(self) -> None:
        with self._lock:
            self._changed_at = time.monotonic()
            if self._is_closed:
                raise RuntimeError("The interpreter is shutting down; reading has stopped.")
            self._running += 1

    def end(self) -> None:
        with self._lock:
            self._changed_at = time.monotonic()
            self._running -= 1

    def finish(self) -> None:
        """Reject new calls and wait for running ones."""
        with self._lock:
            self._is_closed = True
        # A call that never returns must not block the exit forever.
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._is_quiet() and time.monotonic() < deadline:
            time.sleep(_QUIET_SECONDS / 10)

    def _is_quiet(self) -> bool:
        with self._lock:
            return self._running == 0 and time.monotonic() - self._changed_at > _QUIET_SECONDS


_calls = _RunningCalls()

atexit.register(_calls.finish)


def await_at_exit(function: Callable[P, Result]) -> Callable[P, Result]:
    """Wrap a function so that the interpreter waits for its running calls before it exits.

    Calls that start during the exit raise RuntimeError.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        _calls.begin()
        try:
            return function(*args, **kwargs)
        finally:
            _calls.end()

    return call
