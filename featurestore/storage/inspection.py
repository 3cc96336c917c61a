"""Checks of a location at a URI: reach, write, read, list, conditional puts, clock, delete."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from featurestore.errors import FeatureStoreError, StorageError
from featurestore.storage.connections import object_store_for
from featurestore.storage.interface import ObjectStore

# Requests are signed with the time; servers refuse a larger difference.
_MAX_SKEW_SECONDS = 300


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``hint`` says how to repair a failure."""

    check: str
    passed: bool
    detail: str
    hint: str | None = None


def inspect(location: str) -> Iterator[Finding]:
    """Check what a store needs at a URI; the probe object is removed at the end.

    Checks that need the probe are skipped if it cannot be written.
    """
    try:
        store, folder = object_store_for(location)
        next(iter(store.list(folder)), None)
    except FeatureStoreError as error:
        yield Finding("reach", False, error.message, error.hint)
        return
    yield Finding("reach", True, f"{store.root} answers, and lists")
    probe = f"{folder}/.probe-{uuid.uuid4().hex}".lstrip("/")
    try:
        store.put_new(probe, b"first")
    except StorageError as error:
        yield Finding("write", False, error.message, error.hint)
        return
    yield Finding("write", True, "objects can be written")
    try:
        yield _conditional(store, probe)
        yield _clock(store, probe)
    finally:
        with suppress(StorageError):
            store.remove(probe)
    yield _removal(store, probe)


def _conditional(store: ObjectStore, probe: str) -> Finding:
    try:
        store.put_new(probe, b"second")
    except FileExistsError:
        return Finding("conditional put", True, "a name is taken once only")
    except StorageError as error:
        return Finding("conditional put", False, error.message, error.hint)
    return Finding(
        "conditional put",
        False,
        "the server overwrites objects despite If-None-Match: writers would lose commits",
        "use a server that knows If-None-Match: S3 itself, MinIO, Ceph, versitygw",
    )


def _clock(store: ObjectStore, probe: str) -> Finding:
    try:
        stored = store.find(probe)
    except StorageError as error:
        return Finding("read", False, error.message, error.hint)
    if stored is None:
        return Finding(
            "read", False, "the object just written does not exist", "try another server"
        )
    skew = time.time() - stored.modified.timestamp()
    detail = f"this machine and the server differ by {abs(skew):.0f} s"
    if abs(skew) > _MAX_SKEW_SECONDS:
        return Finding("clock", False, detail, "set this machine's clock (NTP)")
    return Finding("clock", True, detail)


def _removal(store: ObjectStore, probe: str) -> Finding:
    try:
        is_removed = store.find(probe) is None
    except StorageError as error:
        return Finding("delete", False, error.message, error.hint)
    if is_removed:
        return Finding("delete", True, "objects can be removed")
    hint = "allow s3:DeleteObject on the prefix"
    if store.root.startswith("hdfs://"):
        hint = "allow this user to write in the folder: hdfs dfs -chmod, -chown"
    return Finding("delete", False, f"{probe} could not be removed", hint)
