"""One commit of Spark with settings of its own, so that neither the user's session nor another thread sees them."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from featurestore.delta import deltalog

_LAST_VERSION = "spark.databricks.delta.lastCommitVersionInSession"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class OverwrittenError(Exception):
    """Another process put its commit in the place of ours, which therefore never was."""


class CommitSession:
    """A session beside the user's (same Spark, own settings) that knows the version it committed.

    Delta takes the note and the transaction of a merge or delete from the session's settings alone.
    """

    def __init__(self, session: Any, path: str, note: Mapping[str, Any]) -> None:
        self._parent = session
        self._path = path
        # The id tells this commit from any other with the same note.
        self.note = json.dumps({**note, "id": uuid.uuid4().hex}, sort_keys=True)
        self.session: Any = None

    def __enter__(self) -> CommitSession:
        self.session = self._parent.newSession()
        own = self.session.conf.getAll
        for key, value in (self._parent.conf.getAll | _SETTINGS).items():
            if own.get(key) != value and self.session.conf.isModifiable(key):
                self.set(key, value)
        self.session.conf.unset(_LAST_VERSION)
        self.set("spark.databricks.delta.commitInfo.userMetadata", self.note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session = None

    def set(self, key: str, value: str) -> None:
        """Set a setting of this commit."""
        self.session.conf.set(key, value)

    def adopt(self, frame: Any) -> Any:
        """Return a frame of the user's session as one of this session."""
        view = f"featurestore_{uuid.uuid4().hex}"
        frame.createGlobalTempView(view)
        try:
            database = self.session.conf.get("spark.sql.globalTempDatabase", "global_temp")
            return self.session.table(f"{database}.{view}")
        finally:
            self._parent.catalog.dropGlobalTempView(view)

    def run(self, command: Callable[[], object]) -> int | None:
        """Run a command and return the Delta version that it committed, None when it committed nothing.

        Raises:
            OverwrittenError: Another process committed the same version at the same instant, and its commit stayed.
        """
        before = deltalog.latest_version(self._path)
        command()
        found = self.session.conf.get(_LAST_VERSION, None)
        if found is None or int(found) <= before:
            return None
        version = int(found)
        if not self._is_ours(version):
            self._forget(version)
            raise OverwrittenError(f"version {version} of {self._path}")
        return version

    def _is_ours(self, version: int) -> bool:
        """Tell whether the log holds our commit.

        On a local file system Delta looks whether a commit is there and then renames its own into place: of two
        processes that look at once both believe that they won.
        """
        actions = deltalog.read_commit(deltalog.commit_path(self._path, version))
        return any(
            (each.get("commitInfo") or {}).get("userMetadata") == self.note for each in actions
        )

    def _forget(self, version: int) -> None:
        """Make Spark read the log anew: what it remembers of the version, also in files, is not what is there."""
        folder, name = os.path.split(deltalog.commit_path(self._path, version))
        # Delta's summary of the version, and Hadoop's checksum of the commit's bytes; both may be missing.
        for ours in (name.replace(".json", ".crc"), f".{name}.crc"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(folder, ours))
        machine = self.session._jvm
        log = machine.org.apache.spark.sql.delta.DeltaLog
        log.invalidateCache(
            self.session._jsparkSession, machine.org.apache.hadoop.fs.Path(self._path)
        )
