"""Folders of Parquet, CSV or JSON-lines files, of this machine or at a URI, read by DuckDB.

A change meanwhile is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.errors import (
    InvalidArgument,
    SourceChanged,
    SourceTableNotFound,
    did_you_mean,
    listing,
)
from featurestore.model.source import SourceTable
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, SourceSnapshot
from featurestore.storage import files
from featurestore.storage.files import FileStatus
from featurestore.storage.filesystem import file_systems
from featurestore.storage.location import is_uri, plain
from featurestore_connectors.sources import duckdb_rows, places, sqltext
from featurestore_connectors.sources.typed_columns import SourceColumn, TypedColumns

# Formats, the ends of their files' names, and what DuckDB reads them by. Types of texts are settled
# by all rows, not by the first ones.
_ENDINGS = {
    "parquet": (".parquet",),
    "csv": (".csv", ".csv.gz"),
    "jsonl": (".jsonl", ".jsonl.gz", ".ndjson", ".json"),
}
_READERS = {
    "parquet": "read_parquet({}, union_by_name = true, hive_partitioning = false)",
    "csv": "read_csv({}, union_by_name = true, hive_partitioning = false, sample_size = -1)",
    "jsonl": (
        "read_json({}, format = 'newline_delimited', union_by_name = true, "
        "hive_partitioning = false, sample_size = -1, convert_strings_to_integers = false)"
    ),
}


@dataclass(frozen=True)
class _Files:
    """Files of one format below a folder, and their state when they were listed."""

    place: str
    format: str
    found: Mapping[str, FileStatus]


class FolderSource:
    """A folder of files, or one file; ``options={"format": "csv"}`` chooses among them.

    It is one of this machine, or at a URI, whose options and secret are those of its storage.
    """

    def __init__(self, config: SourceConfig) -> None:
        asked = config.options.get("format")
        if asked is not None and asked not in _ENDINGS:
            raise InvalidArgument(
                f"format={asked!r} is not read; there are {listing(_ENDINGS)}.",
                hint=did_you_mean(asked, _ENDINGS, write="options={{'format': {!r}}}"),
            )
        self._config = config
        self._place = places.place_of(config, prefix="file", noun="folder", own=["format"])

    def snapshot(self, at: int | datetime | None = None) -> FolderSnapshot:
        """List the files."""
        if at is not None:
            raise InvalidArgument(
                f"at={at!r}: a folder of files keeps no earlier versions.",
                hint="a Delta table does: uri='delta+/path'",
            )
        return FolderSnapshot(self._config, self._place.opened(self._config))


class FolderSnapshot(TypedColumns):
    """Files as they are listed; reading them ends with an error if they changed meanwhile."""

    def __init__(self, config: SourceConfig, path: str) -> None:
        import duckdb

        self._config = config
        self._root = path if is_uri(path) else os.path.realpath(path)
        self._connection = duckdb_rows.connect(config)
        if is_uri(path):
            for system in file_systems(nullcontext):
                self._connection.register_filesystem(system)
        self.identity = places.fingerprint(self._below(self._root, _all_endings()))
        self.server = f"{plain(path)}, read by DuckDB {duckdb.__version__}"

    def tables(self) -> Sequence[SourceTable]:
        first = {}
        for path in self._below(self._root, _all_endings()):
            name = path[len(self._root) :].lstrip("/").split("/")[0] or "."
            first[name] = SourceTable(name, is_uri(path) or files.is_readable(path))
        return [first[name] for name in sorted(first)]

    def query_of(self, table: SourceTable) -> SourceQuery:
        return SourceQuery(path=table.name)

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        found = self._files(query)
        source = self._from(found)
        finished = partial(self._check_unchanged, found)
        return duckdb_rows.read(self._config, self._connection, source, query, finished=finished)

    def close(self) -> None:
        self._connection.close()

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        source = self._from(self._files(query))
        return duckdb_rows.columns_of(self._config, self._connection, source)

    def _from(self, found: _Files) -> str:
        listed = ", ".join(map(sqltext.text, map(_literal, found.found)))
        return _READERS[found.format].format(f"[{listed}]")

    def _files(self, query: SourceQuery) -> _Files:
        if query.table is not None or query.sql is not None:
            raise InvalidArgument(
                f"A folder has no {query}.", hint="give path='orders', or nothing for all of it"
            )
        place = places.inside(self._root, query.path or ".")
        if place is None:
            raise InvalidArgument(
                f"path={query.path!r} leads out of the source {self._config.name!r}.",
                hint="register the other folder as a source of its own",
            )
        asked = self._config.options.get("format")
        everything = self._below(place, _all_endings())
        by_format = {}
        for name, endings in _ENDINGS.items():
            found = _ending(everything, endings)
            if found and asked in (None, name):
                by_format[name] = found
        if len(by_format) > 1:
            raise InvalidArgument(
                f"{plain(place)} holds files of several formats: {listing(by_format)}.",
                hint="add_source(..., options={'format': 'parquet'}) reads one of them",
            )
        for name, found in by_format.items():
            return _Files(place, name, found)
        known = [each.name for each in self.tables()]
        raise SourceTableNotFound(
            f"Source {self._config.name!r} has no files at {query.path or '.'!r}; "
            f"it has {listing(known)}.",
            hint=did_you_mean(query.path or "", known, write="path={!r}")
            or f"files end in {listing(_all_endings())}",
        )

    def _check_unchanged(self, given: _Files) -> None:
        with places.reached(self._config):
            unchanged = places.are_unchanged(given.place, given.found)
        if not unchanged:
            raise SourceChanged(
                f"Files of source {self._config.name!r} changed while they were read.",
                hint="read again, when nobody writes them",
            )

    def _below(self, place: str, endings: Sequence[str]) -> dict[str, FileStatus]:
        """Return the files at or below a place whose names end so."""
        with places.reached(self._config):
            return _ending(places.below(place), endings)


def _ending(found: Mapping[str, FileStatus], endings: Sequence[str]) -> dict[str, FileStatus]:
    chosen = {}
    for path, status in found.items():
        if path.endswith(tuple(endings)):
            chosen[path] = status
    return chosen


def _all_endings() -> list[str]:
    endings: list[str] = []
    for each in _ENDINGS.values():
        endings += each
    return endings


def _literal(path: str) -> str:
    """Return a path in which DuckDB sees no pattern."""
    escaped = path.replace("[", "[[]")
    return escaped.replace("*", "[*]").replace("?", "[?]")


if TYPE_CHECKING:
    _contract: type[Source] = FolderSource
    _snapshot: type[SourceSnapshot] = FolderSnapshot
