"""As-of joins in memory.

DuckDB's ASOF join hashes, partitions and sorts both sides with all columns, and joins by created time
need a window and a second join. If the rows of a group fit in memory, it is faster to sort one integer
for each row (``row_matching``), and to read the features of the matching rows afterwards: 0.35 of the
processor time on 763,200 rows and 100,000 labels.

Columns of a table version are read when they are needed. Local Parquet files that have the columns
in their feature types are read by Arrow, which needs 0.7 ms for a small file; DuckDB needs 2 ms to
plan and run the query. Of large files, Arrow reads only the requested columns at a time, so that keys
and times are released before features are read. All other tables are read by DuckDB, at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.arrow.batches import concat_arrays, take_values
from featurestore.arrow.casts import cast_batch
from featurestore.arrow.types import columns_width, is_unbounded
from featurestore.delta.log import FileState
from featurestore.delta.scan import translate_read_errors
from featurestore.model.plan import ROW, FeaturePlan
from featurestore.plugins.engine import Relation
from featurestore.retrieval import point_in_time as retrieval_point_in_time
from featurestore.retrieval.point_in_time import FeatureSide
from featurestore.storage import storage_for
from featurestore_connectors.duckdb_delta import point_in_time, relations
from featurestore_connectors.duckdb_delta.row_matching import (
    Int64s,
    Mask,
    RowTimes,
    encode_keys,
    match_rows,
)
from featurestore_connectors.duckdb_delta.session import Database
from featurestore_connectors.duckdb_delta.streams import (
    BATCH_ROWS,
    ArrowSource,
    LazyRelation,
    batches_of,
)

if TYPE_CHECKING:
    from featurestore_connectors.duckdb_delta.engine import DuckDBEngine

# The largest groups for which one sort in this thread is faster than DuckDB's join on all cores:
# 8,000,000 rows on two cores.
_MIN_ROWS, _MAX_ROWS = 2_000_000, 16_000_000
_MAX_LABELS = 1_000_000
# With few labels, DuckDB first selects the rows of their keys. Its query takes 20 milliseconds more
# than the sort of few rows.
_MAX_ROWS_OF_LOOKUP = 250_000
# Larger inputs are left to DuckDB, which spills.
_MEMORY_FRACTION = 0.125
# Bytes of files with strings and lists, whose size in memory is not known from their types.
_MAX_HASHED_BYTES = 64 << 20
_MAX_TEXT_BYTES = 512 << 20
_DAY = 86_400_000_000
# Up to this size, all columns are read together, in the calling thread.
_SMALL_BYTES = 64 << 20
# Up to this size, the columns remain in memory for repeated retrievals: at most 64 MiB.
_CACHED_BYTES = 4 << 20
_ROWS_AT_ONCE = 500_000


def is_worthwhile(engine: DuckDBEngine, plan: FeaturePlan) -> bool:
    """Return whether a plan is a join of few rows by integer or string keys and times."""
    label_rows, total_bytes = (
        retrieval_point_in_time.count_label_rows(plan),
        retrieval_point_in_time.estimate_join_bytes(plan),
    )
    if label_rows is None or total_bytes is None or label_rows > _MAX_LABELS or not plan.joins:
        return False
    max_bytes = engine.database.memory_limit * _MEMORY_FRACTION
    if total_bytes > max_bytes:
        return False
    max_rows = max(_MAX_ROWS // int(engine.database.config["threads"]), _MIN_ROWS)
    return all(
        _has_few_rows(side, max_rows, max_bytes) and _has_supported_types(plan, side)
        for side in retrieval_point_in_time.feature_sides(plan)
    )


def _has_few_rows(side: FeatureSide, max_rows: int, max_bytes: float) -> bool:
    """Return whether the rows of a group fit in memory, with all columns if ties are hashed."""
    schema, rows = side.spec.schema, side.join.source.rows or 0
    if point_in_time.should_look_up_keys(side):
        max_rows = _MAX_ROWS_OF_LOOKUP
    if rows > max_rows:
        return False
    if side.is_unique:
        return True
    if any(map(is_unbounded, schema.types)):
        return (side.join.source.bytes or 0) <= _MAX_HASHED_BYTES
    return rows * columns_width(schema, schema.names) <= max_bytes


def _has_supported_types(plan: FeaturePlan, side: FeatureSide) -> bool:
    if not side.is_timed or (side.join.created_time is not None and not side.uses_created_time):
        return False
    schema, labels = side.spec.schema, plan.left_schema
    # One array of strings has at most 2 GiB.
    is_small = (side.join.source.bytes or 0) <= _MAX_TEXT_BYTES
    for label_column, column in side.join.on:
        label_type, row_type = labels.field(label_column).type, schema.field(column).type
        is_text = is_small and pat.is_string(label_type) and pat.is_string(row_type)
        if not is_text and not (_is_integer(label_type) and _is_integer(row_type)):
            return False
    times = [labels.field(retrieval_point_in_time.label_time_column(plan)).type]
    times += [schema.field(column).type for _, column in side.times]
    # The size of strings and lists is not known from their types.
    outputs = [schema.field(output.column).type for output in side.join.outputs]
    return all(map(_is_time, times)) and not any(map(is_unbounded, outputs))


def _is_integer(dtype: pa.DataType) -> bool:
    return bool(pat.is_integer(dtype) and not pat.is_uint64(dtype))


def _is_time(dtype: pa.DataType) -> bool:
    return bool(pat.is_date32(dtype) or (pat.is_timestamp(dtype) and dtype.unit == "us"))


def retrieve(engine: DuckDBEngine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the rows of a feature plan, joined in memory if all rows are streamed.

    Other queries on the result, such as a count, run the plan's SQL, which DuckDB optimizes.
    """
    return LazyRelation(
        relations.ENGINE,
        lambda: point_in_time.retrieve(engine, plan, labels).native,
        plan.schema,
        single_use=labels is not None and labels.single_use,
        source=SortedMerge(engine, plan, labels),
    )


