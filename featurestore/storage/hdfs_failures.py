"""Errors of HDFS: which are transient, and the errors of the library for the others.

Namenodes respond with the name of a Java class and a text. Only the class goes into an error, since
the text may contain a stack of the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.errors import StorageError
from featurestore.storage.retry import RetryPolicy

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


class LostResponseError(OSError):
    """The source of a rename does not exist: it was renamed, or its folder was removed."""


def errors() -> tuple[type[Exception], ...]:
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


POLICY = RetryPolicy(errors, is_transient, failure)
