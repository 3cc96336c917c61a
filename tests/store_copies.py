"""Stores that many tests start from: created once and copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

import featurestore
from featurestore.model import times
from featurestore.storage.grants import acting_source, grant
from featurestore.store import FeatureStore

# Opens the store at a location.
Connect = Callable[..., FeatureStore]
embedded: Connect = partial(featurestore.connect, engine="duckdb")


@contextmanager
def open_at_time(location: Path, now: datetime) -> Iterator[FeatureStore]:
    """Yield a store at a location, with the library's clock stopped at a time until it is closed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(times, "clock", lambda: now)
        with featurestore.connect(location, engine="duckdb") as store:
            yield store


def copy_of(template: Path, location: Path, *, connect: Connect = embedded) -> FeatureStore:
    """Open a copy of a store, without the lock file of the process that made it."""
    shutil.copytree(template, location, ignore=shutil.ignore_patterns("_owners"))
    return connect(location)


def grant_sources(store: FeatureStore) -> None:
    """Grant the sources of a copied store: the grants of its template are for another location."""
    for source in store.get_sources():
        grant(acting_source(store.location, source))
