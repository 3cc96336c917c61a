"""The log file of a run: records of the library and the job's code in the thread of the run."""

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
    """Write this thread's log records into a file; a remote file is uploaded at the end.

    ``without_names`` removes lists of names from warnings, errors and tracebacks.
    """
    with files.growing_file(path) as local_path, _records_into(local_path, without_names):
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
    library_logger = logging.getLogger(LOGGER)
    if library_logger.level == logging.NOTSET:
        library_logger.setLevel(logging.INFO)
    root_logger = logging.getLogger()
    root_logger.addHandler(handler)
    try:
        yield
    finally:
        root_logger.removeHandler(handler)
        handler.close()
