"""Late materialization for joins larger than memory.

DuckDB's ASOF join sorts both sides with all columns; data beyond the memory limit is spilled and
read several times. This join sorts only keys, times and row ids (positions in the table's files),
and returns pairs of row ids: a label and its matching row. The features are then read once, in file
order, and spooled by chunks of labels. Finally the labels are read in order, with one chunk of
features in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.batches import concat_arrays, take_values
from featurestore.arrow.types import columns_width, is_unbounded
from featurestore.errors import EngineError
from featurestore.model.plan import ROW, FeaturePlan, Join, Output, Source
from featurestore.plugins.engine import Relation
from featurestore.retrieval.point_in_time import (
    FeatureSide,
    count_label_rows,
    estimate_join_bytes,
    feature_sides,
    require_labels,
)
from featurestore.storage.spool import BatchFile
from featurestore_connectors.duckdb_delta import point_in_time, relations
from featurestore_connectors.duckdb_delta.relations import POSITION
from featurestore_connectors.duckdb_delta.row_matching import Int64s
from featurestore_connectors.duckdb_delta.session import Database
from featurestore_connectors.duckdb_delta.sorted_merge import read_table, to_joined_batch
from featurestore_connectors.duckdb_delta.streams import (
    ArrowSource,
    MappedRelation,
    batches_of,
    from_arrow,
)

if TYPE_CHECKING:
    from featurestore_connectors.duckdb_delta.engine import DuckDBEngine

# Approximate bytes of features for a chunk of labels; one chunk is in memory at a time.
_CHUNK_BYTES = 64 << 20
_LABEL_ID = "__fs_place"
# The column with the id of the row that matches a label.
_MATCH = "__fs_answer"
_ROW_ID_BYTES = 8
# Smaller joins are sorted in memory, independent of the limit.
_MIN_BYTES = 64 << 20
# The fraction of the memory limit above which a sort spills.
_MEMORY_FRACTION = 0.5
# Assumed ratio of memory to file size for variable-length values.
_COMPRESSION = 3
# The minimum ratio of row size to the size of keys, times and row ids.
_MIN_REDUCTION = 2
# A function that returns the named label columns, with ascending row ids.
ColumnsWithIds = Callable[[Sequence[str]], Relation]


def is_worthwhile(database: Database, plan: FeaturePlan) -> bool:
    """Return whether a join exceeds memory and would be much smaller with only row ids."""
    if not _is_supported(plan):
        return False
    total_bytes = estimate_join_bytes(plan)
    if total_bytes is None or total_bytes < max(_MIN_BYTES, _MIN_REDUCTION * _row_id_bytes(plan)):
        return False
    return total_bytes > database.memory_limit * _MEMORY_FRACTION


def _row_id_bytes(plan: FeaturePlan) -> int:
    """Return the total bytes of keys, times and row ids on both sides."""
    columns = []
    for join in plan.joins:
        columns += _key_and_time(plan, join)
    rows = count_label_rows(plan) or 0
    total = rows * (columns_width(plan.left_schema, columns) + _ROW_ID_BYTES)
    for side in feature_sides(plan):
        narrow = replace(side, join=replace(side.join, outputs=()))
        total += (narrow.bytes or 0) + (side.join.source.rows or 0) * _ROW_ID_BYTES
    return total


def _is_supported(plan: FeaturePlan) -> bool:
    """Return whether both sides have row ids and the last row of a key matches."""
    # The labels are a table, or the caller's rows in memory, in order.
    is_in_memory = plan.keep_order and plan.left_plan is None and plan.left_query is None
    if not plan.joins or not (plan.left_source is not None or is_in_memory):
        return False
    if _hides_row_ids(plan.left_schema):
        return False
    for side in feature_sides(plan):
        if not side.last_eligible_row_wins or point_in_time.should_look_up_keys(side):
            return False
        if _hides_row_ids(side.spec.schema):
            return False
    return True


def _hides_row_ids(schema: pa.Schema) -> bool:
    return any(name.lower() in relations.RESERVED_NAMES for name in schema.names)


def retrieve(engine: DuckDBEngine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the rows of a feature plan, with late materialization if all rows are streamed.

    Other queries on the result, such as a count, run the plan's SQL, which DuckDB optimizes.
    """
    query_rows = point_in_time.retrieve(engine, plan, labels)
    source = LateMaterialization(engine, plan, labels)
    return MappedRelation(
        relations.ENGINE,
        query_rows.native,
        plan.schema,
        single_use=query_rows.single_use,
        source=source,
    )


