"""Verification of a Delta table: its commits, checkpoints and data files against their checksums.

All files are read again, without the caches of this process. A commit is compared with the digest
that it contains and with the digest in the next commit; a checkpoint with the replay of the
commits, and with its checksum if a commit contains one. A data file is compared with the size and
the checksum in its commit. Rows of files without checksums are decoded.
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

import pyarrow as pa

from featurestore.delta import log
from featurestore.delta.checksums import (
    Action,
    ChecksumError,
    CommitChecksums,
    check_commit,
    checksum_in_add,
    checksums_of,
    file_checksum,
)
from featurestore.delta.datafile import file_path, parse_statistics, rows_in_statistics
from featurestore.delta.log import Actions
from featurestore.delta.table_state import Replay
from featurestore.errors import FeatureStoreError, UnsupportedTable
from featurestore.model.threads import independent_tasks
from featurestore.model.verification import FileProblem
from featurestore.storage import storage_for

_READING_THREADS = 4
# Delta removes old commits unless a table has this property, which tables of this library have.
_CLEANUP = "delta.enableExpiredLogCleanup"
COPY_HINT = "restore it from a copy"
_REMOVE_HINT = "remove it: the commits contain its content"
# Checkpoints of delta-rs and Spark have times in milliseconds: 2026-01-01T00:00:00.000.
_MILLISECONDS = len("2026-01-01T00:00:00.000")
_BOUNDS = ("minValues", "maxValues", "nullCount")


@dataclass(frozen=True)
class Witness:
    """A record outside of a log about one of its versions.

    Attributes:
        delta_version: The version.
        owner: What has the record, for messages.
    """

    delta_version: int
    owner: str


@dataclass(frozen=True)
class _CommitFile:
    """A commit that is intact."""

    digest: str
    actions: Actions
    checksums: CommitChecksums | None


def verify_table(
    path: str, *, sample: int | None = None, witnesses: tuple[Witness, ...] = ()
) -> TableVerification:
    """Verify a table.

    Args:
        path: The table.
        sample: The number of data files to check, selected at random; None: all.
        witnesses: Records of versions outside of the log, which show that its end is missing.

    Raises:
        TableDamaged: The table has no log.
        StorageError: A file cannot be read for another reason than damage.
    """
    result = TableVerification(path)
    listed = log.list_log(path)
    result.latest = listed.latest
    commits = _verify_commits(result, listed)
    _compare_witnesses(result, witnesses)
    added = _verify_checkpoints(result, listed, commits)
    current = [file for file in added if file.is_current]
    older = [file for file in added if not file.is_current]
    if sample is not None:
        current = random.sample(current, min(sample, len(current)))
        older = []
    with independent_tasks(_READING_THREADS, "featurestore-checksums") as pool:
        outcomes = list(pool.map(lambda file: verify_file(path, file), [*current, *older]))
    for file, outcome in zip([*current, *older], outcomes, strict=True):
        add_outcome(result, file, outcome)
    return result


# -- commits ------------------------------------------------------------------------------


def _verify_commits(result: TableVerification, listed: log.LogFiles) -> dict[int, _CommitFile]:
    """Return the intact commits by version."""
    commits: dict[int, _CommitFile] = {}
    if not listed.commits:
        return commits
    present = set(listed.commits)
    for version in range(listed.commits[0], listed.latest + 1):
        file = log.commit_path(result.path, version)
        # A checkpoint of the last version may outlive its commit.
        if version not in present:
            result.add_problem(file, "is missing", version=version)
            continue
        result.commits += 1
        try:
            content = storage_for(file).read_bytes(file)
            digest = check_commit(content)
            actions = log.parse_actions(content.decode())
            checksums = checksums_of(log.commit_info(actions))
            commits[version] = _CommitFile(digest, actions, checksums)
        except ChecksumError:
            result.add_problem(file, "differs from its checksum", version=version)
        except (ValueError, RecursionError):
            result.add_problem(file, "is not a readable commit", version=version)
        else:
            _verify_link(result, commits, version)
    return commits


def _verify_link(
    result: TableVerification, commits: Mapping[int, _CommitFile], version: int
) -> None:
    """Compare a commit with the digest of the commit before."""
    commit, before = commits[version], commits.get(version - 1)
    if commit.checksums is None:
        writer = str(log.commit_info(commit.actions).get("engineInfo", "another program"))
        result.unverified.append(f"Delta version {version}: {writer} wrote it without checksums")
        return
    if before is None or commit.checksums.previous is None:
        return
    digests = {before.digest}
    if before.checksums is not None and before.checksums.original is not None:
        digests.add(before.checksums.original)
    if commit.checksums.previous not in digests:
        result.add_problem(
            log.commit_path(result.path, version - 1),
            f"is not the commit that Delta version {version} follows",
            version=version - 1,
        )


def _compare_witnesses(result: TableVerification, witnesses: tuple[Witness, ...]) -> None:
    """Compare the end of the log with records of other files."""
    for witness in sorted(witnesses, key=attrgetter("delta_version")):
        version = witness.delta_version
        if version > result.latest:
            message = f"is missing: {witness.owner} has this version, but the log ends at "
            file = log.commit_path(result.path, version)
            result.add_problem(file, f"{message}Delta version {result.latest}", version=version)
            return


# -- checkpoints --------------------------------------------------------------------------


def _verify_checkpoints(
    result: TableVerification, listed: log.LogFiles, commits: Mapping[int, _CommitFile]
) -> list[AddedFile]:
    """Verify the checkpoints, and return all data files in the log."""
    # The checksums of checkpoints in all commits, by file name.
    recorded: dict[str, str] = {}
    for commit in commits.values():
        if commit.checksums is not None:
            recorded |= commit.checksums.checkpoints
    # Files by path, with the version that added them.
    versions: dict[str, tuple[Action, int | None]] = {}
    replay = Replay(result.path)
    is_complete = 0 in commits
    first = min([*commits, *listed.checkpoints], default=0)
    for version in range(first, listed.latest + 1):
        is_complete = is_complete and version in commits
        actions = commits[version].actions if version in commits else ()
        replay.apply(actions, log.commit_path(result.path, version))
        for add in log.actions_of_kind(actions, "add"):
            versions[add["path"]] = add, version
        names = listed.checkpoints.get(version)
        if names is None:
            continue
        checkpoint = read_checkpoint(result, names, version, recorded, has_commits=is_complete)
        if checkpoint is None:
            continue
        if is_complete:
            compare_checkpoint(result, names[0], version, checkpoint, replay)
        else:
            # The commits before are missing or damaged, so the checkpoint is all there is.
            if not all(os.path.basename(name) in recorded for name in names):
                result.unverified.append(f"checkpoint of Delta version {version}: has no checksum")
            replay, is_complete = checkpoint, True
            versions = {path: (add, None) for path, add in checkpoint.adds.items()} | versions
    _verify_start(result, listed, replay)
    return [
        AddedFile(add, version, is_current=path in replay.adds)
        for path, (add, version) in versions.items()
    ]


def _verify_start(result: TableVerification, listed: log.LogFiles, replay: Replay) -> None:
    """Check that a log without its first commits starts with a checkpoint of their files."""
    first = min(listed.commits, default=0)
    if first == 0 or {first - 1, first} & listed.checkpoints.keys():
        return
    # Other programs remove commits by age, also some of the commits before a checkpoint.
    checkpoint = min((version for version in listed.checkpoints if version > first), default=None)
    properties = (replay.metadata or {}).get("configuration") or {}
    if checkpoint is not None and properties.get(_CLEANUP) != "false":
        earlier = f"Delta versions before {first}: their commits were removed"
        result.unverified.append(f"{earlier}; the checkpoint of version {checkpoint} replaces them")
        return
    message = "is missing, and no checkpoint of this version replaces it"
    result.add_problem(log.commit_path(result.path, first - 1), message, version=first - 1)


@dataclass
class TableVerification:
    """The progress and the result of a verification; paths are relative to the table."""

    path: str
    latest: int = -1
    rows: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    checkpoints: int = 0
    problems: list[FileProblem] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)

    def add_problem(
        self, file: str, message: str, *, version: int | None = None, hint: str = COPY_HINT
    ) -> None:
        """Add a problem of a file."""
        relative = file.removeprefix(os.path.join(self.path, ""))
        self.problems.append(FileProblem(relative, message, version, hint))


def read_checkpoint(
    result: TableVerification,
    names: tuple[str, ...],
    version: int,
    recorded: Mapping[str, str],
    *,
    has_commits: bool,
) -> Replay | None:
    """Return the state in a checkpoint, or None if it is damaged."""
    result.checkpoints += 1
    hint = _REMOVE_HINT if has_commits else COPY_HINT
    for file in names:
        checksum = recorded.get(os.path.basename(file))
        if checksum is not None and file_checksum(file) != checksum:
            message = "differs from its checksum"
            result.add_problem(file, message, version=version, hint=hint)
            return None
    replay = Replay(result.path)
    try:
        replay.apply_checkpoint(names)
    except FeatureStoreError as error:
        result.add_problem(names[0], error.message, version=version, hint=hint)
        return None
    return replay


def compare_checkpoint(
    result: TableVerification, file: str, version: int, checkpoint: Replay, replay: Replay
) -> None:
    """Compare a checkpoint with the replay of the commits."""
    different = []
    if checkpoint.adds.keys() != replay.adds.keys():
        different.append("the list of files")
    for path in checkpoint.adds.keys() & replay.adds.keys():
        if not _is_same_file(checkpoint.adds[path], replay.adds[path]):
            different.append(f"the entry of {path}")
            break
    if checkpoint.transactions != replay.transactions:
        different.append("the transactions")
    for name in ("schemaString", "partitionColumns", "id", "configuration"):
        if (checkpoint.metadata or {}).get(name) != (replay.metadata or {}).get(name):
            different.append(f"the metadata ({name})")
    for name in ("minReaderVersion", "minWriterVersion"):
        if (checkpoint.protocol or {}).get(name) != (replay.protocol or {}).get(name):
            different.append("the protocol")
    if different:
        result.add_problem(
            file,
            f"differs from the commits in {', '.join(different)}",
            version=version,
            hint=_REMOVE_HINT,
        )


def _is_same_file(in_checkpoint: Action, in_commit: Action) -> bool:
    for name in ("size", "modificationTime"):
        if in_checkpoint.get(name) != in_commit.get(name):
            return False
    if dict(in_checkpoint.get("partitionValues") or {}) != dict(
        in_commit.get("partitionValues") or {}
    ):
        return False
    if checksum_in_add(in_checkpoint) != checksum_in_add(in_commit):
        return False
    statistics = parse_statistics(in_checkpoint.get("stats"))
    expected = parse_statistics(in_commit.get("stats"))
    if in_checkpoint.get("stats") and statistics.get("numRecords") != expected.get("numRecords"):
        return False
    # Writers of checkpoints omit bounds of some types.
    return all(_are_bounds_of(statistics.get(name), expected.get(name)) for name in _BOUNDS)


def _are_bounds_of(bounds: object, expected: object) -> bool:
    """Return True if the bounds in a checkpoint are among those in a commit."""
    if not isinstance(bounds, Mapping):
        return bounds is None or bounds == _to_milliseconds(expected)
    if not isinstance(expected, Mapping):
        return False
    return all(
        value is None
        or (name in expected and _to_milliseconds(value) == _to_milliseconds(expected[name]))
        for name, value in bounds.items()
    )


def _to_milliseconds(bound: object) -> object:
    """Return a bound as in a checkpoint, whose times are truncated."""
    is_time = isinstance(bound, str) and bound[10:11] == "T" and bound[-1:] == "Z"
    return str(bound)[:_MILLISECONDS].removesuffix("Z") if is_time else bound


# -- data files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class AddedFile:
    """A data file in the log, and the commit that added it; None for files of a checkpoint."""

    add: Action
    version: int | None
    is_current: bool


@dataclass(frozen=True)
class Outcome:
    """The result of one file; a file that no version needs may be missing."""

    file: str
    problem: str | None = None
    is_missing: bool = False
    is_unverified: bool = False


def verify_file(path: str, added: AddedFile) -> Outcome:
    """Read a data file, and compare it with its size and checksum in the log."""
    try:
        file = file_path(path, added.add["path"])
    except UnsupportedTable as error:
        return Outcome(added.add["path"], error.message)
    try:
        expected_size = int(added.add["size"])
        checksum = checksum_in_add(added.add)
    except (KeyError, TypeError, ValueError):
        return Outcome(file, "has an incomplete entry in the log")
    try:
        size = storage_for(file).status(file).size
        if size != expected_size:
            return Outcome(file, f"has {size:,} bytes, but {expected_size:,} in the log")
        if checksum is None:
            return Outcome(file, _unreadable_reason(file, added.add), is_unverified=True)
        differs = file_checksum(file) != checksum
    except FileNotFoundError:
        return Outcome(file, "is missing", is_missing=True)
    return Outcome(file, "differs from its checksum" if differs else None)


def _unreadable_reason(file: str, add: Action) -> str | None:
    """Decode all rows of a file without a checksum; return the reason if they are not readable."""
    from pyarrow import parquet

    expected_rows = rows_in_statistics(add.get("stats"))
    # Files of Spark have checksums of pages, which pyarrow 14 does not verify.
    parameters = inspect.signature(parquet.ParquetFile).parameters
    options = {"page_checksum_verification"} & parameters.keys()
    try:
        with parquet.ParquetFile(
            storage_for(file).open_ranges(file), **dict.fromkeys(options, True)
        ) as parquet_file:
            rows = sum(batch.num_rows for batch in parquet_file.iter_batches())
    except (OSError, pa.ArrowException) as error:
        return f"is not a readable Parquet file: {error}"
    if expected_rows is not None and rows != expected_rows:
        return f"has {rows:,} rows, but {expected_rows:,} in the log"
    return None


def add_outcome(result: TableVerification, added: AddedFile, outcome: Outcome) -> None:
    """Add the outcome of a file to the result of its table."""
    # A vacuum may have removed files that only older versions need.
    if outcome.is_missing and (not added.is_current or _is_replaced(result, added)):
        return
    result.files += 1
    result.bytes += int(added.add.get("size") or 0)
    if added.is_current:
        result.rows += rows_in_statistics(added.add.get("stats")) or 0
    if outcome.problem is not None:
        hint = COPY_HINT
        if added.version is not None and added.version > 1:
            hint += f", or read the rows before this file: as_of={added.version - 1}"
        result.add_problem(outcome.file, outcome.problem, version=added.version, hint=hint)
    elif outcome.is_unverified:
        relative = outcome.file.removeprefix(os.path.join(result.path, ""))
        result.unverified.append(f"{relative}: has no checksum, but its rows are readable")


def _is_replaced(result: TableVerification, added: AddedFile) -> bool:
    """Return True if a commit since the start of the verification removed a file."""
    return any(
        removed["path"] == added.add["path"]
        for version in range(result.latest + 1, log.latest_version(result.path) + 1)
        for removed in log.actions_of_kind(
            log.read_commit(log.commit_path(result.path, version)), "remove"
        )
    )
