"""Key versions: the deleted keys and late rows of upsert jobs, with the window that computed them.

A window that is computed again must not restore a key that a later window deleted, or replace a row
that a later window wrote. For most rows the event time suffices: it belongs to one window. A
deleted key has no row any more, and a late row (before its window, within ``lookback=`` or in
overlapping windows) could be of several windows. These are recorded in a Delta table in the folder
``_key_versions`` of the group version, which Delta, its vacuum and its readers ignore; it is copied,
moved and deleted with the group. It has one row per deleted key, late row and window:

* ``deleted`` and ``key``: 128-bit hash of the primary key of deleted rows, or of the primary key
  and the times of a late row. The values of deleted keys are not stored.
* ``time``: the time of the tombstone, up to which rows are deleted, or of the late row;
* ``window_start`` and ``window_end``: the window. Times are microseconds since 1970.
* ``job`` and ``run``: versions are written before the rows of a run. If the log of the group has no
  commit of the run, it was killed in between, and its versions are ignored.
* ``sequence`` orders the computations of one window by a job. Only the last one counts, so a window
  that no longer deletes a key has a row with a null key.

After a change of the definition, windows of another length replace earlier windows. A day ends after
most of its hours, but its versions are older than those of the hours that replace it. A run therefore
ignores the versions of windows that it replaces, and of windows that are being replaced, and adds a
row with a null key for the windows that it replaces.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.values import to_scalar
from featurestore.delta.history import read_history
from featurestore.delta.log import is_delta_table
from featurestore.delta.maintenance import find_merge_size_limit
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidJob, WriteConflict
from featurestore.featuregroups.record_queries import run_query
from featurestore.featuregroups.writers import writers_of
from featurestore.hashing import row_hash
from featurestore.hashing.hashes import hash_array
from featurestore.hashing.mixing import fold, unmix_all
from featurestore.jobs.run import JobRun
from featurestore.jobs.schedule import has_overlapping_windows, last_schedule_time
from featurestore.jobs.windows import find_overlapping
from featurestore.model.job import Schedule, TransformWork
from featurestore.model.times import Window, from_micros, to_micros, utc_now
from featurestore.plugins.engine import Relation, TableWrite
from featurestore.registry import runs
from featurestore.storage.failures import warn_after_publication

FOLDER = "_key_versions"
_SCHEMA = pa.schema(
    [
        ("deleted", pa.bool_()),
        ("key", pa.binary()),
        ("time", pa.int64()),
        ("window_start", pa.int64()),
        ("window_end", pa.int64()),
        ("job", pa.string()),
        ("run", pa.string()),
        ("sequence", pa.int64()),
    ]
)
# Columns that ``AddVersions`` adds to computed rows.
KEY, ROW, TIME, WINDOW_START, WINDOW_END, IS_LATE = (
    f"__fs_{name}" for name in ("key", "row", "time", "window_start", "window_end", "is_late")
)
_VERSIONS = (
    "SELECT versions.deleted, versions.key, versions.time, versions.window_end "
    "FROM versions JOIN computations USING (run, window_start, window_end)"
)
_MAX_TIME = 2**63 - 1
# Files of earlier versions of the table, which no run reads any more.
_RETAIN = timedelta(days=1)
# Two independent hashes of 64 bits.
_SEEDS = (0x6B65792076657273, 0x696F6E7320747761)


@dataclass(frozen=True)
class RecordedVersions:
    """The versions of later windows, None without any, and windows with versions to replace."""

    later: Relation | None = None
    replaced: tuple[Window, ...] = ()


def accepts_late_rows(schedule: Schedule, work: TransformWork) -> bool:
    """Return whether the rows of a window may be before the end of the window before."""
    return bool(work.row_lookback) or has_overlapping_windows(schedule)


def has_versions(group_path: str) -> bool:
    """Return whether a group has a table of key versions."""
    return is_delta_table(os.path.join(group_path, FOLDER))


def read_versions(run: JobRun) -> RecordedVersions:
    """Read the versions of windows that end after the begin of a run's first window."""
    if run.group is None or not has_versions(run.group.path):
        return RecordedVersions()
    path = os.path.join(run.group.path, FOLDER)
    engine, state = run.session.engine, read_snapshot(path)
    first = to_micros(run.window.start)
    bounds = state.bounds("window_end")
    # Most runs compute the newest windows, and read only the log of the versions.
    if bounds is None or not bounds.may_contain(first + 1, _MAX_TIME).any():
        return RecordedVersions()
    versions = engine.read_table(path, version=state.version, schema=_SCHEMA)
    query = (
        "SELECT DISTINCT window_start, window_end, job, run, sequence FROM versions "
        f"WHERE window_end > {first}"
    )
    computations = engine.stream(run_query(engine, query, {"versions": versions})).read_all()
    history = read_history(run.group.path)
    committed_runs = {commit.user_metadata.get("run") for commit in history}
    # Other programs may remove old commits of a log. Runs that it does not contain are older then.
    is_complete = history[-1].version == 0
    # The windows of a job that no longer writes the group, after a new name, are those of this job.
    writers = {*writers_of(run.group)} - {run.spec.name}
    last_runs: dict[tuple[str, Window], str] = {}
    own_windows = set()
    for computation in computations.sort_by("sequence").to_pylist():
        window = Window(
            from_micros(computation["window_start"]), from_micros(computation["window_end"])
        )
        job = computation["job"] if computation["job"] in writers else run.spec.name
        if job == run.spec.name:
            own_windows.add(window)
        if computation["run"] in committed_runs or not is_complete:
            last_runs[job, window] = computation["run"]
    replaced = find_overlapping(run.spec.schedule, run.windows, own_windows)
    with run.session.registry.reading() as connection:
        ignored = runs.find_windows(connection, run.spec.name, states=[runs.REPLACED])
    ignored.update(replaced)
    later_runs = [
        {
            "window_start": to_micros(window.start),
            "window_end": to_micros(window.end),
            "run": last_run,
        }
        for (job, window), last_run in last_runs.items()
        if job != run.spec.name or window not in ignored
    ]
    if not later_runs:
        return RecordedVersions(None, tuple(replaced))
    rows = pa.Table.from_pylist(later_runs)
    tables = {"versions": versions, "computations": stage_table(run, rows, "computations")}
    later = engine.stage(run_query(engine, _VERSIONS, tables), os.path.join(run.staging, "later"))
    return RecordedVersions(later, tuple(replaced))


