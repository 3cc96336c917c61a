"""Progress of an export: phases, then written rows, estimated from file sizes.

File sizes are polled because on a cluster other machines write the rows; this works for all
engines.
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
_URI_INTERVAL = 2.0  # each poll makes one request per thousand shards


class ExportProgress:
    """Reports ``(phase, completed rows, total rows)``; both are 0 in phases without row counts."""

    def __init__(self, report: Report | None) -> None:
        self._report = report

    def phase(self, name: str) -> None:
        """Begin a phase."""
        if self._report is not None:
            self._report(name, 0, 0)

    @contextmanager
    def writing(self, directory: str, *, rows: int, bytes_per_row: float) -> Iterator[None]:
        """Report the written rows while the block runs, estimated from the bytes in ``directory``."""
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
        interval = _URI_INTERVAL if storage_for(directory).prefers_listing else _INTERVAL
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

        def report(phase: str, completed: int, total: int) -> None:
            speed = bar.tasks[task].speed
            text = f"{speed:,.0f} rows/s" if speed else ""
            bar.update(
                task, description=phase, completed=completed, total=total or None, speed=text
            )

        yield report