class LateMaterialization(ArrowSource):
    """An Arrow source that runs the join each time it is read."""

    def __init__(self, engine: DuckDBEngine, plan: FeaturePlan, labels: Relation | None) -> None:
        self.schema = plan.schema
        self._engine, self._plan, self._labels = engine, plan, labels
        self._database = engine.database

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the joined rows in label order."""
        plan, labels = self._plan, self._label_columns()
        # Chunks of labels are determined first, since the features are spooled by chunk.
        label_ids = (_row_ids(batch) for batch in self._read_in_order(labels(())))
        starts = chunk_starts(label_ids, bytes_per_label=sum(map(_bytes_per_match, plan.joins)))
        with ExitStack() as stack:
            spools = []
            for join in plan.joins:
                schema = _schema_of_features(join)
                spool = FeatureSpool(self._database.scratch, schema, starts)
                spools.append(stack.enter_context(closing(spool)))
                self._spool_features(join, labels, spool)
            yield from self._join_features(labels, spools, starts)

    def _label_columns(self) -> ColumnsWithIds:
        if self._plan.left_source is not None:
            return partial(_columns_with_ids, self._database, self._plan.left_source)
        table = read_table(self._database, require_labels(self._plan, self._labels))
        return partial(_columns_in_memory, self._database, table)

    def _spool_features(self, join: Join, labels: ColumnsWithIds, spool: FeatureSpool) -> None:
        """Read the matching rows in file order and spool their features."""
        rows = _columns_with_ids(self._database, join.source, spool.names)
        pairs = _MatchedPairs(batches_of(self._database, self._match_labels(join, labels)))
        for batch in self._read_in_order(rows):
            row_ids = _row_ids(batch)
            # Pairs and rows both ascend by row id, so one pass over each side joins them.
            label_ids, matched_ids = pairs.take_up_to(row_ids[-1])
            if len(label_ids):
                spool.add(label_ids, batch, np.searchsorted(row_ids, matched_ids))

    def _match_labels(self, join: Join, labels: ColumnsWithIds) -> Relation:
        """Return the ids of labels and their matching rows, ordered by row id."""
        plan = self._plan
        columns = (POSITION, _MATCH)
        label_columns = _key_and_time(plan, join)
        position = pa.field(POSITION, pa.int64())
        narrow = replace(
            plan,
            left_schema=pa.schema([position, *map(plan.left_schema.field, label_columns)]),
            left_columns=(POSITION,),
            left_renames=(),
            joins=(replace(join, outputs=(Output(POSITION, _MATCH),)),),
            columns=columns,
            schema=pa.schema([(name, pa.int64()) for name in columns]),
            # Labels without a matching row have nothing to spool.
            how="inner",
            keep_order=False,
        )
        side = FeatureSide(0, replace(join, outputs=()), narrow)
        tables = {
            point_in_time.LABELS: labels(label_columns),
            point_in_time.table_of_side(side): _columns_with_ids(
                self._database, join.source, side.columns
            ),
        }
        query = f"SELECT * FROM ({point_in_time.query_of_plan(narrow)}) ORDER BY {_MATCH}"
        return self._engine.sql(query, tables=tables, parameters={})

    def _join_features(
        self, labels: ColumnsWithIds, spools: Sequence[FeatureSpool], starts: Int64s
    ) -> Iterator[pa.RecordBatch]:
        """Yield the labels in order, with the features of all groups attached chunk by chunk."""
        columns = dict.fromkeys(output.column for output in self._plan.left_outputs)
        current, chunks = -1, list[FeatureChunk]()
        for batch in self._read_in_order(labels(list(columns))):
            boundaries = np.searchsorted(_row_ids(batch), starts).tolist()
            for chunk, (first, last) in enumerate(pairwise([0, *boundaries, batch.num_rows])):
                if first == last:
                    continue
                # Release the previous chunk before the next one is read.
                if chunk != current:
                    chunks.clear()
                    chunks += [spool.read_chunk(chunk) for spool in spools]
                    current = chunk
                yield self._attach_features(batch.slice(first, last - first), chunks)

    def _read_in_order(self, relation: Relation) -> Iterator[pa.RecordBatch]:
        """Yield rows and check that row ids ascend, as binary search requires."""
        last = -1
        for batch in batches_of(self._database, relation):
            row_ids = _row_ids(batch)
            if row_ids[0] <= last or (np.diff(row_ids) <= 0).any():
                raise EngineError("DuckDB did not return the rows of a table in file order.")
            last = int(row_ids[-1])
            yield batch

    def _attach_features(
        self, labels: pa.RecordBatch, chunks: Sequence[FeatureChunk]
    ) -> pa.RecordBatch:
        """Return labels with their features."""
        plan, label_ids = self._plan, _row_ids(labels)
        values = {output.name: labels.column(output.column) for output in plan.left_outputs}
        is_matched_by_all = np.ones(len(label_ids), dtype=bool)
        for join, read_chunk in zip(plan.joins, chunks, strict=True):
            columns, is_matched = read_chunk.lookup(label_ids)
            is_matched_by_all &= is_matched
            for output in join.outputs:
                values[output.name] = columns[output.column]
        return to_joined_batch(plan, values, is_matched_by_all)


class _MatchedPairs:
    """A cursor over pairs of label id and row id, ordered by row id."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._labels = self._rows = np.empty(0, dtype=np.int64)

    def take_up_to(self, last_row: int) -> tuple[Int64s, Int64s]:
        """Return the next pairs whose row id is at most ``last_row``."""
        labels, rows = [], []
        while True:
            count = int(np.searchsorted(self._rows, last_row, side="right"))
            labels.append(self._labels[:count])
            rows.append(self._rows[:count])
            self._labels, self._rows = self._labels[count:], self._rows[count:]
            if len(self._rows):
                break
            batch = next(self._batches, None)
            if batch is None:
                break
            self._labels, self._rows = map(_to_int64, batch.columns)
        return np.concatenate(labels), np.concatenate(rows)


