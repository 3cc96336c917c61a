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
from featurestore.store import FeatureStore

# Opens the store at a location.
Connect = Callable[..., FeatureStore]
embedded: Connect = partial(featurestore.connect, engine="duckdb")


@contextmanager
def made_at(location: Path, now: datetime) -> Iterator[FeatureStore]:
    """Open a new store to be filled, with the library's clock stopped."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(times, "clock", lambda: now)
        with featurestore.connect(location, engine="duckdb") as store:
            yield store


def copy_of(template: Path, location: Path, *, connect: Connect = embedded) -> FeatureStore:
    """Open a copy of a store, without the lock file of the process that made it."""
    shutil.copytree(template, location, ignore=shutil.ignore_patterns("_owners"))
    return connect(location)
