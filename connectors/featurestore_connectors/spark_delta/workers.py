"""What the Python processes of executors are spared, in which task follows task."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from zipimport import zipimporter

import pyarrow as pa

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class ReusedWorkerTask:
    """A task after which others begin at once in the same process.

    After each task Spark collects garbage: what was there before the first, mostly modules, is not
    looked through again.
    """

    task: Task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return what the task makes of the batches of a partition."""
        clear_archive_importers()
        if not gc.get_freeze_count():
            gc.freeze()
        return self.task(batches)


def clear_archive_importers() -> None:
    """Forget what Python remembers of each package in the archives that Spark begins it with.

    Before each task Spark tells Python to look again at all places of imports, and up to Python
    3.11 it then reads the names in a whole archive once for each of its packages: a seventh of a
    second of the processor. These archives do not change, and imports make anew what they need.
    """
    archives = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive in archives:
            del sys.path_importer_cache[path]
