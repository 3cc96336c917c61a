"""Delta log files: names, listings and commit actions.

Logs are untrusted: paths that lead outside of the table are not followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from featurestore.delta import checksums
from featurestore.delta.checksums import Action
from featurestore.errors import StorageError, TableDamaged, refusal_hint
from featurestore.model.runtime import ForkSafeLock
from featurestore.storage import storage_for
from featurestore.storage.location import make_absolute

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LOG_FOLDER = "_delta_log"
Actions = Sequence[Action]
_VERSION_DIGITS = 20
_COMMIT_NAME_LENGTH = _VERSION_DIGITS + len(".json")
_CHECKPOINT_NAME = re.compile(
    r"(?P<version>\d{20})\.checkpoint\."
    r"(?:parquet|(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet|(?P<unique>[\w-]+)\.(?:parquet|json))"
)
# The payloads that this package reads. Other actions are ignored in any form.
_KINDS_OF_OBJECTS = ("add", "remove", "metaData", "protocol", "txn", "commitInfo", "sidecar")
# The last known version of each table in this process. Only the versions after it are checked,
# without listing the log.
_LAST_VERSIONS: dict[str, int] = {}
# The number of commits before the last known version that a listing includes.
_RELISTED_COMMITS = 20


@dataclass(frozen=True, slots=True)
class FileState:
    """The identity of a log file: time, size and inode, which differ if the file is replaced."""

    path: str
    modified: int
    size: int
    number: int | str

    @classmethod
    def from_path(cls, path: str) -> FileState:
        """Read the state of a file.

        Raises:
            OSError: The file does not exist.
        """
        status = storage_for(path).status(path)
        return cls(path, status.modified_ns, status.size, status.inode)

    def is_current(self) -> bool:
        """Return True if the file has not been replaced."""
        try:
            return FileState.from_path(self.path) == self
        except OSError:
            return False


@dataclass(frozen=True)
class LogFiles:
    """The commit versions of a log, ascending, and the files of complete checkpoints by version."""

    commits: tuple[int, ...]
    checkpoints: Mapping[int, tuple[str, ...]]

    @property
    def latest(self) -> int:
        """The last version, or -1 for an empty log."""
        last_checkpoint = max(self.checkpoints, default=-1)
        return max(*self.commits[-1:], last_checkpoint, -1)

    @property
    def earliest(self) -> int:
        """The first version that can be replayed; earlier commits were removed."""
        if self.commits and self.commits[0] == 0:
            return 0
        return min(self.checkpoints, default=self.latest)


@contextmanager
def cached_listing(path: str, *, back: int | None = _RELISTED_COMMITS) -> Iterator[None]:
    """List a log in an object store once, and use this listing during a ``with`` block.

    This is only suitable for reads, since concurrent commits are not visible. If the last version
    of the log is known, only later files and the ``back`` commits before it are listed; None lists
    all.
    """
    last_version = _LAST_VERSIONS.get(path)
    after = ""
    if last_version is not None and back is not None and back < last_version:
        after = f"{last_version - back:0{_VERSION_DIGITS}d}"
    with storage_for(path).cached_listing(os.path.join(path, LOG_FOLDER), after=after):
        yield


def commits_to_list(path: str, version: int, count: int) -> int:
    """Return the ``back`` argument for a listing with ``count`` commits up to a version."""
    return max(_RELISTED_COMMITS, _LAST_VERSIONS.get(path, version) - version + count)


def is_delta_table(path: str) -> bool:
    """Return True if ``path`` is a Delta table."""
    storage = storage_for(path)
    # A known table in an object store needs only one listing of its new commits.
    if storage.prefers_listing and path in _LAST_VERSIONS and latest_version(path) >= 0:
        return True
    if storage.exists(commit_path(path, 0)):
        return True
    names = storage.list_directory(os.path.join(path, LOG_FOLDER))
    # A log whose first commits were removed starts with a checkpoint.
    return any(_commit_version(name) is not None or ".checkpoint." in name for name in names)


def has_commit(path: str, version: int) -> bool:
    """Return True if the log contains the JSON file of a commit."""
    return storage_for(path).exists(commit_path(path, version))


def list_log(path: str) -> LogFiles:
    """List the files of a log.

    Raises:
        TableDamaged: The log is missing.
    """
    storage = storage_for(path)
    folder = os.path.join(path, LOG_FOLDER)
    names = storage.list_directory(folder)
    # An empty log is a table that is being created; a missing log is damage.
    if not names and not storage.is_directory(folder):
        raise damaged_file(folder, "is missing")
    commits = []
    checkpoints: dict[int, tuple[str, ...]] = {}
    multipart_files: dict[tuple[int, str], list[str]] = {}
    for name in names:
        version = _commit_version(name)
        if version is not None:
            commits.append(version)
            continue
        match = _CHECKPOINT_NAME.fullmatch(name)
        if match is None:
            continue
        version, file = int(match["version"]), os.path.join(folder, name)
        if match["part"] is None:
            checkpoints[version] = (file,)
        else:
            multipart_files.setdefault((version, match["parts"]), []).append(file)
    for (version, count), present in multipart_files.items():
        # A killed writer may leave some parts of a checkpoint, which must not be used.
        if len(present) == int(count):
            checkpoints.setdefault(version, tuple(present))
    return LogFiles(tuple(commits), checkpoints)


def find_checkpoint_before(path: str, version: int) -> tuple[int, tuple[str, ...]]:
    """Return the last complete checkpoint up to a version and its files, or (-1, ())."""
    # _last_checkpoint is only a hint (Delta protocol): it may be missing, outdated, or newer than
    # the version. Checkpoints with several parts or unique names are found by the listing.
    last = _read_last_checkpoint(path)
    if 0 <= last <= version:
        file = checkpoint_path(path, last)
        if storage_for(file).exists(file):
            return last, (file,)
    checkpoints = list_log(path).checkpoints
    last_version = max(
        (number for number in checkpoints if number <= version),
        default=-1,
    )
    return last_version, checkpoints.get(last_version, ())


def latest_version(path: str) -> int:
    """Return the last version in the log, or -1 for an empty log.

    If a version of the log is already known, only the versions after it are checked.
    """
    path = make_absolute(path)
    storage = storage_for(path)
    last_version = _LAST_VERSIONS.get(path)
    if storage.prefers_listing:
        return _list_latest_version(path, last_version)
    if last_version is None or not storage.exists(commit_path(path, last_version)):
        log_files = list_log(path)
        last_version = log_files.latest
        # The last version has only a checkpoint. It is not remembered, since the next call would
        # look for its commit file.
        if not log_files.commits or log_files.commits[-1] < last_version:
            return last_version
    # If only one commit is missing, the log is damaged; this is not the end of the log.
    while storage.exists(commit_path(path, last_version + 1)) or storage.exists(
        commit_path(path, last_version + 2)
    ):
        last_version += 1
    _LAST_VERSIONS[path] = last_version
    return last_version


def _list_latest_version(path: str, last_version: int | None) -> int:
    """Return the last version in an object store, by listing the log from the last known version."""
    storage = storage_for(path)
    if last_version is not None:
        # The number without suffix sorts before its commit file, so the listing starts with the
        # last known commit. If that is missing, another table replaced this one.
        before = f"{last_version:0{_VERSION_DIGITS}d}"
        names = storage.list_directory(os.path.join(path, LOG_FOLDER), after=before)
        commits = set(map(_commit_version, names))
        if last_version in commits:
            # If only one commit is missing, the log is damaged; this is not the end of the log.
            while last_version + 1 in commits or last_version + 2 in commits:
                last_version += 1
            _LAST_VERSIONS[path] = last_version
            return last_version
    _LAST_VERSIONS.pop(path, None)
    if not storage.is_directory(os.path.join(path, LOG_FOLDER)):
        return -1
    log_files = list_log(path)
    if log_files.commits and log_files.commits[-1] == log_files.latest:
        _LAST_VERSIONS[path] = log_files.latest
    return log_files.latest


def _read_last_checkpoint(path: str) -> int:
    """Return the version in the file ``_last_checkpoint``, or -1 if it is missing or invalid."""
    try:
        text = storage_for(path).read_text(os.path.join(path, LOG_FOLDER, "_last_checkpoint"))
        content = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return -1
    if not isinstance(content, dict) or not isinstance(content.get("version"), int):
        return -1
    return int(content["version"])


def _commit_version(name: str) -> int | None:
    digits = name[:_VERSION_DIGITS]
    if len(name) != _COMMIT_NAME_LENGTH or name[_VERSION_DIGITS:] != ".json":
        return None
    # isdigit also accepts digits of other scripts.
    return int(digits) if digits.isascii() and digits.isdigit() else None


def commit_path(path: str, version: int) -> str:
    """Return the path of a version's commit file."""
    return os.path.join(path, LOG_FOLDER, f"{version:0{_VERSION_DIGITS}d}.json")


