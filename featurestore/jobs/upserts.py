"""The write of an upsert run: its rows and deletes, as if windows were computed in their order.

Windows may be computed again, or in any order after failures. For each key the result of the latest
window counts, deletions included: rows that a later window deleted or wrote are dropped, and
tombstones do not delete rows that a later window wrote (see ``key_versions``). A key that is missing
in the source is deleted from all windows, because a run reads the current keys of the source: the
newest run decides.

Rows and deletes are one commit. A run that is killed before it has changed no rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.column_names import quoted
from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import InvalidJob, SourceChanged, listing
from featurestore.featuregroups import WriteRequest, create
from featurestore.featuregroups.record_queries import equality_condition, run_query
from featurestore.featuregroups.table import open_group
from featurestore.jobs import key_versions, target
from featurestore.jobs.inputs import parquet_files, read_time_bounds
from featurestore.jobs.key_versions import (
    IS_LATE,
    KEY,
    ROW,
    TIME,
    WINDOW_END,
    WINDOW_START,
    AddVersions,
    RecordedVersions,
)
from featurestore.jobs.run import JobRun
from featurestore.model.job import TransformWork, WindowedWork
from featurestore.model.times import from_micros
from featurestore.plugins.engine import Relation
from featurestore.retrieval import FeatureFrame

# The end of the last window whose rows are deleted.
_UNTIL = "__fs_until"
_MAX_END = 2**63 - 1
_NOT_DELETED = (
    f"NOT EXISTS (SELECT 1 FROM marked WHERE marked.{KEY} = live.{KEY} "
    f"AND marked.{TIME} >= live.{TIME})"
)
_NOT_DELETED_LATER = (
    f"NOT EXISTS (SELECT 1 FROM later WHERE later.deleted AND later.key = live.{KEY} "
    f"AND later.time >= live.{TIME} AND later.window_end > live.{WINDOW_END})"
)
_NOT_WRITTEN_LATER = (
    f"NOT EXISTS (SELECT 1 FROM later WHERE NOT later.deleted AND later.key = {{rows}}.{ROW} "
    "AND later.window_end > {rows}.{end})"
)
_TOMBSTONE_VERSIONS = (
    f"SELECT true AS deleted, {KEY} AS key, max({TIME}) AS time, {WINDOW_START} AS window_start, "
    f"{WINDOW_END} AS window_end FROM marked GROUP BY {KEY}, {WINDOW_START}, {WINDOW_END}"
)
_LATE_VERSIONS = (
    f"SELECT false AS deleted, {ROW} AS key, {TIME} AS time, {WINDOW_START} AS window_start, "
    f"{WINDOW_END} AS window_end FROM live WHERE {IS_LATE} AND "
)


@dataclass(frozen=True)
class Upsert:
    """The write of a run.

    Attributes:
        rows: The rows to write.
        deletes: The keys (primary key and times) of stored rows to delete; None without any.
        first_deleted: The earliest event time of ``deletes``.
        versions: The key versions to append before the commit; None without any.
    """

    rows: Relation
    deletes: Relation | None = None
    first_deleted: datetime | None = None
    versions: Relation | None = None


def may_remove_rows(run: JobRun, work: WindowedWork, source_keys: Relation | None) -> bool:
    """Return whether a run without rows may remove stored rows, or versions of deleted keys."""
    if run.group is None or work.mode == "append":
        return False
    is_replaced = work.mode == "replace_window"
    return is_replaced or source_keys is not None or key_versions.has_versions(run.group.path)


def plan_upsert(
    run: JobRun, work: TransformWork, rows: Relation, source_keys: Relation | None
) -> Upsert:
    """Return the rows to write and the keys to delete.

    Args:
        run: The run.
        work: The work of the job.
        rows: The computed rows with the tombstone column, staged.
        source_keys: All keys of the source, if missing keys are deleted.

    Raises:
        InvalidJob: The rows lack the tombstone column, or tombstones have no key.
        SourceChanged: The source has no keys at all, which is more likely a fault than intended.
    """
    recorded = key_versions.read_versions(run)
    has_deletes = work.tombstone is not None or source_keys is not None
    has_late_rows = key_versions.accepts_late_rows(run.spec.schedule, work)
    if not (has_deletes or has_late_rows) and recorded == RecordedVersions():
        return Upsert(rows)
    # An empty source is more likely a failed load than the deletion of all keys.
    if source_keys is not None and run.session.engine.count(source_keys) == 0:
        raise SourceChanged(
            f"Job {run.spec.name!r}: the source has no rows, so nothing was deleted.",
            hint="if this is correct: "
            f"store.delete_from_featuregroup({work.target!r}, where='true')",
        )
    queries = _UpsertQueries(run, work, rows, recorded, source_keys)
    written, versions = queries.select_rows(rows.schema), queries.stage_versions(recorded)
    if run.group is None or not has_deletes:
        return Upsert(written, versions=versions)
    deletes = queries.stage_deletes(run.group.spec.version)
    first_deleted = queries.find_first_time(deletes)
    if first_deleted is None:
        return Upsert(written, versions=versions)
    return Upsert(written, deletes, first_deleted, versions)


def record_versions(run: JobRun, work: WindowedWork, rows: Relation, versions: Relation) -> JobRun:
    """Append the key versions of a write before its commit, and return the run with its group."""
    session, group = run.session, run.group
    if group is None:
        # The versions need the folder of a group. The rows are the second commit, which makes the
        # versions valid.
        schema = target.drop_null_columns(session, work, rows, ()).schema
        no_rows = session.engine.from_arrow(schema.empty_table().to_reader())
        request = WriteRequest(
            work.target,
            options=target.declaration(work),
            validation="off",
            run_id=f"{run.run_id}-define",
        )
        create(session, FeatureFrame(session, no_rows), request)
        group = target.find_target(session, work)
        assert group is not None
    key_versions.append_versions(run, group.path, versions)
    return replace(run, group=group)


class _UpsertQueries:
    """The queries over computed rows (``live`` and ``marked`` by tombstones) and stored rows."""

    def __init__(
        self,
        run: JobRun,
        work: TransformWork,
        rows: Relation,
        recorded: RecordedVersions,
        source_keys: Relation | None,
    ) -> None:
        self._run, self._engine, self._work = run, run.session.engine, work
        self._add_versions = AddVersions.for_run(run, work)
        self._tables = {"computed": self._stage(self._with_versions(rows), "computed")}
        if recorded.later is not None:
            self._tables["later"] = recorded.later
        if source_keys is not None:
            self._tables["source_keys"] = source_keys
        is_marked = self._tombstone_condition(rows.schema)
        self._with = (
            f"WITH live AS (SELECT * FROM computed WHERE NOT ({is_marked})), "
            f"marked AS (SELECT * FROM computed WHERE {is_marked}) "
        )
        conditions = [_NOT_DELETED]
        if recorded.later is not None:
            conditions.append(_NOT_DELETED_LATER)
            conditions.append(_NOT_WRITTEN_LATER.format(rows="live", end=WINDOW_END))
        if source_keys is not None:
            conditions.append(f"NOT ({self._missing_condition('live')})")
        self._is_written = " AND ".join(conditions)

    def select_rows(self, schema: pa.Schema) -> Relation:
        """Return the rows to write; ``schema`` has the types of the computed rows."""
        fields = [field for field in schema if field.name != self._work.tombstone]
        names = ", ".join(quoted(field.name) for field in fields)
        rows = self._query(f"{self._with}SELECT {names} FROM live WHERE {self._is_written}")
        # A query may lose types that the engine does not have.
        return replace(rows, schema=pa.schema(fields))

    def stage_versions(self, recorded: RecordedVersions) -> Relation | None:
        """Stage the key versions: tombstones, late rows, and markers of earlier versions."""
        selects = []
        if self._work.tombstone is not None:
            selects.append(_TOMBSTONE_VERSIONS)
        if key_versions.accepts_late_rows(self._run.spec.schedule, self._work):
            selects.append(f"{_LATE_VERSIONS}{self._is_written}")
        if recorded.replaced:
            selects.append("SELECT * FROM markers")
            markers = key_versions.stage_markers(self._run, recorded.replaced)
            self._tables["markers"] = markers
        if not selects:
            return None
        query = self._query(f"{self._with}{' UNION ALL '.join(selects)}")
        versions = self._stage(query, "versions")
        return versions if self._engine.count(versions) else None

    def stage_deletes(self, group_version: int) -> Relation:
        """Stage the keys of stored rows that tombstones or missing keys delete."""
        group = open_group(self._run.session, self._work.target, group_version)
        key, time = group.spec.upsert_key, quoted(str(self._work.options.event_time))
        self._tables["stored"] = self._engine.read_table(
            group.path, version=group.delta_version, schema=group.spec.schema, columns=key
        )
        names = ", ".join(f"stored.{quoted(name)}" for name in key)
        selects = []
        if self._work.tombstone is not None:
            # Rows after the tombstone belong to a key that was created again.
            same = equality_condition("stored", "marked", self._work.options.primary_key)
            selects.append(
                f"SELECT {names}, max(marked.{WINDOW_END}) AS {_UNTIL} FROM stored JOIN marked "
                f"ON {same} AND stored.{time} <= marked.{time} GROUP BY {names}"
            )
        if "source_keys" in self._tables:
            selects.append(
                f"SELECT DISTINCT {names}, {_MAX_END} AS {_UNTIL} FROM stored "
                f"WHERE {self._missing_condition('stored')}"
            )
        key_fields = [group.spec.schema.field(name) for name in key]
        schema = pa.schema([*key_fields, pa.field(_UNTIL, pa.int64())])
        outgoing = self._query(f"{self._with}{' UNION ALL '.join(selects)}")
        outgoing = replace(outgoing, schema=schema)
        condition = "true"
        if "later" in self._tables:
            outgoing = self._stage(self._with_versions(outgoing), "outgoing")
            condition = _NOT_WRITTEN_LATER.format(rows="outgoing", end=_UNTIL)
        self._tables["outgoing"] = outgoing
        names = ", ".join(map(quoted, key))
        deletes = self._query(f"SELECT DISTINCT {names} FROM outgoing WHERE {condition}")
        return self._stage(replace(deletes, schema=pa.schema(key_fields)), "deletes")

    def find_first_time(self, deletes: Relation) -> datetime | None:
        """Return the earliest event time of staged keys, or None without keys."""
        column = str(self._work.options.event_time)
        paths = parquet_files(os.path.join(self._run.staging, "deletes"))
        bounds = [read_time_bounds(path, column) for path in paths]
        lows = [
            file_bounds.low
            for file_bounds in bounds
            if file_bounds is not None and file_bounds.times is not None
        ]
        if None not in bounds:
            return from_micros(min(lows)) if lows else None
        # Spark writes no statistics for INT96 times.
        query = f"SELECT min({quoted(column)}) AS first FROM deletes"
        times = self._engine.stream(run_query(self._engine, query, {"deletes": deletes})).read_all()
        first: datetime | None = times["first"].cast(TIMESTAMP)[0].as_py()
        return first

    def _query(self, query: str) -> Relation:
        return run_query(self._engine, query, self._tables)

    def _stage(self, rows: Relation, name: str) -> Relation:
        return self._engine.stage(rows, os.path.join(self._run.staging, name))

    def _with_versions(self, rows: Relation) -> Relation:
        schema = self._add_versions.output_schema(rows.schema)
        return self._engine.map_batches(rows, self._add_versions, schema=schema)

    def _tombstone_condition(self, schema: pa.Schema) -> str:
        """Return the condition that a computed row deletes its key."""
        name = self._work.tombstone
        if name is None:
            return "false"
        if name not in schema.names:
            raise InvalidJob(
                f"Job {self._run.spec.name!r}: unknown column {name!r} in tombstone=. Available: "
                f"{listing(schema.names)}."
            )
        # A boolean column marks deleted keys by true; null and false both mean that the key exists.
        if pat.is_boolean(schema.field(name).type):
            return f"coalesce({quoted(name)}, false)"
        return f"{quoted(name)} IS NOT NULL"

    def _missing_condition(self, table: str) -> str:
        """Return the condition that the key of a row is not in the source."""
        key = self._work.options.primary_key
        # A null key equals no key of the source, so without this condition its rows would be
        # deleted.
        present = [f"{table}.{quoted(name)} IS NOT NULL" for name in key]
        same = equality_condition("source_keys", table, key)
        return f"{' AND '.join(present)} AND NOT EXISTS (SELECT 1 FROM source_keys WHERE {same})"
