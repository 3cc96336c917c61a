"""Erasure in Delta tables: feature groups in all versions, quarantine, and stored statistics.

Vector logs and predictions are feature groups, too. All data files of a table are searched, also
those that only old versions need and those that no commit names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featurestore.delta import commits, erasure, iceberg
from featurestore.delta.erasure import LogScrubber
from featurestore.delta.log import is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.erasure.areas import Scan
from featurestore.erasure.keys import Entities, canonical_text
from featurestore.errors import FeatureStoreError, InvalidArgument, WriteConflict
from featurestore.featuregroups.maintenance import register_delta_version
from featurestore.model.erasure import ErasureFinding
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.paths import parse_version_directory
from featurestore.recovery import liveness
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.pins import RECLAIM, versions_pinned_by_exports
from featurestore.registry import intents
from featurestore.session import Session
from featurestore.statistics.state import state_from_bytes
from featurestore.storage import storage_for
from featurestore.usersql import predicate
from featurestore.usersql.text import quote

GROUPS, QUARANTINE, STATISTICS = "feature groups", "quarantine", "statistics"
_QUARANTINE_SUFFIX, STATISTICS_SUFFIX = "_quarantine", "_statistics"
# The number of keys in one condition of a deletion.
KEYS_PER_DELETION = 200
# The intents of writes of feature groups; other objects may have the same name.
_WRITES = ("create", "write", "delete", RECLAIM)


@dataclass(frozen=True)
class Table:
    """A Delta table of a feature group: its rows, or its quarantine."""

    group: str
    version: int
    path: str
    area: str

    @property
    def title(self) -> str:
        """The name of the table in findings."""
        return f"{self.group}@v{self.version}"


@dataclass
class TableMatches:
    """The rows of entities in one table.

    Attributes:
        columns: The key in each column; see ``Entities.key_columns``.
        files: The number of matching rows by data file.
        current: The matching files of the newest version.
        key_texts: The texts of the key columns of matching rows.
        matching_keys: The primary keys of matching rows.
        log_traces: The number of log files with an erased value.
        folders: The folders of partitions without files that have an erased value as name.
    """

    columns: Mapping[str, str]
    files: dict[str, int] = field(default_factory=dict)
    current: set[str] = field(default_factory=set)
    key_texts: set[tuple[str | None, ...]] = field(default_factory=set)
    matching_keys: set[tuple[object, ...]] = field(default_factory=set)
    log_traces: int = 0
    folders: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """The number of matching rows in the newest version."""
        return sum(count for file, count in self.files.items() if file in self.current)

    @property
    def is_empty(self) -> bool:
        """Whether the table has no trace of the entities."""
        return not self.files and not self.log_traces and not self.folders


def group_tables(session: Session) -> Iterator[Table]:
    """Yield the tables of all feature groups in the location, registered or not."""
    root = session.paths.featuregroups
    for group in session.storage.list_directory(root):
        for entry in session.storage.list_directory(os.path.join(root, group)):
            name, area = entry, GROUPS
            if entry.endswith(_QUARANTINE_SUFFIX):
                name, area = entry.removesuffix(_QUARANTINE_SUFFIX), QUARANTINE
            version = parse_version_directory(name)
            path = os.path.join(root, group, entry)
            if version is not None and is_delta_table(path):
                yield Table(group, version, path, area)


class GroupTables:
    """The tables of feature groups, and their quarantine."""

    name = GROUPS

    def search(self, scan: Scan) -> list[ErasureFinding]:
        findings = []
        for table in group_tables(scan.session):
            scan.scanned[table.area] += 1
            matches = find_rows(table, scan)
            if matches is None or matches.is_empty:
                continue
            scan.key_rows.setdefault((table.group, table.version), set()).update(
                matches.matching_keys
            )
            detail = f"{matches.rows:,} rows in the newest version"
            old = len(set(matches.files) - matches.current)
            if old:
                detail += f", {old:,} data files of older versions"
            if matches.folders:
                detail += f", {len(matches.folders):,} folders"
            if matches.log_traces:
                detail += f", {matches.log_traces:,} files of the log"
            findings.append(ErasureFinding(table.area, table.title, detail, "erase", matches.rows))
        return findings

    def erase(self, scan: Scan) -> None:
        for table in group_tables(scan.session):
            matches = find_rows(table, scan)
            if matches is not None and not matches.is_empty:
                erase_rows(scan, table, matches)


def find_rows(table: Table, scan: Scan) -> TableMatches | None:
    """Return the rows of entities in a table; None if it has no columns for all of their keys."""
    snapshot = read_snapshot(table.path)
    columns = scan.entities.key_columns(snapshot.schema.names, owner=table.group)
    scan.key_names.update(columns.values())
    if not scan.entities.is_searchable(columns):
        return None
    matches = TableMatches(columns)
    for file in erasure.data_files(table.path):
        _search_file(matches, table, file, scan.entities)
    matches.current = {file.path for file in snapshot.files} & set(matches.files)
    scrubber = _scrubber(table.path, scan.entities, columns)
    for file in erasure.log_files(table.path):
        if scrubber.has_other_traces(file) or any(
            map(scrubber.has_traces, erasure.read_actions(file))
        ):
            matches.log_traces += 1
    for folder in erasure.unused_partitions(table.path):
        if scrubber.is_partition(erasure.partition_of(folder, table.path)):
            matches.folders.add(folder)
    return matches


def _search_file(matches: TableMatches, table: Table, file: str, entities: Entities) -> None:
    """Add the matching rows of a data file."""
    spec = group_spec(table) if table.area == GROUPS else None
    primary_key = () if spec is None else spec.primary_key
    names = [*dict.fromkeys([*matches.columns, *primary_key])]
    for batch in read_columns(file, table.path, names):
        rows = batch.filter(entities.matches(batch, matches.columns))
        if not rows.num_rows:
            continue
        matches.files[file] = matches.files.get(file, 0) + rows.num_rows
        values = [rows.column(name).to_pylist() for name in matches.columns]
        for row in zip(*values, strict=True):
            matches.key_texts.add(tuple(map(canonical_text, row)))
        if primary_key:
            keys = [rows.column(name).to_pylist() for name in primary_key]
            matches.matching_keys.update(zip(*keys, strict=True))


def group_spec(table: Table) -> FeatureGroupSpec | None:
    """Return the definition of the group of a table; None if its table is missing or damaged."""
    path = table.path.removesuffix(_QUARANTINE_SUFFIX)
    try:
        return commits.spec_of(read_snapshot(path))
    except FeatureStoreError:
        return None


def read_columns(file: str, table_path: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a data file; columns that it lacks are partition values or null."""
    from pyarrow import parquet

    partition = erasure.partition_of(os.path.dirname(file), table_path)
    try:
        reader = parquet.ParquetFile(storage_for(file).open_complete(file))
    except (pa.ArrowInvalid, OSError):  # a killed writer left an incomplete file
        return
    stored_names = [name for name in names if name in reader.schema_arrow.names]
    for batch in reader.iter_batches(columns=stored_names):
        arrays = []
        for name in names:
            if name in stored_names:
                arrays.append(batch.column(name))
            else:
                arrays.append(pa.array([partition.get(name)] * batch.num_rows, pa.string()))
        yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def _scrubber(path: str, entities: Entities, columns: Mapping[str, str]) -> LogScrubber:
    def is_partition(values: Mapping[str, Any]) -> bool:
        texts = {}
        for name in columns:
            value = values.get(name)
            plain = value if value is None or isinstance(value, str | int | bool) else str(value)
            texts[name] = canonical_text(plain)
        return entities.match_texts(texts, columns)

    return LogScrubber(
        path,
        has_value=lambda text: entities.occurs_in(text.encode("utf-8", "replace")),
        remove_value=entities.remove_from,
        is_partition=is_partition,
    )


