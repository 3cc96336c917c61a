"""Inputs from registered sources: read once for a chunk, in one snapshot of a source, and staged."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from featurestore import usersql
from featurestore.arrow.column_names import check_feature_names
from featurestore.external.reading import (
    has_parts,
    open_snapshot,
    read_in_background,
    record_batches,
    stage_recorded,
)
from featurestore.external.renaming import RenamedSnapshot
from featurestore.jobs.inputs import PinnedInput
from featurestore.model.job import JobSpec
from featurestore.model.source import SourceRead, SourceSpec
from featurestore.model.times import Window
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.plugins.source import PartitionedSnapshot, SourceQuery
from featurestore.session import Session
from featurestore.sources.frame import build_query, check_time
from featurestore.sources.registration import get


@dataclass
class SourceInputs:
    """The staged rows of a run's registered sources, with records of the reads.

    The rows of a range are read once, so that everything a run computes from them agrees. ``keys``
    are all keys of the source, read in the same snapshot, for a job that deletes missing keys.
    """

    session: Session
    spec: JobSpec
    inputs: tuple[PinnedInput, ...]
    staging: str
    reads: list[SourceRead] = field(default_factory=list)
    keys: Relation | None = None
    _staged: dict[Window, dict[str, Relation]] = field(default_factory=dict)

    def within(self, window: Window) -> dict[str, Relation]:
        """Return the staged rows that a window reads, by input name.

        Raises:
            SourceUnavailable: A source cannot be reached.
            SourceTableNotFound: A table or a column that the job needs does not exist.
        """
        if window not in self._staged:
            self._staged[window] = self._read(window)
        return self._staged[window]

    def _read(self, window: Window) -> dict[str, Relation]:
        by_source: dict[str, list[PinnedInput]] = {}
        for pinned in self.inputs:
            if pinned.kind == "source":
                name = self.spec.sources[pinned.name].source
                by_source.setdefault(name, []).append(pinned)
        staged = {}
        for name, inputs in by_source.items():
            registered = get(self.session, name)
            snapshot = open_snapshot(self.session, registered)
            try:
                for pinned in inputs:
                    staged[pinned.name] = self._stage(pinned, window, registered, snapshot)
                    if self.spec.delete_missing:
                        self.keys = self._stage_keys(pinned, snapshot)
            finally:
                snapshot.close()
        return staged

    def _stage(
        self, pinned: PinnedInput, window: Window, registered: SourceSpec, snapshot: RenamedSnapshot
    ) -> Relation:
        query = self._query(pinned, window, snapshot)
        schema = snapshot.schema(query)
        check_feature_names(schema.names)
        if pinned.time is not None:
            check_time(registered, query, schema, pinned.time)
        read = SourceRead(
            registered.name, registered.kind, query.hash, snapshot.identity, input=pinned.name
        )
        self.reads.append(read)
        name = f"source-{pinned.name}"
        if has_parts(self.session, registered):
            assert isinstance(snapshot, PartitionedSnapshot)
            directory = os.path.join(self.staging, name)
            return stage_recorded(self.session, snapshot, query, read, directory, time=pinned.time)
        earlier_bad_rows = snapshot.bad_row_count
        reader = snapshot.read(query)
        batches = read_in_background(partial(record_batches, reader, read, time=pinned.time))
        staged = self._stage_rows(batches, reader.schema, name)
        read.quarantined = snapshot.bad_row_count - earlier_bad_rows
        return staged

    def _stage_keys(self, pinned: PinnedInput, snapshot: RenamedSnapshot) -> Relation:
        source_input = self.spec.sources[pinned.name]
        query = build_query(
            table=source_input.table,
            sql=source_input.sql,
            path=source_input.path,
            rename=source_input.rename,
        )
        reader = snapshot.read(replace(query, columns=self.spec.primary_key))
        return self._stage_rows(
            read_in_background(partial(iter, reader)), reader.schema, "source-keys"
        )

    def _stage_rows(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, name: str
    ) -> Relation:
        engine = self.session.engine
        rows = engine.from_arrow(pa.RecordBatchReader.from_batches(schema, iter(batches)))
        try:
            return engine.stage(rows, os.path.join(self.staging, name))
        finally:
            engine.release(rows)

    def _query(self, pinned: PinnedInput, window: Window, snapshot: RenamedSnapshot) -> SourceQuery:
        """Return the query for an input: the columns that the SQL reads, the rows by time."""
        source_input = self.spec.sources[pinned.name]
        query = build_query(
            table=source_input.table,
            sql=source_input.sql,
            path=source_input.path,
            rename=source_input.rename,
        )
        columns = None
        if self.spec.kind == "sql":
            used_columns = usersql.columns_read(self.spec.code, list(snapshot.names(query)))
            columns = tuple(_with_time(used_columns, pinned.time))
        time_range = None
        if pinned.time is not None:
            time_range = TimeRange(pinned.time, window.start - self.spec.lookback, window.end)
        return replace(query, columns=columns, window=time_range)


def _with_time(columns: Iterable[str], time: str | None) -> list[str]:
    names = list(columns)
    if time is not None and time not in names:
        names.append(time)
    return names
