"""Connections to object stores and other storages: one per bucket and process, opened on first use.

The scheme of a URI selects the connection class: the built-in one for object stores, or a plugin
from the group ``featurestore.storages``. Classes are imported lazily, since their libraries are
optional. ``check_location`` checks a location: access, write, read, list, conditional puts, clock and
removal.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurestore.errors import FeatureStoreError, StorageError, UnsupportedLocation, listing
from featurestore.model.runtime import call_after_fork, forked_process_error
from featurestore.plugins import find_plugin, load_plugin
from featurestore.storage import settings
from featurestore.storage.location import (
    OBJECT_STORES,
    add_owner,
    remove_owner,
    root_of,
    scheme_of,
    supported_schemes,
)

if TYPE_CHECKING:
    from featurestore.storage.interface import ObjectStore

# Requests contain the time in their signature; servers reject a larger clock difference.
_MAX_SKEW_SECONDS = 300
_REMOVAL_HINTS = {
    "s3": "allow s3:DeleteObject on the prefix",
    "gs": "allow storage.objects.delete on the bucket",
    "az": "assign the role Storage Blob Data Contributor",
    "hdfs": "allow this user to write in the folder: hdfs dfs -chmod, -chown",
}
# Options and connections by scheme and host. Options may contain credentials, so they stay in
# memory and are never written to a file.
_options: dict[str, dict[str, str]] = {}
open_connections: dict[str, ObjectStore] = {}


def use_options(location: str, options: Mapping[str, str] | None) -> None:
    """Use these options for the bucket of a location from now on, in this process.

    If ``options`` is None, the options of an earlier call remain in effect. Missing settings are
    read from the environment.
    """
    root = root_of(location)
    if options is not None and dict(options) != _options.get(root, {}):
        _options[root] = dict(options)
        # The next access connects again: a connection keeps the options with which it was opened.
        open_connections.pop(root, None)


def use_options_for_owner(location: str, owner: str, options: Mapping[str, str]) -> str:
    """Return a location whose bucket is accessed with the options of one owner.

    Connections of other owners to the same bucket are not changed.
    """
    owner_location = add_owner(location, owner)
    use_options(owner_location, options)
    return owner_location


def connected_roots() -> list[str]:
    """Return the URIs of the buckets that this process has connected to."""
    return sorted(open_connections)


def options_of(path: str) -> Mapping[str, str]:
    """Return the options for the bucket of a URI; they may contain credentials."""
    return _options.get(root_of(path), {})


def object_store_for(path: str) -> tuple[ObjectStore, str]:
    """Return the connection to the bucket of a URI, and the object name within the bucket.

    The object name is "" if the URI is the bucket itself.
    """
    root = root_of(path)
    # Two threads may connect at the same time. Both connections work, and the last one is reused.
    connection = open_connections.get(root)
    if connection is None:
        connection = open_connections[root] = _connect(root)
    return connection, path[len(root) + 1 :]


def _connect(root: str) -> ObjectStore:
    """Connect to a bucket or file system with its options."""
    scheme, options = scheme_of(root), _options.get(root, {})
    if scheme in OBJECT_STORES:
        if _has_runtime_of_parent:
            raise forked_process_error(f"The client of {remove_owner(root)}")
        # Imported here, since obstore is an optional dependency.
        from featurestore.storage.objects import ObjectStorage

        return ObjectStorage(root, options)
    plugin = find_plugin("storages", scheme)
    if plugin is None:
        raise UnsupportedLocation(
            f"No storage for {scheme}:// is installed. Available: {listing(supported_schemes())}.",
            hint="install the package that provides it",
        )
    store: ObjectStore = load_plugin(plugin)(root, options)
    return store


def delta_options(path: str) -> dict[str, str] | None:
    """Return the settings for delta-rs to access a URI; None for a local path."""
    scheme = scheme_of(path)
    if scheme == "file":
        return None
    if scheme not in OBJECT_STORES:
        return dict(options_of(path))
    return settings.delta_options(settings.store_settings(scheme, options_of(path)))


def options_of_connections() -> dict[str, dict[str, str]]:
    """Return the options of each connected bucket, for a process on another machine.

    They include credentials from the environment and the files of this machine.
    """
    options_by_root = {}
    for root in connected_roots():
        options = dict(options_of(root))
        # The other machine may have neither the environment nor the AWS files of this one.
        if scheme_of(root) in OBJECT_STORES:
            store_settings = settings.store_settings(scheme_of(root), options)
            options = {**store_settings.store, **store_settings.client}
        options_by_root[root] = options
    return options_by_root


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; ``hint`` describes how to fix a failure."""

    check: str
    passed: bool
    detail: str
    hint: str | None = None


