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


def current_store() -> FeatureStore:
    """Return the current store; connect the default store at first use."""
    if store is not None:
        return store
    assert connect_default is not None  # importing any module runs featurestore/__init__.py first
    return connect_default()


def record_path_read(path: str) -> None:
    """Store that the current job reads files of the store, before their first row is delivered."""
    current_recorder = recorder.get()
    if current_recorder is not None:
        current_recorder.record_path(path)
