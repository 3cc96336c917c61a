"""HDFS clients: settings, errors, and behavior in forked processes.

A client has threads, which a child created with ``fork`` does not inherit. The child opens a
separate client and must never release the client of its parent, because that would wait for those
threads. Therefore all users of a file system share one client until the process ends, so that
garbage collection of a reader in the child never releases the last reference. Connections to
datanodes remain open for three seconds after their last use, and until then a child would share
them with its parent.

Namenodes return the name of a Java exception class and a message. Only the class is included in
errors, since the message may contain a server stack trace.
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
from featurestore.model.runtime import call_after_fork
from featurestore.storage.failures import RetryPolicy

# hdfs-native keeps connections to datanodes for three seconds after their last use.
_CONNECTIONS_EXPIRE_SECONDS = 3.2
_CONNECT_TIMEOUT = 10
_PREFIXES = ("dfs.", "fs.", "hadoop.")
# The format of hdfs-native error messages: the kind, then the Java class in the namenode's
# response.
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
    "check the user ($HADOOP_USER_NAME, or kinit) and the permissions of the folder: "
    "hdfs dfs -ls -d"
)
_TICKET = (
    "get a Kerberos ticket (kinit), and set $HADOOP_CONF_DIR to the configuration of the cluster"
)
_HINTS = {
    "AccessControlException": _PERMISSIONS,
    "AuthorizationException": _PERMISSIONS,
    "SafeModeException": "the namenode is in safe mode: wait, or hdfs dfsadmin -safemode get",
    "NSQuotaExceededException": "the name quota of the folder is exceeded: hdfs dfs -count -q",
    "DSQuotaExceededException": "the space quota of the folder is exceeded: hdfs dfs -count -q",
    "InvalidPathException": "HDFS does not allow ':' in a name",
    "IOException": "check that datanodes are alive and have free space: hdfs dfsadmin -report",
    "GSSAPIError": _TICKET,
    "NoSASLMechanism": _TICKET,
    "SASLError": _TICKET,
}

_clients: dict[tuple[object, ...], Any] = {}
# Clients of the parent process. The references ensure that a child never releases them.
_parents_clients: list[Any] = []
_last_used = 0.0
_connections_expired_at = 0.0


def open_client(root: str, options: Mapping[str, str]) -> Any:
    """Open a client for a file system.

    Raises:
        ConfigurationError: An option is not a Hadoop setting; its value is not included.
        StorageError: The settings contain no namenode.
    """
    try:
        from hdfs_native import Client
    except ModuleNotFoundError as error:
        raise missing_extra("hdfs_native", "hdfs") from error
    for key in options:
        if not str(key).startswith(_PREFIXES):
            raise ConfigurationError(
                f"storage_options= has {key!r}, which is not a Hadoop setting.",
                hint="use names of core-site.xml and hdfs-site.xml, such as dfs.ha.namenodes.<cluster>",
            )
    settings = {str(key): str(value) for key, value in options.items()}
    key_of_client = (root, os.environ.get("HADOOP_CONF_DIR"), *sorted(settings.items()))
    if key_of_client in _clients:
        return _clients[key_of_client]
    # A forked child waits until the connections of its parent have expired.
    time.sleep(max(0.0, _connections_expired_at - time.monotonic()))
    try:
        client = Client(root, settings)
    except (RuntimeError, ValueError, OSError) as error:
        # The cause is not chained: its message may contain a setting.
        raise StorageError(
            f"Cannot open {root!r}: {type(error).__name__}.",
            hint="hdfs://host:port/path, or hdfs://<cluster>/path with $HADOOP_CONF_DIR, where "
            "core-site.xml and hdfs-site.xml name the namenodes of the cluster",
        ) from None
    # Another thread may have opened the same client in the meantime.
    return _clients.setdefault(key_of_client, client)


def check_namenode(root: str) -> None:
    """Connect to the namenode in a root URI once; do nothing if the URI contains a cluster name.

    hdfs-native has no timeout and waits a long time for an unreachable namenode.

    Raises:
        OSError: The namenode is unreachable.
    """
    address = urlsplit(root)
    if address.hostname is not None and address.port is not None:
        endpoint = (address.hostname, address.port)
        socket.create_connection(endpoint, timeout=_CONNECT_TIMEOUT).close()


@contextmanager
def record_use() -> Iterator[None]:
    """Record the time at the end of the block as the last use of a client."""
    global _last_used
    try:
        yield
    finally:
        _last_used = time.monotonic()


def _reset_after_fork() -> None:
    global _connections_expired_at
    _connections_expired_at = _last_used + _CONNECTIONS_EXPIRE_SECONDS
    _parents_clients.extend(_clients.values())
    _clients.clear()


call_after_fork(_reset_after_fork)


class LostResponseError(OSError):
    """The source of a rename is missing: it was already renamed, or its folder was removed."""


def client_errors() -> tuple[type[Exception], ...]:
    """Return the error classes that hdfs-native raises."""
    return (OSError, RuntimeError)


@contextmanager
def translate_permission_errors() -> Iterator[None]:
    """Raise FileNotFoundError if a parent directory in a path is a file."""
    try:
        yield
    except RuntimeError as error:
        # Some calls report this as a permission error.
        name = _parse_error(error)[1]
        refused = name == "AccessControlException" and "is not a directory" in str(error).lower()
        if not refused and name != "ParentNotDirectoryException":
            raise
        raise FileNotFoundError("a part of the path is a file") from None


def is_transient(error: BaseException) -> bool:
    """Return True if a retry of the failed call may succeed."""
    if isinstance(error, OSError):
        return not isinstance(error, FileExistsError | IsADirectoryError)
    error_kind, name = _parse_error(error)
    return error_kind in _TRANSIENT_KINDS or name in _TRANSIENT_CLASSES


def to_storage_error(action: str, uri: str, error: BaseException) -> StorageError:
    """Return the error to raise for a call that failed permanently."""
    error_kind, name = _parse_error(error)
    if isinstance(error, FileExistsError | IsADirectoryError):
        reason, hint = "a folder with this name exists", "choose another name"
    elif isinstance(error, LostResponseError):
        reason, hint = "its folder was removed at the same time", "try again; no data was lost"
    elif isinstance(error, OSError):
        reason = "the namenode or a datanode cannot be reached or did not respond"
        hint = "check host, port and the network: featurestore doctor"
    else:
        reason = f"HDFS returned {name or error_kind}"
        hint = _HINTS.get(name or error_kind, "see the log of the namenode")
    return StorageError(f"Cannot {action} {uri!r}: {reason}.", hint=hint)


def _parse_error(error: BaseException) -> tuple[str, str]:
    """Return the error kind, and the Java class in the namenode's response ("" without one)."""
    match = _KIND.match(str(error))
    if isinstance(error, OSError) or match is None:
        return type(error).__name__, ""
    return match["kind"], match["name"] or ""


POLICY = RetryPolicy(client_errors, is_transient, to_storage_error)
