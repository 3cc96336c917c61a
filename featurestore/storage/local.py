"""The storage in a directory: POSIX files, written under a temporary name and synced."""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from featurestore.errors import StorageError
from featurestore.storage import files
from featurestore.storage.failures import reading, writing
from featurestore.storage.interface import StoredObject, Writer
from featurestore.storage.location import check_name
from featurestore.storage.publication import Publication, make_directory, sync_path

if TYPE_CHECKING:
    from featurestore.storage.interface import Storage

# What is being written, and what a killed process left: no object yet.
_TEMPORARY = ".tmp"


class LocalStorage:
    """Files below a directory. Symbolic links are not followed out of it.

    Args:
        directory: An absolute path; made when it is first written to.
        durable: Sync each object and its name to disk before the call returns.
    """

    def __init__(self, directory: str, *, durable: bool = True) -> None:
        self.root = directory
        self._durable = durable

    def read(self, name: str) -> bytes:
        path = self._existing(name)
        with reading(path), open(path, "rb") as file:
            return file.read()

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        path = self._existing(name)
        found = []
        with reading(path), open(path, "rb", buffering=0) as file:
            for start, length in ranges:
                data = os.pread(file.fileno(), length, start)
                if len(data) != length:
                    raise _ends(path, start, length)
                found.append(data)
        return found

    def read_into(self, name: str, start: int, targets: Sequence[memoryview]) -> None:
        path, position = self._existing(name), start
        with reading(path), open(path, "rb", buffering=0) as file:
            for target in targets:
                if os.preadv(file.fileno(), [target], position) != len(target):
                    raise _ends(path, position, len(target))
                position += len(target)

    def put(self, name: str, data: bytes) -> None:
        with self.writer(name) as writer:
            writer.write(data)

    def put_new(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._temporary(path) as temporary:
            with writing(path), open(temporary, "xb") as file:
                file.write(data)
            with Publication(durable=self._durable) as publication:
                publication.add(temporary)
                if not publication.link(temporary, path):
                    raise FileExistsError(f"There is {path!r} already.")

    @contextmanager
    def writer(self, name: str) -> Iterator[Writer]:
        path = self._path(name)
        with self._temporary(path) as temporary:
            with ExitStack() as opened:
                with writing(path):
                    file = opened.enter_context(open(temporary, "xb"))
                yield file
                with writing(path):
                    file.flush()
                    if self._durable:
                        os.fsync(file.fileno())
            with writing(path):
                os.replace(temporary, path)
            if self._durable:
                sync_path(os.path.dirname(path))

    def upload(self, name: str, path: str) -> None:
        with reading(path), open(path, "rb") as source, self.writer(name) as writer:
            shutil.copyfileobj(source, writer, 1 << 20)

    def copy(self, source: str, target: str) -> None:
        self.upload(target, self._existing(source))

    def children(self, folder: str) -> list[str]:
        top = self.root if folder == "" else self._path(folder)
        found = []
        for name in files.list_directory(top):
            if not _is_temporary(name) and self._holds(os.path.join(top, name)):
                found.append(name)
        return found

    def find(self, name: str) -> StoredObject | None:
        path = self._path(name)
        with reading(path):
            try:
                found = os.stat(path, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return None
        if stat.S_ISDIR(found.st_mode):
            return None
        modified = datetime.fromtimestamp(found.st_mtime, UTC)
        return StoredObject(name, found.st_size, modified, f"{found.st_ino}-{found.st_mtime_ns}")

    def remove(self, name: str) -> bool:
        if self.find(name) is None:
            return False
        return files.remove(self._path(name), below=self.root)

    def remove_below(self, folder: str) -> int:
        found = sum(1 for _ in self.list(check_name(folder)))
        files.remove(self._path(folder), below=self.root)
        return found

    def remove_unfinished(self, folder: str, *, before: datetime) -> int:
        removed = 0
        for path in files.walk(self._path(folder)):
            if _is_temporary(path):
                with suppress(FileNotFoundError):
                    if os.stat(path).st_mtime < before.timestamp():
                        removed += files.remove(path, below=self.root)
        return removed

    def list(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        top = self.root if folder == "" else self._path(folder)
        names = []
        for path in files.walk(top):
            name = os.path.relpath(path, self.root)
            if name > after and not _is_temporary(name):
                names.append(name)
        for name in sorted(names):
            found = self.find(name)
            if found is not None:
                yield found

    def _path(self, name: str) -> str:
        return os.path.join(self.root, check_name(name))

    def _existing(self, name: str) -> str:
        """Return the path of an object; FileNotFoundError, as the caller expects it, for none."""
        path = self._path(name)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"There is no {path!r}.")
        return path

    def _holds(self, path: str) -> bool:
        """Tell whether a path is an object, or a folder with one: empty folders are not there."""
        if not os.path.isdir(path):
            return True
        return any(not _is_temporary(each) for each in files.walk(path))

    @contextmanager
    def _temporary(self, path: str) -> Iterator[str]:
        """Give a temporary path beside one, and remove what is left there."""
        folder, name = os.path.split(path)
        make_directory(folder, durable=self._durable)
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}{_TEMPORARY}")
        try:
            yield temporary
        finally:
            with suppress(OSError):
                os.unlink(temporary)


def _ends(path: str, start: int, length: int) -> StorageError:
    return StorageError(
        f"Cannot read {path!r} from byte {start} to {start + length}: it ends before."
    )


def _is_temporary(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith(".") and name.endswith(_TEMPORARY)


if TYPE_CHECKING:
    _contract: type[Storage] = LocalStorage
