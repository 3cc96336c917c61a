"""Receipts: what somebody on this machine allowed a store to make use of.

A store may come from elsewhere, so what it names outside itself (a file of code, a secret and the
server that it is sent to, a command) is used only where somebody registered it. Registering writes
a receipt into this machine's state directory (``$XDG_STATE_HOME/featurestore``, else
``~/.local/state/featurestore``), and what is about to be used is compared with it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from featurestore.storage import files
from featurestore.storage.location import is_uri


def write_receipt(kind: str, location: str, name: str, facts: Mapping[str, Any]) -> None:
    """Write down what was registered on this machine under a name for the store at ``location``."""
    files.write_json(_path(kind, location, name), facts)


def find_receipt(kind: str, location: str, name: str) -> dict[str, Any] | None:
    """Return what was registered on this machine under a name, None where nobody did."""
    path = _path(kind, location, name)
    if not files.exists(path):
        return None
    facts = files.read_json(path)
    return facts if isinstance(facts, dict) else None


def _path(kind: str, location: str, name: str) -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    place = location if is_uri(location) else os.path.realpath(location)
    key = hashlib.sha256(f"{place}\0{name}".encode()).hexdigest()
    return os.path.join(state, "featurestore", kind, f"{key}.json")
