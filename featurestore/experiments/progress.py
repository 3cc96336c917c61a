"""One line a worker or a trial, from the ends of their logs, while a run or a study goes on."""

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
# Gives the logs to show now, each by what it is called.
Logs = Callable[[], Mapping[str, str]]
_WIDTH = 100
_NOTEBOOK_SECONDS = 0.25


@contextmanager
def showing_logs(logs: Logs, progress: bool | Listener | None) -> Iterator[Lines]:
    """Give a function that shows the last line of each log.

    True shows them in the notebook or terminal, None does so where there is one, and a function is
    called with the lines.
    """
    if callable(progress):
        yield lambda: progress(_latest(logs))
        return
    if not (progress or (progress is None and _is_watched())):
        yield lambda: None
        return
    if _is_notebook():
        yield _in_notebook(logs)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), refresh_per_second=4) as live:
        yield lambda: live.update(Text("\n".join(_latest(logs))))


def _in_notebook(logs: Logs) -> Lines:
    """Return what shows the lines below the cell, in the place of those before."""
    display = importlib.import_module("IPython.display").display
    shown, looked = "", 0.0
    handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show() -> None:
        nonlocal shown, looked
        if time.monotonic() - looked < _NOTEBOOK_SECONDS:
            return
        text = "\n".join(_latest(logs))
        looked = time.monotonic()
        if text != shown:
            shown = text
            handle.update({"text/plain": text}, raw=True)

    return show


def _latest(logs: Logs) -> list[str]:
    shown = []
    for name, path in logs().items():
        said = [line for line in last_lines(path, 20) if line.strip()]
        last = printable_line(said[-1].split("\r")[-1]) if said else ""
        shown.append(f"{printable_line(name)}: {last}"[:_WIDTH])
    return shown


def _is_watched() -> bool:
    return sys.stderr.isatty() or _is_notebook()


def _is_notebook() -> bool:
    """Tell whether a notebook's kernel runs in this process; others may have imported it, too."""
    if "ipykernel" not in sys.modules:
        return False
    kernel = importlib.import_module("ipykernel.kernelapp").IPKernelApp
    return bool(kernel.initialized())
