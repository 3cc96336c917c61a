"""Appends that move several transaction numbers at once, which Delta's writer cannot be told.

Delta takes one application of a write as an option. A stream has one for each partition, so the
commit is made of the same parts here: the files that Delta writes, and a number for each of them.
"""

from __future__ import annotations

import time
from typing import Any

from featurestore.delta.offsets import overtaken
from featurestore.plugins.engine import TableWrite
from featurestore_connectors.spark_delta.commits import CommitSession

_SESSIONS = "org.apache.spark.sql.classic.SparkSession$"
_WRITE = "org.apache.spark.sql.delta.DeltaOperations$Write"
# What Delta says of an application that has no number yet.
_NONE_YET = -1


def append(commit: CommitSession, path: str, rows: Any, how: TableWrite) -> None:
    """Append rows and move the applications of ``how.offsets``.

    Raises:
        StreamOvertaken: One has another number by now; nothing was written.
    """
    machine = commit.session._jvm
    sessions = getattr(machine, _SESSIONS).__getattr__("MODULE$")
    sessions.setActiveSession(commit.session._jsparkSession)
    try:
        log = machine.org.apache.spark.sql.delta.DeltaLog.forTable(
            commit.session._jsparkSession, path
        )
        transaction = log.startTransaction()
        for app, (seen, _) in how.offsets.items():
            if transaction.txnVersion(app) != (_NONE_YET if seen is None else seen):
                raise overtaken(app)
        written = transaction.writeFiles(rows._jdf)
        transaction.commit(_actions(machine, written, how), _operation(machine))
    finally:
        sessions.setActiveSession(commit.parent._jsparkSession)


def _actions(machine: Any, written: Any, how: TableWrite) -> Any:
    """Return the files and the numbers as one sequence of Scala."""
    converters = machine.scala.jdk.javaapi.CollectionConverters
    actions = machine.java.util.ArrayList(converters.asJava(written))
    now = machine.scala.Option.apply(int(time.time() * 1000))
    for app, (_, number) in how.offsets.items():
        actions.add(
            machine.org.apache.spark.sql.delta.actions.SetTransaction.apply(app, number, now)
        )
    return converters.asScala(actions).toList()


def _operation(machine: Any) -> Any:
    """Return what Delta's history calls an append."""
    nothing = machine.scala.Option.empty()
    mode = machine.org.apache.spark.sql.SaveMode.Append
    return getattr(machine, _WRITE)(mode, nothing, nothing, nothing)
