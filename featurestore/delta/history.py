"""Delta table history: commits, and the version at an instant.

Commit times are monotonic: if the clock of a writer was behind, the commit has the time of its
predecessor. Writers of this library record the time of the version that they read (``base``,
``base_time``), so that commit times can be computed without reading all earlier commits.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from featurestore.delta import log
from featurestore.delta.checksums import Action
from featurestore.delta.datafile import file_path, rows_in_statistics, rows_of
from featurestore.delta.log import Actions, FileState
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import VersionNotFound
from featurestore.model.times import from_micros, parse_version_or_moment, to_micros
from featurestore.storage import storage_for

# Metric names for rows that a rewrite copied unchanged; they differ by writer and operation.
_COPIED_ROW_METRICS = (
    "numCopiedRows",
    "numTargetRowsCopied",
    "num_copied_rows",
    "num_target_rows_copied",
)
_CACHED_TIMES = 1 << 14
# The end of the year 9999 in milliseconds since 1970.
_LAST_TIME = 253_402_300_799_999
# Monotonic times by file state, so that a new table at the same path has its own times.
_TIMES: OrderedDict[FileState, int] = OrderedDict()


@dataclass(frozen=True)
class LogCommit:
    """A commit in the log.

    ``timestamp`` is the monotonic commit time in milliseconds since 1970, ``rows`` the number of
    rows after the commit. ``operation`` is taken from the user metadata, or else from the log, in
    lower case.
    """

    version: int
    timestamp: int
    operation: str
    user_metadata: Action
    rows_in: int
    rows_out: int
    rows: int

    @property
    def time(self) -> datetime:
        """The commit time as an aware UTC datetime."""
        return from_micros(self.timestamp * 1000)


def read_history(
    path: str, *, limit: int | None = None, before: int | None = None
) -> tuple[LogCommit, ...]:
    """Return the last ``limit`` commits before version ``before``, newest first.

    With None, the result is not limited. Commits that other writers removed from the log after a
    checkpoint are omitted.

    Raises:
        TableDamaged: A commit is missing or unreadable; the message names the file.
    """
    back = limit
    if limit is not None and before is not None:
        back = log.commits_to_list(path, before - 1, limit)
    with log.cached_listing(path, back=back):
        latest = log.latest_version(path)
        last = latest if before is None else min(before - 1, latest)
        if last < 0:
            return ()
        first = 0 if limit is None else max(last + 1 - limit, 0)
        page: list[tuple[int, Actions]] = []
        for version in range(last, first - 1, -1):
            file = log.commit_path(path, version)
            # In any other case the log is damaged, and reading the commit raises the error.
            if not storage_for(file).exists(file) and _was_removed_after_checkpoint(path, version):
                break
            page.append((version, log.read_commit(file)))
        # A commit records only added and removed files, so row counts are computed backward from
        # the newest version.
        rows = read_snapshot(path, last).rows
        row_counts = _RowCounter(path, page)
        commits = []
        for version, actions in page:
            rows_in, rows_out = row_counts.count(actions)
            commits.append(_log_commit(path, version, actions, rows_in, rows_out, rows))
            rows -= rows_in - rows_out
        return tuple(commits)


def commit_at(path: str, version: int) -> LogCommit:
    """Return one commit."""
    commits = read_history(path, limit=1, before=version + 1)
    if not commits or commits[0].version != version:
        raise _commit_not_found_error(path, version)
    return commits[0]


def _commit_not_found_error(path: str, version: int) -> VersionNotFound:
    latest = log.latest_version(path)
    return VersionNotFound(f"{path} has no commit {version}; the latest commit is {latest}.")


def version_as_of(path: str, as_of: object, *, argument: str = "as_of") -> int:
    """Return the Delta version for an argument that is a version or a time.

    Raises:
        InvalidArgument: The value is neither a version nor a time.
        OutOfRange: The version or the time is out of range.
        VersionNotFound: The time is before the first version.
    """
    parsed = parse_version_or_moment(as_of, argument=argument)
    return parsed if isinstance(parsed, int) else version_at(path, parsed)


def version_at(path: str, timestamp: datetime) -> int:
    """Return the last version with a commit time at or before an instant.

    Commit times have millisecond precision. If several commits have the same time, the last one
    is returned.

    Raises:
        VersionNotFound: The instant is before the first version.
    """
    with log.cached_listing(path, back=None):
        millis = to_micros(timestamp) // 1000
        listed = log.list_log(path)
        # Versions before the first checkpoint cannot be replayed if commit 0 was removed.
        first = bisect.bisect_left(listed.commits, listed.earliest)
        versions = listed.commits[first:]
        # Monotonic times allow a binary search, which reads few commits of a long log.
        position = bisect.bisect_right(
            versions, millis, key=lambda version: commit_time(path, version)
        )
        if position == 0:
            first_time = last_time = "never"
            if versions:
                first_time = from_micros(commit_time(path, versions[0]) * 1000).isoformat()
                last_time = from_micros(commit_time(path, versions[-1]) * 1000).isoformat()
            raise VersionNotFound(
                f"{path} has no version at {timestamp.isoformat()}: its commits are from "
                f"{first_time} to {last_time}.",
                hint=f"as_of={first_time!r}",
            )
        return versions[position - 1]


def commit_time(path: str, version: int) -> int:
    """Return the monotonic time of a commit in milliseconds since 1970."""
    commits = []
    floor, stop = 0, 0
    number = version
    while number >= stop:
        file = log.commit_path(path, number)
        # Other writers remove old commits after a checkpoint.
        if not storage_for(file).exists(file):
            break
        state, actions = log.read_commit_file(file)
        if state in _TIMES:
            floor = max(floor, _TIMES[state])
            break
        commits.append((state, _recorded_time(actions, state)))
        base, base_time = _parse_base_version(log.parse_user_metadata(actions), number)
        # The writer recorded the time of its base, so no commit before the base has to be read.
        if base >= stop:
            floor, stop = base_time, base + 1
        number -= 1
    for state, commit_timestamp in reversed(commits):
        floor = max(floor, commit_timestamp)
        _TIMES[state] = floor
    while len(_TIMES) > _CACHED_TIMES:
        _TIMES.popitem(last=False)
    return floor


def added_files(path: str, version: int) -> tuple[str, ...]:
    """Return the absolute paths of the data files that a commit added."""
    commit = log.commit_path(path, version)
    if not storage_for(commit).exists(commit):
        raise _commit_not_found_error(path, version)
    added = log.actions_of_kind(log.read_commit(commit), "add")
    return tuple(file_path(path, add["path"]) for add in added)


@dataclass
class _RowCounter:
    """Counts the rows that commits of a history page added and removed.

    Files are opened only if their row count is not in the log.
    """

    path: str
    page: list[tuple[int, Actions]]
    file_rows: dict[str, int] | None = None

    def count(self, actions: Actions) -> tuple[int, int]:
        """Return the numbers of rows that a commit added and removed."""
        rows_in = sum(rows_of(self.path, add) for add in log.actions_of_kind(actions, "add"))
        rows_out = 0
        for remove in log.actions_of_kind(actions, "remove"):
            rows = rows_in_statistics(remove.get("stats"))
            if rows is None:
                rows = self._get_file_rows(remove["path"])
            rows_out += rows
        return rows_in, rows_out

    def _get_file_rows(self, log_path: str) -> int:
        """Return the row count of a removed file, from an add in the page or the version before."""
        if self.file_rows is None:
            first = self.page[-1][0]
            self.file_rows = {}
            if first > 0:
                for file in read_snapshot(self.path, first - 1).files:
                    self.file_rows[file.log_path] = file.rows
            for _, actions in self.page:
                for add in log.actions_of_kind(actions, "add"):
                    self.file_rows[add["path"]] = rows_of(self.path, add)
        return self.file_rows.get(log_path, 0)


def _was_removed_after_checkpoint(path: str, version: int) -> bool:
    """Return True if a commit and all earlier commits were removed after a checkpoint."""
    listed = log.list_log(path)
    first = min(listed.commits, default=listed.latest + 1)
    return version < first and max(listed.checkpoints, default=-1) >= version


def _log_commit(
    path: str, version: int, actions: Actions, rows_in: int, rows_out: int, rows: int
) -> LogCommit:
    """Build the record of a commit; rows that a rewrite copied are not counted."""
    info, user_metadata = log.commit_info(actions), log.parse_user_metadata(actions)
    # A commit without data change, such as a compaction, only copies rows.
    copied = min(rows_in, rows_out)
    if log.changes_data(actions):
        copied = _count_copied_rows(info)
    operation = user_metadata.get("operation") or info.get("operation") or "unknown"
    return LogCommit(
        version=version,
        timestamp=commit_time(path, version),
        operation=str(operation).lower(),
        user_metadata=user_metadata,
        rows_in=max(rows_in - copied, 0),
        rows_out=max(rows_out - copied, 0),
        rows=rows,
    )


def _count_copied_rows(info: Action) -> int:
    """Return the number of copied rows in the metrics of a commit, 0 if it is missing."""
    metrics = info.get("operationMetrics")
    for key in _COPIED_ROW_METRICS:
        # Spark writes metrics as strings, delta-rs as numbers.
        if isinstance(metrics, Mapping) and str(metrics.get(key, "")).isdigit():
            return int(metrics[key])
    return 0


def _recorded_time(actions: Actions, state: FileState) -> int:
    """Return the time that the writer recorded, or else the modification time of the file."""
    info = log.commit_info(actions)
    # With the table feature inCommitTimestamp, this field is the commit time (Delta protocol). The
    # commit info is optional; without it, the commit time is that of the file.
    for name in ("inCommitTimestamp", "timestamp"):
        recorded_time = info.get(name)
        if isinstance(recorded_time, int) and 0 < recorded_time <= _LAST_TIME:
            return recorded_time
    return state.modified // 1_000_000


def _parse_base_version(user_metadata: Action, version: int) -> tuple[int, int]:
    """Return the base version in user metadata and its commit time, or (-1, 0) if missing."""
    base, base_time = user_metadata.get("base"), user_metadata.get("base_time")
    if not isinstance(base, int) or not isinstance(base_time, int):
        return -1, 0
    # The user metadata is untrusted: an invalid base would skip commits.
    if not 0 <= base < version or not 0 < base_time <= _LAST_TIME:
        return -1, 0
    return base, base_time
