"""Files: every path of the store's own files goes through here, whether it is a URI or not.

Nothing above this package calls ``open``.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from featurestore.errors import LocationNotWritable, StorageError, UnsupportedLocation
from featurestore.model.paths import is_relative_path
from featurestore.storage import publication, remote
from featurestore.storage.failures import reading, writing
from featurestore.storage.location import Location, is_uri, require_local

_log = logging.getLogger("featurestore.storage")
_COPY_TRIES = 10
_UPLOADS = 8
_BUFFER_BYTES = 64 << 10


def location_of(location: str | os.PathLike[str]) -> str:
    """Return the absolute path of a directory, or the URI of a place in an object store.

    Raises:
        UnsupportedLocation: ``location`` is a URI of another kind.
    """
    text = os.fspath(location)
    if is_uri(text) and not text.startswith("file://"):
        return Location.parse(text).text
    return local_directory(text)


def local_directory(location: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local or shared POSIX directory.

    Raises:
        UnsupportedLocation: ``location`` is a URI of another kind.
    """
    text = os.fspath(location)
    if text.startswith("file://"):
        text = text[len("file://") :]
    if "://" in text or text.startswith(("dbfs:", "hdfs:")):
        raise UnsupportedLocation(
            f"location={text!r} is not a directory of this machine.",
            hint="a local or shared POSIX path, also one where another file system is mounted",
        )
    path = os.path.abspath(os.path.expanduser(text))
    if "\\" in path:
        raise UnsupportedLocation(
            f"location={text!r} has a backslash, which engines take for a separator.",
            hint="choose a directory without one",
        )
    return path


def ensure_writable(directory: str) -> None:
    """Create ``directory`` if need be and make sure that files can be written there.

    Raises:
        LocationNotWritable: Names the directory and why.
    """
    if is_uri(directory):
        remote.ensure_writable(directory)
        return
    try:
        os.makedirs(directory, exist_ok=True)
        probe = os.path.join(directory, f".probe-{uuid.uuid4().hex}")
        with open(probe, "wb"):
            pass
        os.remove(probe)
    except OSError as error:
        raise LocationNotWritable(
            f"The location {directory!r} cannot be written: {error.strerror or error}.",
            hint="choose another directory: featurestore.connect('path') or $FEATURESTORE_LOCATION",
        ) from error


def make_directory(path: str) -> None:
    """Make a directory and those above it; nothing happens when it is there."""
    if is_uri(path):
        return
    with writing(path):
        os.makedirs(path, exist_ok=True)


def write_atomically(path: str, data: bytes) -> None:
    """Write a file so that readers see the old content or the new: temporary, synced, renamed."""
    if is_uri(path):
        remote.write(path, data)
        return
    _put_in_place(path, data, sync=lambda file: os.fsync(file.fileno()))
    with publication.after_publication(f"The file {path!r}"):
        _sync_directory(os.path.dirname(path))


def replace_json(path: str, data: Mapping[str, Any]) -> None:
    """Write a JSON object so that readers see the old content or the new, while the machine runs.

    Nothing is forced to the disk, which takes longer than all else: for what only living processes
    tell one another.
    """
    content = json_bytes(data)
    if is_uri(path):
        remote.write(path, content)
        return
    _put_in_place(path, content, sync=lambda file: None)


def _put_in_place(path: str, data: bytes, *, sync: Callable[[IO[bytes]], None]) -> None:
    directory = os.path.dirname(path)
    make_directory(directory)
    temporary = os.path.join(directory, f".{os.path.basename(path)}.{uuid.uuid4().hex}.tmp")
    try:
        with writing(path):
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                sync(file)
            os.replace(temporary, path)
    except StorageError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def write_new(path: str, data: bytes) -> bool:
    """Write a file whole below a URI; False when its name is taken."""
    return remote.write_new(path, data)


def write_json(path: str, data: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, indented, keys in their order."""
    write_atomically(path, json_bytes(data))


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """Return a JSON object as the bytes of a file, indented, keys in their order."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def read_bytes(path: str) -> bytes:
    """Return the content of a file."""
    with reading(path):
        if is_uri(path):
            return remote.read(path)
        return Path(path).read_bytes()


def read_into(path: str, start: int, targets: Sequence[memoryview]) -> None:
    """Fill memory with the bytes of an object below a URI from ``start`` on."""
    with reading(path):
        remote.read_into(path, start, targets)


def upload(moves: Sequence[tuple[str, str]]) -> None:
    """Write files of this machine, or objects of the same bucket, as objects; several at a time.

    Each is given with the URI that it gets.
    """
    with ThreadPoolExecutor(min(_UPLOADS, max(len(moves), 1))) as pool:
        list(pool.map(lambda move: remote.upload(*move), moves))


@contextmanager
def written_here(path: str) -> Iterator[str]:
    """Give the path at which a file is written that grows: itself, in a directory that is made.

    Below a URI nothing grows: there it is a temporary file, which becomes an object where the block
    ends. What fails then is logged, and does not fail the block.
    """
    if not is_uri(path):
        make_directory(os.path.dirname(path))
        yield path
        return
    folder = temporary_directory()
    here = os.path.join(folder, os.path.basename(path))
    try:
        yield here
    finally:
        try:
            remote.upload(here, path)
        except StorageError as error:
            _log.warning("a file is not at its place: %s", error.message)
        remove_temporary(folder)


def opened(path: str) -> str | io.BytesIO:
    """Return what libraries take as a file: the path, or for a URI the bytes in memory.

    Raises:
        OSError: As the system says it.
    """
    return io.BytesIO(remote.read(path)) if is_uri(path) else path


def opened_by_ranges(path: str) -> str | IO[bytes]:
    """Return what libraries take as a file of which they read some parts.

    Raises:
        OSError: As the system says it.
    """
    if not is_uri(path):
        return path
    return io.BufferedReader(remote.RangedFile(path), _BUFFER_BYTES)


def read_json(path: str) -> Any:
    """Return the JSON value of a file."""
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"The file {path!r} is damaged: {error}.") from error


