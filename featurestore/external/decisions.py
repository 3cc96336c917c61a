"""Schema decisions of sources, stored as files next to their definitions."""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from featurestore.errors import StorageError
from featurestore.model.paths import StorePaths
from featurestore.storage import files
from featurestore.storage.location import is_uri

_log = logging.getLogger("featurestore.sources")
_KEY = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True)
class StoredDecisions:
    """The stored decisions of one source, one write-once file each (``plugins.source.Decisions``)."""

    location: str
    source: str

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the decision of a key, None if it was not decided yet."""
        path = self._path(key)
        if not files.exists(path):
            return None
        decision = files.read_json(path)
        if not isinstance(decision, dict):
            raise StorageError(f"The file {path!r} is not a decision of source {self.source!r}.")
        return decision

    def decide(self, key: str, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store a decision and return it, or the one that another process stored first."""
        path = self._path(key)
        try:
            self._write(path, decision)
        except OSError as error:
            # Users with read-only access to the store read its sources, too.
            _log.warning("the decision about source %r is not stored: %s", self.source, error)
        existing = self.get(key)
        return decision if existing is None else existing

    def _write(self, path: str, decision: Mapping[str, Any]) -> None:
        files.make_directory(os.path.dirname(path))
        temporary = path if is_uri(path) else f"{path}.{uuid.uuid4().hex}"
        if temporary == path:
            files.write_new(path, files.json_bytes(decision))
        else:
            files.write_json(temporary, decision)
            if not files.add_name(temporary, path) and not files.exists(path):
                files.write_json(path, decision)
            files.remove(temporary, below=self.location)

    def _path(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise StorageError(f"{key!r} is not a key of a decision.")
        return os.path.join(StorePaths(self.location).source_decisions(self.source), f"{key}.json")
