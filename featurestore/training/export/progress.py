"""Progress of an export: phases, then rows written, seen from the sizes of the files on disk.

The files are watched because on a cluster the rows are written elsewhere; one way serves every
engine.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from featurestore.storage import files
from featurestore.storage.selection import storage_for

Report = Callable[[str, int, int], None]
_INTERVAL = 0.2
_INTERVAL_OF_URIS = 2.0  # each look is a request for every thousand shards


class ExportProgress:
    """Tells a listener ``(phase, rows done, rows in all)``.

    Rows are 0 in phases that cannot be measured.
    """

    def __init__(self, report: Report | None) -> None:
        self._report = report

    def phase(self, name: str) -> None:
        """Begin a phase."""
        if self._report is not None:
            self._report(name, 0, 0)

    @contextmanager
    def writing(self, directory: str, *, rows: int, bytes_per_row: float) -> Iterator[None]:
        """Report rows written while the block runs.

        They are estimated from the bytes below ``directory``.
        """
        if self._report is None:
            yield
            return
        stop = threading.Event()
        watcher = threading.Thread(
            target=self._watch,
            args=(stop, directory, rows, max(bytes_per_row, 1.0)),
            name="export-progress",
            daemon=True,
        )
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
        self._report("write shards", rows, rows)

    def _watch(
        self, stop: threading.Event, directory: str, rows: int, bytes_per_row: float
    ) -> None:
        assert self._report is not None
        interval = _INTERVAL_OF_URIS if storage_for(directory).prefers_listing else _INTERVAL
        while not stop.wait(interval):
            size = sum(status.size for _, status in files.statuses_below(directory))
            self._report("write shards", min(rows, int(size / bytes_per_row)), rows)


@contextmanager
def open_progress(progress: bool | Report | None) -> Iterator[ExportProgress]:
    """Report the progress of an export.

    True draws a bar, None draws one on a terminal, a function is called.
    """
    if callable(progress):
        yield ExportProgress(progress)
    elif progress or (progress is None and sys.stderr.isatty()):
        with _bar() as report:
            yield ExportProgress(report)
    else:
        yield ExportProgress(None)


@contextmanager
def _bar() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("export", total=None, speed="")

        def report(phase: str, done: int, total: int) -> None:
            speed = bar.tasks[task].speed
            text = f"{speed:,.0f} rows/s" if speed else ""
            bar.update(task, description=phase, completed=done, total=total or None, speed=text)

        yield report
