"""Symbolic links below the location of a store, which are refused.

Another person who can write to a location could create a link in it, so that a read returns a file
outside of the location, or a write replaces it. The store creates no links. The location may be a link,
since the user names it. Hard links cannot be distinguished from files; the operating system lets
people link only files that they may access.
"""

from __future__ import annotations

import os
import stat

from featurestore.errors import StorageError

# The locations of the stores that this process has opened, as absolute paths.
_locations: set[str] = set()
# A junction is a link between folders on Windows.
_is_junction = getattr(os.path, "isjunction", lambda _path: False)


def protect_location(location: str) -> None:
    """Refuse links below a local location from now on."""
    _locations.add(location)


def check_links(path: str) -> None:
    """Check that no part of a local path below a protected location is a link.

    Other paths, and missing files, are not refused.

    Raises:
        StorageError: A part is a symbolic link, or the path is a pipe, a socket or a device, which
            could block a reader.
    """
    location = _location_of(path)
    if location is None:
        return
    component = location
    for name in path[len(location) + 1 :].split(os.sep):
        component = os.path.join(component, name)
        try:
            mode = os.lstat(component).st_mode
        except OSError:  # the caller reports the error of its own call
            return
        if stat.S_ISLNK(mode) or _is_junction(component):
            raise link_error(component)
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise StorageError(
            f"{path!r} is neither a file nor a directory.", hint="remove it from the store"
        )


def link_error(path: str) -> StorageError:
    """Return the error for a link in a store."""
    return StorageError(
        f"{path!r} is a symbolic link, which a store must not contain.",
        hint="replace the link with a copy of the file",
    )


def _location_of(path: str) -> str | None:
    """Return the innermost protected location above a path, or None."""
    folder = os.path.dirname(path)
    while folder not in _locations:
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder
