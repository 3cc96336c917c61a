"""What a run was made with: the function's source, the commit, packages, who and where."""

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
    """Return where a function comes from, its source, and the git commit of its folder."""
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
    """Return the commit of a folder's checkout and whether files differ from it, None without."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes)}


def _git(folder: str, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


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
    except (KeyError, OSError):  # no name for this number
        return str(os.getuid())


@cache
def _packages() -> dict[str, str]:
    found = {}
    for each in distributions():
        told = each.metadata  # parsed anew each time that it is asked for, also by ``each.version``
        if told["Name"]:
            found[told["Name"]] = told["Version"]
    return dict(sorted(found.items()))
