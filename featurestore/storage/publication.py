"""Publication: the one moment at which a write becomes visible, and what holds before and after it.

Before the moment a failure removes the files of the write. From the moment on nothing is removed,
and nothing is reported as failed: what goes wrong afterwards is a ``PublicationWarning``, and
recovery finishes the rest.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from featurestore.errors import InvalidArgument, PublicationWarning, listing
from featurestore.model.callers import warn_caller
from featurestore.storage import remote
from featurestore.storage.failures import writing
from featurestore.storage.location import is_uri

if TYPE_CHECKING:
    from types import TracebackType

DURABILITIES = ("full", "fast")
# Disks take several requests at a time; more than this many gain nothing.
_SYNC_THREADS = 8


class Publication:
    """The files of one write, until the moment at which it becomes visible.

    The write adds each file before it makes it, and publishes all of them with ``link``. Leaving
    the ``with`` block without publication removes the files. Where it cannot be told whether the
    moment came (an interrupt inside the call that publishes), they stay: a file that nothing names
    is removed by the next vacuum, a file that a commit names could never be brought back. One
    thread uses a publication; it is used once.

    Args:
        durable: Sync the files and their folders to disk before the moment, and the published name
            after it.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self.durable = durable
        self._files: list[str] = []
        self._synced = 0
        self._published = False

    def add(self, path: str) -> None:
        """Take charge of a file that is about to be made."""
        self._files.append(path)

    def link(self, source: str, target: str) -> bool:
        """Give ``source`` its public name, which makes the write visible.

        False when the name is taken; StorageError when the system refuses.
        """
        if is_uri(target):
            return self.put(target, remote.read(source))
        self._sync_files()
        # Said before the call: an interrupt may come when the name is there and the call has not
        # returned yet.
        self._published = True
        try:
            os.link(source, target)
        except OSError as error:
            # On network file systems the answer to a link that was made may be lost.
            if not _is_same_file(source, target):
                self._published = False
                if isinstance(error, FileExistsError):
                    return False
                with writing(target):
                    raise
        if self.durable:
            with after_publication(target):
                sync_path(os.path.dirname(target))
        return True

    def put(self, target: str, data: bytes) -> bool:
        """Write an object below a URI whose appearance makes the write visible.

        False when the name is taken. After a StorageError nobody knows whether it is there, so the
        files of the write stay.
        """
        self._published = True
        if not remote.write_new(target, data):
            self._published = False
        return self._published

    def __enter__(self) -> Publication:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._published:
            for path in self._files:
                with suppress(OSError):
                    if is_uri(path):
                        remote.remove_file(path)
                    else:
                        os.unlink(path)

    def _sync_files(self) -> None:
        """Sync the files that came since the last call: a write that lost a race links again."""
        if self.durable:
            sync(self._files[self._synced :])
            self._synced = len(self._files)


def is_durable(durability: str) -> bool:
    """Return what ``durability=`` means: whether a commit is on disk when the call returns.

    >>> is_durable("fast")
    False
    """
    if durability not in DURABILITIES:
        raise InvalidArgument(
            f"durability={durability!r} is not known.", hint=f"one of {listing(DURABILITIES)}"
        )
    return durability == "full"


@contextmanager
def after_publication(what: str) -> Iterator[None]:
    """Report what fails in the block as a warning that ``what`` landed.

    It must not look like a failed write.
    """
    try:
        yield
    except Exception as error:
        # Whatever it is: an error here would make the caller repeat a write that is there.
        warn_published(what, error)


def warn_published(what: str, error: BaseException) -> None:
    """Warn that ``what`` landed, and that something after it went wrong."""
    text = str(error).splitlines()
    reason = text[0] if text else type(error).__name__
    warn_caller(
        f"{what} landed, and then: {reason} Recovery does what is left; do not repeat the write.",
        PublicationWarning,
    )


def sync(paths: Iterable[str]) -> None:
    """Bring files, and their names in their folders, to disk.

    Several at a time, each folder once.
    """
    written = [path for path in paths if not is_uri(path)]
    folders = sorted({os.path.dirname(path) for path in written})
    for batch in (written, folders):
        if len(batch) == 1:
            sync_path(batch[0])
        elif batch:
            with ThreadPoolExecutor(min(_SYNC_THREADS, len(batch))) as pool:
                list(pool.map(sync_path, batch))


def sync_path(path: str) -> None:
    """Bring the content of a file, or the names in a directory, to disk."""
    with writing(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            # Some network file systems cannot sync a directory: its names are safe there.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(handle)


def make_directory(path: str, *, durable: bool = True) -> None:
    """Make a directory and those above it, and bring their names to disk."""
    if is_uri(path):
        return
    made = []
    missing = os.path.abspath(path)
    while not os.path.isdir(missing):
        made.append(missing)
        missing = os.path.dirname(missing)
    with writing(path):
        os.makedirs(path, exist_ok=True)
    if durable:
        for folder in reversed(made):
            sync_path(os.path.dirname(folder))


def _is_same_file(source: str, target: str) -> bool:
    try:
        return os.path.samefile(source, target)
    except OSError:
        return False