def append_versions(run: JobRun, group_path: str, versions: Relation) -> None:
    """Append rows with the first columns of the table, to ``window_end``, before a run's commit."""
    path, engine = os.path.join(group_path, FOLDER), run.session.engine
    if not is_delta_table(path):
        with suppress(FileExistsError):  # another job of the group was faster
            engine.create_table(
                path,
                schema=_SCHEMA,
                partition_by=(),
                properties={},
                commit_metadata={"operation": "create"},
            )
    state = read_snapshot(path)
    constants = (run.spec.name, run.run_id, state.version + 1)
    rows = engine.map_batches(versions, _AddConstants(constants), schema=_SCHEMA)
    metadata = {"operation": "append", "run": run.run_id}
    engine.write(path, rows, TableWrite("append", commit_metadata=metadata))
    with warn_after_publication("The key versions of a job"):
        below = find_merge_size_limit(state)
        if below is not None:
            with suppress(WriteConflict):  # the next run merges the files
                engine.compact(path, below=below)
            engine.vacuum(path, keep_versions=(), retain=utc_now() - _RETAIN)


def stage_table(run: JobRun, rows: pa.Table, name: str) -> Relation:
    """Stage Arrow rows in a folder of a run."""
    engine = run.session.engine
    relation = engine.from_arrow(rows.to_reader())
    # On Spark, the rows were written to temporary files.
    try:
        return engine.stage(relation, os.path.join(run.staging, name))
    finally:
        engine.release(relation)


def stage_markers(run: JobRun, windows: Sequence[Window]) -> Relation:
    """Stage versions without keys, which replace the earlier versions of windows."""
    count = len(windows)
    starts = [to_micros(window.start) for window in windows]
    ends = [to_micros(window.end) for window in windows]
    columns = [[False] * count, [None] * count, [None] * count, starts, ends]
    return stage_table(run, pa.table(columns, schema=pa.schema(list(_SCHEMA)[:5])), "markers")


@dataclass(frozen=True)
class _AddConstants:
    """A batch function that adds job, run and sequence to versions."""

    values: tuple[str, str, int]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        fields = list(_SCHEMA)[-len(self.values) :]
        constants = [
            pa.repeat(to_scalar(value, field.type), batch.num_rows)
            for value, field in zip(self.values, fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*batch.columns, *constants], schema=_SCHEMA)


