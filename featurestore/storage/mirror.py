"""A folder of this machine into which files below a URI are fetched, for libraries that know no URI."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from featurestore.errors import StorageError
from featurestore.storage import files, remote
from featurestore.storage.failures import writing
from featurestore.storage.interface import StoredObject

_FILES_AT_ONCE = 4


class Mirror:
    """The files below a URI as they were listed, those that were asked for at the same names here."""

    def __init__(self, uri: str) -> None:
        """List the files, and make the folder, which ``close`` removes."""
        self._uri = uri
        self._listed: dict[str, StoredObject] = {}
        for path, found in remote.listed(uri):
            self._listed[path[len(uri) + 1 :]] = found
        self.folder = files.temporary_directory()

    @property
    def names(self) -> list[str]:
        """The names of all files there, whether they were fetched or not."""
        return list(self._listed)

    def fetch(self, names: Iterable[str]) -> None:
        """Fetch files that are not here yet, several at a time; names that are not there are passed over.

        Raises:
            StorageError: One cannot be read, or is another one than when they were listed.
        """
        wanted = []
        for name in names:
            if name in self._listed and not os.path.exists(files.inside(self.folder, name)):
                wanted.append(name)
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            list(pool.map(self._fetch, wanted))

    def close(self) -> None:
        """Remove the folder."""
        files.remove_temporary(self.folder)

    def _fetch(self, name: str) -> None:
        source, place = f"{self._uri}/{name}", files.inside(self.folder, name)
        with writing(place):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                for piece in remote.pieces(source):
                    file.write(piece)
                size = file.tell()
        if size != self._listed[name].size:
            raise StorageError(f"{source!r} changed while it was read.", hint="read again")
