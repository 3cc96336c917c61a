"""Checksums of data files and commits, which the commits of a table contain.

The ``add`` action of a data file has a tag with the CRC-32C of its bytes (Delta keeps tags in
checkpoints). The ``commitInfo`` action has a field with three checksums:

* ``commit_sha256``: the SHA-256 of the commit, computed with 64 zeros in the place of this value;
* ``previous``: the digest of the commit before, or null if the log does not have this commit;
* ``checkpoints``: the CRC-32C of checkpoints that were written since the commit before, by name.

So a commit can be checked alone, and the commits form a chain: a commit that was replaced differs
from the digest in the next one. The end of a chain needs a witness outside of the log, which is the
registry. An erasure rewrites commits; ``original`` is then the digest of the commit before its
first erasure, to which the chain refers.

Both engines write equal checksums for equal bytes; ``CommitChecksums.java`` is the implementation
for Spark. Other writers of Delta write none, so their commits and files are unverified.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from featurestore.model.threads import independent_tasks
from featurestore.storage import storage_for

# A JSON object in a log: an action, or the payload of one.
Action = Mapping[str, Any]
CHECKSUMS = "featurestore.checksums"
FILE_CHECKSUM = "featurestore.crc32c"
_DIGEST = "commit_sha256"
_ZEROS = "0" * 64
_READING_THREADS = 4
# A changed bit cannot remove both marks of a commit with checksums.
_FIELD_MARK = f'"{CHECKSUMS}":'.encode()
_DIGEST_MARK = re.compile(rb'"' + _DIGEST.encode() + rb'":"([0-9a-f]{64})"')


@dataclass(frozen=True)
class CommitChecksums:
    """The checksums in a commit."""

    previous: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    original: str | None = None


def checksums_of(info: Action) -> CommitChecksums | None:
    """Return the checksums in a ``commitInfo`` action, or None if another writer wrote it."""
    payload = info.get(CHECKSUMS)
    if not isinstance(payload, Mapping):
        return None
    previous, original = payload.get("previous"), payload.get("original")
    return CommitChecksums(
        previous if isinstance(previous, str) else None,
        dict(payload.get("checkpoints") or {}),
        original if isinstance(original, str) else None,
    )


def digest_of(content: bytes) -> str:
    """Return the digest of a commit file.

    >>> digest_of(b"{}") == hashlib.sha256(b"{}").hexdigest()
    True
    """
    return _digest(content, _DIGEST_MARK.search(content))


def _digest(content: bytes, mark: re.Match[bytes] | None) -> str:
    """Return the digest of a commit file with the digest that it contains at ``mark``."""
    if mark is not None:
        content = content[: mark.start(1)] + _ZEROS.encode() + content[mark.end(1) :]
    return hashlib.sha256(content).hexdigest()


class ChecksumError(Exception):
    """A commit differs from its digest. Internal to this package."""


def check_commit(content: bytes) -> str:
    """Return the digest of a commit file, after a comparison with the digest in the commit.

    Raises:
        ChecksumError: The digests differ.
    """
    mark = _DIGEST_MARK.search(content)
    digest = _digest(content, mark)
    if mark is not None and digest.encode() != mark[1]:
        raise ChecksumError
    if mark is None and _FIELD_MARK in content:
        raise ChecksumError
    return digest


def seal(actions: Sequence[Action], checksums: CommitChecksums) -> bytes:
    """Return a commit file with checksums; actions without ``commitInfo`` get an empty one."""
    infos = [action for action in actions if "commitInfo" in action]
    info: dict[str, Any] = dict(infos[0]["commitInfo"]) if infos else {}
    payload: dict[str, Any] = {_DIGEST: _ZEROS, "previous": checksums.previous}
    if checksums.checkpoints:
        payload["checkpoints"] = dict(checksums.checkpoints)
    if checksums.original is not None:
        payload["original"] = checksums.original
    info[CHECKSUMS] = payload
    other_actions = [action for action in actions if "commitInfo" not in action]
    content = to_commit([{"commitInfo": info}, *other_actions])
    mark = f'"{_DIGEST}":"'.encode()
    digest = hashlib.sha256(content).hexdigest()
    # The first occurrence is the field itself: in strings of JSON, quotes are escaped.
    return content.replace(mark + _ZEROS.encode(), mark + digest.encode(), 1)


def to_commit(actions: Sequence[Action]) -> bytes:
    r"""Return a commit file without checksums, one JSON object per line.

    >>> to_commit([{"add": {"path": "a"}}, {"remove": {"path": "b"}}])
    b'{"add":{"path":"a"}}\n{"remove":{"path":"b"}}\n'
    """
    return b"".join(
        json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions
    )


def file_checksum(path: str) -> str:
    """Return the CRC-32C of a file as eight hexadecimal digits.

    Raises:
        OSError: The file cannot be read.
    """
    # The library is not needed for reads.
    from crc32c import crc32c

    checksum = 0
    for chunk in storage_for(path).read_chunks(path):
        checksum = crc32c(chunk, checksum)
    return f"{checksum:08x}"


def file_checksums(paths: Sequence[str]) -> list[str]:
    """Return the CRC-32C of files, which are read concurrently.

    Raises:
        OSError: A file cannot be read.
    """
    if len(paths) < 2:
        return list(map(file_checksum, paths))
    threads = min(_READING_THREADS, len(paths))
    with independent_tasks(threads, "featurestore-checksums") as pool:
        return list(pool.map(file_checksum, paths))


def add_checksum(add: dict[str, Any], checksum: str | None) -> dict[str, Any]:
    """Return an ``add`` action with the checksum of its file."""
    if checksum is None:
        return add
    return {**add, "tags": {**(add.get("tags") or {}), FILE_CHECKSUM: checksum}}


def checksum_in_add(add: Action) -> str | None:
    """Return the checksum of a file in its ``add`` action, or None if it has none."""
    tags = add.get("tags")
    checksum = tags.get(FILE_CHECKSUM) if isinstance(tags, Mapping) else None
    return checksum if isinstance(checksum, str) else None
