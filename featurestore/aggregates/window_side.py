"""The right side of a window join: the stream columns and the features computed from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.aggregates.arrays import Integers, combined_codes, to_flags, to_integers
from featurestore.aggregates.chunk import Aggregate, Labels
from featurestore.aggregates.incremental import IncrementalGroup
from featurestore.aggregates.stream import (
    GROUP,
    STREAM_TIME,
    AggregateRequest,
    NumberedBlock,
    is_sorted,
    split_stream,
    value_changes,
)
from featurestore.arrow.values import to_scalar_array
from featurestore.model.plan import FeaturePlan, WindowJoin
from featurestore.model.threads import independent_tasks


@dataclass(frozen=True)
class WindowFeatures:
    """Computes window features from a sorted stream, in the process of an engine's task.

    The stream columns are ``GROUP``, ``STREAM_TIME``, ``AVAILABLE`` and ``TIE`` if needed, then
    ``k0, k1, ...`` (keys), ``m0, ...`` (further columns that identify events of the same time),
    ``v0, ...`` (values), ``w0, ...`` (conditions), and ``c0, ...`` (label columns).

    Attributes:
        schema: The result schema: the label columns, then one column per aggregate.
        keys: The number of key columns; 0 if ``GROUP`` is the key itself.
        members: The number of columns ``m``; rows with equal keys, members and event time are
            versions of the same event.
        filters_created_time: Whether a row is only included from the time ``AVAILABLE``.
        rejects_ties: Whether two rows with the same key and event time are an error, because they
            may be different events or versions of the same event.
        aggregates: The aggregates; ``values`` and ``condition`` are column indices.
        fills: The replacement for null in each result, or in the lists of last_n.
        conditions: The number of conditions.
        group: The group name, for messages.
    """

    schema: pa.Schema
    keys: int
    members: int
    filters_created_time: bool
    rejects_ties: bool
    aggregates: tuple[Aggregate, ...]
    fills: tuple[object, ...]
    conditions: int
    group: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the labels with their features, key by key."""
        for compute in self._block_computations(batches):
            yield from compute().to_batches()

    def compute_in_threads(
        self, batches: Iterator[pa.RecordBatch], *, threads: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same result, but compute blocks in parallel in several threads."""
        if threads <= 1:
            yield from self(batches)
            return
        waiting: deque[Future[pa.Table]] = deque()
        with independent_tasks(threads, "featurestore-windows") as pool:
            for compute in self._block_computations(batches):
                # At most one block for each thread waits, which bounds the memory. Results keep
                # the order of the stream.
                if len(waiting) == threads:
                    yield from waiting.popleft().result().to_batches()
                waiting.append(pool.submit(compute))
            while waiting:
                yield from waiting.popleft().result().to_batches()

    def _block_computations(
        self, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[Callable[[], pa.Table]]:
        """Yield a function for each block that returns its labels with their features.

        The functions may run in any order and in any thread.
        """
        incremental = self._new_group()
        for block in split_stream(batches):
            if block.begins:
                incremental = self._new_group()
            if block.is_complete:
                yield partial(self._aggregate_groups, block.rows)
            else:
                # The next block needs the state after this one, so only the labels are left to the
                # function.
                rows = self._number_rows(block.rows)
                yield partial(self._add_features, rows, incremental.add_block(rows))

    @property
    def _request(self) -> AggregateRequest:
        return AggregateRequest(
            members=self.members,
            filters_created_time=self.filters_created_time,
            rejects_ties=self.rejects_ties,
            aggregates=self.aggregates,
            conditions=self.conditions,
            group=self.group,
        )

    @property
    def _key_names(self) -> list[str]:
        return [f"k{number}" for number in range(self.keys)] or [GROUP]

    def _new_group(self) -> IncrementalGroup:
        return IncrementalGroup(self._request, self._key_names)

    def _aggregate_groups(self, table: pa.Table) -> pa.Table:
        """Add features to the labels of complete groups."""
        block = self._number_rows(table)

        def aggregate_labels() -> list[pa.Array]:
            events = self._request.events(table, block.key, block.time, block.row_numbers)
            # An additional key without rows, for the label without key or time.
            labels = Labels(
                np.append(block.key[block.label_numbers], block.keys),
                np.append(block.time[block.label_numbers], 0),
            )
            return self._request.aggregate(
                events, labels, keys=block.keys + 1, aggregates=self.aggregates
            )

        return self._add_features(block, aggregate_labels)

    def _add_features(
        self, block: NumberedBlock, aggregate_labels: Callable[[], list[pa.Array]]
    ) -> pa.Table:
        """Add features to the labels of a block.

        Args:
            block: The rows and labels.
            aggregate_labels: Returns the aggregates of the labels with a key and a time, followed by
                the aggregates of a label without rows.
        """
        label_columns = len(self.schema) - len(self.aggregates)
        labels = block.table.select([f"c{number}" for number in range(label_columns)])
        labels = labels.filter(pa.array(block.is_label))
        # Labels without key or time match no rows: their value is the last one of the result.
        label_numbers = block.label_numbers
        value_index = np.full(block.table.num_rows, len(label_numbers), np.int64)
        value_index[label_numbers] = np.arange(len(label_numbers))
        value_rows = value_index[block.is_label]
        is_in_order = np.array_equal(value_rows, np.arange(len(label_numbers)))
        columns = list(labels.columns)
        for aggregate, values, fill in zip(
            self.aggregates, aggregate_labels(), self.fills, strict=True
        ):
            if fill is not None and aggregate.function == "last_n":
                elements = _fill_null(values.flatten(), fill)
                values = pa.FixedSizeListArray.from_arrays(elements, aggregate.n)
            elif fill is not None:
                values = _fill_null(values, fill)
            # A slice shares memory; take copies every value.
            if is_in_order:
                columns.append(values[: len(label_numbers)])
            else:
                columns.append(values.take(pa.array(value_rows)))
        return pa.table(columns, names=self.schema.names).cast(self.schema)

    def _number_rows(self, table: pa.Table) -> NumberedBlock:
        """Return a block with key numbers, its rows and labels apart."""
        has_time = to_flags(table.column(STREAM_TIME).is_valid())
        stream_time = to_integers(table.column(STREAM_TIME))
        # Odd stream times belong to labels.
        is_label = ~has_time | (stream_time & 1 == 1)
        key, keys = self._number_keys(table)
        label_numbers = np.flatnonzero(is_label & (key >= 0) & has_time)
        # An engine sorts by group and time. Keys that share the hash of a group are interleaved in
        # it.
        if not is_sorted(key[label_numbers], stream_time[label_numbers]):
            label_numbers = label_numbers[
                np.lexsort((stream_time[label_numbers], key[label_numbers]))
            ]
        return NumberedBlock(
            table,
            key=key,
            keys=keys,
            time=stream_time >> 1,
            has_time=has_time,
            is_label=is_label,
            row_numbers=np.flatnonzero(~is_label),
            label_numbers=label_numbers,
        )

    def _number_keys(self, chunk: pa.Table) -> tuple[Integers, int]:
        """Return the key number of each row, -1 if a key column is null, and the key count."""
        columns = [chunk.column(name).combine_chunks() for name in self._key_names]
        present = np.ones(chunk.num_rows, bool)
        for column in columns:
            if column.null_count:
                present &= to_flags(column.is_valid())
        changes = value_changes(chunk.column(GROUP).combine_chunks())
        # Equal hashes nearly always mean equal keys, and always do if the hash is the key itself.
        if self.keys == 0 or not any(
            (value_changes(column) & ~changes).any() for column in columns
        ):
            number = np.cumsum(changes) - 1
        else:
            number = combined_codes(columns, chunk.num_rows)
        keys = int(number.max(initial=-1)) + 1
        return np.where(present, number, -1), keys


def _fill_null(values: pa.Array, fill: object) -> pa.Array:
    """Replace nulls with a value of the array type."""
    filled = pa.concat_arrays([values, to_scalar_array(fill, values.type)])
    # Arrow has no fill_null for lists and structs.
    rows = pc.if_else(values.is_valid(), np.arange(len(values)), len(values))
    return filled.take(rows)


# The results of these functions depend on the row order, including rows with equal times.
_BY_ORDER = ("first", "last", "last_n")
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class WindowSide:
    """The aggregates over one group, and the stream columns that they require.

    ``values`` contains the columns ``v0, v1, ...``, ``conditions`` the columns ``w0, w1, ...``.
    """

    join: WindowJoin
    plan: FeaturePlan
    values: tuple[str, ...]
    conditions: tuple[str, ...]

    @classmethod
    def from_join(cls, join: WindowJoin, plan: FeaturePlan) -> WindowSide:
        """Build the right side of a window join."""
        values, conditions = [], []
        for output in join.outputs:
            values.append(output.column)
            if output.where is not None:
                conditions.append(output.where)
        return cls(join, plan, tuple(dict.fromkeys(values)), tuple(dict.fromkeys(conditions)))

    @property
    def filters_created_time(self) -> bool:
        """Whether a row is only included from its created time."""
        return self.join.created_time is not None and self.plan.created_time_filter

    @property
    def needs_created_time(self) -> bool:
        """Whether created times determine which rows, or which versions, are included."""
        return self.join.created_time is not None

    @property
    def needs_tie_hash(self) -> bool:
        """Whether the order of rows with equal times matters."""
        source = self.join.source
        # The uniqueness recorded in the log excludes nulls.
        nulls_count = self.needs_created_time and not self.filters_created_time
        is_unique = source.unique and bool(source.spec.primary_key) and not nulls_count
        by_order = any(output.function in _BY_ORDER for output in self.join.outputs)
        return not is_unique or (by_order and bool(self.join.members))

    @property
    def group_is_key(self) -> bool:
        """Whether the stream is sorted by the key itself, a single integer, instead of a hash."""
        # A single integer key is sorted by its value: it has no collisions and needs no separate
        # key columns.
        if len(self.join.on) != 1:
            return False
        dtype = self.join.source.spec.schema.field(self.join.on[0][1]).type
        return bool(pat.is_signed_integer(dtype))

    def features(self, label_schema: pa.Schema) -> WindowFeatures:
        """Create the function that computes features from the sorted stream.

        Args:
            label_schema: The label columns, ``c0, c1, ...`` in the stream.
        """
        aggregates, fills = [], []
        fields = list(label_schema)
        for output in self.join.outputs:
            length = condition = None
            if output.over is not None:
                length = output.over // _MICROSECOND
            if output.where is not None:
                condition = self.conditions.index(output.where)
            aggregates.append(
                Aggregate(
                    function=output.function,
                    values=self.values.index(output.column),
                    over=length,
                    offset=output.offset // _MICROSECOND,
                    condition=condition,
                    n=output.n,
                )
            )
            fills.append(output.fill_value)
            fields.append(pa.field(output.name, output.kind))
        return WindowFeatures(
            schema=pa.schema(fields),
            keys=0 if self.group_is_key else len(self.join.on),
            members=len(self.join.members),
            filters_created_time=self.filters_created_time,
            rejects_ties=not self.join.members and self.join.created_time is None,
            aggregates=tuple(aggregates),
            fills=tuple(fills),
            conditions=len(self.conditions),
            group=self.join.source.spec.name,
        )
