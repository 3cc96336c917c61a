"""Replay of a Delta log: the state of a table from a checkpoint and commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from featurestore.delta import log
from featurestore.delta.checkpoint import read_checkpoint
from featurestore.delta.datafile import DataFile, data_file, order_of_writing
from featurestore.delta.log import Actions, FileState, damaged_file, unreadable_file


class Replay:
    """The state of a table while its log is replayed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.protocol: Mapping[str, Any] | None = None
        self.metadata: Mapping[str, Any] | None = None
        self.transactions: dict[str, int] = {}
        self.adds: dict[str, Mapping[str, Any]] = {}
        self.removed: set[str] = set()

    def apply(self, actions: Actions, file: str) -> None:
        """Apply a commit.

        Raises:
            TableDamaged: The commit is invalid; the message names its file.
        """
        for payload in log.actions_of(actions, "protocol"):
            self.protocol = payload
        for payload in log.actions_of(actions, "metaData"):
            self.metadata = payload
        self._apply_transactions(log.actions_of(actions, "txn"), file)
        # A commit may both remove and add a file, in any order, to change its deletion vector.
        for payload in log.actions_of(actions, "remove"):
            self.adds.pop(payload["path"], None)
            self.removed.add(payload["path"])
        for payload in log.actions_of(actions, "add"):
            self.adds[payload["path"]] = payload
            # A file that is added again replaces its earlier state.
            self.removed.add(payload["path"])

    def apply_commits(self, first: int, last: int) -> list[FileState]:
        """Apply the commits from ``first`` to ``last``, and return their files."""
        sources = []
        for number in range(first, last + 1):
            file = log.commit_path(self.path, number)
            source, actions = log.read_commit_file(file)
            self.apply(actions, file)
            sources.append(source)
        return sources

    def apply_checkpoint(self, files: Iterable[str]) -> list[FileState]:
        """Apply a checkpoint, and return the state of its files."""
        names = list(files)
        try:
            sources = [FileState.from_path(file) for file in names]
        except OSError as error:
            raise unreadable_file(str(error.filename), error) from error
        checkpoint = read_checkpoint(self.path, names)
        self.protocol, self.metadata = checkpoint.protocol, checkpoint.metadata
        self._apply_transactions(checkpoint.transactions, names[0])
        self.adds = {str(add["path"]): add for add in checkpoint.adds}
        return sources

    def data_files(self) -> list[DataFile]:
        """Return the added files that were not removed, in commit order."""
        files = [data_file(self.path, add) for add in self.adds.values()]
        return sorted(files, key=order_of_writing)

    def _apply_transactions(self, transactions: Iterable[Mapping[str, Any]], file: str) -> None:
        try:
            for each in transactions:
                self.transactions[str(each["appId"])] = int(each["version"])
        except (KeyError, TypeError, ValueError) as error:
            raise damaged_file(file, "has a transaction without application or number") from error
