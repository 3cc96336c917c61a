"""Open registered sources: configure their connectors and snapshots."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from featurestore.errors import StorageError
from featurestore.external.renaming import RenamedSnapshot
from featurestore.model.paths import StorePaths
from featurestore.model.renames import RENAME
from featurestore.model.secrets import parse_secret
from featurestore.model.source import SourceSpec
from featurestore.plugins.source import Source, SourceConfig, find_source
from featurestore.session import Session
from featurestore.storage import files
from featurestore.storage.secrets import resolve_secret

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
            files.write_new(path, files.json_bytes(decision))
        except OSError as error:
            # Users with read-only access to the store read its sources, too.
            _log.warning("the decision about source %r is not stored: %s", self.source, error)
        existing = self.get(key)
        return decision if existing is None else existing

    def _path(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise StorageError(f"{key!r} is not a key of a decision.")
        return os.path.join(StorePaths(self.location).source_decisions(self.source), f"{key}.json")


def open_source(session: Session, spec: SourceSpec) -> Source:
    """Return the source of a registration; it does not connect or read its secret yet.

    The secret is only available for the URI and options that were registered on this machine.

    Raises:
        InvalidArgument: The kind is not installed, or the URI or an option is invalid for it.
    """
    secret = None
    if spec.secret is not None:
        secret = partial(
            resolve_secret,
            parse_secret(spec.secret),
            location=session.location,
            name=grant_name(spec),
            uri=grant_address(spec),
        )
    options = {name: value for name, value in spec.options.items() if name != RENAME}
    decisions = StoredDecisions(session.location, spec.name)
    config = SourceConfig(spec.name, spec.uri, options, secret, decisions)
    return find_source(spec.kind)(config)


def open_snapshot(
    session: Session, spec: SourceSpec, version_or_time: int | datetime | None = None
) -> RenamedSnapshot:
    """Connect to a registered source and return a snapshot with renamed columns.

    Raises:
        SourceUnavailable: The source cannot be reached, or refuses the user.
    """
    snapshot = open_source(session, spec).snapshot(version_or_time)
    return RenamedSnapshot(spec.name, snapshot, spec.options.get(RENAME))


def grant_name(spec: SourceSpec) -> str:
    """Return the name of the grant for a source's secret on this machine."""
    return f"source:{spec.name}"


def grant_address(spec: SourceSpec) -> str:
    """Return the address that a source's secret is granted for, including its options.

    Options may select the server. A hash is sufficient to compare them, and some name an account.
    """
    options = json.dumps(dict(sorted(spec.options.items())))
    return json.dumps([spec.uri, hashlib.sha256(options.encode()).hexdigest()])
