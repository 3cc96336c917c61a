"""Grants: files, secrets and commands that a user of this machine allowed a store to use.

A store may come from elsewhere, so code, secrets, servers and commands that it names are used only
if they were registered on this machine. Registration writes a grant into the state directory
(``$XDG_STATE_HOME/featurestore``, or ``~/.local/state/featurestore``); before use the store's
request is compared with it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from featurestore.storage import files


def write_grant(kind: str, location: str, name: str, grant: Mapping[str, Any]) -> None:
    """Record what was registered on this machine under a name for the store at ``location``."""
    files.write_json(_path(kind, location, name), grant)


def find_grant(kind: str, location: str, name: str) -> dict[str, Any] | None:
    """Return what was registered on this machine under a name, None without a grant."""
    path = _path(kind, location, name)
    if not files.exists(path):
        return None
    grant = files.read_json(path)
    return grant if isinstance(grant, dict) else None


def _path(kind: str, location: str, name: str) -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    key = hashlib.sha256(f"{files.resolve(location)}\0{name}".encode()).hexdigest()
    return os.path.join(state, "featurestore", kind, f"{key}.json")
