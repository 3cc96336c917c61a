"""Incremental publication of a group: only the entities whose rows changed between two versions.

The files that two Delta versions do not share contain the changed rows. They are merged with the
published values by the point-in-time rule, without reading other rows of the group. An entity is
retrieved again only if a published row was removed without a replacement, or if two rows tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.delta.snapshot import read_snapshot
from featurestore.hashing import tie_hash
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.online import OnlineStore
from featurestore.serving.layout import (
    DECODING_ERRORS,
    Entry,
    current_entries,
    pack_entries,
    unpack_entries,
    value_sequence,
)
from featurestore.serving.rows import (
    LABEL_TIME,
    PublishedGroup,
    are_present,
    collect_values,
    later_labels,
    query_rows,
)
from featurestore.serving.seals import SEAL_BYTES, GenerationWriter, WrittenValues, find_damaged
from featurestore.serving.state import PublishedView

_REMOVED, _HASH = "removed", "row_hash"
# The keys that are read and written in one call.
_CHUNK = 5000


@dataclass
class ChangedKey:
    """The changed rows of an entity: added entries, and the times of removed rows.

    ``row`` has the key columns.
    """

    row: pa.RecordBatch
    added: list[Entry] = field(default_factory=list)
    removed: set[tuple[int, int]] = field(default_factory=set)


@dataclass(frozen=True)
class ChangeWriter:
    """Writes the values of the entities whose rows changed since a Delta version.

    Values describe the rows from ``horizon`` on.
    """

    engine: Engine
    group: PublishedGroup
    since: int
    store: OnlineStore
    writer: GenerationWriter
    view: PublishedView
    horizon: datetime

    def write(self) -> WrittenValues:
        """Write the changed values."""
        written_values = WrittenValues()
        changes = _changed_rows(self.engine, self.group, self.since)
        if changes is None:
            return written_values
        unresolved: dict[bytes, pa.RecordBatch] = {}
        chunk: dict[bytes, ChangedKey] = {}
        for key, change in _group_by_key(self.group, self.engine.stream(changes)):
            chunk[key] = change
            if len(chunk) == _CHUNK:
                written_values.add(self._write_chunk(chunk, unresolved))
                chunk = {}
        written_values.add(self._write_chunk(chunk, unresolved))
        written_values.add(self._write_retrieved(unresolved))
        return written_values

    def _write_chunk(
        self, chunk: dict[bytes, ChangedKey], unresolved: dict[bytes, pa.RecordBatch]
    ) -> WrittenValues:
        """Merge changes with the published values; add the keys to retrieve to ``unresolved``."""
        values: dict[bytes, bytes] = {}
        for (key, change), value in zip(chunk.items(), self._read_values(chunk), strict=True):
            # An interrupted publication has written the value already.
            if value is not None and value_sequence(value) >= self.group.source.delta_version:
                continue
            try:
                before = [] if value is None else unpack_entries(value[:-SEAL_BYTES])
            except DECODING_ERRORS as error:
                raise self.view.damaged_value_error() from error
            after = self._merge(before, change)
            if after is None:
                unresolved[key] = change.row
            elif after != before:
                values[key] = self._pack(after)
        return self._write_values(values)

    def _read_values(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the published values of keys."""
        online_keys = [self.writer.sealer.prefix + key for key in keys]
        values = self.store.read(online_keys)
        if find_damaged(online_keys, values) is not None:
            raise self.view.damaged_value_error()
        return values

    def _merge(self, published: list[Entry], change: ChangedKey) -> list[Entry] | None:
        """Return the entries after a change, or None if the changed rows do not determine them."""
        source = self.group.source
        is_unique = source.unique and bool(source.spec.primary_key)
        added_times = {(entry.event, entry.created) for entry in change.added}
        published_times = {(entry.event, entry.created) for entry in published}
        removed_times = published_times & change.removed
        # Rows of a unique group replace each other; other rows with equal times may remain.
        replaced_times = added_times & removed_times
        if len(added_times) < len(change.added) or (added_times & published_times) - removed_times:
            return None
        if removed_times - added_times or (replaced_times and not is_unique):
            return None
        remaining = [
            entry for entry in published if (entry.event, entry.created) not in replaced_times
        ]
        return current_entries([*remaining, *change.added], horizon=to_micros(self.horizon))

    def _write_retrieved(self, unresolved: dict[bytes, pa.RecordBatch]) -> WrittenValues:
        """Retrieve entities and write their values; those without rows get a tombstone."""
        written_values = WrittenValues()
        if not unresolved:
            return written_values
        group = self.group
        labels = pa.Table.from_batches(list(unresolved.values()))
        if group.spec.event_time is not None:
            times = pa.array([to_micros(self.horizon)] * labels.num_rows, pa.int64())
            labels = labels.append_column(LABEL_TIME, times.cast(TIMESTAMP))
        relation = self.engine.from_arrow(labels.to_reader())
        later = later_labels(self.engine, group, self.horizon)
        if later is not None:
            query = "SELECT * FROM fs_keys UNION SELECT * FROM fs_later"
            relation = query_rows(
                self.engine, query, labels.schema, fs_keys=relation, fs_later=later
            )
        missing = set(unresolved)
        for chunk in collect_values(self.engine, group, relation, horizon=self.horizon):
            # Keys that only have later rows are not affected.
            values = {key: value for key, value in chunk.items() if key in unresolved}
            written_values.add(self._write_values(values))
            missing -= set(values)
        written_values.add(self._write_values(dict.fromkeys(missing, self._pack([]))))
        return written_values

    def _write_values(self, values: dict[bytes, bytes]) -> WrittenValues:
        if not values:
            return WrittenValues()
        return self.writer.write_newer(self.store, list(values), list(values.values()))

    def _pack(self, entries: list[Entry]) -> bytes:
        return pack_entries(
            entries,
            sequence=self.group.source.delta_version,
            fingerprint=self.group.layout.fingerprint,
        )


