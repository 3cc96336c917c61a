"""Which machine this is: processes of one machine see one another's locks at once."""

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
    """Return the folder of this machine for lock files of the processes that use a URI; made."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    key = hashlib.sha256(location.encode()).hexdigest()[:32]
    folder = os.path.join(state, "featurestore", "owners", key)
    os.makedirs(folder, exist_ok=True)
    return folder


def machine_id(directory: str) -> str:
    """Return eight digits, equal where processes share a kernel and a directory's file system.

    Containers of one machine that mount one volume share both, and so does a container that was
    started again. After a reboot the digits are others.
    """
    try:
        kernel = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        kernel = host_name()
    device = os.stat(directory).st_dev
    return hashlib.sha256(f"{kernel}/{device}".encode()).hexdigest()[:8]