def _columns_with_ids(database: Database, source: Source, columns: Sequence[str]) -> Relation:
    return relations.read_positions(
        database,
        source.path,
        version=source.delta_version,
        schema=source.spec.schema,
        columns=list(columns),
    )


def _columns_in_memory(database: Database, labels: pa.Table, columns: Sequence[str]) -> Relation:
    columns_with_ids = labels.select([ROW, *columns])
    return from_arrow(database, columns_with_ids.rename_columns([POSITION, *columns]).to_reader())


def _schema_of_features(join: Join) -> pa.Schema:
    columns = dict.fromkeys(output.column for output in join.outputs)
    return pa.schema(list(map(join.source.spec.schema.field, columns)))


def _bytes_per_match(join: Join) -> int:
    """Estimate the bytes of a matching row's features and id."""
    source = join.source
    schema = _schema_of_features(join)
    total = _ROW_ID_BYTES + columns_width(schema, schema.names)
    # The type does not determine the length of strings and lists, so it is estimated from the files.
    if source.bytes and source.rows and any(map(is_unbounded, schema.types)):
        total += _COMPRESSION * source.bytes // source.rows
    return total


def _key_and_time(plan: FeaturePlan, join: Join) -> list[str]:
    columns = [label_column for label_column, _ in join.on]
    if plan.left_time is not None:
        columns.append(plan.left_time)
    return list(dict.fromkeys(columns))


def _row_ids(batch: pa.RecordBatch) -> Int64s:
    return _to_int64(batch.column(POSITION))


def _to_int64(column: pa.Array) -> Int64s:
    return column.to_numpy()


