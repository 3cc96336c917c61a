"""Progress display: the last log line of each worker or trial of a running run or study."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from featurestore.model.printable import printable_line
from featurestore.storage.appending import last_lines

Lines = Callable[[], None]
Listener = Callable[[list[str]], None]
# Returns the paths of the logs to show, by label.
Logs = Callable[[], Mapping[str, str]]
_WIDTH = 100
_NOTEBOOK_SECONDS = 0.25


@contextmanager
def show_logs(logs: Logs, progress: bool | Listener | None) -> Iterator[Lines]:
    """Yield a function that shows the last line of each log.

    True shows them in the notebook or terminal, None shows them if there is one, and a function
    receives the lines.
    """
    if callable(progress):
        yield lambda: progress(_progress_lines(logs))
        return
    if not (progress or ((progress is None and sys.stderr.isatty()) or _is_notebook())):
        yield lambda: None
        return
    if _is_notebook():
        yield _in_notebook(logs)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), refresh_per_second=4) as live:
        yield lambda: live.update(Text("\n".join(_progress_lines(logs))))


def _in_notebook(logs: Logs) -> Lines:
    """Return a function that updates the lines below the cell."""
    display = importlib.import_module("IPython.display").display
    displayed, last_refresh = "", 0.0
    handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show() -> None:
        nonlocal displayed, last_refresh
        if time.monotonic() - last_refresh < _NOTEBOOK_SECONDS:
            return
        text = "\n".join(_progress_lines(logs))
        last_refresh = time.monotonic()
        if text != displayed:
            displayed = text
            handle.update({"text/plain": text}, raw=True)

    return show


def _progress_lines(logs: Logs) -> list[str]:
    progress_lines = []
    for name, path in logs().items():
        log_lines = [line for line in last_lines(path, 20) if line.strip()]
        last = printable_line(log_lines[-1].split("\r")[-1]) if log_lines else ""
        progress_lines.append(f"{printable_line(name)}: {last}"[:_WIDTH])
    return progress_lines


def _is_notebook() -> bool:
    """Return True if a notebook kernel runs in this process, not merely imported."""
    if "ipykernel" not in sys.modules:
        return False
    kernel = importlib.import_module("ipykernel.kernelapp").IPKernelApp
    return bool(kernel.initialized())
