"""One commit of Spark with settings of its own, so that neither the user's session nor another thread sees them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from featurestore.delta.log import commit_path, latest_version, read_commit
from featurestore.storage.publication import warn_published
from featurestore_connectors.spark_delta.failures import as_store_error
from featurestore_connectors.spark_delta.session import check_log_store

_LAST_VERSION = "spark.databricks.delta.lastCommitVersionInSession"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class CommitSession:
    """A session beside the user's (same Spark, own settings) that knows the version it committed.

    Delta takes the note and the transaction of a merge or delete from the session's settings alone.
    """

    def __init__(self, session: Any, path: str, note: Mapping[str, Any]) -> None:
        self._parent = session
        self._path = path
        # The id tells this commit from any other with the same note, should it fail after it landed.
        self.note = json.dumps({**note, "id": uuid.uuid4().hex}, sort_keys=True)
        self.session: Any = None

    def __enter__(self) -> CommitSession:
        check_log_store(self._parent)
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

        A failure after the commit is a ``PublicationWarning``: the commit stands, and repeating it would double it.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        before = latest_version(self._path)
        try:
            command()
        except (PySparkException, Py4JError) as error:
            landed = self._find_own(before + 1)
            if landed is None:
                raise
            warn_published(f"Version {landed} of {self._path}", as_store_error(error))
            return landed
        found = self.session.conf.get(_LAST_VERSION, None)
        if found is None or int(found) <= before:
            return None
        return int(found)

    def _find_own(self, first: int) -> int | None:
        """Return the version of the commit that carries our note, at or after ``first``."""
        for version in range(first, latest_version(self._path) + 1):
            for action in read_commit(commit_path(self._path, version)):
                info = action.get("commitInfo") or {}
                if info.get("userMetadata") == self.note:
                    return version
        return None
