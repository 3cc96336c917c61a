"""Run a command and terminate it, with all its descendants, when the calling process ends.

This module is run by path with only the standard library: ``python -I supervisor.py [--detached]
COMMAND...``. A detached supervisor is a grandchild of the caller.
Standard input starts with eight bytes, the length of COMMAND's standard input, followed by that
input; then it stays open until the caller ends. All descendants of COMMAND belong to the supervisor
(a subreaper), even if they have left its session, and are killed when COMMAND or the caller ends.
If the supervisor is killed, COMMAND is killed with it.
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

DETACHED = "--detached"
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SET_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_PROC = Path("/proc")
_KILLED = 128 + 9  # signal.SIGKILL, which Windows does not have
_EMPTY_LISTS = 3
_PAUSE_SECONDS = 0.01


def main(command: list[str]) -> int:
    """Run a command until it ends and return its exit status, 128 plus the signal if killed."""
    if command[0] == DETACHED:
        child = os.fork()
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return status if status >= 0 else 128 - status
        command = command[1:]
    _call_prctl(_SET_SUBREAPER, 1)
    command_input = _read(int.from_bytes(_read(8), "big"))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, preexec_fn=_request_death_signal, start_new_session=True
    )
    try:
        threading.Thread(target=_kill_after_caller, args=(process.pid,), daemon=True).start()
    except RuntimeError:  # the system refuses to start a thread
        kill_descendants(process.pid)
        raise
    try:
        process.communicate(command_input)
    except BrokenPipeError:
        process.wait()
    # Processes that the command left behind must not outlive it.
    kill_descendants(process.pid)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _read(size: int) -> bytes:
    """Read bytes from standard input without a buffer, which threads would share."""
    chunks = []
    while size:
        chunk = os.read(0, min(size, 1 << 20))
        if not chunk:
            break
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def kill_descendants(group: int) -> None:
    """Kill a process group and all descendants of this process, until none is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    empty_lists = 0
    # A process may get a new parent while the list is read, so one empty list is not enough.
    while empty_lists < _EMPTY_LISTS:
        descendants = _list_descendants(os.getpid())
        empty_lists = 0 if descendants else empty_lists + 1
        for pid in descendants:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_PAUSE_SECONDS)


def _kill_after_caller(group: int) -> None:
    # Returns when the caller closes the pipe or ends; no more input is sent.
    os.read(0, 1)
    kill_descendants(group)
    os._exit(_KILLED)


def _request_death_signal() -> None:
    _call_prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _call_prctl(option: int, value: int) -> None:
    """Call the Linux function prctl."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _list_descendants(root: int) -> list[int]:
    """Return the living descendants of a process that are listed in /proc."""
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in _PROC.glob("[0-9]*/stat"):
        try:
            # The name of a process is in parentheses and may itself contain spaces and parentheses.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended meanwhile
        pid = int(entry.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        if fields[0] in "ZX":
            ended.add(pid)
    descendants: set[int] = set()
    pending = [root]
    while pending:
        direct = children.get(pending.pop(), [])
        descendants.update(direct)
        pending += direct
    return sorted(descendants - ended)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
