"""Locations: absolute local paths, and URIs of object stores and other storages with their connections.

A URI is not a path: ``normpath`` and ``PurePath`` would change it. Paths below a location are built
with ``os.path.join``, which keeps the URI unchanged.

Each process has one connection per bucket, which it opens on first use. The scheme of a URI selects
the connection class: the built-in one for object stores, or a plugin from the group
``featurestore.storages``. Classes are imported lazily, since their libraries are optional.
``check_location`` checks a location: access, write, read, list, conditional puts, clock and removal.
"""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    StorageError,
    UnsupportedLocation,
    listing,
)
from featurestore.model.paths import is_relative_path
from featurestore.model.runtime import call_after_fork, forked_process_error
from featurestore.plugins import find_plugin, load_plugin, plugin_names
from featurestore.storage import settings

if TYPE_CHECKING:
    from featurestore.storage.interface import ObjectStore

_SEPARATOR = "://"
# No "@" in the host: credentials must not be part of a location, which is stored and shown.
_URI = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[^/?#@]+)(?:/(?P<prefix>[^?#]*))?")
# Hadoop's clients of Azure name the account in the URI.
_AZURE_HADOOP_URI = re.compile(
    r"(abfs|wasb)s?://(?P<container>[a-z0-9-]+)@(?P<account>[a-z0-9]+)"
    r"\.(dfs|blob)\.[a-z.]+(?P<path>(/[^?#]*)?)"
)
# Alternative schemes that other tools use for the same storage.
_SCHEME_ALIASES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
}
OBJECT_STORES = ("s3", "gs", "az")
HDFS = "hdfs"
_EXAMPLES = {HDFS: "hdfs://namenode:port/path"}
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
_connections: dict[str, ObjectStore] = {}


