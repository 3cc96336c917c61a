"""Groups of threads that start together or not at all, and pools that work with fewer threads.

``ThreadPoolExecutor`` starts its threads while tasks are submitted. If one cannot start, tasks that
wait for each other wait without end, and a task without a thread never completes. The pools of this
module start their threads before the first task.

DuckDB reads Arrow streams and files of object stores through Python code, in threads of its own, and
reports the exceptions of this code only by their messages. ``capture_errors`` stores such an exception
under a number, with which the message begins.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from featurestore.errors import ThreadsUnavailable

# CPython has no error class for it.
_ERROR = "can't start new thread"
_HINT = (
    "raise the limit of threads: ulimit -u 4096, or docker run --pids-limit 4096; "
    "fewer processors need fewer threads: taskset -c 0 featurestore serve"
)
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/pids.max")
# Process-wide, since a query may run in a thread of the library.
_RAISED_ERRORS: dict[int, BaseException] = {}
_NUMBERS = itertools.count(1)
_MARK = re.compile(r"\[raised in Python #(\d+)\]")


@contextmanager
def translate_thread_errors() -> Iterator[None]:
    """Raise ThreadsUnavailable if the system refuses to start a thread in the block.

    >>> with translate_thread_errors():
    ...     raise RuntimeError("can't start new thread")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    featurestore.errors.ThreadsUnavailable: The system refuses to start another thread; ...
    """
    try:
        yield
    except RuntimeError as error:
        if str(error) != _ERROR:
            raise
        raise ThreadsUnavailable(
            f"The system refuses to start another thread; {_describe_limits()}.", hint=_HINT
        ) from error


def start_thread(target: Callable[..., object], *args: Any, name: str) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        ThreadsUnavailable: The system refuses to start the thread.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    with translate_thread_errors():
        thread.start()
    return thread


def cooperating_threads(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads all run, for tasks that wait for each other.

    At most ``threads`` tasks may wait for each other. The pool is a context manager.

    Raises:
        ThreadsUnavailable: The system refuses to start a thread; the others have ended.

    >>> barrier = threading.Barrier(2)
    >>> with cooperating_threads(2, "doctest") as pool:
    ...     sorted(pool.map(lambda _: barrier.wait(), range(2)))
    [0, 1]
    """
    pool, _, error = _start_pool(threads, name)
    if error is not None:
        pool.shutdown()
        raise error
    return pool


def independent_tasks(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool for tasks that do not wait for each other, with ``threads`` threads or fewer.

    The pool is a context manager.

    Raises:
        ThreadsUnavailable: The system refuses to start even one thread.

    >>> with independent_tasks(2, "doctest") as pool:
    ...     list(pool.map(abs, [-1, 2]))
    [1, 2]
    """
    while True:
        pool, started, error = _start_pool(threads, name)
        if error is None:
            return pool
        pool.shutdown()
        if not started:
            raise error
        # A smaller pool, since ``submit`` would try to start a missing thread again.
        threads = started


def _start_pool(
    threads: int, name: str
) -> tuple[ThreadPoolExecutor, int, ThreadsUnavailable | None]:
    """Return a pool, its number of threads, and the error of the first one that did not start."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    have_started = threading.Event()
    started = 0
    try:
        with translate_thread_errors():
            for _ in range(threads):
                # A pool starts a thread for a task if all of its threads are busy.
                pool.submit(have_started.wait)
                started += 1
    except ThreadsUnavailable as error:
        return pool, started, error
    except BaseException:
        pool.shutdown(wait=False)
        raise
    finally:
        have_started.set()
    return pool, started, None


def _describe_limits() -> str:
    """Describe the threads of this process and the limits that apply to it."""
    limits = []
    with suppress(ImportError):  # Windows has no such limits
        import resource

        for limit, text in (
            (resource.RLIMIT_NPROC, "{:,} threads of this user (ulimit -u)"),
            (resource.RLIMIT_AS, "{:,} bytes of address space (ulimit -v)"),
        ):
            value = resource.getrlimit(limit)[0]
            if value != resource.RLIM_INFINITY:
                limits.append(text.format(value))
    with suppress(OSError, ValueError):
        limits.append(f"{int(_CONTAINER_LIMIT.read_text()):,} in the container (pids.max)")
    described = ", ".join(limits) or "none of this process, but the machine may be full"
    return f"this process has {threading.active_count()} Python threads; limits: {described}"


@contextmanager
def capture_errors() -> Iterator[None]:
    """Store an exception of the block for ``recall_error``, and add its number to the message."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        # KeyboardInterrupt is not an Exception, but a library would also reduce it to a message.
        number = next(_NUMBERS)
        _RAISED_ERRORS[number] = error
        # DuckDB truncates a message at a null byte, so the number comes first.
        raise RuntimeError(f"[raised in Python #{number}] {error}") from error


def recall_error(message: str) -> BaseException | None:
    """Return the captured exception that a message of the library refers to, at the first call."""
    mark = _MARK.search(message)
    return None if mark is None else _RAISED_ERRORS.pop(int(mark[1]), None)