def exists(path: str) -> bool:
    """Tell whether a file or directory exists."""
    if is_uri(path):
        return remote.exists(path)
    return os.path.exists(path)


@dataclass(frozen=True)
class FileStatus:
    """Size of a file in bytes, when it was changed last, and what tells it from its successors."""

    size: int
    modified_ns: int
    inode: int | str


def status(path: str) -> FileStatus:
    """Return the status of a file.

    Raises:
        OSError: As the system says it, for callers that tell one reason from another.
    """
    if is_uri(path):
        there = remote.status(path)
        return FileStatus(there.size, int(there.modified.timestamp() * 1e9), there.etag)
    found = os.stat(path)
    return FileStatus(found.st_size, found.st_mtime_ns, found.st_ino)


def read_text(path: str) -> str:
    """Return the content of a file of UTF-8.

    Raises:
        OSError: As the system says it, for callers that tell one reason from another.
        UnicodeDecodeError: It is not UTF-8.
    """
    if is_uri(path):
        return remote.read(path).decode()
    return Path(path).read_text(encoding="utf-8")


def is_readable(path: str) -> bool:
    """Tell whether this process may read a file or directory."""
    if is_uri(path):
        return exists(path)
    return os.access(path, os.R_OK)


def is_file(path: str) -> bool:
    """Tell whether a path is a file."""
    if is_uri(path):
        return remote.find(path) is not None
    return os.path.isfile(path)


def is_same(left: str, right: str) -> bool:
    """Tell whether two paths lead to one file or directory."""
    if is_uri(left) or is_uri(right):
        return left == right
    try:
        return os.path.samefile(left, right)
    except OSError:
        return False


def is_directory(path: str) -> bool:
    """Tell whether a path is a directory."""
    if is_uri(path):
        return remote.is_directory(path)
    return os.path.isdir(path)


def walk(directory: str, *, enter: Callable[[str], bool] | None = None) -> Iterator[str]:
    """Yield the paths of all files below a directory, in the order of their directories and names.

    Symbolic links to directories are not followed. ``enter`` tells from the name of a directory
    whether to look into it.
    """
    if is_uri(directory):
        yield from remote.walk(directory, enter=enter)
        return
    for parent, inner, names in os.walk(directory):
        inner[:] = sorted(name for name in inner if enter is None or enter(name))
        for name in sorted(names):
            yield os.path.join(parent, name)


def size(path: str) -> int:
    """Return the number of bytes of a file."""
    with reading(path):
        if is_uri(path):
            return remote.status(path).size
        return os.stat(path).st_size


def sizes_below(directory: str) -> dict[str, int]:
    """Return the sizes of all files below a URI by path, in one list; nothing for a directory.

    There a look at each file costs less than a list of all.
    """
    if not is_uri(directory):
        return {}
    return {path: found.size for path, found in remote.listed(directory)}


def last_written(path: str) -> datetime | None:
    """Return when an object, or one below it, was written last, as the server of a URI says it.

    None where there is none.
    """
    return remote.last_written(path)


def time_of_store(location: str) -> datetime:
    """Return what time it is at the server of a URI: that of an object written now."""
    return remote.time_of_store(location)


def list_directory(path: str, *, after: str = "") -> list[str]:
    """Return the names in a directory, sorted; empty when there is none, and for a file.

    With ``after`` only those that come after it: of a directory without directories in it.
    """
    if is_uri(path):
        return remote.names(path, after=after)
    with reading(path):
        try:
            return sorted(name for name in os.listdir(path) if name > after)
        except (FileNotFoundError, NotADirectoryError):
            return []