def chunk_starts(row_id_batches: Iterable[Int64s], *, bytes_per_label: int) -> Int64s:
    """Return the label ids at which the second and later label chunks start.

    Args:
        row_id_batches: The ids of all labels, ascending.
        bytes_per_label: Size of a label's features from all groups.
    """
    rows = max(_CHUNK_BYTES // bytes_per_label, 1)
    starts, row_count = [np.empty(0, dtype=np.int64)], 0
    for row_ids in row_id_batches:
        # Chunks continue across batches: the next chunk starts ``-row_count % rows`` rows into this
        # batch.
        starts.append(row_ids[-row_count % rows :: rows])
        row_count += len(row_ids)
    # The first chunk starts at the first label.
    return np.concatenate(starts)[1:]


class FeatureSpool:
    """Spool file of features, with one row for each matched label.

    Args:
        directory: The directory of the spool file.
        schema: The schema of the features.
        starts: The label ids at which the chunks start.
    """

    def __init__(self, directory: str, schema: pa.Schema, starts: Int64s) -> None:
        self.names = schema.names
        self._schema = pa.schema([pa.field(_LABEL_ID, pa.int64()), *schema])
        self._starts = starts
        # Numpy uses radix sort for narrow integers.
        self._numbers = np.min_scalar_type(len(starts))
        self._file = BatchFile(directory, self._schema)
        self._reader: pa.RecordBatchFileReader | None = None
        self._batch_count = 0
        # The batch numbers of each chunk in the file.
        self._batches: list[list[int]] = [[] for _ in range(len(starts) + 1)]

    def add(self, label_ids: Int64s, rows: pa.RecordBatch, positions: Int64s) -> None:
        """Spool the features of ``rows`` at ``positions``, which match ``label_ids``."""
        chunks = np.searchsorted(self._starts, label_ids, side="right").astype(self._numbers)
        chunk_order = np.argsort(chunks, kind="stable")
        arrays = [pa.array(label_ids[chunk_order])]
        for name in self.names:
            arrays.append(take_values(rows.column(name), positions[chunk_order]))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        boundaries = np.searchsorted(
            chunks[chunk_order], np.arange(len(self._batches) + 1)
        ).tolist()
        for chunk, (first, last) in enumerate(pairwise(boundaries)):
            if last > first:
                self._file.write(batch.slice(first, last - first))
                self._batches[chunk].append(self._batch_count)
                self._batch_count += 1

    def read_chunk(self, number: int) -> FeatureChunk:
        """Read the features of a label chunk; call it after the last ``add``."""
        if self._reader is None:
            self._reader = self._file.reader()
        batches = [self._reader.get_batch(batch_number) for batch_number in self._batches[number]]
        rows = pa.Table.from_batches(batches, schema=self._schema)
        label_ids = rows.column(_LABEL_ID).to_numpy()
        order = np.argsort(label_ids)
        columns = {}
        for name in self.names:
            columns[name] = take_values(_combine_chunks(rows.column(name)), order)
        return FeatureChunk(label_ids[order], columns)

    def close(self) -> None:
        """Close and remove the file."""
        self._file.close()


@dataclass(frozen=True)
class FeatureChunk:
    """The features of a label chunk, ordered by label id."""

    label_ids: Int64s
    columns: Mapping[str, pa.Array]

    def lookup(self, label_ids: Int64s) -> tuple[dict[str, pa.Array], npt.NDArray[np.bool_]]:
        """Return the features of labels with ascending ids; features of unmatched labels are null.

        Returns:
            The columns, and a mask of the matched labels.
        """
        positions = np.searchsorted(self.label_ids, label_ids)
        is_matched = np.zeros(len(label_ids), dtype=bool)
        in_range = positions < len(self.label_ids)
        is_matched[in_range] = self.label_ids[positions[in_range]] == label_ids[in_range]
        columns = {}
        if is_matched.all():
            # Labels are read sequentially, so their matches are contiguous and can be sliced
            # without a copy.
            for name, column in self.columns.items():
                columns[name] = column.slice(positions[0], len(label_ids))
        else:
            indices = pa.array(positions, mask=~is_matched)
            for name, column in self.columns.items():
                columns[name] = take_values(column, indices)
        return columns, is_matched


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    return concat_arrays(column.chunks)
