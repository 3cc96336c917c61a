"""Stored statistics of a table by Delta version.

The folder ``<table>_statistics/`` contains for a Delta version v:

* ``v.state``: the state of the full table, after a create, an overwrite or a recomputation;
* ``v.since.b.state``: the state of the rows that an append added to Delta version b;
* ``v.json``: the computed statistics.

An append writes only the state of the appended rows, so that small appends are cheap. A request for
statistics merges the chain of states and writes the result. Upserts and deletes write no state, so
the next request recomputes the statistics. All files can be recomputed from the table.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from featurestore.errors import FormatTooNew, StorageError
from featurestore.model.json_object import MalformedJson
from featurestore.model.statistics import Statistics
from featurestore.statistics.state import (
    StatisticsState,
    merge,
    state_from_bytes,
    state_to_bytes,
)
from featurestore.statistics.summary import finish
from featurestore.storage import files, storage_for

_log = logging.getLogger("featurestore.statistics")
# The maximum number of states that a request merges; an append to a longer chain merges it.
_MAX_CHAIN = 64
_NAME = re.compile(r"(\d+)(?:\.since\.(\d+))?\.state")


@dataclass(frozen=True)
class StatisticsFiles:
    """The statistics files of one table; ``source`` describes the table in the statistics."""

    table_path: str
    source: Mapping[str, Any]

    @property
    def directory(self) -> str:
        """The directory of the statistics files, next to the table."""
        return f"{self.table_path.rstrip('/')}_statistics"

    def write(self, delta_version: int, state: StatisticsState) -> str:
        """Write the state of the full table, remove the states that it replaces; return the path."""
        storage = storage_for(self.directory)
        path = self._path(f"{delta_version}.state")
        storage.write_atomically(path, state_to_bytes(state))
        # The merged state is written before its parts are removed: after a crash in between, both
        # exist and the full state is used.
        for state_file in self._list_state_files():
            is_full_state = state_file.version == delta_version and state_file.base is None
            if state_file.version <= delta_version and not is_full_state:
                storage.remove(self._path(state_file.name), below=self.directory)
        return path

    def append(
        self,
        delta_version: int,
        state: StatisticsState,
        *,
        base: int,
        state_versions: Collection[int],
    ) -> str:
        """Write the state of the rows that a commit appended, and return the path of the file.

        Args:
            delta_version: The Delta version of the commit.
            state: The state of the appended rows.
            base: The Delta version to which the rows were appended.
            state_versions: The versions with a state; a long chain is merged into one state.
        """
        path = self._path(f"{delta_version}.since.{base}.state")
        storage_for(path).write_atomically(path, state_to_bytes(state))
        if len(state_versions) >= _MAX_CHAIN:
            self.state(delta_version)
        return path

    def state_versions(self) -> Collection[int]:
        """Return the versions with a state, to which states of appends can be chained."""
        return self._read_links().keys()

    def get(self, delta_version: int) -> Statistics | None:
        """Return the stored statistics of a Delta version, or None if they must be computed."""
        path = self._path(f"{delta_version}.json")
        if storage_for(path).exists(path):
            try:
                # The statistics can always be computed from the states again, so a damaged file is
                # not an error.
                return Statistics.from_json(files.read_json(path))
            except (FormatTooNew, MalformedJson, StorageError):
                _log.warning("%s cannot be read; recomputing these statistics", path)
        state = self.state(delta_version)
        if state is None:
            return None
        return self.result(delta_version, state)

    def write_result(self, delta_version: int, state: StatisticsState) -> Statistics:
        """Compute statistics from a state, write them, and return them."""
        result = finish(state, source={**self.source, "delta_version": delta_version})
        storage_for(self._path(f"{delta_version}.json")).write_atomically(
            self._path(f"{delta_version}.json"), result.to_bytes()
        )
        return result

    def result(self, delta_version: int, state: StatisticsState) -> Statistics:
        """Compute statistics from a state, and write them if the storage is writable."""
        try:
            return self.write_result(delta_version, state)
        except StorageError as error:
            _log.info("statistics were not stored: %s", error)
            return finish(state, source={**self.source, "delta_version": delta_version})

    def state(self, delta_version: int) -> StatisticsState | None:
        """Return the merged state of a Delta version, or None if its chain is incomplete."""
        chain = self._find_chain(delta_version)
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
        # The merged state is written, so that the next request reads one file. A store without
        # write access recomputes it each time.
        if len(chain) > 1:
            try:
                self.write(delta_version, merged)
            except StorageError as error:
                _log.info("merged statistics were not stored: %s", error)
        return merged

    def _find_chain(self, delta_version: int) -> list[str] | None:
        """Return the file names of a chain, starting with the full state; None if incomplete."""
        links = self._read_links()
        chain: list[str] = []
        version: int | None = delta_version
        while version is not None:
            if version not in links:
                return None
            version, name = links[version]
            chain.append(name)
        return chain[::-1]

    def _read(self, name: str) -> StatisticsState | None:
        """Read a state, or return None if the file is damaged."""
        path = self._path(name)
        try:
            return state_from_bytes(storage_for(path).read_bytes(path))
        except StorageError:
            _log.warning("%s is damaged; recomputing these statistics", path)
            return None

    def _read_links(self) -> dict[int, tuple[int | None, str]]:
        """Map each version to its base version (None for a full state, if any) and file name."""
        links: dict[int, tuple[int | None, str]] = {}
        for state_file in self._list_state_files():
            # A full state takes precedence over the state of an append that it replaces.
            if state_file.base is None or state_file.version not in links:
                links[state_file.version] = (state_file.base, state_file.name)
        return links

    def _list_state_files(self) -> Iterator[_StateFile]:
        """List the files with states; other files in the directory are ignored."""
        for name in storage_for(self.directory).list_directory(self.directory):
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
    """A file with the state of the full table, or of the rows appended to version ``base``."""

    name: str
    version: int
    base: int | None
