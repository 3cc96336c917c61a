"""Progress of long calls, on a terminal or in a notebook.

``show_progress`` wraps the public methods of a class. A call that takes longer than two seconds
then shows its name, its phase, the completed rows, rows per second and the remaining time. Code
below reports with ``begin_phase`` and ``advance``, which do nothing unless such a call is running.

Only the outermost call of the main thread is shown: the calls of servers, schedulers and other
threads are not.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from typing import Any, TextIO, TypeVar

from featurestore.model.threads import start_thread

SETTING = "FEATURESTORE_PROGRESS"
_DELAY_SECONDS = 2.0
_REFRESH_SECONDS = 0.2
_OFF = ("0", "off", "false", "no")
_ON = ("1", "on", "true", "yes")
# These return at once, or show their own output.
_UNTRACKED = frozenset({"close", "scheduler"})

T = TypeVar("T", bound=type[Any])
Item = TypeVar("Item")
Show = Callable[["Tracker"], None]


@dataclass
class Tracker:
    """The progress of one call; ``total`` is 0 while it is unknown."""

    title: str
    phase: str = ""
    completed: int = 0
    total: int = 0
    unit: str = "rows"
    hidden: bool = False
    started: float = field(default_factory=time.monotonic)
    phase_started: float = field(default_factory=time.monotonic)

    def describe(self) -> str:
        """Describe the completed part, the rate and the remaining time.

        >>> Tracker("read", total=10, completed=0, started=0.0).describe().split(",")[0]
        '0 of 10 rows'
        """
        now = time.monotonic()
        rate = self.completed / max(now - self.phase_started, 1e-6)
        words = []
        if self.total:
            words.append(f"{self.completed:,} of {self.total:,} {self.unit}")
        elif self.completed:
            words.append(f"{self.completed:,} {self.unit}")
        if self.completed:
            words.append(f"{rate:,.0f} {self.unit}/s")
        if self.completed and self.total > self.completed:
            # One duration, so that the line fits a terminal of 80 characters.
            words.append(f"{_clock((self.total - self.completed) / rate)} left")
        else:
            words.append(f"{_clock(now - self.started)} elapsed")
        return ", ".join(words)


# The setting of ``connect``, and the call that is shown.
_setting: bool | None = None
_running: Tracker | None = None


def set_progress(setting: bool | None) -> None:
    """Show progress always, never, or (None) on a terminal and in a notebook."""
    global _setting
    _setting = setting


def show_progress(owner: T) -> T:
    """Decorate the public methods of a class, so that long calls show their progress."""
    for name, member in list(vars(owner).items()):
        if name.startswith("_") or name in _UNTRACKED or not inspect.isfunction(member):
            continue
        if not inspect.isgeneratorfunction(inspect.unwrap(member)):
            setattr(owner, name, _tracked(member))
    return owner


def begin_phase(name: str, *, total: int = 0, unit: str = "rows") -> None:
    """Report that the running call begins a phase with ``total`` rows (0: unknown)."""
    tracker = _running
    if tracker is not None:
        tracker.phase, tracker.unit, tracker.total = name, unit, total
        tracker.completed, tracker.phase_started = 0, time.monotonic()


def advance(count: int) -> None:
    """Report that the running call has completed more rows of its phase."""
    tracker = _running
    if tracker is not None:
        tracker.completed += count


def report(phase: str, completed: int, total: int, unit: str = "rows") -> None:
    """Report a phase with its completed and total rows, as the listener of an export receives."""
    tracker = _running
    if tracker is not None:
        if phase != tracker.phase:
            begin_phase(phase, unit=unit)
        tracker.completed, tracker.total = completed, total


def hide() -> None:
    """Do not show the running call, since its caller reports the progress itself or does not want it."""
    if _running is not None:
        _running.hidden = True


def count_items(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[Item]:
    """Yield the batches or chunks of a stream, and report the rows or bytes of each."""
    for item in items:
        yield item
        advance(size(item))


def is_running() -> bool:
    """Return whether the progress of a call is tracked."""
    return _running is not None


@contextmanager
def tracking(title: str, *, delay: float | None = None) -> Iterator[Tracker]:
    """Show the progress of a block after ``delay`` seconds; None: two seconds."""
    global _running
    if _running is not None:
        yield _running
        return
    tracker = _running = Tracker(title)
    ended, drawing = threading.Event(), threading.Lock()
    seconds = _DELAY_SECONDS if delay is None else delay

    def draw_until_ended() -> None:
        ended.wait(seconds)
        with drawing:
            # Without a delay, short calls are drawn, too.
            if not tracker.hidden and not (seconds and ended.is_set()):
                draw_now()

    def draw_now() -> None:
        show = _in_notebook if _is_notebook() else _on_terminal
        # A closed terminal or front end must not make the call fail.
        with suppress(OSError, ValueError), show() as draw:
            draw(tracker)
            while not ended.wait(_REFRESH_SECONDS):
                draw(tracker)
            draw(tracker)

    try:
        drawer = start_thread(draw_until_ended, name="featurestore-progress")
    except BaseException:
        _running = None
        raise
    try:
        yield tracker
    finally:
        _running = None
        ended.set()
        # The caller may print, so a drawn line must be removed before. A short call does not wait
        # for the thread.
        with drawing:
            pass
        if not seconds:
            drawer.join()


def _tracked(function: Callable[..., Any]) -> Callable[..., Any]:
    title = function.__name__.replace("_", " ")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _running is not None or not _is_enabled():
            return function(*args, **kwargs)
        with tracking(title):
            return function(*args, **kwargs)

    return call


def _is_enabled() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    if _setting is not None:
        return _setting
    value = os.environ.get(SETTING, "").lower()
    if value in _OFF:
        return False
    return value in _ON or sys.stderr.isatty() or _is_notebook()


def _is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    # A script in which IPython is imported, but not running, is not a notebook.
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return hasattr(shell, "kernel")


@contextmanager
def _on_terminal() -> Iterator[Show]:
    """Draw a bar on standard error, since a command may print JSON to standard output."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    # The command line escapes control characters in its output, but the bar moves the cursor.
    stream: TextIO = getattr(sys.stderr, "raw", sys.stderr)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[details]}", markup=False),
    )
    console = Console(file=stream)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=None, details="", visible=False)

        def draw(tracker: Tracker) -> None:
            bar.update(
                task,
                description=tracker.phase or tracker.title,
                completed=tracker.completed,
                total=tracker.total or None,
                details=tracker.describe(),
                visible=True,
                refresh=True,
            )

        yield draw


@contextmanager
def _in_notebook() -> Iterator[Show]:
    """Draw a bar below the cell. It needs no widgets, so any front end shows it."""
    display: Any = importlib.import_module("IPython.display")
    output = display.display(display.HTML(""), display_id=True)
    line = ""

    def draw(tracker: Tracker) -> None:
        nonlocal line
        maximum = f' value="{tracker.completed}" max="{tracker.total}"' if tracker.total else ""
        text = ": ".join(filter(None, [tracker.title, tracker.phase]))
        line = escape(f"{text}, {tracker.describe()}")
        output.update(display.HTML(f"<progress{maximum}></progress> {line}"))

    yield draw
    # The line remains as the record of a long call.
    output.update(display.HTML(line))


def _clock(seconds: float) -> str:
    """Format a duration as a clock shows it.

    >>> _clock(75), _clock(7201)
    ('1:15', '2:00:01')
    """
    minutes, rest_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_seconds:02}" if hours else f"{minutes}:{rest_seconds:02}"