# -- erasure ----------------------------------------------------------------------------------


def erase_rows(scan: Scan, table: Table, matches: TableMatches) -> None:
    """Delete the rows, then the data files of older versions, then the values in the log."""
    session = scan.session
    with (
        in_flight(session, operation=RECLAIM, name=table.group, version=table.version) as reclaim,
        in_flight(session, operation="write", name=table.group, version=table.version) as run,
    ):
        check_no_writers(session, table, except_for=(reclaim.intent, run.intent))
        metadata = {
            "operation": "erase",
            "run": run.run_id,
            "unique": "kept",
            **commits.base_metadata(table.path, latest_version(table.path)),
        }
        snapshot = read_snapshot(table.path)
        is_group = table.area == GROUPS
        schema = commits.spec_of(snapshot).schema if is_group else snapshot.schema
        for condition in _conditions(matches, schema, session.engine.dialect):
            version = session.engine.delete(table.path, condition, commit_metadata=metadata)
            if version is not None:
                metadata |= commits.base_metadata(table.path, version)
        _remove_files(table, matches)
        erasure.scrub_log(_scrubber(table.path, scan.entities, matches.columns))
        if is_group:
            spec = commits.spec_of(read_snapshot(table.path))
            register_delta_version(session, spec, latest_version(table.path), run=run)
            if spec.iceberg:
                iceberg.remove_old_metadata(table.path, version=iceberg.publish(table.path))
        run.registered = reclaim.registered = True
    remove_statistics(session, table)


def check_no_writers(session: Session, table: Table, *, except_for: Sequence[str] = ()) -> None:
    """Check that no other process writes a group, and no running export reads it.

    Raises:
        WriteConflict: The message names the writer.
    """
    with session.registry.reading() as connection:
        for intent in intents.list_all(connection):
            is_same = (intent.name, intent.version) == (table.group, table.version)
            if not is_same or intent.run_id in except_for or intent.kind not in _WRITES:
                continue
            if liveness.is_alive(connection, session.location, intent.owner):
                raise WriteConflict(
                    f"Feature group {table.group!r} version {table.version} is being written by "
                    f"{intent.owner}; its rows were not erased.",
                    hint="wait for the write to end, and run the erasure again",
                )
    if versions_pinned_by_exports(session, table.group, table.version):
        raise WriteConflict(
            f"A training dataset is being created from feature group {table.group!r} version "
            f"{table.version}; its rows were not erased.",
            hint="wait until it is complete, and run the erasure again",
        )


