"""Erasure in the other files of a store: staged rows, job logs, run artifacts, definitions.

Staged files are removed, and logs are rewritten. Files of runs, models and definitions are only
listed: a person decides about them.
"""

from __future__ import annotations

import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from functools import partial

import pyarrow as pa

from featurestore.erasure.areas import Scan
from featurestore.erasure.keys import Entities
from featurestore.erasure.tables import STATISTICS_SUFFIX, group_tables
from featurestore.model import paths
from featurestore.model.erasure import Action, ErasureFinding
from featurestore.recovery import liveness
from featurestore.recovery.pins import finished_datasets
from featurestore.registry import intents
from featurestore.registry.opening import REGISTRY_FILE
from featurestore.session import Session
from featurestore.storage import revisions, storage_for
from featurestore.storage.manifests import ANNOTATIONS_FILE, annotations_path

_AREAS: dict[str, tuple[str, Action]] = {
    paths.STAGING: ("staged files", "remove"),
    paths.LOGS: ("job logs", "rewrite"),
    paths.EXPERIMENTS: ("run artifacts", "list"),
    paths.MODELS: ("model files", "list"),
    paths.TRAININGDATASETS: ("descriptions", "rewrite"),
}
_OTHER_FILES: tuple[str, Action] = ("other files", "list")
# Databases, lock files and certificates, which other areas search.
_SEARCHED_ELSEWHERE = (paths.OWNERS, paths.ERASURES, "online")
# A value may be in two consecutive chunks of a file.
_OVERLAP = 4096
_CHUNK = 1 << 20
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd", b"\x04\x22": "lz4", b"BZ": "bz2"}
# The errors of damaged or encrypted archives, and of methods that Python does not support.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)


class OtherFiles:
    """All files of a store that are not in its tables, datasets and databases."""

    name = "files"

    def search(self, scan: Scan) -> list[ErasureFinding]:
        findings = []
        for path in _files(scan.session):
            scan.scanned[self.name] += 1
            if has_value(path, scan.entities):
                area, action = _area_of(path, scan.session.location)
                item = scan.relative(path)
                findings.append(ErasureFinding(area, item, "contains a key", action))
        return findings

    def erase(self, scan: Scan) -> None:
        location, storage = scan.session.location, scan.session.storage
        for path in list(_files(scan.session)):
            _, action = _area_of(path, location)
            if action == "list" or not has_value(path, scan.entities):
                continue
            if action == "remove":
                if not _is_being_written(scan, path):
                    storage.remove(path, below=location)
                continue
            text = storage.read_bytes(path).decode("utf-8", "surrogateescape")
            cleaned = scan.entities.remove_from(text.encode("utf-8", "replace").decode())
            storage.write_atomically(path, cleaned.encode())


def _files(session: Session) -> Iterator[str]:
    """Yield the files of a store that no other area searches."""
    for name in session.storage.list_directory(session.location):
        path = os.path.join(session.location, name)
        if name in _SEARCHED_ELSEWHERE or name.startswith(REGISTRY_FILE):
            continue
        if name == paths.FEATUREGROUPS:
            tables = {table.path for table in group_tables(session)}
            statistics = {f"{table}{STATISTICS_SUFFIX}" for table in tables}
            yield from _files_outside(tables | statistics, path)
        elif name == paths.TRAININGDATASETS:
            datasets = {session.training_dataset_path(*key) for key in finished_datasets(session)}
            yield from _files_outside(datasets, path)
            # Shards and statistics of datasets are searched with their manifest.
            for dataset in sorted(datasets):
                yield from revisions.paths(annotations_path(dataset))
        else:
            yield from _files_at(path)


def _files_outside(directories: Set[str], root: str) -> Iterator[str]:
    """Yield the files of groups or datasets that are in none of the directories of versions.

    A killed write, a removal or a backup may have left them without a log or manifest.
    """
    storage = storage_for(root)
    for name in storage.list_directory(root):
        folder = os.path.join(root, name)
        if not storage.is_directory(folder):
            yield folder
        for entry in storage.list_directory(folder):
            path = os.path.join(folder, entry)
            if path not in directories:
                yield from _files_at(path)


def _files_at(path: str) -> Iterator[str]:
    storage = storage_for(path)
    if storage.is_directory(path):
        yield from storage.walk(path)
    else:
        yield path


def _area_of(path: str, location: str) -> tuple[str, Action]:
    folder = path.removeprefix(location).lstrip("/").split("/")[0]
    is_annotations = revisions.is_version_of(path, ANNOTATIONS_FILE)
    if folder == paths.TRAININGDATASETS and not is_annotations:
        return _OTHER_FILES
    return _AREAS.get(folder, _OTHER_FILES)


def _is_being_written(scan: Scan, path: str) -> bool:
    """Return whether a staged file belongs to a write of a living process."""
    session = scan.session
    run = path.removeprefix(session.paths.staging).lstrip("/").split("/")[0]
    with session.registry.reading() as connection:
        intent = intents.find(connection, run)
        return intent is not None and liveness.is_alive(connection, session.location, intent.owner)


def has_value(path: str, entities: Entities) -> bool:
    """Return whether a file contains a key value; compressed files are decompressed."""
    if path.endswith(".parquet"):
        try:
            return _parquet_has_value(path, entities)
        except (pa.ArrowInvalid, OSError):  # incomplete files are searched as bytes
            pass
    try:
        return any(map(entities.occurs_in, _chunks(path)))
    except FileNotFoundError:  # removed in the meantime
        return False


def _parquet_has_value(path: str, entities: Entities) -> bool:
    from pyarrow import parquet

    reader = parquet.ParquetFile(storage_for(path).open_complete(path))
    columns = entities.key_columns(reader.schema_arrow.names)
    for batch in reader.iter_batches():
        if entities.is_searchable(columns) and entities.matches(batch, columns).true_count:
            return True
        for column in batch.columns:
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                values = column.cast(pa.binary()).drop_null().to_pylist()
                if entities.occurs_in(b"\0".join(values)):
                    return True
    return False


def _chunks(path: str) -> Iterator[bytes]:
    """Yield the bytes of a file in overlapping chunks, and those of compressed content."""
    storage = storage_for(path)
    start = b""
    for chunk in _overlapping(storage.read_chunks(path)):
        start = start or chunk[:4]
        yield chunk
    if start == b"PK\x03\x04":
        yield from _zip_members(storage.read_bytes(path))
    codec = _CODECS.get(start[:2])
    if codec is not None:
        yield from _decompress(storage.read_bytes(path), codec)


def _overlapping(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield chunks that start with the end of the chunk before."""
    tail = b""
    for chunk in chunks:
        yield tail + chunk
        tail = (tail + chunk)[-_OVERLAP:]


def _zip_members(content: bytes) -> Iterator[bytes]:
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except _ZIP_ERRORS:
        return
    with archive:
        for entry in archive.infolist():
            yield entry.filename.encode("utf-8", "replace")
            # The other members of an archive may be complete.
            with suppress(*_ZIP_ERRORS), archive.open(entry) as member:
                yield from _overlapping(iter(partial(member.read, _CHUNK), b""))


def _decompress(content: bytes, codec: str) -> Iterator[bytes]:
    # The first bytes may be a coincidence.
    with (
        suppress(OSError, pa.ArrowInvalid),
        pa.CompressedInputStream(pa.BufferReader(content), codec) as stream,
    ):
        yield from _overlapping(iter(partial(stream.read, _CHUNK), b""))