class SortedMerge(ArrowSource):
    """An Arrow source that runs the join each time it is read."""

    def __init__(self, engine: DuckDBEngine, plan: FeaturePlan, labels: Relation | None) -> None:
        self.schema = plan.schema
        self._engine, self._plan, self._labels = engine, plan, labels
        self._database = engine.database

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the joined rows, in label order if the plan keeps it."""
        plan = self._plan
        left_side = point_in_time.left_side(self._engine, plan, self._labels)
        labels = read_table(self._database, left_side)
        if plan.keep_order:
            positions = labels.column(ROW).to_numpy()
            # DuckDB usually returns the rows in order, since they are in memory.
            if (np.diff(positions) < 0).any():
                labels = labels.take(pa.array(np.argsort(positions)))
        matches = [
            self._match(side, labels) for side in retrieval_point_in_time.feature_sides(plan)
        ]
        for start in range(0, labels.num_rows, BATCH_ROWS):
            yield self._join(labels.slice(start, BATCH_ROWS), matches, start)

    def _match(self, side: FeatureSide, labels: pa.Table) -> _Matches:
        columns = self._open(side, list(side.columns))
        positions, row_count = self._match_positions(side, labels, columns)
        is_matched = positions >= 0
        names = [output.column for output in side.join.outputs]
        matched = columns.read_rows(names, positions[is_matched], row_count=row_count)
        positions[is_matched] = matched.index_of(positions[is_matched])
        features = {}
        for name in matched.columns.column_names:
            features[name] = concat_arrays(matched.columns.column(name).chunks)
        return _Matches(features, positions)

    def _open(self, side: FeatureSide, names: list[str]) -> TableColumns:
        relation = point_in_time.read_source(self._engine, side.join.source, names)
        return TableColumns(self._database, relation)

    def _match_positions(
        self, side: FeatureSide, labels: pa.Table, columns: TableColumns
    ) -> tuple[Int64s, int]:
        """Return the position of each label's row, -1 without one, and the number of rows."""
        times = [column for _, column in side.times]
        rows = columns.read([*(column for _, column in side.join.on), *times])
        row_count = rows.num_rows
        keys = [(labels.column(label), rows.column(column)) for label, column in side.join.on]
        label_time = labels.column(retrieval_point_in_time.label_time_column(self._plan))
        is_label_valid = _all_valid([*(label for label, _ in keys), label_time])
        is_row_valid = _all_valid([*(row for _, row in keys), *map(rows.column, times)])
        label_times = _to_micros(label_time)
        row_times = RowTimes(*(_to_micros(rows.column(time)) for time in times))
        codes = [encode_keys(*pair) for pair in keys]
        # Sorting needs the same amount of memory again.
        del rows, keys
        positions = match_rows(
            codes,
            label_times,
            row_times,
            is_label_valid=is_label_valid,
            is_row_valid=is_row_valid,
            tie_hashes=None if side.is_unique else partial(self._hash_rows, side, row_count),
        )
        if side.join.ttl is not None and row_count:
            ages = label_times - row_times.event[positions]
            positions[ages > side.join.ttl // timedelta(microseconds=1)] = -1
        return positions, row_count

    def _hash_rows(self, side: FeatureSide, row_count: int, positions: Int64s) -> Int64s:
        """Return the tie hashes of rows, which cover all columns of the group."""
        names = side.spec.schema.names
        rows = self._open(side, names).read_rows(names, positions, row_count=row_count)
        return retrieval_point_in_time.signed_tie_hash(rows.columns)[rows.index_of(positions)]

    def _join(self, labels: pa.RecordBatch, matches: list[_Matches], start: int) -> pa.RecordBatch:
        """Return labels with the features of their matching rows."""
        plan = self._plan
        values = {}
        for output in plan.left_outputs:
            values[output.name] = concat_arrays(labels.column(output.column).chunks)
        is_matched_by_all = np.ones(labels.num_rows, dtype=bool)
        for join, match in zip(plan.joins, matches, strict=True):
            positions = match.positions[start : start + labels.num_rows]
            is_matched = positions >= 0
            is_matched_by_all &= is_matched
            indices = pa.array(positions, mask=~is_matched)
            for output in join.outputs:
                values[output.name] = take_values(match.features[output.column], indices)
        return to_joined_batch(plan, values, is_matched_by_all)


def to_joined_batch(
    plan: FeaturePlan, values: Mapping[str, pa.Array], is_matched_by_all: Mask
) -> pa.RecordBatch:
    """Return the columns of a plan in its types; an inner join keeps only matched labels."""
    batch = pa.RecordBatch.from_arrays(
        [values[name] for name in plan.columns], names=list(plan.columns)
    )
    if plan.how == "inner":
        batch = batch.filter(pa.array(is_matched_by_all))
    return cast_batch(batch, plan.schema)


@dataclass(frozen=True)
class _Matches:
    """The features of a group, and the position of the matching row of each label, -1 without one."""

    features: Mapping[str, pa.Array]
    positions: Int64s


def _all_valid(columns: list[pa.ChunkedArray]) -> Mask:
    """Return a mask of the rows without nulls."""
    is_valid = np.ones(len(columns[0]), dtype=bool)
    for column in columns:
        if column.null_count:
            is_valid &= column.is_valid().to_numpy()
    return is_valid


def _to_micros(times: pa.ChunkedArray) -> Int64s:
    """Return times as microseconds, dates as midnight; nulls as 0."""
    if pat.is_date32(times.type):
        days = times.cast(pa.int32()).fill_null(0).to_numpy()
        return days.astype(np.int64) * _DAY
    micros: Int64s = times.cast(pa.int64()).fill_null(0).to_numpy()
    return micros


@dataclass(frozen=True)
class SelectedRows:
    """Some rows of a table. ``positions`` are the positions of these rows in the table, ascending."""

    columns: pa.Table
    indices: npt.NDArray[np.int32]

    def index_of(self, positions: Int64s) -> Int64s:
        """Return the index in ``columns`` of rows that are given by their positions in the table."""
        return self.indices[positions].astype(np.int64)


class TableColumns:
    """Columns of a relation, read when they are needed.

    Args:
        database: The database of the relation.
        relation: The rows.
    """

    def __init__(self, database: Database, relation: Relation) -> None:
        self._has_threads = int(database.config["threads"]) > 1
        self._files = _find_readable_files(relation)
        self._table: pa.Table | None = None
        if self._files is None:
            self._table = read_table(database, relation)
            return
        row_count = sum(file.metadata.num_rows for file in self._files)
        names = relation.schema.names
        size = row_count * columns_width(relation.schema, names)
        if size <= _CACHED_BYTES:
            self._table = _read_cached(tuple(self._files), tuple(names))
        elif size <= _SMALL_BYTES:
            self._has_threads = False
            self._table = self.read(names)

    def read(self, names: Sequence[str]) -> pa.Table:
        """Return columns of all rows."""
        names = list(dict.fromkeys(names))
        if self._table is not None:
            return self._table.select(names)
        return _read_columns(self._files or (), names, use_threads=self._has_threads)

    def read_rows(self, names: Sequence[str], positions: Int64s, *, row_count: int) -> SelectedRows:
        """Return columns of the rows at the given positions, out of ``row_count`` rows."""
        is_selected = np.zeros(row_count, dtype=bool)
        is_selected[positions] = True
        names = list(dict.fromkeys(names))
        tables = _iterate_columns(self._files or (), names, use_threads=self._has_threads)
        if self._table is not None:
            tables = iter([self._table.select(names)])
        selected, start = [], 0
        for table in tables:
            mask = is_selected[start : start + table.num_rows]
            selected.append(table if mask.all() else table.filter(pa.array(mask)))
            start += table.num_rows
        indices = np.cumsum(is_selected, dtype=np.int32)
        indices -= 1
        return SelectedRows(_fill_empty(pa.concat_tables(selected)), indices)


@dataclass(frozen=True)
class _ParquetFile:
    """A file in one state, since a replaced file must not be read from the cache."""

    state: FileState
    metadata: parquet.FileMetaData = field(compare=False)
    types: pa.Schema = field(compare=False)

    def row_groups(self) -> Iterator[list[int]]:
        """Yield the numbers of row groups that are read together."""
        numbers: list[int] = []
        row_count = 0
        for number in range(self.metadata.num_row_groups):
            numbers.append(number)
            row_count += self.metadata.row_group(number).num_rows
            if row_count >= _ROWS_AT_ONCE:
                yield numbers
                numbers, row_count = [], 0
        # A file without row groups has no rows, but types.
        if numbers or not self.metadata.num_row_groups:
            yield numbers


def _iterate_columns(
    files: Iterable[_ParquetFile], names: list[str], *, use_threads: bool
) -> Iterator[pa.Table]:
    """Yield columns of a bounded number of rows, in the order of the log."""
    for file in files:
        path = file.state.path
        with (
            translate_read_errors(path),
            parquet.ParquetFile(path, metadata=file.metadata) as open_file,
        ):
            for row_groups in file.row_groups():
                rows = open_file.read_row_groups(row_groups, columns=names, use_threads=use_threads)
                yield rows.select(names).replace_schema_metadata()


def _read_columns(
    files: Iterable[_ParquetFile], names: list[str], *, use_threads: bool
) -> pa.Table:
    return _fill_empty(pa.concat_tables(_iterate_columns(files, names, use_threads=use_threads)))


@lru_cache(maxsize=64)
def _open_cached(state: FileState) -> _ParquetFile:
    metadata = parquet.read_metadata(state.path)
    return _ParquetFile(state, metadata, metadata.schema.to_arrow_schema())


@lru_cache(maxsize=16)
def _read_cached(files: tuple[_ParquetFile, ...], names: tuple[str, ...]) -> pa.Table:
    return _read_columns(files, list(names), use_threads=False)


def read_table(database: Database, relation: Relation) -> pa.Table:
    """Return all rows of a relation."""
    return _fill_empty(pa.Table.from_batches(batches_of(database, relation), relation.schema))


def _fill_empty(table: pa.Table) -> pa.Table:
    """Return a table whose columns have at least one array."""
    return table if table.num_rows else table.schema.empty_table()


def _find_readable_files(relation: Relation) -> list[_ParquetFile] | None:
    """Return the files of a relation if Arrow reads its columns in their feature types."""
    if not isinstance(relation, relations.ScannedRelation) or relation.scan is None:
        return None
    snapshot = relation.scan.snapshot
    if snapshot.partition_by or not storage_for(snapshot.path).is_local:
        return None
    files = []
    for file in snapshot.files:
        with translate_read_errors(file.path):
            open_file = _open_cached(FileState.from_path(file.path))
        for column in relation.schema:
            index = open_file.types.get_field_index(column.name)
            if index < 0 or open_file.types.field(index).type != column.type:
                return None
        files.append(open_file)
    return files
