"""File system of a split for petastorm: the shards in the manifest, and generated metadata.

petastorm unpickles the schema in ``_common_metadata``, so the author of this file could run code in
the reader. The file is therefore never read. Instead, petastorm gets metadata that this process
generates from the manifest, which is JSON.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from featurestore_connectors.petastorm.metadata import METADATA_FILE

try:
    from pyarrow.filesystem import FileSystem
except ModuleNotFoundError:  # petastorm does not support this pyarrow, so the class is not used
    FileSystem = object


class SplitFiles(FileSystem):  # type: ignore[misc]
    """A read-only directory with the shards of a split. It can be pickled for worker processes."""

    def __init__(self, shards: dict[str, str], metadata: bytes) -> None:
        super().__init__()
        self._shards = shards
        self._metadata = metadata

    @property
    def pathsep(self) -> str:
        return "/"

    def isdir(self, path: str) -> bool:
        return not self.isfile(path)

    def isfile(self, path: str) -> bool:
        return os.path.basename(path) in self._names()

    def exists(self, path: str) -> bool:
        return True

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
        yield path, [], self._names()

    def open(self, path: str, mode: str = "rb") -> Any:
        name = os.path.basename(path)
        if name == METADATA_FILE:
            return pa.BufferReader(self._metadata)
        return pa.OSFile(self._shards[name], "rb")

    def _names(self) -> list[str]:
        return [*self._shards, METADATA_FILE]
