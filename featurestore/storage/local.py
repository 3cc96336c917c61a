"""Local files: atomic writes, synced directories, and removal that does not follow links."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from featurestore.errors import LocationNotWritable, StorageError
from featurestore.model.threads import independent_tasks
from featurestore.storage import protection
from featurestore.storage.base import Storage
from featurestore.storage.failures import translate_write_errors, warn_after_publication
from featurestore.storage.interface import FileStatus, Writer
from featurestore.storage.protection import check_links

_CHUNK_BYTES = 1 << 20
# Disks serve several requests concurrently; more threads than this do not help.
_SYNC_THREADS = 8
_TEMPORARY = ".tmp"
# Number of new bytes in a growing file after which the kernel is made to write them.
_WRITEBACK_BYTES = 4 << 20

# False on Windows. Its file system journals the entries of directories, which cannot be synced.
_OPENS_DIRECTORIES = hasattr(os, "O_DIRECTORY")


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
        # Every directory is opened relative to its parent. A link that another process creates in
        # the meantime cannot redirect the removal.
        with ExitStack() as handles:
            try:
                if not _OPENS_DIRECTORIES:
                    return remove_by_path(below, names)
                parent = _open_directory(below, None, handles)
                for name in names[:-1]:
                    parent = _open_directory(name, parent, handles)
                status = os.stat(names[-1], dir_fd=parent, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    _remove_tree(names[-1], parent)
                else:
                    os.unlink(names[-1], dir_fd=parent)
            except FileNotFoundError:
                return False
            except OSError as error:
                reason = error.strerror or str(error)
                if error.filename is not None:
                    reason = f"{error.strerror} ({error.filename})"
                raise StorageError(
                    f"Cannot remove {path!r}: {reason}.",
                    hint="check permissions, and that no directory of the store is a symbolic link",
                ) from error
        return True

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


def remove_by_path(below: str, names: Sequence[str]) -> bool:
    """Remove a path where directories cannot be opened; refuse links between it and ``below``."""
    is_junction = getattr(os.path, "isjunction", os.path.islink)  # since Python 3.12
    parent = below
    for name in names[:-1]:
        parent = os.path.join(parent, name)
        if os.path.islink(parent) or is_junction(parent):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), parent)
    path = os.path.join(parent, names[-1])
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
    return True


def sync_path(path: str) -> None:
    """Sync a file or a directory to disk."""
    if not _OPENS_DIRECTORIES and os.path.isdir(path):
        return
    with translate_write_errors(path):
        # Windows syncs only a file that is open for writing.
        handle = os.open(path, os.O_RDONLY if _OPENS_DIRECTORIES else os.O_RDWR)
        try:
            os.fsync(handle)
        except OSError as error:
            # Some network file systems cannot sync directories, but their entries are durable
            # anyway.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(handle)


def _remove_tree(name: str, parent: int) -> None:
    """Remove a directory and as many of its files as possible; raise OSError if any remain."""
    # The first pass removes what it can; the second collects the errors of what remains. Without a
    # handler, rmtree of Python 3.13 replaces the name of the file in an error by that of its folder.
    shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    errors: list[OSError] = []

    def collect_error(_function: object, path: str, reported: Any) -> None:
        # Before Python 3.12, the handler receives the result of `sys.exc_info`.
        error = reported[1] if isinstance(reported, tuple) else reported
        if not isinstance(error, FileNotFoundError):  # another process may remove the same files
            error.filename = path
            errors.append(error)

    handler: dict[str, Any] = {"onexc" if sys.version_info >= (3, 12) else "onerror": collect_error}
    shutil.rmtree(name, dir_fd=parent, **handler)
    if errors:
        raise errors[0]


def _open_directory(name: str, parent: int | None, handles: ExitStack) -> int:
    """Open a directory by name relative to an open directory; refuse a symbolic link."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    if parent is not None:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            raise FileNotFoundError(name)  # the path is a file, so it contains nothing
        flags |= os.O_NOFOLLOW
    handle = os.open(name, flags, dir_fd=parent)
    handles.callback(os.close, handle)
    return handle
