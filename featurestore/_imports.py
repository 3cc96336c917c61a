"""Imports that no signal interrupts.

An import that a ``KeyboardInterrupt`` leaves half done stays so for the process: the next import of
SQLAlchemy finds its submodules and a package without them (``module 'sqlalchemy' has no attribute
'dialects'``), and one of DuckDB ends the interpreter.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold signals that Python handles until the block ends; then the first one is handled.

    Signals come in the main thread alone, so nothing is done in others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))

    handlers = {}
    for each in _SIGNALS:
        handler = signal.getsignal(each)
        if callable(handler):
            handlers[each] = handler
            signal.signal(each, hold)
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        if received:
            number, frame = received[0]
            handlers[signal.Signals(number)](number, frame)
