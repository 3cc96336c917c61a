"""A process that runs another and ends it, with all that it started, when its own caller is gone.

Run by its path with the standard library alone: ``python -I supervisor.py COMMAND...``. Standard
input brings eight bytes, the length of what COMMAND gets as its standard input, then that, and then
nothing: it stays open as long as the caller lives. Whatever descends from COMMAND belongs to the
supervisor (a subreaper), also what has left its session, and is killed when COMMAND ends or the
caller does. A supervisor that is killed itself takes COMMAND with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SET_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_PROC = Path("/proc")
_KILLED = 128 + signal.SIGKILL
_EMPTY_LISTS = 3
_PAUSE_SECONDS = 0.01


def main(command: list[str]) -> int:
    """Run a command to its end and return its exit status, 128 and more for signals."""
    _control(_SET_SUBREAPER, 1)
    given = _read(int.from_bytes(_read(8), "big"))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, preexec_fn=_die_with_parent, start_new_session=True
    )
    threading.Thread(target=_end_with_caller, args=(process.pid,), daemon=True).start()
    try:
        process.communicate(given)
    except BrokenPipeError:
        process.wait()
    end_descendants(process.pid)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _read(size: int) -> bytes:
    """Return so many bytes of standard input, without a buffer that threads would share."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def end_descendants(group: int) -> None:
    """Kill a process group, and all that descends from this process, until nothing is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    empty = 0
    # A process may change its parent while the list is read: once empty is not enough.
    while empty < _EMPTY_LISTS:
        found = _descendants(os.getpid())
        empty = 0 if found else empty + 1
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_PAUSE_SECONDS)


def _end_with_caller(group: int) -> None:
    os.read(0, 1)
    end_descendants(group)
    os._exit(_KILLED)


def _die_with_parent() -> None:
    _control(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    """Call prctl, where the system has it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _descendants(root: int) -> list[int]:
    """Return the living processes below one, as far as the system tells."""
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in _PROC.glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        pid = int(entry.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        if fields[0] in "ZX":
            ended.add(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return sorted(found - ended)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
