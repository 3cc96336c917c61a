"""One list of a folder below a URI that answers what is asked of its files for a while.

An operation on a Delta table looks at many files of the log, one by one. On a disk a look costs
nothing, at a URI each is a request; one list tells of a thousand. What is written after the list is
not in it, so it serves what reads one state, and never decides a race.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from featurestore.storage.connections import object_store_for
from featurestore.storage.interface import StoredObject
from featurestore.storage.location import is_uri


@dataclass(frozen=True)
class Listing:
    """The objects of a folder whose names come after a name, by path."""

    folder: str
    after: str
    found: Mapping[str, StoredObject]

    def covers(self, path: str) -> bool:
        """Tell whether a path that is not found is not there."""
        folder, _, name = path.rpartition("/")
        return folder == self.folder and name > self.after

    def names(self, after: str) -> list[str]:
        """Return the names that come after a name, sorted."""
        start = len(self.folder) + 1
        names = [path[start:] for path in self.found]
        return sorted(name for name in names if name > after and "/" not in name)


_current: ContextVar[Listing | None] = ContextVar("listing", default=None)


@contextmanager
def listed_once(folder: str, *, after: str = "") -> Iterator[None]:
    """List a folder below a URI now, and answer from that in this thread until the block ends.

    Nothing happens for a directory, and inside a block of the same folder that knows as much.
    """
    held = _current.get()
    if not is_uri(folder) or (held and held.folder == folder and held.after <= after):
        yield
        return
    storage, name = object_store_for(folder)
    found = {}
    for each in storage.list(name, after=f"{name}/{after}" if after else ""):
        found[f"{storage.root}/{each.name}"] = each
    token = _current.set(Listing(folder, after, found))
    try:
        yield
    finally:
        _current.reset(token)


def listing_of(path: str) -> Listing | None:
    """Return the list that knows whether there is a path; None where there is none."""
    held = _current.get()
    return held if held is not None and held.covers(path) else None


def names_in(folder: str, *, after: str) -> list[str] | None:
    """Return the names in a folder after a name; None where no list knows them."""
    held = _current.get()
    if held is None or held.folder != folder or held.after > after:
        return None
    return held.names(after)
