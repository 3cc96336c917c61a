"""Commits of Spark: each with settings of its own, tried again after conflicts.

Delta decides by the log store (``jvm/``) who committed a version first, and checks what took
its place. What it cannot reconcile by itself is a conflict, and the command runs again from the new
version.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from featurestore.delta.log import commit_info, commit_path, latest_version, read_commit
from featurestore.delta.protocol import check_writable
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    RowsOutsideWindow,
    TableDamaged,
    VersionVacuumed,
    WriteConflict,
)
from featurestore.storage.failures import warn_published
from featurestore_connectors.spark_delta.buckets import use_table
from featurestore_connectors.spark_delta.failures import as_store_error, full_text

# A conflict means that somebody else made progress; more than this in a row is no accident.
ATTEMPTS = 20
_LAST_VERSION = "spark.databricks.delta.lastCommitVersionInSession"
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
# Read by our log store: it syncs the data files of a commit before the commit has its name.
_DURABILITY = "featurestore.durability"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_OTHER_TYPES = "DELTA_FAILED_TO_MERGE_FIELDS"
_CONFLICTS = (
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentTransactionException",
    "ConcurrentWriteException",
    "MetadataChangedException",
    "ProtocolChangedException",
    "DELTA_CONCURRENT",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
)


class CommitSession:
    """A session beside the user's for one write: the same Spark with settings of its own.

    Neither the user's session nor another thread sees the settings. Delta takes the note and the
    transaction of a merge or delete from the session's settings alone. One thread uses a commit
    session.

    Raises:
        ConfigurationError: The user's session would replace commits of other writers.
        UnsupportedTable: The table uses what the store does not read or write.
    """

    def __init__(
        self, session: Any, path: str, commit_metadata: Mapping[str, Any], *, durable: bool = True
    ) -> None:
        self.parent = session
        self._durable = durable
        self._path = path
        # The id tells this commit from any other with the same note, should Spark fail after it
        # landed.
        self.note = json.dumps({**commit_metadata, "id": uuid.uuid4().hex}, sort_keys=True)
        self.session: Any = None

    def __enter__(self) -> CommitSession:
        use_table(self.parent, self._path)
        check_writable(self._path, read_snapshot(self._path).protocol)
        self.session = self.parent.newSession()
        # All at once: to ask for each of some hundred settings takes longer than a small commit. From
        # a copy, which Spark makes under its lock: other threads may set some of them meanwhile.
        parent_settings = self.parent.conf._jconf.getAllAsJava()
        self.session._jsparkSession.sessionState().conf().settings().putAll(parent_settings)
        for key, value in _SETTINGS.items():
            self.set(key, value)
        self.session.conf.unset(_LAST_VERSION)
        self.set(_NOTE, self.note)
        self.set(_DURABILITY, "full" if self._durable else "fast")
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
            self.parent.catalog.dropGlobalTempView(view)

    def run(self, command: Callable[[], object]) -> int | None:
        """Run a command; return the Delta version that it committed, None when it did not commit.

        It runs again after conflicts, with growing pauses. A failure after the commit is a
        ``PublicationWarning``: the commit stands, and repeating it would double its rows.

        Raises:
            WriteConflict: Other writers kept winning.
            RowsOutsideWindow: Rows of a replacing write lie outside the range that it replaces.
            FeatureStoreError: Spark failed; nothing landed.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        first_version = latest_version(self._path)
        for attempt in range(ATTEMPTS):
            attempted_version = latest_version(self._path)
            try:
                command()
                return self._version_after(first_version)
            except (PySparkException, Py4JError) as error:
                own_version = self._find_own_commit(first_version + 1)
                if own_version is not None:
                    warn_published(f"Version {own_version} of {self._path}", as_store_error(error))
                    return own_version
                if not is_conflict(error):
                    failure = self._failure(error)
                    # A rewrite misses files that a vacuum took meanwhile, and rows have the types
                    # of columns that were widened meanwhile: then its version is not the latest.
                    is_stale = isinstance(failure, TableDamaged | VersionVacuumed)
                    is_stale = is_stale or _OTHER_TYPES in full_text(error)
                    if not (is_stale and latest_version(self._path) > attempted_version):
                        raise failure from error
            wait(attempt)
        raise conflict_error(self._path)

    def _version_after(self, before: int) -> int | None:
        last_version = self.session.conf.get(_LAST_VERSION, None)
        if last_version is None or int(last_version) <= before:
            return None
        return int(last_version)

    def _find_own_commit(self, first: int) -> int | None:
        """Return the version of the commit that carries our note, at or after ``first``."""
        for version in range(first, latest_version(self._path) + 1):
            actions = read_commit(commit_path(self._path, version))
            if commit_info(actions).get("userMetadata") == self.note:
                return version
        return None

    def _failure(self, error: BaseException) -> Exception:
        if "DELTA_REPLACE_WHERE_MISMATCH" in full_text(error):
            text = f"Rows lie outside the range that is replaced in {self._path}."
            return RowsOutsideWindow(text)
        return as_store_error(error)


def is_conflict(error: BaseException) -> bool:
    """Tell whether Delta gave up because of another writer's commit."""
    # delta-spark's Python classes of a conflict share no base of their own, and their text need not
    # repeat their name.
    text = f"{type(error).__name__}: {full_text(error)}"
    return any(sign in text for sign in _CONFLICTS)


def is_repeat(path: str, transaction: tuple[str, int] | None) -> bool:
    """Tell whether a transaction was committed before."""
    return transaction is not None and read_snapshot(path).holds(transaction)


def wait(attempt: int) -> None:
    """Let other writers go ahead, longer at each attempt."""
    time.sleep(random.uniform(0.05, min(2.0, 0.1 * 2**attempt)))


def conflict_error(path: str) -> WriteConflict:
    """Return the error of a write that found a conflict at every attempt."""
    return WriteConflict(
        f"Other writers of {path} won {ATTEMPTS} times in a row; nothing of this write landed.",
        hint="write again later",
    )