@dataclass(frozen=True)
class AddVersions:
    """A batch function that adds hashes, time and window of computed rows.

    Attributes:
        primary_key: The primary key.
        times: Event time, and created time if the group has one.
        starts: The starts of the windows of a run, in microseconds, oldest first.
        ends: Their ends.
        closed: The bound that belongs to each window.
        last_late: The last time of late rows; None if windows accept none.
        tombstone: The column that marks deleted keys, if the rows have one.
    """

    primary_key: tuple[str, ...]
    times: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    closed: str
    last_late: int | None = None
    tombstone: str | None = None

    @classmethod
    def for_run(cls, run: JobRun, work: TransformWork) -> AddVersions:
        """Return the function for the rows of a run."""
        schedule, first = run.spec.schedule, run.windows[0]
        last_late = None
        if accepts_late_rows(schedule, work):
            # Rows after the end of the window before belong to no earlier window.
            before = last_schedule_time(schedule, first.end - timedelta.resolution)
            last_late = to_micros(before) - (work.closed == "left")
        starts = tuple(to_micros(window.start) for window in run.windows)
        ends = tuple(to_micros(window.end) for window in run.windows)
        return cls(
            primary_key=work.options.primary_key,
            times=work.options.times,
            starts=starts,
            ends=ends,
            closed=work.closed,
            last_late=last_late,
            tombstone=work.tombstone,
        )

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows with the added columns."""
        for name in (KEY, ROW):
            schema = schema.append(pa.field(name, pa.binary()))
        for name in (TIME, WINDOW_START, WINDOW_END):
            schema = schema.append(pa.field(name, pa.int64()))
        return schema.append(pa.field(IS_LATE, pa.bool_()))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the added columns; hashes are null if a key is null.

        Raises:
            InvalidJob: A tombstone has no key.
        """
        keys = [batch.column(name) for name in self.primary_key]
        # Types of times may differ between a query and the group, unlike those of keys.
        micros = [batch.column(name).cast(TIMESTAMP).cast(pa.int64()) for name in self.times]
        times = micros[0].fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.asarray(self.ends, dtype=np.int64)
        # The end of a window belongs to it if it is closed on the right.
        last_of_window = ends if self.closed == "right" else ends - 1
        positions = np.searchsorted(last_of_window, times).clip(max=len(ends) - 1)
        starts = np.asarray(self.starts, dtype=np.int64)
        is_late = np.zeros(batch.num_rows, dtype=np.bool_)
        if self.last_late is not None:
            is_late = times <= self.last_late
        added = [hash_keys(keys), hash_keys([*keys, *micros], keys=len(keys)), micros[0]]
        if self.tombstone in batch.schema.names:
            marks = batch.column(self.tombstone)
            is_marked = marks.fill_null(False) if pat.is_boolean(marks.type) else marks.is_valid()
            if pc.any(pc.and_(is_marked, added[0].is_null())).as_py():
                raise InvalidJob(
                    f"Rows with {self.tombstone!r} have no key.",
                    hint=f"where {' and '.join(self.primary_key)} is not null",
                )
        added += [pa.array(bounds[positions]) for bounds in (starts, ends)]
        added.append(pa.array(is_late))
        schema = self.output_schema(batch.schema)
        return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)


def hash_keys(columns: Sequence[pa.Array], *, keys: int | None = None) -> pa.Array:
    """Return 128-bit hashes of rows, null if one of the first ``keys`` columns is null."""
    batch = pa.RecordBatch.from_arrays(columns, names=list(map(str, range(len(columns)))))
    words = np.stack([row_hash(batch, seed=seed) for seed in _SEEDS], axis=1)
    hashes = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), batch.num_rows, [None, pa.py_buffer(words.tobytes())]
    )
    is_valid = np.ones(batch.num_rows, dtype=np.bool_)
    for column in columns[:keys]:
        is_valid &= column.is_valid().to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(is_valid), hashes.cast(pa.binary()), None)


def versions_of_keys(versions: pa.RecordBatch, key_hashes: Iterable[bytes]) -> pa.BooleanArray:
    """Return which versions are those of primary keys, by the hashes of the keys.

    The hash of a late row continues the hash of its key with its times. The created time is not
    stored. It is the last word that is added to both 64-bit hashes, so that their difference
    before the last mixing does not depend on the created time.

    Args:
        versions: Rows with the columns ``key`` and ``time``.
        key_hashes: Hashes of primary keys, the results of ``hash_keys``.
    """
    key_bytes = versions.column("key").fill_null(bytes(16)).to_pylist()
    words = np.frombuffer(b"".join(key_bytes), dtype=np.uint64).reshape(-1, len(_SEEDS))
    before_last = unmix_all(words)
    differences = before_last[:, 0] - before_last[:, 1]
    times = hash_array(versions.column("time"), exact=False)
    is_match = np.zeros(len(words), dtype=np.bool_)
    for key_hash in key_hashes:
        key_words = np.frombuffer(key_hash, dtype=np.uint64)
        is_match |= (words == key_words).all(axis=1)
        states = [fold(np.full(len(words), word), times) for word in key_words]
        is_match |= (words == np.stack(states, axis=1)).all(axis=1)
        is_match |= differences == states[0] - states[1]
    return pc.and_(pa.array(is_match), versions.column("key").is_valid())
