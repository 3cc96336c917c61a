"""Verification of checkpoints: their checksums in later commits, and the replay of the commits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from featurestore.delta.checksums import checksum_in_add, file_checksum
from featurestore.delta.datafile import parse_statistics
from featurestore.delta.table_state import Replay
from featurestore.delta.verification import COPY_HINT, TableVerification
from featurestore.errors import FeatureStoreError

_REMOVE_HINT = "remove it: the commits contain its content"
# Checkpoints of delta-rs and Spark have times in milliseconds: 2026-01-01T00:00:00.000.
_MILLISECONDS = len("2026-01-01T00:00:00.000")
_BOUNDS = ("minValues", "maxValues", "nullCount")


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


def _is_same_file(in_checkpoint: Mapping[str, Any], in_commit: Mapping[str, Any]) -> bool:
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
