"""Files of a Delta log: their names, which there are, and the actions of one commit.

Nothing here writes. What a log says is data: it is parsed, never followed to a place outside the
table.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from featurestore.errors import StorageError, TableDamaged, refusal_hint
from featurestore.storage import files
from featurestore.storage.listing import listed_once
from featurestore.storage.location import absolute, is_uri

LOG_FOLDER = "_delta_log"
Action = Mapping[str, Any]
Actions = Sequence[Action]

_VERSION_DIGITS = 20
_COMMIT_NAME_LENGTH = _VERSION_DIGITS + len(".json")
_CHECKPOINT_NAME = re.compile(
    r"(?P<version>\d{20})\.checkpoint\."
    r"(?:parquet|(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet|(?P<unique>[\w-]+)\.(?:parquet|json))"
)
_KINDS_OF_OBJECTS = ("add", "remove", "metaData", "protocol", "txn", "commitInfo", "sidecar")
# The last version of each table that this process has seen: its successors are looked for, not
# listed.
_LAST_SEEN: dict[str, int] = {}
# So many commits before the last one seen are asked for again together with those after it.
_ASKED_AGAIN = 20


@dataclass(frozen=True)
class FileState:
    """A file of the log as it was read.

    Another one under its name has another time, size or number.
    """

    path: str
    modified: int
    size: int
    number: int | str

    @classmethod
    def of(cls, path: str) -> FileState:
        """Return the state of a file; OSError when it is not there."""
        status = files.status(path)
        return cls(path, status.modified_ns, status.size, status.inode)

    def is_current(self) -> bool:
        """Tell whether the file is still the one that was read."""
        try:
            return FileState.of(self.path) == self
        except OSError:
            return False


@dataclass(frozen=True)
class LogFiles:
    """The commits of a log, ascending, and the files of its complete checkpoints by version."""

    commits: tuple[int, ...]
    checkpoints: Mapping[int, tuple[str, ...]]

    @property
    def latest(self) -> int:
        """The last version that there is, -1 when there is none."""
        last_checkpoint = max(self.checkpoints, default=-1)
        return max(*self.commits[-1:], last_checkpoint, -1)

    @property
    def earliest(self) -> int:
        """The first version that can be read: older ones were removed with their commits."""
        if self.commits and self.commits[0] == 0:
            return 0
        return min(self.checkpoints, default=self.latest)


@contextmanager
def looked_at_once(path: str, *, back: int | None = _ASKED_AGAIN) -> Iterator[None]:
    """Ask a log below a URI once which files it has, and use the answer until the block ends.

    For what reads: a commit that another writer makes meanwhile is not seen. Where the process has
    seen the log before, only what came later is asked for, and ``back`` commits before it (None:
    all).
    """
    seen = _LAST_SEEN.get(path)
    after = ""
    if seen is not None and back is not None and back < seen:
        after = f"{seen - back:0{_VERSION_DIGITS}d}"
    with listed_once(os.path.join(path, LOG_FOLDER), after=after):
        yield


def reach(path: str, version: int, count: int) -> int:
    """Return how far back ``looked_at_once`` has to ask to know ``count`` commits up to one."""
    return max(_ASKED_AGAIN, _LAST_SEEN.get(path, version) - version + count)


def is_delta_table(path: str) -> bool:
    """Tell whether there is a Delta table at ``path``."""
    if is_uri(path) and path in _LAST_SEEN and latest_version(path) >= 0:
        return True
    if files.exists(commit_path(path, 0)):
        return True
    names = files.list_directory(os.path.join(path, LOG_FOLDER))
    return any(_commit_version(name) is not None or ".checkpoint." in name for name in names)


def has_commit(path: str, version: int) -> bool:
    """Tell whether the log has the JSON file of a commit."""
    return files.exists(commit_path(path, version))


def list_log(path: str) -> LogFiles:
    """Return the files of a log.

    Raises:
        TableDamaged: There is no log.
    """
    folder = os.path.join(path, LOG_FOLDER)
    names = files.list_directory(folder)
    if not names and not files.is_directory(folder):
        raise damaged_file(folder, "is missing")
    commits = []
    checkpoint_names = []
    for name in names:
        version = _commit_version(name)
        if version is not None:
            commits.append(version)
        elif ".checkpoint." in name:
            checkpoint_names.append(name)
    return LogFiles(tuple(sorted(commits)), _complete_checkpoints(folder, checkpoint_names))


def checkpoint_before(path: str, version: int) -> tuple[int, tuple[str, ...]]:
    """Return the last complete checkpoint at or before a version, with its files.

    (-1, ()) when there is none.
    """
    last = _stated_checkpoint(path)
    if 0 <= last <= version:
        file = os.path.join(path, LOG_FOLDER, f"{last:0{_VERSION_DIGITS}d}.checkpoint.parquet")
        if files.exists(file):
            return last, (file,)
    checkpoints = list_log(path).checkpoints
    found = max((each for each in checkpoints if each <= version), default=-1)
    return found, checkpoints.get(found, ())


def latest_version(path: str) -> int:
    """Return the number of the last version in the log, -1 when there is none.

    A log that was seen before is not listed again: only the names after the last one are looked
    for.
    """
    path = absolute(path)
    seen = _LAST_SEEN.get(path)
    if is_uri(path):
        return _latest_listed(path, seen)
    if seen is None or not files.exists(commit_path(path, seen)):
        found = list_log(path)
        seen = found.latest
        if not found.commits or found.commits[-1] < seen:
            return seen
    # A gap of one commit is damage and not the end.
    while files.exists(commit_path(path, seen + 1)) or files.exists(commit_path(path, seen + 2)):
        seen += 1
    _LAST_SEEN[path] = seen
    return seen


def _latest_listed(path: str, seen: int | None) -> int:
    """Return the last version of a log below a URI: one list of the names since the last one."""
    if seen is not None:
        before = f"{seen:0{_VERSION_DIGITS}d}"
        commits = set()
        for name in files.list_directory(os.path.join(path, LOG_FOLDER), after=before):
            commits.add(_commit_version(name))
        if seen in commits:
            # A gap of one commit is damage and not the end.
            while seen + 1 in commits or seen + 2 in commits:
                seen += 1
            _LAST_SEEN[path] = seen
            return seen
    _LAST_SEEN.pop(path, None)
    if not files.is_directory(os.path.join(path, LOG_FOLDER)):
        return -1
    found = list_log(path)
    if found.commits and found.commits[-1] == found.latest:
        _LAST_SEEN[path] = found.latest
    return found.latest


def commit_path(path: str, version: int) -> str:
    """Return where the log keeps the commit of a version."""
    return os.path.join(path, LOG_FOLDER, f"{version:0{_VERSION_DIGITS}d}.json")


def read_commit(file: str) -> Actions:
    """Return the actions of one commit file.

    Raises:
        TableDamaged: The file is missing, or not what a commit looks like.
    """
    return read_commit_file(file)[1]


def read_commit_file(file: str) -> tuple[FileState, Actions]:
    """Return the actions of one commit file, and which file that was.

    Errors as in ``read_commit``.
    """
    try:
        state = FileState.of(file)
    except OSError as error:
        raise unreadable_file(file, error) from error
    return state, _parsed_commit(state)


# A commit never changes, and histories are asked for again and again.
@lru_cache(maxsize=4096)
def _parsed_commit(state: FileState) -> Actions:
    if state.size == 0:
        raise damaged_file(state.path, "is empty")
    try:
        return parse_actions(files.read_text(state.path))
    except OSError as error:
        raise unreadable_file(state.path, error) from error
    except (ValueError, RecursionError) as error:
        raise damaged_file(state.path, "is not a readable commit") from error


def parse_actions(text: str) -> Actions:
    r"""Return the actions of a commit's text: one JSON object a line, lines ending in \n alone.

    >>> parse_actions('{"txn": {"appId": "a", "version": 1}}')
    [{'txn': {'appId': 'a', 'version': 1}}]

    Raises:
        ValueError: The text holds something else, or nothing.
    """
    # str.splitlines would cut at U+2028, U+2029 and U+0085, which JSON texts may hold.
    lines = [line for line in text.split("\n") if line.strip()]
    actions = [json.loads(line) for line in lines]
    for action in actions:
        if not isinstance(action, dict):
            raise ValueError(f"an action is an object, not {action!r:.80}")
        for kind in _KINDS_OF_OBJECTS:
            if not isinstance(action.get(kind, None), dict | None):
                raise ValueError(f"{kind!r} is an object, not {action[kind]!r:.80}")
        for kind in ("add", "remove"):
            if action.get(kind) is not None and not isinstance(action[kind].get("path"), str):
                raise ValueError(f"{kind!r} names no file")
    if not actions:
        raise ValueError("there are no actions")
    return actions


def actions_of(actions: Actions, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the actions of one kind."""
    for action in actions:
        found = action.get(kind)
        if found is not None:
            yield found