@dataclass(frozen=True)
class Location:
    """The URI of a store; ``text`` has no trailing slash.

    >>> Location.parse("s3://models/features/").text
    's3://models/features'
    """

    text: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse a URI.

        Raises:
            UnsupportedLocation: The text is not a URI, or its scheme is not supported.
        """
        match = _URI.fullmatch(text)
        scheme = match["scheme"] if match is not None else ""
        # One scheme per storage, so that a location has one spelling.
        scheme = _SCHEME_ALIASES.get(scheme, scheme)
        if match is None or not is_supported(scheme):
            # The text may be a URI with a password.
            safe_text = re.sub(r"//[^/]*@", "//***@", text)
            hint = (
                "a local directory, such as the mount point of another file system, "
                "s3://bucket/prefix, gs://bucket/prefix, az://container/path or "
                "hdfs://namenode:port/path; set credentials in the environment or in "
                "storage_options="
            )
            hadoop_uri = _AZURE_HADOOP_URI.fullmatch(text)
            if hadoop_uri is not None:
                safe_text = text
                path = f"az://{hadoop_uri['container']}{hadoop_uri['path']}"
                hint = (
                    f"{path!r} with storage_options={{'account_name': {hadoop_uri['account']!r}}}"
                )
            raise UnsupportedLocation(
                f"location={safe_text!r} is not a supported location.", hint=hint
            )
        if os.sep != "/":  # Windows: the paths of objects are built by ``os.path.join``
            raise UnsupportedLocation(
                f"location={text!r} is not supported on Windows.",
                hint="a local directory, or run Python in WSL: wsl --install",
            )
        prefix = (match["prefix"] or "").strip("/")
        if prefix and not is_relative_path(prefix):
            raise UnsupportedLocation(
                f"location={text!r} has a part that is empty, '.' or '..', or contains a backslash.",
                hint=_EXAMPLES.get(scheme, f"{scheme}://bucket/prefix"),
            )
        return cls(f"{scheme}://{match['host']}/{prefix}".rstrip("/"))

    @property
    def scheme(self) -> str:
        """The kind of storage: "s3", "gs", "az", "hdfs"."""
        return scheme_of(self.text)

    @property
    def bucket(self) -> str:
        """The bucket or container; for HDFS the namenode with its port, or the cluster name."""
        return self.text.partition(_SEPARATOR)[2].partition("/")[0]


def is_supported(scheme: str) -> bool:
    """Return True if a scheme belongs to an object store or an installed storage plugin.

    Storage plugins are entry points in the group ``featurestore.storages``; their name is their
    scheme.

    >>> is_supported("s3"), is_supported("ftp")
    (True, False)
    """
    return scheme in OBJECT_STORES or find_plugin("storages", scheme) is not None


def supported_schemes() -> tuple[str, ...]:
    """Return the schemes of object stores and installed storage plugins."""
    return (*OBJECT_STORES, *plugin_names("storages"))


def is_uri(text: str) -> bool:
    """Return True if a path is a URI instead of a local path.

    >>> is_uri("s3://models/features"), is_uri("/data/store")
    (True, False)
    """
    return _SEPARATOR in text


def scheme_of(path: str) -> str:
    """Return the scheme of a URI, "file" for a local path.

    >>> scheme_of("s3://models/features"), scheme_of("/data/store")
    ('s3', 'file')
    """
    scheme, separator, _ = path.partition(_SEPARATOR)
    return scheme if separator else "file"


def root_of(path: str) -> str:
    """Return the URI of the bucket or file system that contains a URI.

    >>> root_of("s3://models/features/x")
    's3://models'
    """
    scheme, _, tail = path.partition(_SEPARATOR)
    return f"{scheme}{_SEPARATOR}{tail.partition('/')[0]}"


def make_absolute(path: str) -> str:
    """Return the absolute form of a local path; return a URI unchanged.

    >>> make_absolute("s3://models/features")
    's3://models/features'
    """
    return path if is_uri(path) else os.path.abspath(path)


def check_name(name: str) -> str:
    """Return the object name if it is valid: relative, without empty parts or dots.

    >>> check_name("featuregroups/weather/v1/_delta_log/00000000000000000000.json")
    'featuregroups/weather/v1/_delta_log/00000000000000000000.json'
    """
    if not is_relative_path(name):
        raise InvalidArgument(
            f"{name!r} is not a valid object name.",
            hint="separate the parts by '/'; a part must not be empty, '.' or '..'",
        )
    return name


def add_owner(location: str, owner: str) -> str:
    """Return a location with an owner before its bucket, replacing a previous owner.

    Each owner has a separate connection to the bucket, with separate options.

    >>> add_owner("s3://models/features", "shop")
    's3://shop@models/features'
    """
    scheme, _, tail = remove_owner(location).partition(_SEPARATOR)
    return f"{scheme}{_SEPARATOR}{owner}@{tail}"


def remove_owner(path: str) -> str:
    """Return a URI without the ``owner@`` prefix of its bucket.

    >>> remove_owner("s3://shop@models/features"), remove_owner("s3://models/a@b")
    ('s3://models/features', 's3://models/a@b')
    """
    scheme, separator, tail = path.partition(_SEPARATOR)
    host, slash, name = tail.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{name}"


def require_local(path: str, action: str, hint: str) -> None:
    """Raise an error if a path is not local, before an operation writes anything.

    Raises:
        UnsupportedLocation: The path is a URI.
    """
    if is_uri(path):
        raise UnsupportedLocation(f"{action} require a local directory, not {path}.", hint=hint)


# -- connections --------------------------------------------------------------------------


def use_options(location: str, options: Mapping[str, str] | None) -> None:
    """Use these options for the bucket of a location from now on, in this process.

    If ``options`` is None, the options of an earlier call remain in effect. Missing settings are
    read from the environment.
    """
    root = root_of(location)
    if options is not None and dict(options) != _options.get(root, {}):
        _options[root] = dict(options)
        # The next access connects again: a connection keeps the options with which it was opened.
        _connections.pop(root, None)


def use_options_for_owner(location: str, owner: str, options: Mapping[str, str]) -> str:
    """Return a location whose bucket is accessed with the options of one owner.

    Connections of other owners to the same bucket are not changed.
    """
    owner_location = add_owner(location, owner)
    use_options(owner_location, options)
    return owner_location


def has_connections() -> bool:
    """Return True if this process has connected to a bucket."""
    return bool(_connections)


def connected_roots() -> list[str]:
    """Return the URIs of the buckets that this process has connected to."""
    return sorted(_connections)


def options_of(path: str) -> Mapping[str, str]:
    """Return the options for the bucket of a URI; they may contain credentials."""
    return _options.get(root_of(path), {})


def object_store_for(path: str) -> tuple[ObjectStore, str]:
    """Return the connection to the bucket of a URI, and the object name within the bucket.

    The object name is "" if the URI is the bucket itself.
    """
    root = root_of(path)
    # Two threads may connect at the same time. Both connections work, and the last one is reused.
    connection = _connections.get(root)
    if connection is None:
        connection = _connections[root] = _connect(root)
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
    _connections.clear()
    _has_runtime_of_parent = "obstore" in sys.modules


# Whether obstore was imported before this process was forked. All its clients share threads, which
# only the parent has, so that each request would wait without end.
_has_runtime_of_parent = False
call_after_fork(_reset_after_fork)
