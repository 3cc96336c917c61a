"""Clients of HDFS: hdfs-native with the settings of Hadoop, and their behavior in forked processes.

A client has threads, which a child made by ``fork`` does not inherit. The child opens its own
client, and must never release the parent's, because that would wait for those threads. So all users
of a file system share one client, which lives until the process ends: a reader that is garbage
collected in the child is never the last reference to it. Connections to datanodes outlive all
clients by three seconds: until they have expired, a child would share them with its parent.
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
_CONNECT_TIMEOUT = 10
_PREFIXES = ("dfs.", "fs.", "hadoop.")

_clients: dict[tuple[object, ...], Any] = {}
_parents_clients: list[Any] = []
_last_used = 0.0
_connections_expired_at = 0.0


def open_client(root: str, options: Mapping[str, str]) -> Any:
    """Return the client of a file system.

    Raises:
        ConfigurationError: An option is not a setting of Hadoop; its value is not shown.
        StorageError: The settings contain no namenode.
    """
    try:
        from hdfs_native import Client
    except ModuleNotFoundError as error:
        raise missing_extra("hdfs_native", "hdfs") from error
    for key in options:
        if not str(key).startswith(_PREFIXES):
            raise ConfigurationError(
                f"storage_options= has {key!r}, which is not a setting of Hadoop.",
                hint="names of core-site.xml and hdfs-site.xml, such as dfs.ha.namenodes.<cluster>",
            )
    settings = {str(key): str(value) for key, value in options.items()}
    key_of_client = (root, os.environ.get("HADOOP_CONF_DIR"), *sorted(settings.items()))
    if key_of_client in _clients:
        return _clients[key_of_client]
    time.sleep(max(0.0, _connections_expired_at - time.monotonic()))
    try:
        client = Client(root, settings)
    except (RuntimeError, ValueError, OSError) as error:
        # Not chained: its text may contain a setting.
        raise StorageError(
            f"Cannot open {root!r}: {type(error).__name__}.",
            hint="hdfs://host:port/path, or hdfs://<cluster>/path with $HADOOP_CONF_DIR, where "
            "core-site.xml and hdfs-site.xml name the namenodes of the cluster",
        ) from None
    return _clients.setdefault(key_of_client, client)


def check_namenode(root: str) -> None:
    """Connect once to the namenode in a root; nothing happens for a cluster.

    hdfs-native waits long for an unreachable namenode and has no timeout.

    Raises:
        OSError: It cannot be reached.
    """
    address = urlsplit(root)
    if address.hostname is not None and address.port is not None:
        endpoint = (address.hostname, address.port)
        socket.create_connection(endpoint, timeout=_CONNECT_TIMEOUT).close()


@contextmanager
def recorded_use() -> Iterator[None]:
    """Record at the end of the block that a client was used just now."""
    global _last_used
    try:
        yield
    finally:
        _last_used = time.monotonic()


def _forget_parent() -> None:
    global _connections_expired_at
    _connections_expired_at = _last_used + _CONNECTIONS_EXPIRE_SECONDS
    _parents_clients.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_forget_parent)