def _conditions(matches: TableMatches, schema: pa.Schema, dialect: str) -> Iterator[str]:
    """Yield conditions in the SQL of an engine for the matching rows of the newest version."""
    if not matches.current:
        return
    rows = sorted(matches.key_texts, key=str)
    for start in range(0, len(rows), KEYS_PER_DELETION):
        conditions = []
        for row in rows[start : start + KEYS_PER_DELETION]:
            comparisons = [
                _comparison(column, text, schema=schema, dialect=dialect)
                for column, text in zip(matches.columns, row, strict=True)
            ]
            conditions.append(f"({' AND '.join(comparisons)})")
        yield " OR ".join(conditions)


def _comparison(column: str, text: str | None, *, schema: pa.Schema, dialect: str) -> str:
    """Return the condition that a column has a key value."""
    dtype = schema.field(column).type
    if text is not None and (pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype)):
        from sqlglot import exp

        # Conditions of users have no binary constants.
        name = exp.column(column, quoted=True).sql(dialect=dialect)
        return f"{name} = unhex('{text}')"
    literal = None if text is None else _literal(text, dtype)
    condition = f"{quote(column)} IS NULL" if literal is None else f"{quote(column)} = {literal}"
    return predicate(condition, schema=schema, dialect=dialect)


def _literal(text: str, dtype: pa.DataType) -> str:
    """Return a key value as a literal in DuckDB's SQL."""
    escaped = text.replace("'", "''")
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return f"'{escaped}'"
    if pa.types.is_integer(dtype) or pa.types.is_decimal(dtype) or pa.types.is_boolean(dtype):
        return text
    if pa.types.is_date(dtype):
        return f"DATE '{escaped}'"
    if pa.types.is_timestamp(dtype):
        return f"TIMESTAMPTZ '{escaped}'"
    raise InvalidArgument(f"Rows cannot be erased by a key of type {dtype}.")


def _remove_files(table: Table, matches: TableMatches) -> None:
    """Remove the data files with matching rows that the newest version does not need.

    No other process writes the table, so a file without a commit is that of a killed writer.
    """
    storage = storage_for(table.path)
    current = {file.path for file in read_snapshot(table.path).files}
    for file in set(matches.files) - current:
        storage.remove(file, below=table.path)
        # Spark on a local disk writes a checksum for each file.
        folder, name = os.path.split(file)
        storage.remove(os.path.join(folder, f".{name}.crc"), below=table.path)
    emptied = {os.path.dirname(file) for file in matches.files}
    for folder in list(erasure.unused_partitions(table.path)):
        if folder in matches.folders or any(
            f"{path}/".startswith(f"{folder}/") for path in emptied
        ):
            storage.remove(folder, below=table.path)


# -- statistics -------------------------------------------------------------------------------


class StoredStatistics:
    """Stored statistics of feature groups: top values, samples, and states of accumulators."""

    name = STATISTICS

    def search(self, scan: Scan) -> list[ErasureFinding]:
        findings = []
        for table in group_tables(scan.session):
            if table.area == GROUPS:
                count = sum(1 for _ in _statistics_with_values(scan, table))
                if count:
                    detail = f"{count:,} files"
                    findings.append(ErasureFinding(STATISTICS, table.title, detail, "remove"))
        return findings

    def erase(self, scan: Scan) -> None:
        # All files of the table are removed: newer states were merged from older ones.
        for table in group_tables(scan.session):
            if table.area == GROUPS and any(True for _ in _statistics_with_values(scan, table)):
                remove_statistics(scan.session, table)


def _statistics_with_values(scan: Scan, table: Table) -> Iterator[str]:
    storage = storage_for(table.path)
    # The states of windows are in a folder.
    for path in storage.walk(f"{table.path}{STATISTICS_SUFFIX}"):
        scan.scanned[STATISTICS] += 1
        content = storage.read_bytes(path)
        if scan.entities.occurs_in(content) or (
            path.endswith(".state") and _has_sample(scan, table, content)
        ):
            yield path


def _has_sample(scan: Scan, table: Table, content: bytes) -> bool:
    """Return whether a state has a matching row in its compressed sample."""
    try:
        state = state_from_bytes(content)
    except FeatureStoreError:
        return False
    rows = state.sample.rows()
    columns = scan.entities.key_columns(rows.schema.names, owner=table.group)
    if not scan.entities.is_searchable(columns):
        return False
    return bool(scan.entities.matches(rows, columns).true_count)


def remove_statistics(session: Session, table: Table) -> None:
    """Remove all stored statistics of a group; the next request computes them again."""
    directory = f"{table.path.removesuffix(_QUARANTINE_SUFFIX)}{STATISTICS_SUFFIX}"
    if session.storage.exists(directory):
        session.storage.remove(directory, below=session.location)
