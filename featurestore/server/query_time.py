"""Time limit of the queries of a page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.errors import QueryEnded
from featurestore.model.time_limits import time_limit
from featurestore.plugins.engine import Engine

_INTERRUPT_SECONDS = 0.1
TIME_LIMIT_HINT = "ask for less, or let the server wait longer: featurestore serve --query-seconds"


@contextmanager
def limit_query_time(seconds: float, engine: Engine) -> Iterator[None]:
    """Interrupt the queries of the block after some seconds.

    Raises:
        QueryEnded: The time limit was exceeded.
    """
    thread = threading.get_ident()
    finished = threading.Event()
    # Guarantees that no later query of this thread is interrupted.
    lock = threading.Lock()

    def watch() -> None:
        is_finished = finished.wait(seconds)
        while not is_finished:
            with lock:
                if not finished.is_set():
                    engine.interrupt(thread)
            is_finished = finished.wait(_INTERRUPT_SECONDS)

    threading.Thread(target=watch, name="featurestore-query-time", daemon=True).start()
    try:
        with time_limit(seconds, hint=TIME_LIMIT_HINT):
            yield
    except KeyboardInterrupt:  # engines raise it for an interrupted query
        raise QueryEnded(
            f"The query was ended: it took more than {seconds:g} seconds.",
            hint=TIME_LIMIT_HINT,
        ) from None
    finally:
        with lock:
            finished.set()
