"""The accessibility checker axe-core, from npm, downloaded once into a cache."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.maven import NotFetched, cache_folder

VERSION = "4.14.1"


def axe() -> str:
    """Return the script, downloaded on first use."""
    script = cache_folder() / f"axe-core-{VERSION}" / "package" / "axe.min.js"
    if not script.exists():
        _fetch(script.parent.parent)
    return script.read_text()


def _fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    packed = folder / f"axe-core-{VERSION}.tgz"
    if shutil.which("npm") is None:
        raise NotFetched("npm is not installed")
    _pack_by_npm(folder)
    with tarfile.open(packed) as archive:
        archive.extract("package/axe.min.js", folder, filter="data")


def _pack_by_npm(folder: Path) -> None:
    command = ["npm", "pack", "--silent", f"axe-core@{VERSION}"]
    try:
        process = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotFetched("npm did not fetch axe-core in two minutes") from None
    if process.returncode:
        raise NotFetched(f"npm could not fetch axe-core: {process.stderr[-300:]}")
