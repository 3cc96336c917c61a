"""A local folder into which files below a URI are fetched, for libraries without URI support."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from featurestore.errors import StorageError
from featurestore.storage import files
from featurestore.storage.failures import writing

_PARALLEL_FETCHES = 4


class Mirror:
    """The files below a URI when they were listed; fetched ones have the same names locally."""

    def __init__(self, uri: str) -> None:
        """List the files and create the folder, which ``close`` removes."""
        self._uri = uri
        statuses = files.statuses_below(uri)
        self._sizes = {path[len(uri) + 1 :]: status.size for path, status in statuses}
        self.folder = files.temporary_directory()

    @property
    def names(self) -> list[str]:
        """The names of all listed files, fetched or not."""
        return list(self._sizes)

    def fetch(self, names: Iterable[str]) -> None:
        """Fetch files that were not fetched yet, several at a time; ignore unknown names.

        Raises:
            StorageError: A file cannot be read, or has changed since it was listed.
        """
        missing_names = [
            name
            for name in names
            if name in self._sizes and not os.path.exists(files.inside(self.folder, name))
        ]
        with ThreadPoolExecutor(_PARALLEL_FETCHES) as pool:
            list(pool.map(self._fetch, missing_names))

    def close(self) -> None:
        """Remove the folder."""
        files.remove_temporary(self.folder)

    def _fetch(self, name: str) -> None:
        source, target = f"{self._uri}/{name}", files.inside(self.folder, name)
        with writing(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                for chunk in files.read_chunks(source):
                    file.write(chunk)
                size = file.tell()
        if size != self._sizes[name]:
            raise StorageError(f"{source!r} changed while it was read.", hint="read again")
