"""The identity of this machine: processes of one machine see each other's locks at once."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname()


def lock_folder(location: str) -> str:
    """Create and return the local folder for lock files of processes that use a URI."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    key = hashlib.sha256(location.encode()).hexdigest()[:32]
    folder = os.path.join(state, "featurestore", "owners", key)
    os.makedirs(folder, exist_ok=True)
    return folder


def machine_id(directory: str) -> str:
    """Return eight hex digits, equal for processes that share a kernel and a directory's file system.

    Containers of one machine that mount the same volume share both, and so does a restarted
    container. After a reboot the digits differ.
    """
    try:
        kernel = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        kernel = host_name()
    device = os.stat(directory).st_dev
    return hashlib.sha256(f"{kernel}/{device}".encode()).hexdigest()[:8]
