"""Local files: atomic writes and synced directories."""

from __future__ import annotations

import errno
import io
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from featurestore.errors import LocationNotWritable, StorageError
from featurestore.model.threads import independent_tasks
from featurestore.storage import protection
from featurestore.storage.base import Storage
from featurestore.storage.failures import translate_write_errors, warn_after_publication
from featurestore.storage.interface import FileStatus, Writer
from featurestore.storage.protection import check_links
from featurestore.storage.removal import OPENS_DIRECTORIES, remove_below

_CHUNK_BYTES = 1 << 20
# Disks serve several requests concurrently; more threads than this do not help.
_SYNC_THREADS = 8
_TEMPORARY = ".tmp"
# Number of new bytes in a growing file after which the kernel is made to write them.
_WRITEBACK_BYTES = 4 << 20


class LocalStorage(Storage):
    """Files in local and shared POSIX directories."""

    is_local = True
    supports_appending = True
    prefers_listing = False
    needs_claims = False

    def ensure_writable(self, directory: str) -> None:
        check_links(directory)
        try:
            os.makedirs(directory, exist_ok=True)
            # Only a write shows that a directory is writable, for example on a read-only mount.
            probe = os.path.join(directory, f".probe-{uuid.uuid4().hex}")
            with open(probe, "wb"):
                pass
            os.remove(probe)
        except OSError as error:
            raise LocationNotWritable(
                f"The location {directory!r} cannot be written: {error.strerror or error}.",
                hint="choose another directory: featurestore.connect('path') or "
                "$FEATURESTORE_LOCATION",
            ) from error

    def _make_directory(self, path: str, *, durable: bool) -> None:
        check_links(path)
        created = []
        if durable:
            missing = os.path.abspath(path)
            while not os.path.isdir(missing):
                created.append(missing)
                missing = os.path.dirname(missing)
        protection.make_folders(path)
        # The entry of a new directory is in its parent, which has to be synced as well.
        for folder in reversed(created):
            sync_path(os.path.dirname(folder))

    def _write(self, path: str, data: bytes, *, durable: bool) -> None:
        self.make_directory(os.path.dirname(path))
        temporary = temporary_path(path)
        try:
            _write_file(temporary, data, durable=durable, target=path)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        if durable:
            # The file is visible after the rename, so a failed sync of its directory must not be
            # reported as a failed write.
            with warn_after_publication(f"The file {path!r}"):
                sync_path(os.path.dirname(path))

    def _write_new(self, path: str, data: bytes) -> bool:
        temporary = temporary_path(path)
        self.make_directory(os.path.dirname(path))
        try:
            _write_file(temporary, data, durable=True, target=path)
            if not link_new(temporary, path):
                return False
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        with warn_after_publication(f"The file {path!r}"):
            sync_path(os.path.dirname(path))
        return True

    @contextmanager
    def writer(self, path: str) -> Iterator[Writer]:
        folder = os.path.dirname(path)
        temporary = temporary_path(path)
        try:
            with ExitStack() as resources:
                with translate_write_errors(path):
                    self.make_directory(folder, durable=True)
                    file = resources.enter_context(
                        open(temporary, "wb", buffering=0, opener=protection.opener(path))
                    )
                yield _EarlyWriteback(file)
                # The content is synced before the rename: after a power failure, the name must not
                # refer to an incomplete file.
                with translate_write_errors(path):
                    os.fsync(file.fileno())
            with translate_write_errors(path):
                os.replace(temporary, path)
                sync_path(folder)
        finally:
            if os.path.exists(temporary):
                os.remove(temporary)

    def upload(self, source: str, path: str) -> None:
        check_links(source)
        with open(source, "rb") as file, self.writer(path) as writer:
            shutil.copyfileobj(file, writer, _CHUNK_BYTES)

    def sync(self, paths: Iterable[str]) -> None:
        file_paths = list(paths)
        folders = sorted({os.path.dirname(path) for path in file_paths})
        # Files first: a synced directory entry must not refer to content that is not on disk.
        for batch in (file_paths, folders):
            if len(batch) == 1:
                sync_path(batch[0])
            elif batch:
                threads = min(_SYNC_THREADS, len(batch))
                with independent_tasks(threads, "featurestore-sync") as pool:
                    list(pool.map(sync_path, batch))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    @contextmanager
    def growing_file(self, path: str) -> Iterator[str]:
        self.make_directory(os.path.dirname(path))
        check_links(path)
        if protection.is_private(path):
            with translate_write_errors(path):
                protection.create_file(path)
        yield path

    def read(self, path: str) -> bytes:
        check_links(path)
        return Path(path).read_bytes()

    def _read_into(self, path: str, start: int, buffers: Sequence[memoryview]) -> None:
        position = start
        check_links(path)
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            for buffer in buffers:
                if file.readinto(buffer) != len(buffer):
                    raise StorageError(
                        f"Cannot read {path!r} from byte {position} to {position + len(buffer)}: "
                        "the file is truncated.",
                        hint="restore it from a copy",
                    )
                position += len(buffer)

    def _read_chunks(self, path: str, start: int) -> Iterator[bytes]:
        check_links(path)
        with open(path, "rb") as file:
            file.seek(start)
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def open_complete(self, path: str) -> str | io.BytesIO:
        check_links(path)
        return path

    def open_ranges(self, path: str) -> str | IO[bytes]:
        check_links(path)
        return path

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def status(self, path: str) -> FileStatus:
        check_links(path)
        status = os.stat(path)
        return FileStatus(status.st_size, status.st_mtime_ns, status.st_ino)

    def is_readable(self, path: str) -> bool:
        return os.access(path, os.R_OK)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def is_same(self, first_path: str, second_path: str) -> bool:
        try:
            return os.path.samefile(first_path, second_path)
        except OSError:
            return False

    def is_below(self, path: str, directory: str) -> bool:
        # The separator excludes siblings such as /data-old of /data.
        return os.path.realpath(path).startswith(os.path.join(os.path.realpath(directory), ""))

    def resolve(self, path: str) -> str:
        return os.path.realpath(path)

    def as_uri(self, path: str) -> str:
        return Path(path).absolute().as_uri()

    def _list_directory(self, path: str, after: str) -> list[str]:
        check_links(path)
        try:
            return sorted(name for name in os.listdir(path) if name > after)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, directory: str, *, enter: Callable[[str], bool] | None = None) -> Iterator[str]:
        check_links(directory)
        for parent, folders, names in os.walk(directory):
            folders[:] = sorted(name for name in folders if enter is None or enter(name))
            for name in sorted(names):
                yield os.path.join(parent, name)

    def walk_with_status(self, directory: str) -> Iterator[tuple[str, FileStatus]]:
        for path in self.walk(directory):
            with suppress(FileNotFoundError):  # a temporary file that was just renamed
                yield path, self.status(path)

    def cached_listing(self, directory: str, *, after: str = "") -> AbstractContextManager[None]:
        return nullcontext()

    def last_write_time(self, path: str) -> datetime | None:
        paths = [path] if os.path.isfile(path) else list(self.walk(path))
        latest = max((os.stat(file).st_mtime for file in paths), default=None)
        return None if latest is None else datetime.fromtimestamp(latest, UTC)

    def current_time(self, location: str) -> datetime:
        return datetime.now(UTC)

    def _remove(self, path: str, names: Sequence[str], *, below: str) -> bool:
        return remove_below(path, names, below=below)

    def remove_file(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_unfinished(self, directory: str, *, before: datetime) -> int:
        return 0

    def create_link(self, source: str, target: str) -> bool:
        check_links(source)
        check_links(os.path.dirname(target))
        try:
            os.link(source, target)
        except OSError:
            return False
        return True


def link_new(temporary: str, path: str) -> bool:
    """Give a complete temporary file its name, and return False if the name exists."""
    try:
        # A link fails if the name exists. A rename would replace the file of another writer.
        os.link(temporary, path)
    except OSError:
        # The name exists, or the file system does not support hard links.
        if os.path.exists(path):
            return False
        os.replace(temporary, path)
    return True


def temporary_path(path: str) -> str:
    """Return the path of a temporary file next to ``path``."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex}{_TEMPORARY}")


def _write_file(path: str, data: bytes, *, durable: bool, target: str) -> None:
    """Write a file that will be renamed to ``target``."""
    with open(path, "wb", opener=protection.opener(target)) as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


class _EarlyWriteback:
    """A growing file that is written to disk continuously, so that the final sync is short.

    Otherwise the final sync would have to write the complete shard while the processors wait.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._size = self._started = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        count = self._file.write(data)
        self._size += count
        if self._size - self._started >= _WRITEBACK_BYTES:
            self._start_writeback()
        return count

    def _start_writeback(self) -> None:
        """Make the kernel start writing the newest bytes to disk.

        Linux does so on the advice POSIX_FADV_DONTNEED; bytes that are not on disk yet stay in the
        page cache. An error is harmless.
        """
        started, self._started = self._started, self._size
        if not hasattr(os, "posix_fadvise"):  # macOS does not have this function
            return
        with suppress(OSError):
            os.posix_fadvise(
                self._file.fileno(), started, self._size - started, os.POSIX_FADV_DONTNEED
            )


def sync_path(path: str) -> None:
    """Sync a file or a directory to disk."""
    if not OPENS_DIRECTORIES and os.path.isdir(path):
        return
    with translate_write_errors(path):
        # Windows syncs only a file that is open for writing.
        handle = os.open(path, os.O_RDONLY if OPENS_DIRECTORIES else os.O_RDWR)
        try:
            os.fsync(handle)
        except OSError as error:
            # Some network file systems cannot sync directories, but their entries are durable
            # anyway.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(handle)
