"""Imports that signals cannot interrupt, and during which no garbage is collected.

An import interrupted by ``KeyboardInterrupt`` stays incomplete for the lifetime of the process: the
next import of SQLAlchemy finds its submodules and an incomplete package (``module 'sqlalchemy' has
no attribute 'dialects'``), and the next import of DuckDB crashes the interpreter.

Imports create many objects that live as long as the process. The garbage collector would examine
them after each 700 new ones, a tenth of the time of all imports.
"""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def import_uninterrupted(name: str) -> ModuleType:
    """Import a module by its full name; signals and garbage collection wait for the end."""
    with uninterrupted():
        return importlib.import_module(name)


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which imports the module of a name at its first use.

    Args:
        package: The full name of the package.
        modules: The full name of the module that has each name of the package.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_uninterrupted(modules[name]), name)
        # Later uses of the name do not call this function.
        setattr(sys.modules[package], name, value)
        return value

    return load


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer signals that have a Python handler to the end of the block; then handle the first one.

    Python handles signals in the main thread only, so other threads need no protection. Garbage
    collection is paused in the main thread only, since the blocks of several threads would overlap.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []

    def record_signal(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))

    handlers = {}
    for signal_number in _SIGNALS:
        handler = signal.getsignal(signal_number)
        # The default and the ignored action are constants, which the operating system applies.
        if callable(handler):
            handlers[signal_number] = handler
            signal.signal(signal_number, record_signal)
    collects_garbage = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects_garbage:
            gc.enable()
        # The handlers are restored first, since the one called below may raise KeyboardInterrupt.
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)
        if received:
            number, frame = received[0]
            handlers[signal.Signals(number)](number, frame)
