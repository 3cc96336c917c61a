"""Jars from Maven Central, downloaded once into a cache outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


class NotFetched(Exception):
    """The reason why the jars are not available."""


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "featurestore-tests"


def fetched(pom: Path, name: str) -> Path:
    """Return the folder of the jars of a pom, downloaded once."""
    folder = cache_folder() / name
    if (folder / "complete").exists():
        return folder
    if shutil.which("mvn") is None:
        raise NotFetched("Maven is not installed, so that its jars cannot be fetched")
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        "mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={folder}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=420, check=False)
    except subprocess.TimeoutExpired:
        raise NotFetched("Maven did not fetch its jars in seven minutes") from None
    if done.returncode:
        raise NotFetched(f"Maven could not fetch its jars: {(done.stdout + done.stderr)[-300:]}")
    (folder / "complete").touch()
    return folder
