"""Inputs that registered sources give: read once a chunk, in one snapshot a source, and staged."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from featurestore import usersql
from featurestore.external.ahead import read_ahead
from featurestore.external.opening import open_snapshot
from featurestore.external.reading import counted, has_parts, stage_counted
from featurestore.external.renaming import RenamedSnapshot
from featurestore.jobs.inputs import PinnedInput
from featurestore.model.job import JobSpec
from featurestore.model.names import check_feature_names
from featurestore.model.source import SourceRead, SourceSpec
from featurestore.model.window import Window
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.plugins.source import PartitionedSnapshot, SourceQuery
from featurestore.session import Session
from featurestore.sources.frame import asked, check_time
from featurestore.sources.registration import get


@dataclass
class SourceInputs:
    """What a run reads of registered sources, and what it has read so far.

    The rows of a range are read once, however often they are asked for, so that all that a run
    computes of them agrees. ``keys`` are all keys that the source has, read in the same snapshot,
    for a job that deletes those that are missing.
    """

    session: Session
    spec: JobSpec
    inputs: tuple[PinnedInput, ...]
    staging: str
    reads: list[SourceRead] = field(default_factory=list)
    keys: Relation | None = None
    _staged: dict[Window, dict[str, Relation]] = field(default_factory=dict)

    def within(self, window: Window) -> dict[str, Relation]:
        """Return the staged rows that a window sees, by the names of the inputs.

        Raises:
            SourceUnavailable: A source cannot be reached.
            SourceTableNotFound: A table or a column that the job needs is not there.
        """
        if window not in self._staged:
            self._staged[window] = self._read(window)
        return self._staged[window]

    def _read(self, window: Window) -> dict[str, Relation]:
        by_source: dict[str, list[PinnedInput]] = {}
        for each in self.inputs:
            if each.kind == "source":
                name = self.spec.sources[each.name].source
                by_source.setdefault(name, []).append(each)
        staged = {}
        for name, inputs in by_source.items():
            registered = get(self.session, name)
            snapshot = open_snapshot(self.session, registered)
            try:
                for each in inputs:
                    staged[each.name] = self._stage(each, window, registered, snapshot)
                    if self.spec.delete_missing:
                        self.keys = self._keys(each, snapshot)
            finally:
                snapshot.close()
        return staged

    def _stage(
        self, given: PinnedInput, window: Window, registered: SourceSpec, snapshot: RenamedSnapshot
    ) -> Relation:
        query = self._query(given, window, snapshot)
        schema = snapshot.schema(query)
        check_feature_names(schema.names)
        if given.time is not None:
            check_time(registered, query, schema, given.time)
        read = SourceRead(
            registered.name, registered.kind, query.hash, snapshot.identity, input=given.name
        )
        self.reads.append(read)
        place = f"source-{given.name}"
        if has_parts(self.session, registered):
            assert isinstance(snapshot, PartitionedSnapshot)
            directory = os.path.join(self.staging, place)
            return stage_counted(self.session, snapshot, query, read, directory, time=given.time)
        before = snapshot.bad_row_count
        reader = snapshot.read(query)
        batches = read_ahead(partial(counted, reader, read, time=given.time))
        staged = self._staged_rows(batches, reader.schema, place)
        read.quarantined = snapshot.bad_row_count - before
        return staged

    def _keys(self, given: PinnedInput, snapshot: RenamedSnapshot) -> Relation:
        of_job = self.spec.sources[given.name]
        query = asked(table=of_job.table, sql=of_job.sql, path=of_job.path, rename=of_job.rename)
        reader = snapshot.read(replace(query, columns=self.spec.primary_key))
        return self._staged_rows(read_ahead(partial(iter, reader)), reader.schema, "source-keys")

    def _staged_rows(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, place: str
    ) -> Relation:
        engine = self.session.engine
        rows = engine.from_arrow(pa.RecordBatchReader.from_batches(schema, iter(batches)))
        try:
            return engine.stage(rows, os.path.join(self.staging, place))
        finally:
            engine.release(rows)

    def _query(self, given: PinnedInput, window: Window, snapshot: RenamedSnapshot) -> SourceQuery:
        """Return the query for what the job needs of an input: columns by its SQL, rows by time."""
        of_job = self.spec.sources[given.name]
        query = asked(table=of_job.table, sql=of_job.sql, path=of_job.path, rename=of_job.rename)
        columns = None
        if self.spec.kind == "sql":
            needed = usersql.columns_read(self.spec.code, list(snapshot.names(query)))
            columns = tuple(_with(needed, given.time))
        cut = None
        if given.time is not None:
            cut = TimeRange(given.time, window.start - self.spec.lookback, window.end)
        return replace(query, columns=columns, window=cut)


def _with(columns: Iterable[str], time: str | None) -> list[str]:
    found = list(columns)
    if time is not None and time not in found:
        found.append(time)
    return found
