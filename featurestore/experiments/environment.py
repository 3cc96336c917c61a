"""Provenance of a run: source of the function, commit, packages, user and host."""

from __future__ import annotations

import getpass
import hashlib
import inspect
import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import distributions
from typing import Any

from featurestore.experiments.functions import TrainFunction, reference
from featurestore.storage.machine import host_name

_GIT_SECONDS = 10


def code_of(function: TrainFunction) -> dict[str, Any]:
    """Return the reference and source of a function, and the git commit of its folder."""
    try:
        source = inspect.getsource(function)
        file = inspect.getsourcefile(function)
    except (OSError, TypeError):
        source, file = None, None
    digest = None
    if source is not None:
        digest = hashlib.sha256(source.encode()).hexdigest()
    folder = os.getcwd()
    if file is not None and os.path.isabs(file):
        folder = os.path.dirname(file)
    return {
        "function": reference(function),
        "source": source,
        "sha256": digest,
        "git": git_state(folder),
    }


def git_state(folder: str) -> dict[str, Any] | None:
    """Return the commit of a folder's checkout and whether it has changes, None without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes)}


def _git(folder: str, *words: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", folder, *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def environment() -> dict[str, Any]:
    """Return Python, platform, user, host and the versions of all packages."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "user": _user(),
        "host": host_name(),
        "command": list(sys.argv),
        "packages": dict(_packages()),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name
        return str(os.getuid())


@cache
def _packages() -> dict[str, str]:
    versions = {}
    for each in distributions():
        metadata = each.metadata  # parsed on each access, also by ``each.version``
        if metadata["Name"]:
            versions[metadata["Name"]] = metadata["Version"]
    return dict(sorted(versions.items()))
