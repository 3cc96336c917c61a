"""Commits by Spark: separate session settings, retries after conflicts, and custom transactions.

The log store (``jvm/``) decides which writer commits a version. Delta checks for concurrent
commits; if it cannot reconcile them, the command runs again on the new version. Custom transactions
are used if Delta's writers and MERGE lack an option or start more jobs than necessary.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from featurestore.arrow.spark_frames import is_connect_object
from featurestore.delta.datafile import DataFile
from featurestore.delta.log import commit_info, commit_path, latest_version, read_commit
from featurestore.delta.snapshot import read_snapshot
from featurestore.delta.table_state import check_writable
from featurestore.errors import (
    RowsOutsideWindow,
    TableDamaged,
    VersionVacuumed,
    WriteConflict,
)
from featurestore.storage.failures import warn_published
from featurestore_connectors.spark_delta import connect
from featurestore_connectors.spark_delta.buckets import use_table
from featurestore_connectors.spark_delta.failures import full_text, spark_errors, to_store_error
from featurestore_connectors.spark_delta.listed_files import check_listed_files
from featurestore_connectors.spark_delta.relations import cast_to

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SESSIONS = "org.apache.spark.sql.classic.SparkSession$"
# Delta's transaction number for an application without transactions.
NONE_YET = -1
# A conflict means that another writer made progress. More consecutive conflicts than this are not a
# coincidence.
ATTEMPTS = 20
_LAST_VERSION = "spark.databricks.delta.lastCommitVersionInSession"
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
# Read by the log store, which then syncs data files to disk before it publishes the commit.
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
    """A separate session for one write, with its own settings in the same Spark application.

    The settings are invisible to the user's session and to other threads. Delta reads the commit
    metadata and the transaction of a merge or delete only from session settings. Each commit
    session is used by one thread.

    Raises:
        ConfigurationError: The user's session could overwrite commits of other writers.
        UnsupportedTable: The table uses unsupported features, or Delta lists files outside of its
            folder.
    """

    def __init__(
        self,
        session: SparkSession,
        path: str,
        commit_metadata: Mapping[str, Any],
        *,
        durable: bool = True,
    ) -> None:
        self.parent = session
        self._durable = durable
        self._path = path
        # The unique id identifies this commit if Spark fails after publishing it.
        self.note = json.dumps({**commit_metadata, "id": uuid.uuid4().hex}, sort_keys=True)
        self.session: SparkSession = None
        self._views: list[str] = []

    def __enter__(self) -> CommitSession:
        use_table(self.parent, self._path)
        # Delta for Spark would also write tables with features that the embedded engine refuses.
        snapshot = read_snapshot(self._path)
        check_writable(self._path, snapshot.protocol)
        check_listed_files(self.parent, self._path, snapshot.version)
        if is_connect_object(self.parent):
            self.session = connect.open_session(self.parent)
        else:
            self.session = self._copy_parent()
        for key, value in _SETTINGS.items():
            self.set(key, value)
        # The copied settings may contain the version of an earlier commit of the user's session.
        self.session.conf.unset(_LAST_VERSION)
        self.set(_NOTE, self.note)
        self.set(_DURABILITY, "full" if self._durable else "fast")
        return self

    def _copy_parent(self) -> SparkSession:
        session = self.parent.newSession()
        # One call, since reading several hundred settings takes longer than a small commit. Spark
        # copies them under its lock, since other threads may change settings concurrently.
        parent_settings = self.parent.conf._jconf.getAllAsJava()
        session._jsparkSession.sessionState().conf().settings().putAll(parent_settings)
        return session

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for view in self._views:
            self.parent.catalog.dropGlobalTempView(view)
        if is_connect_object(self.session):
            connect.close_session(self.session)
        self.session = None

    def set(self, key: str, value: str) -> None:
        """Set a session setting for this commit."""
        self.session.conf.set(key, value)

    def adopt(self, frame: DataFrame) -> Any:
        """Convert a frame of the user's session to a frame of this session."""
        # A frame belongs to the session that created it. Only global temporary views are visible in
        # all sessions of an application.
        view = f"featurestore_{uuid.uuid4().hex}"
        frame.createGlobalTempView(view)
        # Frames of Spark Connect look for the view when they are executed.
        self._views.append(view)
        database = self.session.conf.get("spark.sql.globalTempDatabase", "global_temp")
        return self.session.table(f"{database}.{view}")

    def run(self, command: Callable[[], object]) -> int | None:
        """Run a command and return the committed Delta version, or None without a commit.

        The command is retried after conflicts, with backoff. A failure after the commit is a
        ``PublicationWarning``: the commit is valid, and a retry would duplicate its rows.

        Raises:
            WriteConflict: The retries are exhausted.
            RowsOutsideWindow: Rows are outside of the replaced range.
            FeatureStoreError: Spark failed, and nothing was committed.
        """
        # Commits of this write are searched after this version, so that earlier commits are not
        # read.
        first_version = latest_version(self._path)
        for attempt in range(ATTEMPTS):
            attempted_version = latest_version(self._path)
            try:
                command()
                return self._version_after(first_version)
            except spark_errors() as error:
                # Spark may fail after the commit was published. A retry would duplicate its rows.
                own_version = self._find_own_commit(first_version + 1)
                if own_version is not None:
                    subject = f"Delta version {own_version} of {self._path}"
                    warn_published(subject, to_store_error(error, call="commit"))
                    return own_version
                if not is_conflict(error):
                    failure = self._failure(error)
                    # Retry if the snapshot is outdated: a vacuum may have removed its files, or
                    # another writer may have widened columns.
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
        """Find the version of this commit, at or after ``first``, by its commit metadata."""
        for version in range(first, latest_version(self._path) + 1):
            actions = read_commit(commit_path(self._path, version))
            if commit_info(actions).get("userMetadata") == self.note:
                return version
        return None

    def _failure(self, error: BaseException) -> Exception:
        if "DELTA_REPLACE_WHERE_MISMATCH" in full_text(error):
            text = f"Rows are outside the replaced range of {self._path}."
            return RowsOutsideWindow(text)
        return to_store_error(error, call="commit")


