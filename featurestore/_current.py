"""The current store, which functions without a store argument use: the last connected one.

This module only holds the connection, and the recorder of reads of the job or run whose code this
thread or process runs. It imports no package, so that every package may import it.
The package ``featurestore`` supplies the function that connects the default store.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featurestore.registry.recorded_reads import ReadRecorder
    from featurestore.store import FeatureStore

store: FeatureStore | None = None
connect_default: Callable[[], FeatureStore] | None = None
recorder: ContextVar[ReadRecorder | None] = ContextVar("featurestore_recorder", default=None)
# The directory of the run that this worker process computes; all of its threads belong to the run.
run_directory: str | None = None
# The recorder of this run, once a session has connected it, and the paths that the run read before.
run_recorder: ReadRecorder | None = None
earlier_paths: set[str] = set()


def current_store() -> FeatureStore:
    """Return the current store; connect the default store at first use."""
    if store is not None:
        return store
    assert connect_default is not None  # importing any module runs featurestore/__init__.py first
    return connect_default()


def begin_run(directory: str) -> None:
    """Record the reads of this process with the run in a directory, from now on."""
    global run_directory, run_recorder
    run_directory, run_recorder = directory, None
    earlier_paths.clear()


def record_path_read(path: str) -> None:
    """Store that the current job or run reads files of the store, before their first row.

    The reads of a run are stored as soon as its process is connected to the store.
    """
    current_recorder = recorder.get() or run_recorder
    if current_recorder is not None:
        current_recorder.record_path(path)
    elif run_directory is not None:
        earlier_paths.add(path)
