"""How long a query of a page may take."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.errors import QueryEnded
from featurestore.model.time_limits import time_limit
from featurestore.plugins.engine import Engine

_AGAIN = 0.1
WAIT_LONGER = "ask for less, or let the server wait longer: featurestore serve --query-seconds"


@contextmanager
def at_most(seconds: float, engine: Engine) -> Iterator[None]:
    """End the queries of the block when they take longer.

    Raises:
        QueryEnded: They did.
    """
    thread = threading.get_ident()
    ended = threading.Event()
    # No query is ended that this thread begins after the block.
    lock = threading.Lock()

    def watch() -> None:
        waited = ended.wait(seconds)
        while not waited:
            with lock:
                if not ended.is_set():
                    engine.interrupt(thread)
            waited = ended.wait(_AGAIN)

    threading.Thread(target=watch, name="featurestore-query-time", daemon=True).start()
    try:
        with time_limit(seconds, hint=WAIT_LONGER):
            yield
    except KeyboardInterrupt:  # what an engine makes of the end of a query
        raise QueryEnded(
            f"The query was ended: it took more than {seconds:g} seconds.",
            hint=WAIT_LONGER,
        ) from None
    finally:
        with lock:
            ended.set()
