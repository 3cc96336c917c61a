"""What a place at a URI allows: reach, writing, reading, lists, conditional puts, clock."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from featurestore.errors import FeatureStoreError, StorageError
from featurestore.storage.connections import object_store_for
from featurestore.storage.interface import Storage

# Requests are signed with the time; servers refuse those that are much older or younger.
_MOST_SKEW_SECONDS = 300


@dataclass(frozen=True)
class Finding:
    """One thing that was tried; ``hint`` says what to set where it failed."""

    what: str
    passed: bool
    detail: str
    hint: str | None = None


def inspect(location: str) -> Iterator[Finding]:
    """Try at a URI what a store needs; the probe that is written goes again.

    What needs the probe is left out where it cannot be written.
    """
    try:
        storage, folder = object_store_for(location)
        next(iter(storage.list(folder)), None)
    except FeatureStoreError as error:
        yield Finding("reach", False, error.message, error.hint)
        return
    yield Finding("reach", True, f"{storage.root} answers, and lists")
    probe = f"{folder}/.probe-{uuid.uuid4().hex}".lstrip("/")
    try:
        storage.put_new(probe, b"first")
    except StorageError as error:
        yield Finding("write", False, error.message, error.hint)
        return
    yield Finding("write", True, "objects can be written")
    try:
        yield _conditional(storage, probe)
        yield _clock(storage, probe)
    finally:
        with suppress(StorageError):
            storage.remove(probe)
    yield _removal(storage, probe)


def _conditional(storage: Storage, probe: str) -> Finding:
    try:
        storage.put_new(probe, b"second")
    except FileExistsError:
        return Finding("conditional put", True, "a name is taken once only")
    except StorageError as error:
        return Finding("conditional put", False, error.message, error.hint)
    return Finding(
        "conditional put",
        False,
        "the server overwrites where it was told not to: writers would lose commits",
        "use a server that knows If-None-Match: S3 itself, MinIO, Ceph, versitygw",
    )


def _clock(storage: Storage, probe: str) -> Finding:
    try:
        found = storage.find(probe)
    except StorageError as error:
        return Finding("read", False, error.message, error.hint)
    if found is None:
        return Finding("read", False, "what was written is not there", "try another server")
    skew = time.time() - found.modified.timestamp()
    detail = f"this machine and the server differ by {abs(skew):.0f} s"
    if abs(skew) > _MOST_SKEW_SECONDS:
        return Finding("clock", False, detail, "set this machine's clock (NTP)")
    return Finding("clock", True, detail)


def _removal(storage: Storage, probe: str) -> Finding:
    try:
        gone = storage.find(probe) is None
    except StorageError as error:
        return Finding("delete", False, error.message, error.hint)
    if gone:
        return Finding("delete", True, "objects can be removed")
    hint = "allow s3:DeleteObject on the prefix"
    if storage.root.startswith("hdfs://"):
        hint = "allow this user to write in the folder: hdfs dfs -chmod, -chown"
    return Finding("delete", False, f"{probe} could not be removed", hint)
