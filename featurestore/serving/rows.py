"""Rows of a group that a publication writes: for each entity, those that are current or will be.

They are the result of the ordinary retrieval at the time of the publication, and at each later time
at which a row becomes eligible. Therefore both engines publish exactly what they retrieve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from featurestore import progress
from featurestore.arrow.types import TIMESTAMP
from featurestore.delta.log import commit_sha256
from featurestore.delta.snapshot import read_snapshot
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import FeaturePlan, Join, Output, Source
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Accumulator, Engine, Relation
from featurestore.plugins.online import OnlineConfig, open_config
from featurestore.serving.layout import (
    Entry,
    ValueLayout,
    current_entries,
    pack_entries,
    to_timestamps,
    unpack_entries,
)
from featurestore.serving.seals import GenerationWriter, WrittenValues
from featurestore.serving.state import GroupId, GroupState

# Columns of intermediate relations: keys, published columns, times, and the label time.
_KEY, _VALUE, _EVENT, _CREATED, LABEL_TIME = "k", "v", "event", "created", "label_time"


@dataclass(frozen=True)
class ValueEncoder:
    """The encoding of a group's rows; picklable, since executors encode rows.

    ``key_columns`` are the short names of the keys, ``columns`` the published columns by theirs.
    """

    layout: ValueLayout
    key_columns: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    sequence: int

    def encode(self, batch: pa.RecordBatch) -> tuple[list[bytes | None], list[bytes]]:
        """Return the keys and the values of retrieved rows."""
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        keys = self.layout.encode_keys([arrays[short] for short in self.key_columns])
        values = self.layout.encode(
            {name: arrays[short] for short, name in self.columns},
            event_time=arrays.get(_EVENT),
            created_time=arrays.get(_CREATED),
            sequence=self.sequence,
        )
        return keys, values


@dataclass(frozen=True)
class PublishedGroup:
    """A group of a view, pinned to a Delta version, and the layout of its published columns."""

    source: Source
    layout: ValueLayout

    @property
    def id(self) -> GroupId:
        """The name and version of the group."""
        return self.spec.name, self.spec.version

    @property
    def spec(self) -> FeatureGroupSpec:
        """The definition at the pinned version."""
        return self.source.spec

    @property
    def key_names(self) -> dict[str, str]:
        """The primary-key columns by their short names."""
        return {f"{_KEY}{index}": name for index, name in enumerate(self.spec.primary_key)}

    @property
    def value_names(self) -> dict[str, str]:
        """The published columns by their short names."""
        return {f"{_VALUE}{index}": name for index, name in enumerate(self.layout.schema.names)}

    @property
    def time_names(self) -> dict[str, str]:
        """The time columns by their short names."""
        times = {_EVENT: self.spec.event_time, _CREATED: self.spec.created_time}
        return {short: name for short, name in times.items() if name is not None}

    def state(self, published_at: datetime) -> GroupState:
        """Return the state of the group after its values were published."""
        return GroupState(
            delta_version=self.source.delta_version,
            table_id=self.source.table_id,
            fingerprint=self.layout.fingerprint,
            columns=tuple(self.layout.schema.names),
            published_at=published_at,
            commit=self.commit_sha256(self.source.delta_version),
        )

    def commit_sha256(self, version: int) -> str | None:
        """Return the hash of the commit of a version; None for external groups, or if missing."""
        if self.spec.external is not None:
            return None
        return commit_sha256(self.source.path, version)

    def schema_of(self, columns: dict[str, str]) -> pa.Schema:
        """Return the types of columns under their short names."""
        fields = [self.spec.schema.field(name).with_name(short) for short, name in columns.items()]
        return pa.schema(fields)

    def read(self, engine: Engine, columns: dict[str, str]) -> Relation:
        """Return columns of all rows under their short names."""
        names = list(dict.fromkeys(columns.values()))
        rows = engine.read_table(
            self.source.path,
            version=self.source.delta_version,
            schema=self.spec.schema,
            columns=names,
        )
        return engine.select(rows, columns)

    @property
    def encoder(self) -> ValueEncoder:
        """The encoding of the group's rows as values of its Delta version."""
        return ValueEncoder(
            self.layout,
            key_columns=tuple(self.key_names),
            columns=tuple(self.value_names.items()),
            sequence=self.source.delta_version,
        )