def commit_info(actions: Actions) -> Mapping[str, Any]:
    """Return what a commit tells about itself; empty when it tells nothing."""
    return next(actions_of(actions, "commitInfo"), {})


def note_of(actions: Actions) -> Mapping[str, Any]:
    """Return the JSON object that our writers leave in a commit.

    Empty where another writer's text is.
    """
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
    """Tell whether a commit adds or removes rows; compaction and new properties do not."""
    for kind in ("add", "remove"):
        for action in actions_of(actions, kind):
            if action.get("dataChange", True):
                return True
    return False


def damaged_file(file: str, what: str) -> TableDamaged:
    """Return the error for a file of a table that is not as it should be."""
    return TableDamaged(
        f"The file {file} {what}.",
        hint="restore it from a copy, or read an older Delta version with as_of=",
    )


def unreadable_file(file: str, error: OSError) -> StorageError:
    """Return the error for a file of a table that could not be read.

    Damage where it is not there, or no such file.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return damaged_file(file, "is missing")
    if error.errno is None:
        return damaged_file(file, "cannot be read: it is no file of its kind")
    return StorageError(f"{file} could not be read: {error}.", hint=refusal_hint(error))


def _stated_checkpoint(path: str) -> int:
    """Return the version of the last checkpoint that the log names, -1 when it names none."""
    try:
        text = files.read_text(os.path.join(path, LOG_FOLDER, "_last_checkpoint"))
        found = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return -1
    if not isinstance(found, dict) or not isinstance(found.get("version"), int):
        return -1
    return int(found["version"])


def _commit_version(name: str) -> int | None:
    digits = name[:_VERSION_DIGITS]
    if len(name) != _COMMIT_NAME_LENGTH or name[_VERSION_DIGITS:] != ".json":
        return None
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _complete_checkpoints(folder: str, names: Sequence[str]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    parts: dict[tuple[int, str], list[str]] = {}
    for name in sorted(names):
        match = _CHECKPOINT_NAME.fullmatch(name)
        if match is None:
            continue
        version = int(match["version"])
        file = os.path.join(folder, name)
        if match["part"] is None:
            found[version] = (file,)
        else:
            parts.setdefault((version, match["parts"]), []).append(file)
    for (version, count), present in parts.items():
        if len(present) == int(count):
            found.setdefault(version, tuple(present))
    return found
