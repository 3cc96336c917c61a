"""Clients of HDFS: their settings, their errors, and their behavior in forked processes.

A client has threads, which a child made by ``fork`` does not inherit. The child opens its own
client, and must never release the parent's, because that would wait for those threads. So all users
of a file system share one client, which lives until the process ends: a reader that is garbage
collected in the child is never the last reference to it. Connections to datanodes outlive all
clients by three seconds: until they have expired, a child would share them with its parent.

Namenodes respond with the name of a Java class and a text. Only the class goes into an error, since
the text may contain a stack of the server.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from featurestore.errors import ConfigurationError, StorageError, missing_extra
from featurestore.storage.failures import RetryPolicy

_CONNECTIONS_EXPIRE_SECONDS = 3.2
_CONNECT_TIMEOUT = 10
_PREFIXES = ("dfs.", "fs.", "hadoop.")
# The text of an error of hdfs-native: its kind, then the Java class of the namenode's response.
_KIND = re.compile(r'(?P<kind>\w+)(?:\("(?:[\w$]+\.)*(?P<name>[\w$]+)", ")?')
_TRANSIENT_KINDS = (
    "BlocksNotFound",
    "ChecksumError",
    "DataTransferError",
    "InvalidRPCResponse",
    "OperationFailed",
)
_TRANSIENT_CLASSES = (
    "IOException",
    "LeaseExpiredException",
    "NotReplicatedYetException",
    "ObserverRetryOnActiveException",
    "RetriableException",
    "SafeModeException",
    "StandbyException",
)
_PERMISSIONS = (
    "check who you are ($HADOOP_USER_NAME, or kinit) and the permissions of the folder: "
    "hdfs dfs -ls -d"
)
_TICKET = "get a ticket (kinit), and set $HADOOP_CONF_DIR to the settings of the cluster"
_HINTS = {
    "AccessControlException": _PERMISSIONS,
    "AuthorizationException": _PERMISSIONS,
    "SafeModeException": "the namenode is in safe mode: wait, or hdfs dfsadmin -safemode get",
    "NSQuotaExceededException": "the folder's quota of names is used up: hdfs dfs -count -q",
    "DSQuotaExceededException": "the folder's quota of bytes is used up: hdfs dfs -count -q",
    "InvalidPathException": "HDFS allows no ':' in a name",
    "IOException": "are datanodes alive, and have they room: hdfs dfsadmin -report",
    "GSSAPIError": _TICKET,
    "NoSASLMechanism": _TICKET,
    "SASLError": _TICKET,
}

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


class LostResponseError(OSError):
    """The source of a rename does not exist: it was renamed, or its folder was removed."""


def client_errors() -> tuple[type[Exception], ...]:
    """Return the error classes of hdfs-native."""
    return (OSError, RuntimeError)


@contextmanager
def missing_below_files() -> Iterator[None]:
    """Raise FileNotFoundError for a path that leads through a file."""
    try:
        yield
    except RuntimeError as error:
        # Some calls report it as a refused permission.
        name = _kind_and_class(error)[1]
        refused = name == "AccessControlException" and "is not a directory" in str(error).lower()
        if not refused and name != "ParentNotDirectoryException":
            raise
        raise FileNotFoundError("a part of the path is a file") from None


def is_transient(error: BaseException) -> bool:
    """Return True if a failed call may succeed when it is repeated."""
    if isinstance(error, OSError):
        return not isinstance(error, FileExistsError | IsADirectoryError)
    kind, name = _kind_and_class(error)
    return kind in _TRANSIENT_KINDS or name in _TRANSIENT_CLASSES


def failure(action: str, uri: str, error: BaseException) -> StorageError:
    """Return the error for a call that failed permanently."""
    kind, name = _kind_and_class(error)
    if isinstance(error, FileExistsError | IsADirectoryError):
        reason, hint = "there is a folder of that name", "choose another name"
    elif isinstance(error, LostResponseError):
        reason, hint = "its folder was removed meanwhile", "try again; nothing is lost"
    elif isinstance(error, OSError):
        reason = "the namenode or a datanode cannot be reached or did not answer"
        hint = "check host, port and the network: featurestore doctor"
    else:
        reason = f"the answer was {name or kind}"
        hint = _HINTS.get(name or kind, "the log of the namenode has details")
    return StorageError(f"Cannot {action} {uri!r}: {reason}.", hint=hint)


def _kind_and_class(error: BaseException) -> tuple[str, str]:
    """Return the kind of an error and the class of the namenode's response, "" without one."""
    match = _KIND.match(str(error))
    if isinstance(error, OSError) or match is None:
        return type(error).__name__, ""
    return match["kind"], match["name"] or ""


POLICY = RetryPolicy(client_errors, is_transient, failure)
