"""Publication: the instant at which a write becomes visible, and the guarantees around it.

Before that instant a failure removes the files of the write. After it nothing is removed and
nothing is reported as failed: later failures are a ``PublicationWarning``, and recovery finishes
the rest.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from featurestore.errors import InvalidArgument, listing
from featurestore.storage import files, local, storage_for
from featurestore.storage.failures import after_publication, writing

if TYPE_CHECKING:
    from types import TracebackType

DURABILITIES = ("full", "fast")


class Publication:
    """The files of one write, until the instant at which it becomes visible.

    The write adds each file before it creates it, and publishes all files with ``publish`` or
    ``link``. Leaving the ``with`` block without publication removes the files. If it is unknown
    whether the write was published (an interrupt inside the call), they remain: the next vacuum
    removes a file that no commit names, while a file that a commit names could not be recovered.
    One thread uses a publication; it is used once.

    Args:
        durable: Bring the files and their directories to the disk before publication, and the
            published name after it.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self.durable = durable
        self._files: list[str] = []
        self._synced = 0
        self._published = False

    def add(self, path: str) -> None:
        """Register a file that is about to be created."""
        self._files.append(path)

    def publish(self, target: str, data: bytes) -> bool:
        """Write the file whose appearance makes the write visible.

        Return False if the name is taken. After a StorageError of a server it is unknown whether
        the file exists, so the files of the write remain.

        Raises:
            OSError: The file cannot be written below a directory.
        """
        storage = storage_for(target)
        if not storage.is_local:
            self._published = True
            self._published = storage.write_new(target, data)
            return self._published
        temporary = os.path.join(os.path.dirname(target), f".{uuid.uuid4().hex}.tmp")
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                if self.durable:
                    os.fsync(file.fileno())
            return self.link(temporary, target)
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    def link(self, source: str, target: str) -> bool:
        """Give ``source`` its public name, which makes the write visible.

        Return False if the name is taken; raise StorageError if the system refuses.
        """
        storage = storage_for(target)
        if not storage.is_local:
            return self.publish(target, storage.read(source))
        self._sync_files()
        # Set before the call: an interrupt may arrive when the name exists and the call has not
        # returned yet.
        self._published = True
        try:
            os.link(source, target)
        except OSError as error:
            # On network file systems the response to a successful link may be lost.
            if not storage.is_same(source, target):
                self._published = False
                if isinstance(error, FileExistsError):
                    return False
                with writing(target):
                    raise
        if self.durable:
            with after_publication(target):
                local.sync_path(os.path.dirname(target))
        return True

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
                    storage_for(path).remove_file(path)

    def _sync_files(self) -> None:
        """Bring the files added since the last call to the disk: the loser of a race links again."""
        if self.durable:
            files.sync(self._files[self._synced :])
            self._synced = len(self._files)


def is_durable(durability: str) -> bool:
    """Return True if ``durability=`` requires commits on the disk when the call returns.

    >>> is_durable("fast")
    False
    """
    if durability not in DURABILITIES:
        raise InvalidArgument(
            f"durability={durability!r} is not known.", hint=f"one of {listing(DURABILITIES)}"
        )
    return durability == "full"


def make_directory(path: str, *, durable: bool = True) -> None:
    """Create a directory and its parents, and bring their names to the disk."""
    if storage_for(path).is_local:
        local.make_directory(path, durable=durable)
