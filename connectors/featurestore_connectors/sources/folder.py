"""Folders of Parquet, CSV or JSON-lines files, read by DuckDB; a change meanwhile is an error."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
from featurestore_connectors.sources import duckdb_rows, places, sqltext
from featurestore_connectors.sources.columns import chosen, schema_of

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

    format: str
    paths: tuple[str, ...]
    fingerprint: str


class FolderSource:
    """A folder of files of this machine, or one file; ``options={"format": "csv"}`` chooses."""

    def __init__(self, config: SourceConfig) -> None:
        unknown = sorted(set(config.options) - {"format"})
        if unknown:
            raise InvalidArgument(f"A folder has no options {listing(unknown)}; it has 'format'.")
        asked = config.options.get("format")
        if asked is not None and asked not in _ENDINGS:
            raise InvalidArgument(
                f"format={asked!r} is not read; there are {listing(_ENDINGS)}.",
                hint=did_you_mean(asked, _ENDINGS, write="options={{'format': {!r}}}"),
            )
        self._config = config
        self._path = places.local_path(config, prefix="file")

    def snapshot(self, at: int | datetime | None = None) -> FolderSnapshot:
        """List the files."""
        if at is not None:
            raise InvalidArgument(
                f"at={at!r}: a folder of files keeps no earlier versions.",
                hint="a Delta table does: uri='delta+/path'",
            )
        return FolderSnapshot(self._config, places.existing(self._config, self._path))


class FolderSnapshot:
    """Files as they are listed; reading them ends with an error if they changed meanwhile."""

    def __init__(self, config: SourceConfig, path: str) -> None:
        import duckdb

        self._config = config
        self._root = os.path.realpath(path)
        self._connection = duckdb_rows.connect(config)
        self.identity = places.fingerprint(_below(self._root, _all_endings()))
        self.server = f"{path}, read by DuckDB {duckdb.__version__}"

    def tables(self) -> Sequence[SourceTable]:
        first = {}
        for path in _below(self._root, _all_endings()):
            name = os.path.relpath(path, self._root).split(os.sep)[0]
            first[name] = SourceTable(name, files.is_readable(path))
        return [first[name] for name in sorted(first)]

    def query_of(self, table: SourceTable) -> SourceQuery:
        return SourceQuery(path=table.name)

    def names(self, query: SourceQuery) -> Sequence[str]:
        source = self._from(self._files(query))
        columns = duckdb_rows.columns_of(self._config, self._connection, source)
        return [column.name for column in columns]

    def schema(self, query: SourceQuery) -> pa.Schema:
        source = self._from(self._files(query))
        columns = duckdb_rows.columns_of(self._config, self._connection, source)
        return schema_of(chosen(columns, query))

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        found = self._files(query)
        source = self._from(found)
        finished = partial(self._check_unchanged, found)
        return duckdb_rows.read(self._config, self._connection, source, query, finished=finished)

    def close(self) -> None:
        self._connection.close()

    def _from(self, found: _Files) -> str:
        listed = ", ".join(map(sqltext.text, map(_literal, found.paths)))
        return _READERS[found.format].format(f"[{listed}]")

    def _files(self, query: SourceQuery) -> _Files:
        if query.table is not None or query.sql is not None:
            raise InvalidArgument(
                f"A folder has no {query}.", hint="give path='orders', or nothing for all of it"
            )
        place = self._root
        if query.path is not None:
            place = os.path.realpath(os.path.join(self._root, query.path))
            if place != self._root and not place.startswith(self._root.rstrip("/") + "/"):
                raise InvalidArgument(
                    f"path={query.path!r} leads out of the source {self._config.name!r}.",
                    hint="register the other folder as a source of its own",
                )
        asked = self._config.options.get("format")
        by_format = {}
        for name, endings in _ENDINGS.items():
            paths = _below(place, endings)
            if paths and asked in (None, name):
                by_format[name] = paths
        if len(by_format) > 1:
            raise InvalidArgument(
                f"{place} holds files of several formats: {listing(by_format)}.",
                hint="add_source(..., options={'format': 'parquet'}) reads one of them",
            )
        for name, paths in by_format.items():
            return _Files(name, tuple(paths), places.fingerprint(paths))
        known = [each.name for each in self.tables()]
        raise SourceTableNotFound(
            f"Source {self._config.name!r} has no files at {query.path or '.'!r}; "
            f"it has {listing(known)}.",
            hint=did_you_mean(query.path or "", known, write="path={!r}")
            or f"files end in {listing(_all_endings())}",
        )

    def _check_unchanged(self, found: _Files) -> None:
        if places.fingerprint(found.paths) != found.fingerprint:
            raise SourceChanged(
                f"Files of source {self._config.name!r} changed while they were read.",
                hint="read again, when nobody writes them",
            )


def _below(place: str, endings: Sequence[str]) -> list[str]:
    """Return the files at or below a place whose names end so, hidden ones left out."""
    if files.is_file(place):
        return [place] if place.endswith(tuple(endings)) else []
    found = []
    for path in files.walk(place, enter=_is_shown):
        name = os.path.basename(path)
        if name.endswith(tuple(endings)) and _is_shown(name):
            found.append(path)
    return found


def _is_shown(name: str) -> bool:
    return not name.startswith((".", "_"))


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
