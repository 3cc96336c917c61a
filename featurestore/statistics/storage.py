"""Statistics beside a table, per Delta version.

``<table>_statistics/`` holds, named by Delta version v:

* ``v.state``: the state of the whole table (create, overwrite, recomputed);
* ``v.since.b.state``: the state of the rows that an append added to Delta version b;
* ``v.json``: the result.

An append writes only what it added, so that a small one stays small; a request merges the chain and keeps the
result. Upserts and deletes write nothing: their versions have no chain, the next request recomputes them.
Everything here can be computed again from the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from featurestore.model.statistics import Statistics
from featurestore.statistics.accumulator import StatisticsState, merge
from featurestore.statistics.codec import state_from_bytes, state_to_bytes
from featurestore.statistics.summary import finish
from featurestore.storage import files

_LONGEST_CHAIN = 64
_NAME = re.compile(r"(\d+)(?:\.since\.(\d+))?\.state")


@dataclass(frozen=True)
class StatisticsFiles:
    """The statistics of one table. ``source`` is put into results, for titles."""

    table_path: str
    source: Mapping[str, Any]

    @property
    def directory(self) -> str:
        """The folder beside the table."""
        return f"{self.table_path.rstrip('/')}_statistics"

    def record(self, delta_version: int, state: StatisticsState, *, base: int | None = None) -> str:
        """Keep the state of a commit and return its file.

        Args:
            delta_version: The commit.
            state: Of the whole table, or of the appended rows.
            base: The Delta version that the rows were appended to; None for the whole table.
        """
        if base is not None:
            path = self._path(f"{delta_version}.since.{base}.state")
            files.write_atomically(path, state_to_bytes(state))
            if len(self._links()) > _LONGEST_CHAIN:
                self.state(delta_version)
            return path
        return self._keep_whole(delta_version, state)

    def knows(self, delta_version: int) -> bool:
        """Tell whether a state of this version is kept, so that an append can build on it."""
        return delta_version in self._links()

    def get(self, delta_version: int) -> Statistics | None:
        """Return the statistics of a Delta version, None when they have to be computed."""
        path = self._path(f"{delta_version}.json")
        if files.exists(path):
            return Statistics.from_json(files.read_json(path))
        state = self.state(delta_version)
        return None if state is None else self.keep_result(delta_version, state)

    def keep_result(self, delta_version: int, state: StatisticsState) -> Statistics:
        """Return the statistics of a whole table and keep them."""
        result = finish(state, source={**self.source, "delta_version": delta_version})
        data = json.dumps(result.to_json(), ensure_ascii=False, separators=(",", ":"))
        files.write_atomically(self._path(f"{delta_version}.json"), data.encode())
        return result

    def state(self, delta_version: int) -> StatisticsState | None:
        """Return the merged state of a Delta version, None when a link of its chain is missing."""
        links = self._links()
        chain, version = [], delta_version
        while version in links:
            base, name = links[version]
            chain.append(name)
            if base is None:
                break
            version = base
        else:
            return None
        merged: StatisticsState | None = None
        for name in reversed(chain):
            state = state_from_bytes(files.read_bytes(self._path(name)))
            if merged is not None and merged.columns != state.columns:
                return None  # the group got columns in between
            merged = state if merged is None else merge(merged, state)
        if merged is not None and len(chain) > 1:
            self._keep_whole(delta_version, merged)
        return merged

    def _keep_whole(self, delta_version: int, state: StatisticsState) -> str:
        path = self._path(f"{delta_version}.state")
        files.write_atomically(path, state_to_bytes(state))
        self._forget_replaced(delta_version)
        return path

    def _links(self) -> dict[int, tuple[int | None, str]]:
        """Return for each version what it builds on and its file; a whole state is preferred."""
        links: dict[int, tuple[int | None, str]] = {}
        for name in files.list_directory(self.directory):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            version, base = int(match[1]), None if match[2] is None else int(match[2])
            if base is None or version not in links:
                links[version] = (base, name)
        return links

    def _forget_replaced(self, delta_version: int) -> None:
        """Remove the states that a whole one replaces; results stay."""
        for name in files.list_directory(self.directory):
            match = _NAME.fullmatch(name)
            if match is None or int(match[1]) > delta_version:
                continue
            if int(match[1]) < delta_version or match[2] is not None:
                files.remove(self._path(name), below=self.directory)

    def _path(self, name: str) -> str:
        return str(PurePath(self.directory, name))
