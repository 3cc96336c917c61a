"""Joins of more rows than memory holds: places are joined, features are fetched by them.

DuckDB's ASOF join sorts both sides with all their columns, and what exceeds memory is written and
read more than once. Here it sorts keys, times and the place of each row in the files of its table.
What comes out are pairs of places, of a label and of the row that answers it. In the order of the
rows' places the features are read in one pass over their files and set aside for the piece of the
labels that asked for them; then the labels are read in their order, a piece of features at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from featurestore.arrow.arrow_cast import cast_batch
from featurestore.arrow.widths import is_unbounded, width_of_columns
from featurestore.errors import EngineError
from featurestore.model.plan import ROW, FeaturePlan, Join, Output, Source
from featurestore.plugins.engine import Relation
from featurestore.retrieval.point_in_time import (
    feature_sides,
    joined_bytes,
    label_rows,
    require_labels,
)
from featurestore_connectors.duckdb_delta import point_in_time, relations, scan
from featurestore_connectors.duckdb_delta.features_aside import (
    FeaturesAside,
    FeaturesOfPiece,
    Int64s,
    starts_of_pieces,
)
from featurestore_connectors.duckdb_delta.scan import POSITION
from featurestore_connectors.duckdb_delta.session import Database
from featurestore_connectors.duckdb_delta.streams import (
    MappedRelation,
    MappedStream,
    batches_of,
)

if TYPE_CHECKING:
    from featurestore_connectors.duckdb_delta.engine import DuckDBEngine

# The place of the row that answers a label.
_ANSWER = "__fs_answer"
_PLACE_BYTES = 8
# Less is sorted in memory whatever the limit is.
_LEAST_BYTES = 64 << 20
# What a sort takes of its input, in memory: beyond it, it spills.
_SHARE_OF_MEMORY = 0.5
# Values of any length take so many times their bytes in files.
_COMPRESSION = 3
# Keys, times and places weigh so much less than the rows, or nothing is won.
_LIGHTER = 2
# Columns of the labels with the place of each row, which ascends.
PlacedColumns = Callable[[Sequence[str]], Relation]


def pays(database: Database, plan: FeaturePlan) -> bool:
    """Tell whether a plan sorts more than fits in memory, and much less by places."""
    if not _is_by_place(plan):
        return False
    whole = joined_bytes(plan)
    if whole is None or whole < max(_LEAST_BYTES, _LIGHTER * _bytes_of_places(plan)):
        return False
    return whole > database.memory_limit * _SHARE_OF_MEMORY


def retrieve(engine: DuckDBEngine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the rows of a plan: by places where all are read, else by the query of the plan.

    A query over the result, such as a count, is DuckDB's to plan as a whole.
    """
    found = point_in_time.retrieve(engine, plan, labels)
    source = JoinByPlace(engine, plan, labels)
    return MappedRelation(
        relations.ENGINE, found.native, plan.schema, single_use=found.single_use, source=source
    )


def _bytes_of_places(plan: FeaturePlan) -> int:
    """Return the bytes of keys, times and places of both sides."""
    columns = []
    for join in plan.joins:
        columns += _key_and_time(plan, join)
    rows = label_rows(plan) or 0
    total = rows * (width_of_columns(plan.left_schema, columns) + _PLACE_BYTES)
    for side in feature_sides(plan):
        narrow = replace(side, join=replace(side.join, outputs=()))
        total += (narrow.bytes or 0) + (side.join.source.rows or 0) * _PLACE_BYTES
    return total


def _is_by_place(plan: FeaturePlan) -> bool:
    """Tell whether rows of both sides have a place, and the last one of a key answers."""
    if not plan.joins or not (plan.left_source is not None or _in_memory(plan)):
        return False
    if _hides_places(plan.left_schema):
        return False
    for side in feature_sides(plan):
        if not side.last_is_greatest or point_in_time.looks_up_keys(side):
            return False
        if _hides_places(side.spec.schema):
            return False
    return True


def _in_memory(plan: FeaturePlan) -> bool:
    """Tell whether the labels are the caller's rows in memory, in order."""
    return plan.keep_order and plan.left_plan is None and plan.left_query is None


def _hides_places(schema: pa.Schema) -> bool:
    return any(name.lower() in scan.NAMES_OF_PLACES for name in schema.names)


