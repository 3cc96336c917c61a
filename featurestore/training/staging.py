"""Places for the rows of one export; what dead processes left in theirs is removed by whoever comes next.

A place is a directory ``_staging/td-<id>`` with a lock on a file in it, held as long as its process lives.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.session import STAGING, Session
from featurestore.storage import files, locks

_PREFIX = "td-"


@contextmanager
def staging(session: Session) -> Iterator[str]:
    """Give a new directory for staged rows, removed in the end; its name is the run's identifier."""
    root = os.path.join(session.location, STAGING)
    files.make_directory(root)
    place = session.staging_path(f"{_PREFIX}{uuid.uuid4().hex}")
    # Under the lock nobody takes a directory for a dead one between its making and its locking.
    with locks.locked(_root_lock(session)):
        _remove_dead(root)
        handle = locks.make_held(place)
    try:
        yield place
    finally:
        files.remove(place, below=session.location)
        os.close(handle)


def remove_dead(session: Session) -> list[str]:
    """Remove the places of dead exports; return the directories."""
    root = os.path.join(session.location, STAGING)
    if not files.exists(root):
        return []
    with locks.locked(_root_lock(session)):
        return _remove_dead(root)


def _root_lock(session: Session) -> str:
    return os.path.join(session.location, ".exports.lock")


def _remove_dead(root: str) -> list[str]:
    places = [
        os.path.join(root, name) for name in files.list_directory(root) if name.startswith(_PREFIX)
    ]
    dead = [place for place in places if not locks.is_held(place)]
    for place in dead:
        files.remove(place, below=root)
    return dead