def remove(path: str, *, below: str) -> bool:
    """Remove a file, or a directory with all in it, below a directory; tell whether it was there.

    Whatever text a path was made from, nothing outside ``below`` is ever removed, nor ``below``
    itself: the path is followed directory by directory, and a symbolic link on the way is refused.
    A link at the end of the path goes itself, what it points to stays.

    Args:
        path: What to remove.
        below: The store's location, or another directory that belongs to the caller.

    Raises:
        StorageError: The path does not lie below that directory, or the system refuses: of a
            directory what can go is gone then.
    """
    names = _names_below(path, below)
    if is_uri(path):
        return remote.remove(path)
    with ExitStack() as opened:
        try:
            parent = _open_directory(below, None, opened)
            for name in names[:-1]:
                parent = _open_directory(name, parent, opened)
            found = os.stat(names[-1], dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                _remove_tree(names[-1], parent)
            else:
                os.unlink(names[-1], dir_fd=parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(
                f"Cannot remove {path!r}: {_refusal(error)}.",
                hint="directories of a store are no symbolic links; check permissions",
            ) from error
    return True


def _remove_tree(name: str, parent: int) -> None:
    """Remove a directory and all in it, as far as the system lets; OSError for what stays."""
    shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    with suppress(FileNotFoundError):  # nothing stays, or another process removes it, too
        shutil.rmtree(name, dir_fd=parent)


def _refusal(error: OSError) -> str:
    """Return what the system says, with the name of the file that it says it of."""
    if error.filename is None:
        return error.strerror or str(error)
    return f"{error.strerror} ({error.filename})"


def _names_below(path: str, below: str) -> list[str]:
    """Return the names that lead from a directory to a path.

    Refused when the path lies elsewhere.
    """
    root = os.path.join(below, "")
    names = path[len(root) :].split("/") if path.startswith(root) else []
    if not names or any(name in ("", ".", "..") for name in names):
        raise StorageError(f"Refused to remove {path!r}: it does not lie below {below!r}.")
    return names


def _open_directory(name: str, parent: int | None, opened: ExitStack) -> int:
    """Open a directory by its name in an open one; a symbolic link is refused."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    if parent is not None:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISLNK(found.st_mode):
            raise FileNotFoundError(name)  # below a file there is nothing
        flags |= os.O_NOFOLLOW
    handle = os.open(name, flags, dir_fd=parent)
    opened.callback(os.close, handle)
    return handle


def lies_below(path: str, directory: str) -> bool:
    """Tell whether a path leads below a directory, whatever links are on the way."""
    if is_uri(path) or is_uri(directory):
        relative = path.removeprefix(f"{directory}/")
        return relative != path and is_relative_path(relative)
    return os.path.realpath(path).startswith(os.path.realpath(directory) + os.sep)


def is_link(path: str) -> bool:
    """Return whether a path is a symbolic link; object stores have none."""
    return not is_uri(path) and os.path.islink(path)


def inside(directory: str, relative: str) -> str:
    """Return the path of a file that a stored text names, relative to a directory.

    Raises:
        StorageError: The text leads outside, or through a symbolic link.
    """
    if not is_relative_path(relative):
        raise StorageError(f"{relative!r} is not a path below {directory!r}.")
    if is_uri(directory):
        return f"{directory}/{relative}"
    path = directory
    for name in relative.split("/"):
        path = os.path.join(path, name)
        if is_link(path):
            raise StorageError(
                f"{path!r} is a symbolic link; the files of a store are not.",
                hint="copy the file to where the link is",
            )
    return path


def pieces(path: str, *, start: int = 0) -> Iterator[bytes]:
    """Yield the bytes of a file in order, some of them at a time, from one of them on."""
    with reading(path):
        if is_uri(path):
            yield from remote.pieces(path, start=start)
            return
        with open(path, "rb") as file:
            file.seek(start)
            while piece := file.read(1 << 20):
                yield piece


def sha256(path: str) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    for piece in pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _sync_directory(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename(source: str, target: str) -> None:
    """Give a file another name in the same file system, atomically.

    An existing target is replaced.
    """
    require_local(source, "New names for files", "copy the object by hand")
    os.replace(source, target)


def add_name(source: str, target: str) -> bool:
    """Give a file a further name; False where the file system has none to give.

    Both names have to lie in one file system, and it has to know links.
    """
    if is_uri(source) or is_uri(target):
        return False
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def is_writable(directory: str) -> bool:
    """Tell whether files can be written in a directory, which is made if need be."""
    try:
        ensure_writable(directory)
    except LocationNotWritable:
        return False
    return True


def temporary_directory() -> str:
    """Make a directory of this process for files that need not stay.

    ``remove_temporary`` removes it.
    """
    with writing(tempfile.gettempdir()):
        return tempfile.mkdtemp(prefix="featurestore-")


def remove_temporary(directory: str) -> None:
    """Remove a directory that ``temporary_directory`` made; what cannot go is the system's."""
    with suppress(StorageError):
        remove(directory, below=os.path.dirname(directory))


def copy_together(paths: Iterable[str], directory: str) -> None:
    """Copy files that belong together into a directory, again while they change.

    Those that are absent are left out.

    Raises:
        StorageError: They changed at every try.
    """
    sources = list(paths)
    for _ in range(_COPY_TRIES):
        before = [_stamp(path) for path in sources]
        for path in sources:
            with reading(path), suppress(FileNotFoundError):
                shutil.copyfile(path, os.path.join(directory, os.path.basename(path)))
        if before == [_stamp(path) for path in sources]:
            return
    raise StorageError(
        f"{sources[0]!r} changes all the time and cannot be copied.", hint="try again"
    )


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
