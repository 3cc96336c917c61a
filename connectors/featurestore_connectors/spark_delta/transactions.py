"""Low-level Delta transactions: added files, removed files and transaction numbers.

They are used where Delta's writers and MERGE lack an option or start more jobs than necessary.
Delta still detects conflicts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from featurestore.delta.datafile import DataFile
from featurestore_connectors.spark_delta.commits import CommitSession
from featurestore_connectors.spark_delta.relations import cast_to

_SESSIONS = "org.apache.spark.sql.classic.SparkSession$"
# Delta's number of an application without transactions.
NONE_YET = -1


class Transaction:
    """A transaction on a table, started at its latest version; used once, by one thread.

    Uncommitted files are left for a vacuum, as with Delta's own writers.
    """

    def __init__(self, commit: CommitSession, path: str) -> None:
        self._commit, self._path = commit, path
        self._machine = commit.session._jvm
        self._actions = self._machine.java.util.ArrayList()

    def __enter__(self) -> Transaction:
        self._sessions = getattr(self._machine, _SESSIONS).__getattr__("MODULE$")
        self._sessions.setActiveSession(self._commit.session._jsparkSession)
        log = self._delta.DeltaLog.forTable(self._commit.session._jsparkSession, self._path)
        self._transaction = log.startTransaction()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sessions.setActiveSession(self._commit.parent._jsparkSession)

    @property
    def version(self) -> int:
        """The version at which the transaction started."""
        return int(self._transaction.snapshot().version())

    def reads_everything(self) -> None:
        """Make the commit fail if another commit adds rows concurrently."""
        self._transaction.readWholeTable()

    def number(self, app: str) -> int:
        """Return the number of an application's last transaction, ``NONE_YET`` without one."""
        return int(self._transaction.txnVersion(app))

    def move(self, app: str, number: int) -> None:
        """Set the transaction number of an application in this commit."""
        now = self._machine.scala.Option.apply(int(time.time() * 1000))
        self._actions.add(self._delta.actions.SetTransaction.apply(app, number, now))

    def carry(self, transaction: tuple[str, int] | None) -> bool:
        """Add the caller's transaction to the commit; return False if it is committed already."""
        if transaction is None:
            return True
        app, number = transaction
        if self.number(app) >= number:
            return False
        self.move(app, number)
        return True

    @property
    def columns(self) -> Any:
        """The table's columns as a Spark schema, in the types of its files."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self._transaction.metadata().schemaString()))

    def redefine(self, schema: str) -> None:
        """Change the table's schema (JSON); subsequent files are written in its types."""
        action = json.loads(self._transaction.metadata().json())
        action["metaData"]["schemaString"] = schema
        self._transaction.updateMetadata(self._from_json(json.dumps(action)), False)

    def add(self, rows: Any) -> None:
        """Write the rows of a frame as files of the table."""
        # Another writer may have widened columns since the frame was made.
        new_files = self._transaction.writeFiles(cast_to(rows, self.columns)._jdf)
        self._actions.addAll(self._machine.scala.jdk.javaapi.CollectionConverters.asJava(new_files))

    def move_rows(self, old_files: Sequence[DataFile], rows: Any) -> None:
        """Replace files by those of a frame with the same rows, as a compaction."""
        for file in old_files:
            self.act(removal(file, changes_rows=False))
        new_files = self._transaction.writeFiles(rows._jdf)
        for file in self._machine.scala.jdk.javaapi.CollectionConverters.asJava(new_files):
            action = json.loads(file.json())
            action["add"]["dataChange"] = False
            self.act(json.dumps(action))

    def act(self, action: str) -> None:
        """Add a log action, as JSON."""
        self._actions.add(self._from_json(action))

    def _from_json(self, action: str) -> Any:
        actions = getattr(self._delta.actions, "Action$").__getattr__("MODULE$")
        return actions.fromJson(action)

    def measure(self, numbers: Mapping[str, int]) -> None:
        """Record metrics for the history, by the names of the operation."""
        session = self._commit.session._jsparkSession
        metrics = self._machine.org.apache.spark.sql.execution.metric.SQLMetrics
        metrics_by_name = self._machine.scala.collection.immutable.HashMap()
        for name, value in numbers.items():
            metric = metrics.createMetric(session.sparkContext(), name)
            metric.set(value)
            metrics_by_name = metrics_by_name.updated(name, metric)
        self._transaction.registerSQLMetrics(session, metrics_by_name)

    def commit(self, operation: str, *arguments: Any) -> None:
        """Commit as a Delta operation; ``arguments`` are those of its class."""
        operation_class = getattr(
            self._machine, f"org.apache.spark.sql.delta.DeltaOperations${operation}"
        )
        self._transaction.commit(self.sequence(self._actions), operation_class(*arguments))

    def sequence(self, items: Any = None) -> Any:
        """Convert a Java list (default: an empty one) to a Scala sequence."""
        if items is None:
            items = self._machine.java.util.ArrayList()
        return self._machine.scala.jdk.javaapi.CollectionConverters.asScala(items).toList()

    def nothing(self) -> Any:
        """Return Scala's empty option."""
        return self._machine.scala.Option.empty()

    @property
    def _delta(self) -> Any:
        return self._machine.org.apache.spark.sql.delta


def removal(file: DataFile, *, changes_rows: bool = True) -> str:
    """Return the log action that removes a file, as JSON."""
    return json.dumps(
        {
            "remove": {
                "path": file.log_path,
                "deletionTimestamp": int(time.time() * 1000),
                "dataChange": changes_rows,
                "extendedFileMetadata": True,
                "partitionValues": dict(file.partition),
                "size": file.bytes,
                "stats": json.dumps({"numRecords": file.rows}),
            }
        }
    )
