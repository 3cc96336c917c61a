"""Files of this machine that a source names, and what tells their state from any other."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from featurestore.errors import InvalidArgument, SourceUnavailable
from featurestore.plugins.source import SourceConfig
from featurestore.storage import files


def local_path(config: SourceConfig, *, prefix: str) -> str:
    """Return the path in a URI: ``<prefix>:///path``, ``<prefix>+/path``, ``file:///path`` or a path.

    Raises:
        InvalidArgument: The URI names another machine.
    """
    rest = config.uri.removeprefix(f"{prefix}+").removeprefix(f"{prefix}:").removeprefix("file:")
    if rest.startswith("//"):
        rest = rest[2:].replace("//", "/", 1)
        if not rest.startswith("/"):
            raise InvalidArgument(
                f"{config.uri!r} names no path of this machine.",
                hint=f"{prefix}:///absolute/path has three slashes",
            )
    if "://" in rest:
        raise InvalidArgument(
            f"{config.uri!r} is no path of this machine.", hint="local and mounted paths are read"
        )
    path = os.path.expanduser(rest)
    if not path.startswith("/"):
        raise InvalidArgument(
            f"{config.uri!r} is relative to nothing.", hint="give an absolute path"
        )
    return path


def existing(config: SourceConfig, path: str) -> str:
    """Return a path that is there; SourceUnavailable where it is not."""
    if not files.exists(path):
        raise SourceUnavailable(
            f"Source {config.name!r} cannot be reached: {path} does not exist.",
            hint="is it mounted here, and spelled so?",
        )
    return path


def fingerprint(paths: Iterable[str]) -> str:
    """Return a hash of names, sizes and times of files; those that are not there count as absent."""
    digest = hashlib.sha256()
    for path in paths:
        if files.exists(path):
            status = files.status(path)
            digest.update(f"{path} {status.size} {status.modified_ns}\n".encode())
    return digest.hexdigest()[:32]