def query_rows(engine: Engine, query: str, schema: pa.Schema, **tables: Relation) -> Relation:
    """Return the result of a query with the types of its columns, which an engine may widen."""
    return replace(engine.sql(query, tables=tables, parameters={}), schema=schema)


def are_present(names: Iterable[str]) -> str:
    """Return the condition that no column is null."""
    return " AND ".join([f"{name} IS NOT NULL" for name in names])


def distinct_keys(engine: Engine, group: PublishedGroup, rows: Relation) -> Relation:
    """Return the distinct keys of rows, without null keys."""
    columns, present = ", ".join(group.key_names), are_present(group.key_names)
    query = f"SELECT DISTINCT {columns} FROM fs_rows WHERE {present}"
    return query_rows(engine, query, group.schema_of(group.key_names), fs_rows=rows)


def retrieve(
    engine: Engine, group: PublishedGroup, labels: Relation, *, at: datetime | None
) -> Relation:
    """Return the row of each key that is current at a time; None: at its label time.

    A group without event time has the same row at all times. Rows beyond the group's ttl are
    included. Keys without a current row are not.
    """
    is_timed = group.spec.event_time is not None
    join = Join(
        source=group.source,
        on=tuple(group.key_names.items()),
        outputs=tuple(
            [Output(name, short) for short, name in group.value_names.items()]
            + [Output(name, short) for short, name in group.time_names.items()]
        ),
        event_time=group.spec.event_time,
        created_time=group.spec.created_time,
        # Readers apply the ttl at the time of the read.
        ttl=None,
    )
    features = group.schema_of({**group.value_names, **group.time_names})
    schema = pa.schema([*labels.schema, *features])
    plan = FeaturePlan(
        left_source=None,
        left_schema=labels.schema,
        left_columns=tuple(labels.schema.names),
        left_time=LABEL_TIME if is_timed and at is None else None,
        fixed_time=at if is_timed else None,
        joins=(join,),
        columns=tuple(schema.names),
        schema=schema,
        how="inner",
    )
    return engine.retrieve(plan, labels=labels)


@dataclass(frozen=True)
class ValueWriter(Accumulator[WrittenValues, WrittenValues]):
    """An accumulator that writes one value for each row."""

    encoder: ValueEncoder
    config: OnlineConfig
    writer: GenerationWriter

    def start(self) -> WrittenValues:
        return WrittenValues()

    def update(self, written_values: WrittenValues, batch: pa.RecordBatch) -> WrittenValues:
        if not batch.num_rows:
            return written_values
        keys, values = self.encoder.encode(batch)
        # Only keys without nulls are retrieved.
        present_keys = [key for key in keys if key is not None]
        # The accumulator runs in other processes, too, and holds no connection between batches.
        with closing(open_config(self.config)) as store:
            written_values.add(self.writer.write(store, present_keys, values))
        return written_values

    def merge(self, values: WrittenValues, more_values: WrittenValues) -> WrittenValues:
        values.add(more_values)
        return values

    def finish(self, written_values: WrittenValues) -> WrittenValues:
        return written_values


def write_all(
    engine: Engine,
    group: PublishedGroup,
    *,
    config: OnlineConfig,
    writer: GenerationWriter,
    horizon: datetime,
) -> WrittenValues:
    """Write the values of all entities of a group.

    Values describe the rows from ``horizon`` on.
    """
    keys = distinct_keys(engine, group, group.read(engine, group.key_names))
    later = later_labels(engine, group, horizon)
    written_values = WrittenValues()
    if later is not None:
        query = f"SELECT * FROM fs_keys EXCEPT SELECT {', '.join(group.key_names)} FROM fs_later"
        keys = query_rows(engine, query, keys.schema, fs_keys=keys, fs_later=later)
        with closing(open_config(config)) as store:
            for chunk in collect_values(engine, group, later, horizon=horizon):
                if chunk:
                    written_values.add(writer.write(store, list(chunk), list(chunk.values())))
    rows = retrieve(engine, group, keys, at=horizon)
    written_values.add(engine.aggregate(rows, ValueWriter(group.encoder, config, writer)))
    return written_values