def check_location(location: str) -> Iterator[CheckResult]:
    """Check that a URI supports all operations that a store needs.

    A probe object is written and removed at the end. If it cannot be written, the checks that need
    it are skipped.
    """
    try:
        store, folder = object_store_for(location)
        # An empty folder is listed without an error, so this checks access and not content.
        next(iter(store.list(folder)), None)
    except FeatureStoreError as error:
        yield CheckResult("reach", False, error.message, error.hint)
        return
    yield CheckResult("reach", True, f"{store.root} is reachable and can be listed")
    probe = f"{folder}/.probe-{uuid.uuid4().hex}".lstrip("/")
    try:
        store.put_new(probe, b"first")
    except StorageError as error:
        yield CheckResult("write", False, error.message, error.hint)
        return
    yield CheckResult("write", True, "objects can be written")
    try:
        yield _check_conditional_put(store, probe)
        yield _check_clock(store, probe)
    finally:
        # A refused removal is reported by the check below.
        with suppress(StorageError):
            store.remove(probe)
    yield _check_removal(store, probe)


def _check_conditional_put(store: ObjectStore, probe: str) -> CheckResult:
    try:
        # Commits rely on this: of two writers that put the same name, exactly one must fail.
        store.put_new(probe, b"second")
    except FileExistsError:
        return CheckResult("conditional put", True, "existing objects are not overwritten")
    except StorageError as error:
        return CheckResult("conditional put", False, error.message, error.hint)
    return CheckResult(
        "conditional put",
        False,
        "the server overwrites objects despite If-None-Match: writers would lose commits",
        "use a server that supports If-None-Match: S3 itself, MinIO, Ceph, versitygw",
    )


def _check_clock(store: ObjectStore, probe: str) -> CheckResult:
    try:
        probe_object = store.find(probe)
    except StorageError as error:
        return CheckResult("read", False, error.message, error.hint)
    if probe_object is None:
        return CheckResult(
            "read", False, "the object just written does not exist", "try another server"
        )
    skew = time.time() - probe_object.modified.timestamp()
    detail = f"the clocks of this machine and the server differ by {abs(skew):.0f} s"
    if abs(skew) > _MAX_SKEW_SECONDS:
        return CheckResult("clock", False, detail, "set this machine's clock (NTP)")
    return CheckResult("clock", True, detail)


def _check_removal(store: ObjectStore, probe: str) -> CheckResult:
    try:
        is_removed = store.find(probe) is None
    except StorageError as error:
        return CheckResult("delete", False, error.message, error.hint)
    if is_removed:
        return CheckResult("delete", True, "objects can be removed")
    hint = _REMOVAL_HINTS.get(scheme_of(store.root), "allow this user to delete files")
    return CheckResult("delete", False, f"{probe} could not be removed", hint)


def _reset_after_fork() -> None:
    """Forget the connections, whose threads and sockets belong to the parent."""
    global _has_runtime_of_parent
    open_connections.clear()
    _has_runtime_of_parent = "obstore" in sys.modules


# Whether obstore was imported before this process was forked. All its clients share threads, which
# only the parent has, so that each request would wait without end.
_has_runtime_of_parent = False
call_after_fork(_reset_after_fork)
