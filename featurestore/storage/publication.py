"""Publication: the instant at which a write becomes visible, and its guarantees.

If a write fails before this instant, its files are removed. After it, no file is removed and the
write does not fail: later failures are reported as a ``PublicationWarning``, and recovery completes
the remaining steps.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from featurestore.errors import InvalidArgument, listing
from featurestore.storage import local, storage_for
from featurestore.storage.failures import translate_write_errors, warn_after_publication

if TYPE_CHECKING:
    from types import TracebackType

DURABILITIES = ("full", "fast")


class Publication:
    """The files of one write, until the write becomes visible.

    The write calls ``add`` before it creates a file, and publishes all files with ``publish`` or
    ``link``. If the ``with`` block ends without publication, the files are removed. They remain if
    it is unknown whether the write was published (for example, an interrupt inside the call): a
    later vacuum can remove files that no commit references, but a removed file that a commit
    references cannot be recovered. A publication is used once, by one thread.

    Args:
        durable: Sync the files and their directories to disk before publication, and the published
        name afterwards.
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
        """Write the file that makes the write visible.

        Return False if the name already exists. After a StorageError from a server it is unknown
        whether the file exists, so the files of the write remain.

        Raises:
            OSError: The file cannot be written to a local directory.
        """
        storage = storage_for(target)
        if not storage.is_local:
            # Set before the request: if its response is lost, the file may exist, and the files of
            # the write must remain.
            self._published = True
            self._published = storage.write_new(target, data)
            return self._published
        # In the directory of the target, since a hard link cannot cross file systems.
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
        """Link ``source`` to its public name, which makes the write visible.

        Return False if the name already exists; raise StorageError if the system refuses.
        """
        storage = storage_for(target)
        if not storage.is_local:
            return self.publish(target, storage.read(source))
        # The files must be on disk before a commit refers to them, or a power failure would damage
        # the table.
        self.sync()
        # This is set before the call, because an interrupt may arrive after the name was created
        # but before the call returns.
        self._published = True
        try:
            os.link(source, target)
        except OSError as error:
            # On network file systems the response to a successful link may be lost.
            if not storage.is_same(source, target):
                self._published = False
                if isinstance(error, FileExistsError):
                    return False
                with translate_write_errors(target):
                    raise
        if self.durable:
            with warn_after_publication(target):
                local.sync_path(os.path.dirname(target))
        return True

    def sync(self) -> None:
        """Sync the files added since the last call; ``link`` is called again after a lost race."""
        unsynced_files = self._files[self._synced :]
        if self.durable and unsynced_files:
            storage_for(unsynced_files[0]).sync(unsynced_files)
            self._synced = len(self._files)

    def __enter__(self) -> Publication:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._published:
            for path in self._files:
                # A file that cannot be removed is an orphan, which a vacuum removes later.
                with suppress(OSError):
                    storage_for(path).remove_file(path)


def is_durable(durability: str) -> bool:
    """Return True if ``durability=`` requires commits to be on disk before a call returns.

    >>> is_durable("fast")
    False
    """
    if durability not in DURABILITIES:
        raise InvalidArgument(
            f"durability={durability!r} is invalid.", hint=f"one of {listing(DURABILITIES)}"
        )
    return durability == "full"