class JoinByPlace(MappedStream):
    """An Arrow source that runs the steps of a join each time it is read."""

    def __init__(self, engine: DuckDBEngine, plan: FeaturePlan, labels: Relation | None) -> None:
        self.schema = plan.schema
        self._engine, self._plan, self._labels = engine, plan, labels
        self._database = engine.database

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the joined rows in the order of the labels."""
        plan, labels = self._plan, self._placed_labels()
        places = (_places(batch) for batch in self._in_order(labels(())))
        starts = starts_of_pieces(places, bytes_per_label=sum(map(_bytes_per_answer, plan.joins)))
        with ExitStack() as stack:
            aside = []
            for join in plan.joins:
                schema = _schema_of_features(join)
                features = FeaturesAside(self._database.scratch, schema, starts)
                aside.append(stack.enter_context(closing(features)))
                self._fetch(join, labels, features)
            yield from self._joined(labels, aside, starts)

    def _placed_labels(self) -> PlacedColumns:
        if self._plan.left_source is not None:
            return partial(_placed_columns, self._database, self._plan.left_source)
        labels = require_labels(self._labels)
        table = pa.Table.from_batches(batches_of(self._database, labels), schema=labels.schema)
        return partial(_columns_in_memory, self._database, table)

    def _fetch(self, join: Join, labels: PlacedColumns, features: FeaturesAside) -> None:
        """Read the rows that answer labels, in their order, and set their features aside."""
        rows = _placed_columns(self._database, join.source, features.names)
        pairs = _Pairs(batches_of(self._database, self._pairs(join, labels)))
        for batch in self._in_order(rows):
            places = _places(batch)
            asking, answers = pairs.up_to(places[-1])
            if len(asking):
                features.add(asking, batch, np.searchsorted(places, answers))

    def _pairs(self, join: Join, labels: PlacedColumns) -> Relation:
        """Return the places of labels and of the rows that answer them, in the order of the rows."""
        plan = self._plan
        columns = (POSITION, _ANSWER)
        narrow = replace(
            plan,
            left_columns=(POSITION,),
            left_renames=(),
            joins=(replace(join, outputs=(Output(POSITION, _ANSWER),)),),
            columns=columns,
            schema=pa.schema([(name, pa.int64()) for name in columns]),
            how="inner",
            keep_order=False,
        )
        side = feature_sides(replace(plan, joins=(replace(join, outputs=()),)))[0]
        tables = {
            point_in_time.LABELS: labels(_key_and_time(plan, join)),
            point_in_time.table_of_side(side): _placed_columns(
                self._database, join.source, side.columns
            ),
        }
        query = f"SELECT * FROM ({point_in_time.query_of_plan(narrow)}) ORDER BY {_ANSWER}"
        return self._engine.sql(query, tables=tables, parameters={})

    def _joined(
        self, labels: PlacedColumns, aside: Sequence[FeaturesAside], starts: Int64s
    ) -> Iterator[pa.RecordBatch]:
        columns = dict.fromkeys(output.column for output in self._plan.left_outputs)
        current, features = -1, list[FeaturesOfPiece]()
        for batch in self._in_order(labels(list(columns))):
            cuts = np.searchsorted(_places(batch), starts).tolist()
            for piece, (first, last) in enumerate(pairwise([0, *cuts, batch.num_rows])):
                if first == last:
                    continue
                if piece != current:
                    features.clear()
                    features += [each.of_piece(piece) for each in aside]
                    current = piece
                yield self._rows(batch.slice(first, last - first), features)

    def _in_order(self, placed: Relation) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table as long as their places ascend: each is looked up by its own."""
        last = -1
        for batch in batches_of(self._database, placed):
            places = _places(batch)
            if places[0] <= last or (np.diff(places) <= 0).any():
                raise EngineError(
                    "DuckDB gave the rows of a table in another order than its files."
                )
            last = int(places[-1])
            yield batch

    def _rows(self, labels: pa.RecordBatch, features: Sequence[FeaturesOfPiece]) -> pa.RecordBatch:
        """Return labels with what answers them."""
        plan, places = self._plan, _places(labels)
        values = {output.name: labels.column(output.column) for output in plan.left_outputs}
        kept = np.ones(len(places), dtype=bool)
        for join, of_piece in zip(plan.joins, features, strict=True):
            answers, found = of_piece.at(places)
            kept &= found
            for output in join.outputs:
                values[output.name] = answers[output.column]
        batch = pa.RecordBatch.from_arrays(
            [values[name] for name in plan.columns], names=list(plan.columns)
        )
        if plan.how == "inner":
            batch = batch.filter(pa.array(kept))
        return cast_batch(batch, self.schema)


class _Pairs:
    """Places of labels and of the rows that answer them, which ascend, batch by batch."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._labels = self._answers = np.empty(0, dtype=np.int64)

    def up_to(self, place: int) -> tuple[Int64s, Int64s]:
        """Return the next pairs whose row lies at a place or before it."""
        labels, answers = [], []
        while True:
            count = int(np.searchsorted(self._answers, place, side="right"))
            labels.append(self._labels[:count])
            answers.append(self._answers[:count])
            self._labels, self._answers = self._labels[count:], self._answers[count:]
            if len(self._answers):
                break
            batch = next(self._batches, None)
            if batch is None:
                break
            self._labels, self._answers = map(_numbers, batch.columns)
        return np.concatenate(labels), np.concatenate(answers)


def _placed_columns(database: Database, source: Source, columns: Sequence[str]) -> Relation:
    return scan.read_positions(
        database,
        source.path,
        version=source.delta_version,
        schema=source.spec.schema,
        columns=list(columns),
    )


def _columns_in_memory(database: Database, labels: pa.Table, columns: Sequence[str]) -> Relation:
    placed = labels.select([ROW, *columns])
    return relations.from_arrow(database, placed.rename_columns([POSITION, *columns]).to_reader())


def _schema_of_features(join: Join) -> pa.Schema:
    columns = dict.fromkeys(output.column for output in join.outputs)
    return pa.schema(list(map(join.source.spec.schema.field, columns)))


def _bytes_per_answer(join: Join) -> int:
    """Return about how many bytes the features of a row have, with its place."""
    source = join.source
    schema = _schema_of_features(join)
    total = _PLACE_BYTES + width_of_columns(schema, schema.names)
    if source.bytes and source.rows and any(map(is_unbounded, schema.types)):
        total += _COMPRESSION * source.bytes // source.rows
    return total


def _key_and_time(plan: FeaturePlan, join: Join) -> list[str]:
    columns = [left for left, _ in join.on]
    if plan.left_time is not None:
        columns.append(plan.left_time)
    return list(dict.fromkeys(columns))


def _places(batch: pa.RecordBatch) -> Int64s:
    return _numbers(batch.column(POSITION))


def _numbers(column: pa.Array) -> Int64s:
    return column.to_numpy()
