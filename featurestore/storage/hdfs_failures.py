"""What the errors of HDFS mean: which pass, and what to say of those that do not.

Namenodes answer with the name of a Java class and a text; of that the class alone goes into an
error, since the text may hold a stack of the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.errors import StorageError
from featurestore.storage.attempts import Answers

# What hdfs-native shows of an error: its kind, then the class that the namenode answered with.
_KIND = re.compile(r'(?P<kind>\w+)(?:\("(?:[\w$]+\.)*(?P<name>[\w$]+)", ")?')
_PASSING_KINDS = (
    "BlocksNotFound",
    "ChecksumError",
    "DataTransferError",
    "InvalidRPCResponse",
    "OperationFailed",
)
_PASSING_CLASSES = (
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


class LostAnswerError(OSError):
    """A file to be renamed is gone: that was done, or its folder was removed meanwhile."""


def errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors that calls of hdfs-native fail with."""
    return (OSError, RuntimeError)


@contextmanager
def nothing_below_files() -> Iterator[None]:
    """Say of a path that leads through a file that there is no such object."""
    try:
        yield
    except RuntimeError as error:
        # Some calls say it as a refused permission.
        name = _names(error)[1]
        refused = name == "AccessControlException" and "is not a directory" in str(error).lower()
        if not refused and name != "ParentNotDirectoryException":
            raise
        raise FileNotFoundError("a part of the path is a file") from None


def passes(error: BaseException) -> bool:
    """Tell whether a call that failed may succeed when it is repeated."""
    if isinstance(error, OSError):
        return not isinstance(error, FileExistsError | IsADirectoryError)
    kind, name = _names(error)
    return kind in _PASSING_KINDS or name in _PASSING_CLASSES


def failure(action: str, place: str, error: BaseException) -> StorageError:
    """Return the error for a call that failed for good."""
    kind, name = _names(error)
    if isinstance(error, FileExistsError | IsADirectoryError):
        reason, hint = "there is a folder of that name", "choose another name"
    elif isinstance(error, LostAnswerError):
        reason, hint = "its folder was removed meanwhile", "try again; nothing is lost"
    elif isinstance(error, OSError):
        reason = "the namenode or a datanode cannot be reached or did not answer"
        hint = "check host, port and the network: featurestore doctor"
    else:
        reason = f"the answer was {name or kind}"
        hint = _HINTS.get(name or kind, "the log of the namenode says more")
    return StorageError(f"Cannot {action} {place!r}: {reason}.", hint=hint)


def _names(error: BaseException) -> tuple[str, str]:
    """Return the kind of an error and the namenode's class, "" where there is none."""
    found = _KIND.match(str(error))
    if isinstance(error, OSError) or found is None:
        return type(error).__name__, ""
    return found["kind"], found["name"] or ""


ANSWERS = Answers(errors, passes, failure)