def collect_values(
    engine: Engine, group: PublishedGroup, labels: Relation, *, horizon: datetime
) -> Iterator[dict[bytes, bytes]]:
    """Retrieve rows for keys and label times, and yield the values of some keys at a time."""
    rows = retrieve(engine, group, labels, at=None)
    query = f"SELECT * FROM fs_rows ORDER BY {', '.join(group.key_names)}"
    ordered = query_rows(engine, query, rows.schema, fs_rows=rows)
    start = to_micros(horizon)
    # The rows of a key may continue in the next batch.
    key: bytes | None = None
    entries: list[Entry] = []
    progress.begin_phase("publish rows")
    for batch in progress.count_items(engine.stream(ordered), len):
        keys, values = group.encoder.encode(batch)
        chunk = {}
        for next_key, pairs in groupby(zip(keys, values, strict=True), key=lambda pair: pair[0]):
            if next_key != key:
                if key is not None:
                    chunk[key] = _pack(group, entries, start)
                key, entries = next_key, []
            for _, value in pairs:
                entries += unpack_entries(value)
        yield chunk
    if key is not None:
        yield {key: _pack(group, entries, start)}


def _pack(group: PublishedGroup, entries: list[Entry], horizon: int) -> bytes:
    return pack_entries(
        current_entries(entries, horizon=horizon),
        sequence=group.source.delta_version,
        fingerprint=group.layout.fingerprint,
    )


def later_labels(engine: Engine, group: PublishedGroup, horizon: datetime) -> Relation | None:
    """Return keys and times at which rows become eligible after ``horizon``, and ``horizon``.

    None if there are no such rows. The times in the log avoid reading most groups.
    """
    if not _may_have_later_rows(group.source, horizon):
        return None
    times = group.read(engine, {**group.key_names, **group.time_names})
    schema = group.schema_of(group.key_names).append(pa.field(LABEL_TIME, TIMESTAMP))
    eligible = engine.map_batches(times, LaterRows(to_micros(horizon)), schema=schema)
    query = f"SELECT DISTINCT * FROM fs_later WHERE {are_present(group.key_names)}"
    labels = query_rows(engine, query, schema, fs_later=eligible)
    return labels if engine.count(labels) else None


def _may_have_later_rows(source: Source, horizon: datetime) -> bool:
    """Return whether statistics in the log allow rows that become eligible after ``horizon``."""
    snapshot = read_snapshot(source.path, source.delta_version)
    for column in (source.spec.event_time, source.spec.created_time):
        if column is None:
            continue
        ranges = snapshot.times(column)
        if ranges is None or None in ranges:
            return True
        # Spark rounds the times in statistics down to milliseconds.
        limit = to_micros(horizon) - 1000
        if any(times is not None and times[1] >= limit for times in ranges):
            return True
    return False


@dataclass(frozen=True)
class LaterRows:
    """A batch function that returns the keys and times of rows that are eligible after a time.

    ``horizon`` is this time in microseconds; it is a second label time of each of these keys.
    """

    horizon: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return two rows for each row that becomes eligible after the horizon."""
        names = [name for name in (_EVENT, _CREATED) if name in batch.schema.names]
        times = [to_timestamps(batch.column(name)).cast(pa.int64()) for name in names]
        micros = pc.max_element_wise(*times, skip_nulls=False)
        is_later = pc.greater(micros, self.horizon)
        eligible = micros.filter(is_later).cast(TIMESTAMP)
        keys = batch.select([name for name in batch.schema.names if name.startswith(_KEY)])
        keys = keys.filter(is_later)
        horizons = pa.array([self.horizon] * len(eligible), pa.int64()).cast(TIMESTAMP)
        columns = [pa.concat_arrays([column, column]) for column in keys.columns]
        columns.append(pa.concat_arrays([eligible, horizons]))
        schema = keys.schema.append(pa.field(LABEL_TIME, TIMESTAMP))
        return pa.RecordBatch.from_arrays(columns, schema=schema)
