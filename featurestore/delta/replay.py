"""Replay of a Delta log: checkpoint and commits, one after the other, to what a table is."""

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
        """Take in a commit; TableDamaged names its file when it makes no sense."""
        for found in log.actions_of(actions, "protocol"):
            self.protocol = found
        for found in log.actions_of(actions, "metaData"):
            self.metadata = found
        self._take_transactions(log.actions_of(actions, "txn"), file)
        # A commit may name a file twice: with another deletion vector it goes and comes, in any
        # order.
        for found in log.actions_of(actions, "remove"):
            self.adds.pop(found["path"], None)
            self.removed.add(found["path"])
        for found in log.actions_of(actions, "add"):
            self.adds[found["path"]] = found
            # A file that is added again takes the place of the one before it.
            self.removed.add(found["path"])

    def apply_commits(self, first: int, last: int) -> list[FileState]:
        """Take in the commits from ``first`` to ``last``, and return their files."""
        sources = []
        for number in range(first, last + 1):
            file = log.commit_path(self.path, number)
            source, actions = log.read_commit_file(file)
            self.apply(actions, file)
            sources.append(source)
        return sources

    def apply_checkpoint(self, files: Iterable[str]) -> list[FileState]:
        """Take in a checkpoint, of which the log has these files, and return them."""
        names = list(files)
        try:
            sources = [FileState.of(file) for file in names]
        except OSError as error:
            raise unreadable_file(str(error.filename), error) from error
        found = read_checkpoint(self.path, names)
        self.protocol, self.metadata = found.protocol, found.metadata
        self._take_transactions(found.transactions, names[0])
        self.adds = {str(add["path"]): add for add in found.adds}
        return sources

    def data_files(self) -> list[DataFile]:
        """Return the files that were added and are there still, in the order of writing."""
        found = [data_file(self.path, add) for add in self.adds.values()]
        return sorted(found, key=order_of_writing)

    def _take_transactions(self, found: Iterable[Mapping[str, Any]], file: str) -> None:
        try:
            for each in found:
                self.transactions[str(each["appId"])] = int(each["version"])
        except (KeyError, TypeError, ValueError) as error:
            raise damaged_file(file, "holds a transaction without application or number") from error
