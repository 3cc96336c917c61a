"""Writes that advance several transaction numbers in one commit.

Delta's writers accept one application per write, but a stream has one for each partition. So the
commit is assembled here from the files that Delta writes and one transaction number per partition.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote

from featurestore.delta.offsets import overtaken
from featurestore.delta.snapshot import read_snapshot
from featurestore.plugins.engine import TableWrite
from featurestore_connectors.spark_delta.commits import CommitSession
from featurestore_connectors.spark_delta.small_upserts import COPIED, SOURCE
from featurestore_connectors.spark_delta.sqltext import column
from featurestore_connectors.spark_delta.transactions import NONE_YET, Transaction, removal

_FILE = "__fs_file"


def append(commit: CommitSession, path: str, rows: Any, write: TableWrite) -> None:
    """Append rows and advance the applications of ``write.offsets``.

    Raises:
        StreamOvertaken: An application has another number by now; nothing was written.
    """
    machine = commit.session._jvm
    with Transaction(commit, path) as transaction:
        _move(transaction, write)
        transaction.add(rows)
        nothing = transaction.nothing()
        mode = machine.org.apache.spark.sql.SaveMode.Append
        transaction.commit("Write", mode, nothing, nothing, nothing)


def upsert(
    commit: CommitSession, path: str, rows: Any, write: TableWrite, deletes: Any | None
) -> None:
    """Replace rows by key, remove those of ``deletes``, and advance ``write.offsets``.

    MERGE supports one transaction number, so the files with such keys are rewritten here.

    Raises:
        StreamOvertaken: An application has another number by now; nothing was written.
    """
    from pyspark.sql import functions as sf

    keys = rows.select(*map(column, write.key))
    if deletes is not None:
        keys = keys.unionByName(deletes.select(*map(column, write.key)))
    with Transaction(commit, path) as transaction:
        _move(transaction, write)
        snapshot = read_snapshot(path, transaction.version)
        transaction.reads_everything()
        delta = commit.session.read.format("delta").option("versionAsOf", snapshot.version)
        old = delta.load(path).withColumn(_FILE, sf.input_file_name())
        outgoing = old.join(keys, list(write.key), "left_semi").groupBy(_FILE).count()
        removed_rows = dict(map(tuple, outgoing.collect()))
        file_names = {os.path.basename(unquote(path)) for path in removed_rows}
        affected = [file for file in snapshot.files if os.path.basename(file.path) in file_names]
        copied = sum(file.rows for file in affected) - sum(removed_rows.values())
        transaction.measure({COPIED: copied, SOURCE: rows.count()})
        for file in affected:
            transaction.act(removal(file))
        if affected:
            remaining = old.where(sf.col(_FILE).isin(list(removed_rows))).drop(_FILE)
            remaining = remaining.join(keys, list(write.key), "left_anti")
            rows = rows.unionByName(remaining.select(*map(column, rows.columns)))
        transaction.add(rows)
        nothing, none = transaction.nothing(), transaction.sequence()
        transaction.commit("Merge", nothing, nothing, nothing, nothing, none, none, none)


def _move(transaction: Transaction, write: TableWrite) -> None:
    """Advance the offsets of a write; raise StreamOvertaken if one has another number by now."""
    for app, (expected, number) in write.offsets.items():
        if transaction.number(app) != (NONE_YET if expected is None else expected):
            raise overtaken(app)
        transaction.move(app, number)
