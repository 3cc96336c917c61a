"""The Delta log as data: what a table is at a version, and what each commit did."""

from __future__ import annotations

from featurestore.delta.datafile import DataFile, check_files, file_path
from featurestore.delta.history import (
    LogCommit,
    added_files,
    commit_time,
    read_history,
    version_at,
)
from featurestore.delta.log import (
    LOG_FOLDER,
    commit_path,
    is_delta_table,
    latest_version,
    read_commit,
)
from featurestore.delta.snapshot import Snapshot, read_snapshot, transaction_version

TableState = Snapshot
table_state = read_snapshot
history = read_history
exists = is_delta_table

__all__ = ["LOG_FOLDER", "DataFile", "LogCommit", "Snapshot", "TableState", "added_files", "check_files",
           "commit_path", "commit_time", "exists", "file_path", "history", "latest_version", "read_commit",
           "read_snapshot", "table_state", "transaction_version", "version_at"]  # fmt: skip
