"""The log file of a run: what the library and the job's code log in the thread of the run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from featurestore.storage import files

LOGGER = "featurestore.jobs"
_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


@contextmanager
def logging_to(path: str, *, without_names: Callable[[str], str]) -> Iterator[None]:
    """Write this thread's log records into a file; below a URI it is there at the end.

    ``without_names`` takes listings of names out of warnings, errors and tracebacks.
    """
    with files.written_here(path) as here, _records_into(here, without_names):
        yield


class _LogFormatter(logging.Formatter):
    def __init__(self, without_names: Callable[[str], str]) -> None:
        super().__init__(_FORMAT)
        self._without_names = without_names

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        is_error = record.levelno >= logging.WARNING or record.exc_info is not None
        return self._without_names(text) if is_error else text


@contextmanager
def _records_into(path: str, without_names: Callable[[str], str]) -> Iterator[None]:
    thread = threading.get_ident()
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_LogFormatter(without_names))
    handler.addFilter(lambda record: record.thread == thread)
    own = logging.getLogger(LOGGER)
    if own.level == logging.NOTSET:
        own.setLevel(logging.INFO)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