def _changed_rows(engine: Engine, group: PublishedGroup, since: int) -> Relation | None:
    """Return the rows that differ between a version and the pinned one, ordered by key.

    The column ``removed`` is 1 for rows of the earlier version. None if no file differs.
    """
    path, version = group.source.path, group.source.delta_version
    after = {file.path for file in read_snapshot(path, version).files}
    before = {file.path for file in read_snapshot(path, since).files}
    added_files, removed_files = sorted(after - before), sorted(before - after)
    if not added_files and not removed_files:
        return None
    keys = ", ".join(group.key_names)
    required = [*group.key_names, *group.time_names]
    present = are_present(required)
    added = _read_files(engine, group, version, added_files, is_removed=False)
    tables = {"fs_added": added}
    query = f"SELECT * FROM fs_added WHERE {present} ORDER BY {keys}"
    if removed_files:
        tables["fs_removed"] = _read_files(engine, group, since, removed_files, is_removed=True)
        # A row that both versions contain was only rewritten.
        row = ", ".join([*required, _HASH])
        query = (
            f"SELECT * FROM (SELECT *, min({_REMOVED}) OVER (PARTITION BY {row}) AS low, "
            f"max({_REMOVED}) OVER (PARTITION BY {row}) AS high "
            "FROM (SELECT * FROM fs_added UNION ALL SELECT * FROM fs_removed) AS fs_rows "
            f"WHERE {present}) AS fs_changes WHERE low = high ORDER BY {keys}"
        )
    changes = engine.sql(query, tables=tables, parameters={})
    names = {name: name for name in added.schema.names}
    return replace(engine.select(changes, names), schema=added.schema)


def _read_files(
    engine: Engine, group: PublishedGroup, version: int, files: list[str], *, is_removed: bool
) -> Relation:
    """Return rows of data files with short column names, a hash of each row, and the flag."""
    columns = {**group.key_names, **group.value_names, **group.time_names}
    schema = group.schema_of(columns)
    schema = schema.append(pa.field(_REMOVED, pa.int64())).append(pa.field(_HASH, pa.int64()))
    rows = engine.read_table(
        group.source.path, version=version, schema=group.spec.schema, data_files=files
    )
    function = partial(_hash_rows, columns=columns, is_removed=is_removed, schema=schema)
    return engine.map_batches(rows, function, schema=schema)


def _hash_rows(
    batch: pa.RecordBatch, *, columns: dict[str, str], is_removed: bool, schema: pa.Schema
) -> pa.RecordBatch:
    """Return columns under short names, with the flag and a hash of all columns."""
    arrays = [batch.column(name) for name in columns.values()]
    arrays.append(pa.array(np.full(batch.num_rows, int(is_removed), dtype=np.int64)))
    arrays.append(pa.array(tie_hash(batch).view(np.int64)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _group_by_key(
    group: PublishedGroup, batches: pa.RecordBatchReader
) -> Iterator[tuple[bytes, ChangedKey]]:
    """Yield the changes of each key from rows that are ordered by key."""
    current: bytes | None = None
    change: ChangedKey | None = None
    names = list(group.key_names)
    for batch in batches:
        keys, values = group.encoder.encode(batch)
        is_removed = batch.column(_REMOVED).to_pylist()
        key_columns = batch.select(names)
        for key, rows in groupby(range(batch.num_rows), key=keys.__getitem__):
            numbers = list(rows)
            if key != current or change is None:
                if current is not None and change is not None:
                    yield current, change
                current, change = key, ChangedKey(key_columns.slice(numbers[0], 1))
            for number in numbers:
                (entry,) = unpack_entries(values[number])
                if is_removed[number]:
                    change.removed.add((entry.event, entry.created))
                else:
                    change.added.append(entry)
    if current is not None and change is not None:
        yield current, change
