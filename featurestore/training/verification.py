"""Verification of training datasets, which reads all files and reports differences.

Files are checked first: missing, damaged and unknown files are problems. If all files are intact,
the order and the splits of the rows are checked. This is possible only if the columns that
determine the order or the split are stored without loss.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore import progress
from featurestore.errors import DatasetDamaged, FeatureStoreError, StorageError
from featurestore.hashing import row_hash
from featurestore.model import display
from featurestore.model.manifest import Manifest, ManifestFile, ManifestShard
from featurestore.model.paths import MANIFEST_FILE
from featurestore.model.records import Record
from featurestore.plugins.format import DatasetFormat, find_format
from featurestore.storage import files, storage_for
from featurestore.storage.manifests import read_manifest
from featurestore.storage.shards import PIECE_BYTES, compute_digest, is_temporary, local_path
from featurestore.training.export.assignment import SplitRule, assign_groups
from featurestore.training.reading import split_batches
from featurestore.transform.fitted import TRANSFORMATIONS

UInt64s = npt.NDArray[np.uint64]
_DIGEST_DIFFERS = "its SHA-256 differs from the manifest's"


@dataclass(frozen=True)
class DatasetProblem:
    """A problem in a file, with the path relative to the dataset and the byte offset if known.

    >>> str(DatasetProblem("train/csv-00000-of-00001.csv", "is truncated", 1234))
    'train/csv-00000-of-00001.csv at byte 1,234: is truncated'
    """

    file: str
    message: str
    offset: int | None = None

    __repr__ = display.record_repr

    def __str__(self) -> str:
        position = "" if self.offset is None else f" at byte {self.offset:,}"
        return f"{self.file}{position}: {self.message}"


_KEYS = (
    "dataset", "ok", "content_hash", "rows", "files", "bytes", "recomputed", "problems", "notes"
)  # fmt: skip


@dataclass(frozen=True)
class VerifyReport(Record, keys=_KEYS):
    """The result of verifying a training dataset."""

    dataset: str
    content_hash: str
    rows: int
    files: int
    bytes: int
    recomputed: bool
    problems: tuple[DatasetProblem, ...] = ()
    notes: tuple[str, ...] = field(default=())

    __repr__ = display.record_repr

    @property
    def ok(self) -> bool:
        """Whether the files match the manifest."""
        return not self.problems

    def __str__(self) -> str:
        state = "ok" if self.ok else "DAMAGED"
        lines = [f"{self.dataset}: {state}, {self.rows:,} rows, {self.files} files"]
        lines += [f"  {finding}" for finding in (*self.problems, *self.notes)]
        return "\n".join(lines)


def verify(directory: str, manifest: Manifest) -> VerifyReport:
    """Verify the files and rows of a dataset against its manifest."""
    problems = _file_problems(directory, manifest)
    notes: list[str] = []
    # Rows are only read if all bytes match: a damaged shard would report misleading row problems.
    if not problems:
        dataset_format = find_format(manifest.data_format)
        notes += list_unchecked(manifest, dataset_format)
        if dataset_format.refuse_reading(manifest.layout) is None:
            problems += row_problems(directory, manifest)
    rows, size, count = 0, 0, len(manifest.files)
    for split in manifest.splits:
        rows += split.rows
        size += split.bytes
        count += len(split.shards)
    return VerifyReport(
        dataset=f"{manifest.name} version {manifest.version}",
        content_hash=manifest.content_hash,
        rows=rows,
        files=count,
        bytes=size,
        recomputed=False,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _file_problems(directory: str, manifest: Manifest) -> list[DatasetProblem]:
    dataset_format = find_format(manifest.data_format)
    problems = [*manifest_problems(directory, manifest), *unknown_files(directory, manifest)]
    progress.begin_phase(
        "read shards", total=sum(split.bytes for split in manifest.splits), unit="bytes"
    )
    for split in manifest.splits:
        for shard in split.shards:
            problems += shard_problems(directory, manifest, shard, dataset_format)
            progress.advance(shard.bytes)
    for file in manifest.files:
        problems += file_problems(directory, manifest, file)
    problems += statistics_problems(directory, manifest)
    problems += transformations_problems(directory, manifest)
    return problems


def manifest_problems(directory: str, manifest: Manifest) -> Iterator[DatasetProblem]:
    """Yield a problem if the manifest has changed since the dataset was opened."""
    try:
        # The manifest is read again, because the caller's copy may be older than the damage.
        stored_manifest = read_manifest(directory)
    except FeatureStoreError as error:
        yield DatasetProblem(MANIFEST_FILE, error.message)
        return
    if stored_manifest != manifest:
        yield DatasetProblem(MANIFEST_FILE, "differs from the manifest that was opened")


def unknown_files(directory: str, manifest: Manifest) -> Iterator[DatasetProblem]:
    """Yield files in split folders that the manifest does not list, but that globs would match."""
    # Programs that read a split by a pattern would also read these files as shards.
    known_paths = {file.path for file in manifest.files}
    for split in manifest.splits:
        for shard in split.shards:
            known_paths.add(shard.path)
            for sidecar in shard.sidecars:
                known_paths.add(sidecar.path)
    splits = {split.name for split in manifest.splits}
    # A format may write to folders of a split.
    folders = splits | {
        posixpath.dirname(path) for path in known_paths if path.partition("/")[0] in splits
    }
    for folder in sorted(folders):
        for name in storage_for(directory).list_directory(os.path.join(directory, folder)):
            path = f"{folder}/{name}"
            # A task attempt that is killed after the end of the export leaves a temporary file.
            if path not in known_paths | folders and not is_temporary(name):
                yield DatasetProblem(path, "is not in the manifest")


def shard_problems(
    directory: str, manifest: Manifest, shard: ManifestShard, dataset_format: DatasetFormat
) -> Iterator[DatasetProblem]:
    """Check the bytes of a shard and its sidecar files, and the records of the shard."""
    for file in shard.files:
        yield from file_problems(directory, manifest, file)
    if _missing_reason(directory, shard.path) is not None:
        return
    with ExitStack() as stack:
        try:
            path = stack.enter_context(local_path(directory, shard))
        except DatasetDamaged:
            return  # its bytes differ, which is reported above
        for finding in dataset_format.verify_shard(path, layout=manifest.layout, rows=shard.rows):
            position = "" if finding.row is None else f" (row {finding.row})"
            yield DatasetProblem(shard.path, f"{finding.message}{position}", finding.offset)


def file_problems(
    directory: str, manifest: Manifest, file: ManifestFile
) -> Iterator[DatasetProblem]:
    """Compare the size and SHA-256 of a file with the manifest; yield the first difference."""
    absent = _missing_reason(directory, file.path)
    if absent is not None:
        yield DatasetProblem(file.path, absent)
        return
    path = os.path.join(directory, file.path)
    size = storage_for(path).size(path)
    if size != file.bytes:
        message = f"has {size:,} bytes, but {file.bytes:,} in the manifest"
        # The end of the shorter of both is the first byte that certainly differs.
        yield DatasetProblem(file.path, message, min(size, file.bytes))
        return
    digest = compute_digest(path)
    if digest.hexdigest() == file.sha256:
        return
    for split in manifest.splits:
        for shard in split.shards:
            if shard.sha256 == digest.hexdigest():
                yield DatasetProblem(file.path, f"contains the bytes of {shard.path!r}", 0)
                return
    # Digests of prefixes locate the damage within one block without a second copy.
    stated = manifest.prefixes.get(file.path, [])
    first = PIECE_BYTES * _count_equal_prefixes(digest.prefixes, stated)
    end = min(first + PIECE_BYTES, size) if stated else size
    yield DatasetProblem(file.path, f"{_DIGEST_DIFFERS}, first before byte {end:,}", first)


def statistics_problems(directory: str, manifest: Manifest) -> Iterator[DatasetProblem]:
    """Compare the SHA-256 of the statistics files with the manifest."""
    for statistics in manifest.statistics.values():
        for entry in (statistics, statistics.get("sample")):
            if not entry:
                continue
            absent = _missing_reason(directory, entry["path"])
            if absent is not None:
                yield DatasetProblem(entry["path"], absent)
            elif files.sha256(os.path.join(directory, entry["path"])) != entry["sha256"]:
                yield DatasetProblem(entry["path"], _DIGEST_DIFFERS, 0)


def transformations_problems(directory: str, manifest: Manifest) -> Iterator[DatasetProblem]:
    """Compare all transformations files with their hashes, including later fits."""
    # Later fits are not in the manifest. Their file name is their hash.
    expected = {
        f"{TRANSFORMATIONS}/{name}": name.removesuffix(".json")
        for name in storage_for(directory).list_directory(os.path.join(directory, TRANSFORMATIONS))
        if not name.startswith(".")
    }
    if manifest.transformations is not None:
        expected[manifest.transformations["path"]] = manifest.transformations["sha256"]
    for path, sha256 in expected.items():
        absent = _missing_reason(directory, path)
        if absent is not None:
            yield DatasetProblem(path, absent)
        elif files.sha256(os.path.join(directory, path)) != sha256:
            yield DatasetProblem(path, "its SHA-256 differs from its file name", 0)


def _missing_reason(directory: str, relative: str) -> str | None:
    """Return the reason why a file cannot be checked, or None if it can."""
    storage = storage_for(directory)
    try:
        path = storage.resolve_inside(directory, relative)
    except StorageError as error:
        return error.message
    return None if storage.exists(path) else "is missing"


def _count_equal_prefixes(digests: list[str], expected_digests: list[str]) -> int:
    """Return the number of equal blocks before the first difference."""
    for index, (digest, expected) in enumerate(zip(digests, expected_digests, strict=False)):
        if digest != expected:
            return index
    return len(expected_digests)


def list_unchecked(manifest: Manifest, dataset_format: DatasetFormat) -> Iterator[str]:
    """Yield the checks that are possible only by running the plan again, with the reason."""
    refusal = dataset_format.refuse_reading(manifest.layout)
    if refusal is not None:
        yield f"row order and splits not checked: {refusal}"
        return
    possible = _PossibleChecks.from_manifest(manifest)
    lossy = ", ".join(column.name for column in manifest.columns if column.loss is not None)
    if not possible.order:
        yield f"row order not checked: the files store key columns with loss ({lossy})"
    if len(manifest.splits) > 1 and not possible.split and not possible.distinct:
        yield f"splits not compared row by row: the files store columns with loss ({lossy})"


def row_problems(directory: str, manifest: Manifest) -> Iterator[DatasetProblem]:
    """Read all rows and check their order and their splits."""
    possible = _PossibleChecks.from_manifest(manifest)
    digests: dict[str, UInt64s] = {}
    for number, split in enumerate(manifest.splits):
        scan = _SplitScan(manifest, possible, number, split.name)
        try:
            for batch in split_batches(directory, manifest, split.name):
                yield from scan.problems(batch)
        except FeatureStoreError as error:
            yield DatasetProblem(split.name, f"cannot be read: {error.message}")
        digests[split.name] = scan.distinct_rows()
    yield from _overlaps(digests)


@dataclass(frozen=True)
class _PossibleChecks:
    """The possible row checks, since rows can be hashed again only from columns without loss.

    Attributes:
        rule: The split rule.
        order: Whether the row order within a split can be checked.
        split: Whether the rule can be evaluated to check the split of each row.
        distinct: Whether to check instead that no row is in two splits.
    """

    rule: SplitRule
    order: bool
    split: bool
    distinct: bool

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> _PossibleChecks:
        lossless = {column.name for column in manifest.columns if column.loss is None}
        rule = SplitRule.from_json(manifest.split_rule)
        order = set(manifest.key) <= lossless
        # A stratified split depends on ranks within a class, not on the row alone.
        split = order and not rule.stratify and set(rule.columns) <= lossless
        return cls(rule, order, split, not split and len(lossless) == len(manifest.columns))


class _SplitScan:
    """A scan of the rows of a split, batch by batch."""

    def __init__(
        self, manifest: Manifest, possible: _PossibleChecks, number: int, name: str
    ) -> None:
        self._manifest = manifest
        self._possible = possible
        self._number = number
        self._name = name
        self._last_hash = 0
        self._row = 0
        self._sorted = True
        self._digests: list[UInt64s] = []

    def problems(self, batch: pa.RecordBatch) -> Iterator[DatasetProblem]:
        """Yield the problems of the next batch."""
        manifest = self._manifest
        hashes = row_hash(batch, columns=manifest.key, seed=manifest.seed)
        if self._possible.order and self._sorted and not self._continues_hash_order(hashes):
            self._sorted = False  # one break causes more; only the first is reported
            yield self._problem_near("rows are not in hash order")
        if self._possible.split:
            rule, seed = self._possible.rule, manifest.seed
            groups = assign_groups(batch, rule=rule, hashes=hashes, seed=seed)
            if (groups != self._number).any():
                yield self._problem_near("has rows that the split rule assigns to another split,")
        if self._possible.distinct:
            # A seed other than the manifest's is fine: the hashes are only compared with each
            # other.
            self._digests.append(row_hash(batch, seed=0))
        self._row += batch.num_rows

    def distinct_rows(self) -> UInt64s:
        """Return the sorted distinct hashes of the scanned rows."""
        if not self._digests:
            return np.empty(0, dtype=np.uint64)
        return np.unique(np.concatenate(self._digests))

    def _continues_hash_order(self, hashes: UInt64s) -> bool:
        """Return whether the hashes continue in ascending order, and remember the last one."""
        if not len(hashes):
            return True
        after_last = int(hashes[0]) >= self._last_hash
        self._last_hash = int(hashes[-1])
        return after_last and bool((hashes[1:] >= hashes[:-1]).all())

    def _problem_near(self, message: str) -> DatasetProblem:
        return DatasetProblem(self._name, f"{message} near row {self._row:,}")


def _overlaps(digests: dict[str, UInt64s]) -> Iterator[DatasetProblem]:
    """Yield a problem for each pair of splits that share rows."""
    names = list(digests)
    for index, name in enumerate(names):
        for other_name in names[index + 1 :]:
            shared = len(np.intersect1d(digests[name], digests[other_name], assume_unique=True))
            if shared:
                yield DatasetProblem(name, f"shares {shared:,} rows with split {other_name!r}")
