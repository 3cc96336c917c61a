"""verify: re-read everything that a manifest says, and name what differs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import FeatureStoreError, StorageError
from featurestore.hashing import row_hash
from featurestore.model.manifest import MANIFEST_FILE, Manifest, ManifestFile, ManifestShard
from featurestore.plugins.format import DatasetFormat, find_format
from featurestore.storage import files
from featurestore.storage.manifests import read_manifest
from featurestore.storage.shardfile import PIECE_BYTES, digest_of, is_temporary
from featurestore.training.export.split_rules import SplitRule, group_of_rows
from featurestore.training.rows import split_batches

if TYPE_CHECKING:
    from featurestore.session import Session


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the file (relative to the dataset), what, and the byte offset as far as known."""

    file: str
    message: str
    offset: int | None = None

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at byte {self.offset:,}"
        return f"{self.file}{place}: {self.message}"


@dataclass(frozen=True)
class VerifyReport:
    """What ``verify`` found; ``ok`` when nothing is wrong."""

    dataset: str
    content_hash: str
    rows: int
    files: int
    bytes: int
    recomputed: bool
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether the files are what the manifest says."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "dataset": self.dataset,
            "ok": self.ok,
            "content_hash": self.content_hash,
            "rows": self.rows,
            "files": self.files,
            "bytes": self.bytes,
            "recomputed": self.recomputed,
            "problems": [
                {"file": p.file, "message": p.message, "offset": p.offset} for p in self.problems
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        head = f"{self.dataset}: {'ok' if self.ok else 'DAMAGED'}, {self.rows:,} rows, {self.files} files"
        return "\n".join(
            [
                head,
                *(f"  {problem}" for problem in self.problems),
                *(f"  {note}" for note in self.notes),
            ]
        )


def verify(
    directory: str, manifest: Manifest, *, session: Session | None = None, recompute: bool = False
) -> VerifyReport:
    """Return what differs between a dataset's files and its manifest.

    Args:
        directory: Where the dataset lies.
        manifest: Its manifest.
        session: The store, needed to recompute.
        recompute: Also run the plan again at the pinned Delta versions and compare every byte.
    """
    chosen = find_format(manifest.data_format)
    problems = [*_manifest_problems(directory, manifest), *_strangers(directory, manifest)]
    notes: list[str] = []
    for split in manifest.splits:
        for shard in split.shards:
            problems += _shard_problems(directory, manifest, shard, chosen)
    for file in manifest.files:
        problems += _file_problems(directory, manifest, file)
    problems += _statistics_problems(directory, manifest)
    if not problems:
        notes += _unchecked(manifest, chosen)
        if chosen.refuse_reading(manifest.layout) is None:
            problems += _row_problems(directory, manifest)
    if recompute:
        from featurestore.training.verification.recompute import recompute_problems

        problems += recompute_problems(directory, manifest, session=session)
    return VerifyReport(
        dataset=f"{manifest.name} version {manifest.version}",
        content_hash=manifest.content_hash,
        rows=sum(split.rows for split in manifest.splits),
        files=sum(len(split.shards) for split in manifest.splits) + len(manifest.files),
        bytes=sum(split.bytes for split in manifest.splits),
        recomputed=recompute,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _manifest_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    try:
        stored = read_manifest(directory)
    except FeatureStoreError as error:
        yield Problem(MANIFEST_FILE, error.message)
        return
    if stored != manifest:
        yield Problem(MANIFEST_FILE, "is not the manifest that was opened")


def _strangers(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Files below the splits that the manifest does not know would be read by plain globs."""
    known = {shard.path for split in manifest.splits for shard in split.shards}
    known |= {
        side.path for split in manifest.splits for shard in split.shards for side in shard.sidecars
    }
    known |= {file.path for file in manifest.files}
    for split in manifest.splits:
        for name in files.list_directory(os.path.join(directory, split.name)):
            # A temporary file is no shard: an attempt of a task left it that was killed after the export had ended.
            if f"{split.name}/{name}" not in known and not is_temporary(name):
                yield Problem(f"{split.name}/{name}", "is not in the manifest")


def _shard_problems(
    directory: str, manifest: Manifest, shard: ManifestShard, chosen: DatasetFormat
) -> Iterator[Problem]:
    yield from _file_problems(
        directory, manifest, ManifestFile(shard.path, shard.bytes, shard.sha256)
    )
    for sidecar in shard.sidecars:
        yield from _file_problems(directory, manifest, sidecar)
    path = os.path.join(directory, shard.path)
    if _absence(directory, shard.path) is None:
        for each in chosen.verify_shard(path, layout=manifest.layout, rows=shard.rows):
            where = "" if each.row is None else f" (row {each.row})"
            yield Problem(shard.path, f"{each.message}{where}", each.offset)


def _file_problems(directory: str, manifest: Manifest, file: ManifestFile) -> Iterator[Problem]:
    absent = _absence(directory, file.path)
    if absent is not None:
        yield Problem(file.path, absent)
        return
    path = os.path.join(directory, file.path)
    size = files.size(path)
    if size != file.bytes:
        yield Problem(
            file.path,
            f"has {size:,} bytes where the manifest says {file.bytes:,}",
            min(size, file.bytes),
        )
        return
    found = digest_of(path)
    sha256 = found.hexdigest()
    if sha256 == file.sha256:
        return
    owner = next(
        (each.path for split in manifest.splits for each in split.shards if each.sha256 == sha256),
        None,
    )
    if owner is not None:
        yield Problem(file.path, f"holds the bytes of {owner!r}", 0)
        return
    stated = manifest.prefixes.get(file.path, [])
    same = next(
        (
            at
            for at, pair in enumerate(zip(found.prefixes, stated, strict=False))
            if pair[0] != pair[1]
        ),
        None,
    )
    first = PIECE_BYTES * (len(stated) if same is None else same)
    end = size if not stated else min(first + PIECE_BYTES, size)
    yield Problem(
        file.path, f"its SHA-256 differs from the manifest's, first before byte {end:,}", first
    )


def _absence(directory: str, relative: str) -> str | None:
    """Say why a file cannot be looked at; None when it can."""
    try:
        path = files.inside(directory, relative)
    except StorageError as error:
        return error.message
    return None if files.exists(path) else "is missing"


def _statistics_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    for entry in (
        each for kept in manifest.statistics.values() for each in (kept, kept.get("sample")) if each
    ):
        absent = _absence(directory, entry["path"])
        if absent is not None:
            yield Problem(entry["path"], absent)
        elif files.sha256(os.path.join(directory, entry["path"])) != entry["sha256"]:
            yield Problem(entry["path"], "its SHA-256 differs from the manifest's", 0)


@dataclass(frozen=True)
class _Checks:
    """What the files allow to check: rows are hashed again only where their columns were kept without loss."""

    rule: SplitRule
    ordered: bool
    ruled: bool
    distinct: bool

    @classmethod
    def of(cls, manifest: Manifest) -> _Checks:
        lossless = {column.name for column in manifest.columns if column.loss is None}
        rule = SplitRule.from_json(manifest.split_rule)
        ordered = set(manifest.key) <= lossless
        ruled = ordered and not rule.stratify and set(rule.columns) <= lossless
        return cls(rule, ordered, ruled, not ruled and len(lossless) == len(manifest.columns))


def _unchecked(manifest: Manifest, chosen: DatasetFormat) -> Iterator[str]:
    """Say what cannot be checked without running the plan again, and why."""
    refused = chosen.refuse_reading(manifest.layout)
    if refused is not None:
        yield f"row order and splits not checked: {refused}"
        return
    checks = _Checks.of(manifest)
    lossy = ", ".join(column.name for column in manifest.columns if column.loss is not None)
    if not checks.ordered:
        yield f"row order not checked: the files hold columns of the key with a loss ({lossy})"
    if len(manifest.splits) > 1 and not checks.ruled and not checks.distinct:
        yield f"splits not compared row by row: the files hold columns with a loss ({lossy})"


def _row_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Check order and splits from the rows themselves, as far as the files keep the deciding columns without loss."""
    checks = _Checks.of(manifest)
    rule, ordered, ruled = checks.rule, checks.ordered, checks.ruled
    digests: dict[str, npt.NDArray[np.uint64]] = {}
    for number, split in enumerate(manifest.splits):
        found: list[npt.NDArray[np.uint64]] = []
        last, row, sorted_so_far = 0, 0, True
        try:
            for batch in split_batches(directory, manifest, split.name):
                hashes = row_hash(batch, columns=manifest.key, seed=manifest.seed)
                if ordered and sorted_so_far and len(hashes):
                    sorted_so_far = int(hashes[0]) >= last and bool(
                        (hashes[1:] >= hashes[:-1]).all()
                    )
                    last = int(hashes[-1])
                    if not sorted_so_far:
                        yield Problem(
                            split.name, f"rows are not in the order of their hash near row {row:,}"
                        )
                if (
                    ruled
                    and (
                        group_of_rows(batch, rule=rule, hashes=hashes, seed=manifest.seed) != number
                    ).any()
                ):
                    yield Problem(
                        split.name,
                        f"holds rows that the split rule puts elsewhere, near row {row:,}",
                    )
                if checks.distinct:
                    found.append(row_hash(batch, seed=0))
                row += batch.num_rows
        except FeatureStoreError as error:
            yield Problem(split.name, f"cannot be read: {error.message}")
        digests[split.name] = (
            np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)
        )
    yield from _overlaps(digests)


def _overlaps(digests: dict[str, npt.NDArray[np.uint64]]) -> Iterator[Problem]:
    names = list(digests)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            shared = len(np.intersect1d(digests[name], digests[other], assume_unique=True))
            if shared:
                yield Problem(name, f"shares {shared:,} rows with split {other!r}")