def checkpoint_path(path: str, version: int) -> str:
    """Return the path of a version's checkpoint, if it consists of one file."""
    return os.path.join(path, LOG_FOLDER, f"{version:0{_VERSION_DIGITS}d}.checkpoint.parquet")


def commit_sha256(path: str, version: int) -> str | None:
    """Return the hash of a version's commit file, or None if the log no longer has the file.

    A table that was restored from a backup and written again has other commits at equal versions.
    """
    storage = storage_for(path)
    file = commit_path(path, version)
    return hashlib.sha256(storage.read_bytes(file)).hexdigest() if storage.exists(file) else None


def read_commit(file: str) -> Actions:
    """Read the actions in a commit file.

    Raises:
        TableDamaged: The file is missing or invalid.
    """
    return read_commit_file(file)[1]


def read_commit_file(file: str) -> tuple[FileState, Actions]:
    """Read the identity of a commit file, and its actions.

    Raises the same errors as ``read_commit``.
    """
    try:
        state = FileState.from_path(file)
    except OSError as error:
        raise unreadable_file(file, error) from error
    return state, _parse_commit(state)[1]


def commit_digest(path: str, version: int, state: FileState | None = None) -> str | None:
    """Return the digest of a commit in the chain, or None if the log does not have the commit.

    ``state`` is the state of its file, if it is known.

    Raises:
        TableDamaged: The commit is invalid.
    """
    file = commit_path(path, version)
    try:
        return _parse_commit(state or FileState.from_path(file))[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable_file(file, error) from error


def _parse_commit(state: FileState) -> tuple[str, Actions]:
    """Return the digest and the actions of a commit.

    They are cached, because commits are immutable and histories read them repeatedly.
    """
    return _COMMITS.find(state, lambda: _load_commit(state), size=state.size + _COMMIT_OVERHEAD)


def _load_commit(state: FileState) -> tuple[str, Actions]:
    if state.size == 0:
        raise damaged_file(state.path, "is empty")
    try:
        content = storage_for(state.path).read(state.path)
        digest = checksums.check_commit(content)
        return digest, parse_actions(content.decode())
    except checksums.ChecksumError as error:
        raise damaged_file(state.path, "differs from its checksum") from error
    except OSError as error:
        raise unreadable_file(state.path, error) from error
    except (ValueError, RecursionError) as error:
        raise damaged_file(state.path, "is not a readable commit") from error


class SizedCache(Generic[K, V]):
    """An LRU cache that evicts values when their total size exceeds a limit.

    A limit on the number of values would not limit memory: a commit has between one and many
    thousands of actions. Threads may load the same value concurrently.

    Args:
        limit: The maximum total size, in the unit of the sizes that ``find`` gets.

    >>> squares = SizedCache[int, int](limit=2)
    >>> [squares.find(number, lambda: number**2, size=1) for number in (1, 2, 3)]
    [1, 4, 9]
    >>> len(squares)
    2
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = ForkSafeLock()

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: K, load: Callable[[], V], *, size: int) -> V:
        """Return the cached value of a key, or load and cache it.

        A value whose size exceeds the limit is returned and not cached.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = load()  # not under the lock, since it reads a file
        with self._lock:
            # Another thread may have loaded it.
            if size <= self._limit and key not in self._values:
                self._values[key] = (value, size)
                self._size += size
                while self._size > self._limit:
                    _, (_, evicted_size) = self._values.popitem(last=False)
                    self._size -= evicted_size
        return value


# Parsed commits take 3.5 times the memory of their files.
_CACHED_BYTES = 16 << 20
_COMMIT_OVERHEAD = 1 << 10
_COMMITS = SizedCache[FileState, tuple[str, Actions]](_CACHED_BYTES)


def parse_actions(text: str) -> Actions:
    r"""Parse the actions in a commit: one JSON object per line, separated by \n.

    >>> parse_actions('{"txn": {"appId": "a", "version": 1}}')
    [{'txn': {'appId': 'a', 'version': 1}}]

    Raises:
        ValueError: The text is invalid or empty.
    """
    # str.splitlines would also split at U+2028, U+2029 and U+0085, which may occur in JSON strings.
    lines = [line for line in text.split("\n") if line.strip()]
    actions = [json.loads(line) for line in lines]
    for action in actions:
        if not isinstance(action, dict):
            raise ValueError(f"an action must be an object, not {action!r:.80}")
        for action_type in _KINDS_OF_OBJECTS:
            if not isinstance(action.get(action_type, None), dict | None):
                raise ValueError(
                    f"{action_type!r} must be an object, not {action[action_type]!r:.80}"
                )
        for action_type in ("add", "remove"):
            if action.get(action_type) is not None and not isinstance(
                action[action_type].get("path"), str
            ):
                raise ValueError(f"{action_type!r} has no path")
    if not actions:
        raise ValueError("the commit has no actions")
    return actions


def actions_of_kind(actions: Actions, action_type: str) -> Iterator[dict[str, Any]]:
    """Yield the actions of a kind."""
    for action in actions:
        payload = action.get(action_type)
        if payload is not None:
            yield payload


def commit_info(actions: Actions) -> Action:
    """Return the ``commitInfo`` action of a commit, or an empty mapping if it is missing."""
    return next(actions_of_kind(actions, "commitInfo"), {})


def parse_user_metadata(actions: Actions) -> Action:
    """Return the user metadata of a commit, or an empty mapping if it is not a JSON object."""
    text = commit_info(actions).get("userMetadata")
    if not isinstance(text, str):
        return {}
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(note, dict):
        return {}
    return note


def changes_data(actions: Actions) -> bool:
    """Return True if a commit changes rows; compactions and property changes do not."""
    for action_type in ("add", "remove"):
        for action in actions_of_kind(actions, action_type):
            # The field is required; without it, a change is the safe assumption.
            if action.get("dataChange", True):
                return True
    return False


def damaged_file(file: str, damage: str) -> TableDamaged:
    """Return the error for a damaged table file."""
    return TableDamaged(
        f"The file {file} {damage}.",
        hint="restore it from a copy, or read an older Delta version with as_of=",
    )


def unreadable_file(file: str, error: OSError) -> StorageError:
    """Return the error for an unreadable table file; a missing or invalid file is damage."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return damaged_file(file, "is missing")
    if isinstance(error, StorageError):  # which is an OSError
        return error
    # pyarrow raises OSError without an error number for content that it cannot decode.
    if error.errno is None:
        return damaged_file(file, "cannot be read: its format is not supported")
    return StorageError(f"{file} could not be read: {error}.", hint=refusal_hint(error))
