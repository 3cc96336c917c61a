"""Connections of this process to object stores and HDFS: one for each bucket, opened on first use.

The scheme of a URI selects the class of the connection. The classes are imported lazily, since
their libraries are optional.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from featurestore.storage import settings
from featurestore.storage.location import HDFS, Location, root_of, scheme_of, with_owner

if TYPE_CHECKING:
    from featurestore.storage.interface import ObjectStore

# Module and class by scheme; each takes the URI of a bucket and the options for it.
_CLASSES = {
    "s3": ("featurestore.storage.objects", "ObjectStorage"),
    "gs": ("featurestore.storage.objects", "ObjectStorage"),
    "az": ("featurestore.storage.objects", "ObjectStorage"),
    HDFS: ("featurestore.storage.hdfs", "HdfsStorage"),
}
# Options and connections by scheme and host. Options may hold credentials: they stay in memory and
# are never written to a file.
_options: dict[str, dict[str, str]] = {}
_connections: dict[str, ObjectStore] = {}


def use_options(location: str, options: Mapping[str, str] | None) -> None:
    """Connect to the bucket of a location with these options from now on, in this process.

    With None the options of an earlier call stay. Settings that are in none come from the
    environment.
    """
    root = root_of(location)
    if options is not None and dict(options) != _options.get(root, {}):
        _options[root] = dict(options)
        _connections.pop(root, None)


def use_options_for_owner(location: str, owner: str, options: Mapping[str, str]) -> str:
    """Return a location whose bucket is connected for one owner, with the owner's options.

    The connection that others have to the bucket is not changed.
    """
    owned = with_owner(location, owner)
    use_options(owned, options)
    return owned


def has_connections() -> bool:
    """Return True if this process has connected to a bucket."""
    return bool(_connections)


def connected_roots() -> list[str]:
    """Return the URIs of the buckets that this process has connected to."""
    return sorted(_connections)


def options_of(path: str) -> Mapping[str, str]:
    """Return the options for the bucket of a URI; they may hold credentials."""
    return _options.get(root_of(path), {})


def object_store_for(path: str) -> tuple[ObjectStore, str]:
    """Return the connection to the bucket of a URI, and the object name of the URI in it.

    The name of the bucket itself is "".
    """
    root = root_of(path)
    connection = _connections.get(root)
    if connection is None:
        module, name = _CLASSES[scheme_of(root)]
        connection = getattr(import_module(module), name)(root, _options.get(root, {}))
        _connections[root] = connection
    return connection, path[len(root) + 1 :]


def delta_options(path: str) -> dict[str, str] | None:
    """Return the settings of a URI for delta-rs; None for a local path."""
    scheme = scheme_of(path)
    if scheme == "file":
        return None
    if scheme != "s3":
        return dict(options_of(path))
    return settings.delta_options(settings.s3_settings(options_of(path)))


def s3a_options(path: str) -> dict[str, str]:
    """Return the settings of an ``s3://`` URI for Hadoop's S3A client; credentials included."""
    s3_settings = settings.s3_settings(options_of(path))
    return settings.s3a_options(s3_settings, Location.parse(path).bucket)


def options_of_connections() -> dict[str, dict[str, str]]:
    """Return the options of each bucket in use, for a process on another machine.

    They include credentials from this machine's environment and files.
    """
    options_by_root = {}
    for root in connected_roots():
        options = dict(options_of(root))
        if scheme_of(root) == "s3":
            s3_settings = settings.s3_settings(options)
            options = {**s3_settings.store, **s3_settings.client}
        options_by_root[root] = options
    return options_by_root


def _forget_parent() -> None:
    """Let a child made by ``fork`` connect anew: threads and sockets stay with the parent."""
    _connections.clear()


os.register_at_fork(after_in_child=_forget_parent)
