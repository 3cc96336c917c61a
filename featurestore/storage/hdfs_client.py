"""The client of HDFS: hdfs-native, opened with the settings of Hadoop, and what a fork does to it.

A client has threads of its own, which a child made by ``fork`` has not. The child opens its own
client; its copy of the parent's must never be cleaned up, since that would wait for those threads.
So there is one client for all users of a file system, and it stays until the process ends: readers
that a child drops, in its garbage or with the threads that it lost, are never the last to hold it.
Connections to datanodes are kept for three seconds beyond all clients: until they have expired, a
child would share them with its parent.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from featurestore.errors import ConfigurationError, StorageError, missing_extra

_CONNECTIONS_EXPIRE_SECONDS = 3.2
_KNOCK_SECONDS = 10
_PREFIXES = ("dfs.", "fs.", "hadoop.")

_clients: dict[tuple[object, ...], Any] = {}
_of_parents: list[Any] = []
_last_used = 0.0
_free_from = 0.0


def opened(root: str, options: Mapping[str, str]) -> Any:
    """Return a client of a file system.

    Raises:
        ConfigurationError: An option is none of Hadoop's; its value is not shown.
        StorageError: The settings name no namenode.
    """
    try:
        from hdfs_native import Client
    except ModuleNotFoundError as error:
        raise missing_extra("hdfs_native", "hdfs") from error
    for key in options:
        if not str(key).startswith(_PREFIXES):
            raise ConfigurationError(
                f"storage_options= has {key!r}, which is no setting of Hadoop.",
                hint="names of core-site.xml and hdfs-site.xml, such as dfs.ha.namenodes.<cluster>",
            )
    settings = {str(key): str(value) for key, value in options.items()}
    asked = (root, os.environ.get("HADOOP_CONF_DIR"), *sorted(settings.items()))
    if asked in _clients:
        return _clients[asked]
    time.sleep(max(0.0, _free_from - time.monotonic()))
    try:
        client = Client(root, settings)
    except (RuntimeError, ValueError, OSError) as error:
        # Not chained: its text may show a setting.
        raise StorageError(
            f"Cannot open {root!r}: {type(error).__name__}.",
            hint="hdfs://host:port/path, or hdfs://<cluster>/path with $HADOOP_CONF_DIR, where "
            "core-site.xml and hdfs-site.xml name the namenodes of the cluster",
        ) from None
    return _clients.setdefault(asked, client)


def knock(root: str) -> None:
    """Connect once to the namenode that a root names; nothing happens for a cluster.

    The library waits long for a namenode that is not there, and cannot be told to give up.

    Raises:
        OSError: It cannot be reached.
    """
    address = urlsplit(root)
    if address.hostname is not None and address.port is not None:
        place = (address.hostname, address.port)
        socket.create_connection(place, timeout=_KNOCK_SECONDS).close()


@contextmanager
def noted() -> Iterator[None]:
    """Note after the block that a client was used just now."""
    global _last_used
    try:
        yield
    finally:
        _last_used = time.monotonic()


def _forget_parent() -> None:
    global _free_from
    _free_from = _last_used + _CONNECTIONS_EXPIRE_SECONDS
    _of_parents.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_forget_parent)