def is_conflict(error: BaseException) -> bool:
    """Return whether Delta failed because of a concurrent commit."""
    # The Python exceptions of delta-spark for conflicts have no common base class, and their
    # message may not contain their name.
    text = f"{type(error).__name__}: {full_text(error)}"
    return any(sign in text for sign in _CONFLICTS)


def is_repeat(path: str, transaction: tuple[str, int] | None) -> bool:
    """Return whether a transaction is already committed."""
    return transaction is not None and read_snapshot(path).has_committed(transaction)


def wait(attempt: int) -> None:
    """Sleep for a random time that grows with each attempt."""
    # Random, so that writers that lost the same race do not meet again.
    time.sleep(random.uniform(0.05, min(2.0, 0.1 * 2**attempt)))


def conflict_error(path: str) -> WriteConflict:
    """Return the error for a write that had a conflict in every attempt."""
    return WriteConflict(
        f"Other writers changed {path} {ATTEMPTS} times in a row; this write was not committed.",
        hint="repeat the write, or run the writers one at a time",
    )


class Transaction:
    """A transaction on a table that starts at its latest version. Used once, by one thread.

    Uncommitted files are left for a vacuum, as with Delta's own writers.
    """

    def __init__(self, commit: CommitSession, path: str) -> None:
        self._commit, self._path = commit, path
        self._jvm = commit.session._jvm
        self._actions = self._jvm.java.util.ArrayList()

    def __enter__(self) -> Transaction:
        self._sessions = getattr(self._jvm, _SESSIONS).__getattr__("MODULE$")
        # Delta reads its settings from the active session of the thread.
        self._sessions.setActiveSession(self._commit.session._jsparkSession)
        log = self._delta.DeltaLog.forTable(self._commit.session._jsparkSession, self._path)
        self._transaction = log.startTransaction()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sessions.setActiveSession(self._commit.parent._jsparkSession)

    @property
    def version(self) -> int:
        """The table version at which the transaction started."""
        return int(self._transaction.snapshot().version())

    def conflict_with_appends(self) -> None:
        """Make the commit fail if a concurrent commit adds rows."""
        self._transaction.readWholeTable()

    def last_number(self, app: str) -> int:
        """Return the number of an application's last transaction, or ``NONE_YET``."""
        return int(self._transaction.txnVersion(app))

    def set_number(self, app: str, number: int) -> None:
        """Set the transaction number of an application in this commit."""
        now = self._jvm.scala.Option.apply(int(time.time() * 1000))
        self._actions.add(self._delta.actions.SetTransaction.apply(app, number, now))

    def add_transaction(self, transaction: tuple[str, int] | None) -> bool:
        """Add the caller's transaction to the commit; return False if it is already committed."""
        if transaction is None:
            return True
        app, number = transaction
        if self.last_number(app) >= number:
            return False
        self.set_number(app, number)
        return True

    @property
    def columns(self) -> StructType:
        """The table columns as a Spark schema, in the types of the data files."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self._transaction.metadata().schemaString()))

    def set_schema(self, schema: str) -> None:
        """Change the table schema (JSON); subsequent files are written in its types."""
        # Changed as JSON: py4j cannot call Scala's ``copy`` with named arguments.
        action = json.loads(self._transaction.metadata().json())
        action["metaData"]["schemaString"] = schema
        self._transaction.updateMetadata(self._from_json(json.dumps(action)), False)

    def add(self, rows: DataFrame) -> None:
        """Write the rows of a frame to new files of the table."""
        # Another writer may have widened columns after the frame was created.
        new_files = self._transaction.writeFiles(cast_to(rows, self.columns)._jdf)
        self._actions.addAll(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(new_files))

    def replace_files(self, old_files: Sequence[DataFile], rows: DataFrame) -> None:
        """Replace files by new files with the rows of a frame, which must be the same rows."""
        # Without a data change, readers of changes skip the commit (Delta protocol).
        for file in old_files:
            self.add_action(removal(file, changes_rows=False))
        new_files = self._transaction.writeFiles(rows._jdf)
        for file in self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(new_files):
            action = json.loads(file.json())
            action["add"]["dataChange"] = False
            self.add_action(json.dumps(action))

    def add_action(self, action: str) -> None:
        """Add a log action in JSON."""
        self._actions.add(self._from_json(action))

    def _from_json(self, action: str) -> JavaObject:
        actions = getattr(self._delta.actions, "Action$").__getattr__("MODULE$")
        return actions.fromJson(action)

    def set_metrics(self, numbers: Mapping[str, int]) -> None:
        """Record metrics in the table history, by the metric names of the operation."""
        session = self._commit.session._jsparkSession
        metrics = self._jvm.org.apache.spark.sql.execution.metric.SQLMetrics
        metrics_by_name = self._jvm.scala.collection.immutable.HashMap()
        for name, value in numbers.items():
            metric = metrics.createMetric(session.sparkContext(), name)
            metric.set(value)
            metrics_by_name = metrics_by_name.updated(name, metric)
        self._transaction.registerSQLMetrics(session, metrics_by_name)

    def commit(self, operation: str, *arguments: object) -> None:
        """Commit as a Delta operation with the constructor arguments ``arguments``."""
        name = f"org.apache.spark.sql.delta.DeltaOperations${operation}"
        loader = self._jvm.Thread.currentThread().getContextClassLoader()
        constructor = self._jvm.java.lang.Class.forName(name, True, loader).getConstructors()[0]
        # Delta 4.2 added optional arguments.
        added = constructor.getParameterCount() - len(arguments)
        arguments += (self.empty_option(),) * added
        operation_class = getattr(self._jvm, name)
        self._transaction.commit(self.to_sequence(self._actions), operation_class(*arguments))

    def to_sequence(self, items: Any = None) -> Any:
        """Convert a Java list (an empty list by default) to a Scala sequence."""
        if items is None:
            items = self._jvm.java.util.ArrayList()
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(items).toList()

    def empty_option(self) -> JavaObject:
        """Return Scala's empty option."""
        return self._jvm.scala.Option.empty()

    @property
    def _delta(self) -> JavaObject:
        return self._jvm.org.apache.spark.sql.delta


def removal(file: DataFile, *, changes_rows: bool = True) -> str:
    """Return the log action that removes a file, in JSON."""
    return json.dumps(
        {
            "remove": {
                "path": file.log_path,
                "deletionTimestamp": int(time.time() * 1000),
                "dataChange": changes_rows,
                # Declares that partition values and size are present (Delta protocol).
                "extendedFileMetadata": True,
                "partitionValues": dict(file.partition),
                "size": file.bytes,
                "stats": json.dumps({"numRecords": file.rows}),
            }
        }
    )
