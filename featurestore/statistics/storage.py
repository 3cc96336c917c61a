"""Stored statistics of a table, per Delta version.

``<table>_statistics/`` contains for a Delta version v:

* ``v.state``: the state of the whole table (create, overwrite, recomputed);
* ``v.since.b.state``: the state of the rows that an append added to Delta version b;
* ``v.json``: the statistics.

An append writes the state of the appended rows only, so that small appends are cheap; a request
merges the chain and writes the statistics. Upserts and deletes write no state: the next request
recomputes the statistics. All files can be recomputed from the table.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from featurestore.errors import StorageError
from featurestore.model.json_object import MalformedJson
from featurestore.model.statistics import Statistics
from featurestore.statistics.accumulator import (
    StatisticsState,
    merge,
    state_from_bytes,
    state_to_bytes,
)
from featurestore.statistics.summary import finish
from featurestore.storage import files

_log = logging.getLogger("featurestore.statistics")
_MAX_CHAIN = 64
_NAME = re.compile(r"(\d+)(?:\.since\.(\d+))?\.state")


@dataclass(frozen=True)
class StatisticsFiles:
    """Statistics files of one table. ``source`` is added to the statistics, for titles."""

    table_path: str
    source: Mapping[str, Any]

    @property
    def directory(self) -> str:
        """The directory next to the table."""
        return f"{self.table_path.rstrip('/')}_statistics"

    def write(self, delta_version: int, state: StatisticsState) -> str:
        """Write the state of the complete table at a commit and return its path."""
        return self._write_full_state(delta_version, state)

    def append(
        self,
        delta_version: int,
        state: StatisticsState,
        *,
        base: int,
        state_versions: Collection[int],
    ) -> str:
        """Write the state of the rows that a commit appended and return its path.

        Args:
            delta_version: The commit.
            state: The state of the appended rows.
            base: The Delta version that they were appended to.
            state_versions: The versions with a state; a long chain is merged.
        """
        path = self._path(f"{delta_version}.since.{base}.state")
        files.write_atomically(path, state_to_bytes(state))
        if len(state_versions) >= _MAX_CHAIN:
            self.state(delta_version)
        return path

    def state_versions(self) -> Collection[int]:
        """Return the versions with a state, which appends can be chained to."""
        return self._links().keys()

    def get(self, delta_version: int) -> Statistics | None:
        """Return the statistics of a Delta version, None if they have to be computed."""
        path = self._path(f"{delta_version}.json")
        if files.exists(path):
            try:
                return Statistics.from_json(files.read_json(path))
            except (MalformedJson, StorageError):
                _log.warning("%s is damaged and left out; its numbers are counted anew", path)
        state = self.state(delta_version)
        if state is None:
            return None
        return self.result(delta_version, state)

    def write_result(self, delta_version: int, state: StatisticsState) -> Statistics:
        """Compute the statistics of a table from its state, write and return them."""
        result = finish(state, source={**self.source, "delta_version": delta_version})
        files.write_atomically(self._path(f"{delta_version}.json"), result.to_bytes())
        return result

    def result(self, delta_version: int, state: StatisticsState) -> Statistics:
        """Compute the statistics of a table from its state, and store them if possible."""
        try:
            return self.write_result(delta_version, state)
        except StorageError as error:
            _log.info("statistics are not stored: %s", error)
            return finish(state, source={**self.source, "delta_version": delta_version})

    def state(self, delta_version: int) -> StatisticsState | None:
        """Return the merged state of a Delta version, None if its chain is incomplete."""
        chain = self._chain(delta_version)
        if chain is None:
            return None
        merged = self._read(chain[0])
        if merged is None:
            return None
        for name in chain[1:]:
            added = self._read(name)
            if added is None:
                return None
            if merged.columns != added.columns:
                return None  # columns were added in between
            merged = merge(merged, added)
        if len(chain) > 1:
            try:
                self._write_full_state(delta_version, merged)
            except StorageError as error:
                _log.info("merged statistics are not stored: %s", error)
        return merged

    def _chain(self, delta_version: int) -> list[str] | None:
        """Return the names of a chain of states, the full state first; None if incomplete."""
        links = self._links()
        chain: list[str] = []
        version: int | None = delta_version
        while version is not None:
            if version not in links:
                return None
            version, name = links[version]
            chain.append(name)
        return chain[::-1]

    def _read(self, name: str) -> StatisticsState | None:
        path = self._path(name)
        try:
            return state_from_bytes(files.read_bytes(path))
        except StorageError:
            _log.warning("%s is damaged and left out; its numbers are counted anew", path)
            return None

    def _write_full_state(self, delta_version: int, state: StatisticsState) -> str:
        path = self._path(f"{delta_version}.state")
        files.write_atomically(path, state_to_bytes(state))
        self._remove_replaced(delta_version)
        return path

    def _links(self) -> dict[int, tuple[int | None, str]]:
        """Map versions to their base (None for a full state) and file; prefer full states."""
        links: dict[int, tuple[int | None, str]] = {}
        for each in self._state_files():
            if each.base is None or each.version not in links:
                links[each.version] = (each.base, each.name)
        return links

    def _remove_replaced(self, delta_version: int) -> None:
        """Remove the states that a full state replaces, but no statistics."""
        for each in self._state_files():
            is_full_state = each.version == delta_version and each.base is None
            if each.version <= delta_version and not is_full_state:
                files.remove(self._path(each.name), below=self.directory)

    def _state_files(self) -> Iterator[_StateFile]:
        for name in files.list_directory(self.directory):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            version = int(match[1])
            if match[2] is None:
                yield _StateFile(name, version, None)
            elif int(match[2]) < version:  # a base that is not older could form a cycle
                yield _StateFile(name, version, int(match[2]))

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


class _StateFile(NamedTuple):
    """A state file: of the full table, or of the rows appended to version ``base``."""

    name: str
    version: int
    base: int | None
