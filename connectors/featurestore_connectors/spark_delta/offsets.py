"""Appends that move several transaction numbers at once, which Delta's writer cannot be told.

Delta takes one application of a write as an option. A stream has one for each partition, so the
commit is made of the same parts here: the files that Delta writes, and a number for each of them.
"""

from __future__ import annotations

from typing import Any

from featurestore.delta.offsets import overtaken
from featurestore.plugins.engine import TableWrite
from featurestore_connectors.spark_delta.commits import CommitSession
from featurestore_connectors.spark_delta.transactions import NONE_YET, Transaction


def append(commit: CommitSession, path: str, rows: Any, how: TableWrite) -> None:
    """Append rows and move the applications of ``how.offsets``.

    Raises:
        StreamOvertaken: One has another number by now; nothing was written.
    """
    machine = commit.session._jvm
    with Transaction(commit, path) as transaction:
        for app, (seen, number) in how.offsets.items():
            if transaction.number(app) != (NONE_YET if seen is None else seen):
                raise overtaken(app)
            transaction.move(app, number)
        transaction.add(rows)
        nothing = transaction.nothing()
        mode = machine.org.apache.spark.sql.SaveMode.Append
        transaction.commit("Write", mode, nothing, nothing, nothing)
