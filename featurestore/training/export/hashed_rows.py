"""Rows with their hash and group, readable as often as an export needs them.

A pass reads no more columns than it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.hashing import row_hash
from featurestore.model.plan import FeaturePlan
from featurestore.plugins.engine import Accumulator, BatchFunction, Engine, HoldsRows, Relation
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.split_rules import SplitRule, group_of_rows

State = TypeVar("State")
Result = TypeVar("Result")
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

HASH = "__fs_hash"
GROUP = "__fs_group"
HASH_COLUMNS = pa.schema([(HASH, pa.int64()), (GROUP, pa.int64())])
_SIGN = np.uint64(1 << 63)
_COUNTING_THREADS = 2


def to_sortable(hashes: UInt64s) -> Int64s:
    """Return hashes as signed integers of the same order, which every engine can sort."""
    flipped: Int64s = (hashes ^ _SIGN).view(np.int64)
    return flipped


def from_sortable(values: Int64s) -> UInt64s:
    """Return the hashes that ``to_sortable`` was given."""
    return values.view(np.uint64) ^ _SIGN


def hashes_of(batch: pa.RecordBatch) -> UInt64s:
    """Return the row hashes of a hashed batch."""
    column = batch.column(batch.schema.get_field_index(HASH))
    return from_sortable(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)))


def groups_and_hashes(batch: pa.RecordBatch) -> tuple[Int64s, UInt64s]:
    """Return groups and row hashes of a hashed batch."""
    column = batch.column(batch.schema.get_field_index(GROUP))
    return column.to_numpy(zero_copy_only=False), hashes_of(batch)


@dataclass(frozen=True)
class HashRows:
    """Adds the row hash and the group to record batches.

    The columns ``HASH`` and ``GROUP`` behind the others.

    Without ``with_columns`` the two are all that comes back.
    """

    rule: SplitRule
    key: tuple[str, ...]
    seed: int
    with_columns: bool = True

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the hashed batch."""
        hashes = row_hash(batch, columns=self.key, seed=self.seed)
        groups = group_of_rows(batch, rule=self.rule, hashes=hashes, seed=self.seed)
        arrays, names = [pa.array(to_sortable(hashes)), pa.array(groups)], [HASH, GROUP]
        if self.with_columns:
            arrays, names = [*batch.columns, *arrays], [*batch.schema.names, *names]
        return pa.RecordBatch.from_arrays(arrays, names=names)


@dataclass(frozen=True)
class Chained:
    """Functions over batches, one after the other.

    Rows cross from the engine and back once, not twice.
    """

    functions: tuple[BatchFunction, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what the functions make of a batch."""
        for function in self.functions:
            batch = function(batch)
        return batch


@dataclass(frozen=True)
class MappedAccumulator(Accumulator[Any, Any]):
    """An accumulator over what a function makes of batches."""

    function: BatchFunction
    accumulator: Accumulator[Any, Any]
    threads: int = _COUNTING_THREADS

    def start(self) -> Any:
        """Return the accumulator's empty state."""
        return self.accumulator.start()

    def update(self, state: Any, batch: pa.RecordBatch) -> Any:
        """Add what the function makes of a batch."""
        return self.accumulator.update(state, self.function(batch))

    def merge(self, left: Any, right: Any) -> Any:
        """Merge two states of the accumulator."""
        return self.accumulator.merge(left, right)

    def finish(self, state: Any) -> Any:
        """Return what the accumulator gives."""
        return self.accumulator.finish(state)


@dataclass(frozen=True)
class HashedRows:
    """Rows with hash and group. ``function`` adds them to the batches of ``source``.

    None: ``source`` holds them.
    """

    source: Relation
    function: HashRows | None
    request: ExportRequest

    def relation(self, engine: Engine) -> Relation:
        """Return all columns, hash and group."""
        if self.function is None:
            return self.source
        schema = pa.schema([*self.request.schema, *HASH_COLUMNS])
        return engine.map_batches(self.source, self.function, schema=schema)

    def aggregate(
        self,
        engine: Engine,
        accumulator: Accumulator[State, Result],
        *,
        columns: Sequence[str] = (),
        function: BatchFunction | None = None,
    ) -> Result:
        """Return what an accumulator makes of hash, group and some columns.

        ``function`` changes the batches first.
        """
        functions: list[BatchFunction] = []
        if self.function is not None:
            functions.append(replace(self.function, with_columns=bool(columns)))
        if function is not None:
            functions.append(function)
        mapped = MappedAccumulator(Chained(tuple(functions)), accumulator)
        result: Result = engine.aggregate(self._narrow(engine, columns), mapped)
        return result

    def mapped(self, engine: Engine, function: BatchFunction, *, schema: pa.Schema) -> Relation:
        """Return what a function makes of all columns, hash and group."""
        if self.function is not None:
            function = Chained((self.function, function))
        return engine.map_batches(self.source, function, schema=schema)

    def _narrow(self, engine: Engine, columns: Iterable[str]) -> Relation:
        """Return the source with the columns that a pass needs."""
        needed = {HASH, GROUP, *columns}
        if self.function is not None:
            needed = {*self.request.key, *self.request.rule.columns, *columns}
        names = [name for name in self.source.schema.names if name in needed]
        return engine.select(self.source, dict(zip(names, names, strict=True)))


def hash_rows(
    engine: Engine,
    relation: Relation,
    request: ExportRequest,
    *,
    plan: FeaturePlan | None,
    directory: str,
) -> HashedRows:
    """Return the rows with hash and group, to be read several times.

    Where the engine can hold them in memory, it does. Else computed rows are staged as Parquet in
    ``directory``, and the rows of one pinned group are read anew: that takes less than writing and
    reading them.
    """
    hashed = HashedRows(relation, HashRows(request.rule, request.key, request.seed), request)
    given = rows = hashed.relation(engine)
    if isinstance(engine, HoldsRows):
        rows = engine.hold(given)
        if rows is not given and not rows.single_use:
            return HashedRows(rows, None, request)
    is_pinned_group = plan is not None and plan.left_source is not None and not plan.joins
    if is_pinned_group and not relation.single_use:
        return hashed
    return HashedRows(engine.stage(rows, directory), None, request)
