"""Rows with their hash and group, for repeated passes that read only the columns they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from featurestore.arrow.casts import cast_batch
from featurestore.hashing import row_hash
from featurestore.model.plan import FeaturePlan
from featurestore.plugins.engine import Accumulator, BatchFunction, Engine, HoldsRows, Relation
from featurestore.training.export.engine_hashes import engine_hashed_rows
from featurestore.training.export.hash_columns import GROUP, HASH, HASH_COLUMNS, to_sortable
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.split_rules import SplitRule, assign_groups

State = TypeVar("State")
Result = TypeVar("Result")
_COUNTING_THREADS = 2


@dataclass(frozen=True)
class HashRows:
    """Appends the columns ``HASH`` and ``GROUP`` to record batches.

    Without ``with_columns`` it returns only these two columns.
    """

    rule: SplitRule
    key: tuple[str, ...]
    seed: int
    with_columns: bool = True

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the hashed batch."""
        hashes = row_hash(batch, columns=self.key, seed=self.seed)
        groups = assign_groups(batch, rule=self.rule, hashes=hashes, seed=self.seed)
        arrays, names = [pa.array(to_sortable(hashes)), pa.array(groups)], [HASH, GROUP]
        if self.with_columns:
            arrays, names = [*batch.columns, *arrays], [*batch.schema.names, *names]
        return pa.RecordBatch.from_arrays(arrays, names=names)


@dataclass(frozen=True)
class Chained:
    """A chain of functions over batches, so that rows leave the engine once for all of them."""

    functions: tuple[BatchFunction, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Apply the functions to a batch."""
        for function in self.functions:
            batch = function(batch)
        return batch


@dataclass(frozen=True)
class MappedAccumulator(Accumulator[Any, Any]):
    """An accumulator over the output of a function."""

    function: BatchFunction
    accumulator: Accumulator[Any, Any]
    threads: int = _COUNTING_THREADS

    def start(self) -> Any:
        """Return the accumulator's empty state."""
        return self.accumulator.start()

    def update(self, state: Any, batch: pa.RecordBatch) -> Any:
        """Update the accumulator with the function's output for a batch."""
        return self.accumulator.update(state, self.function(batch))

    def merge(self, state: Any, other_state: Any) -> Any:
        """Merge two states of the accumulator."""
        return self.accumulator.merge(state, other_state)

    def finish(self, state: Any) -> Any:
        """Return the result of the accumulator."""
        return self.accumulator.finish(state)


@dataclass(frozen=True)
class HashedRows:
    """Rows with hash and group.

    ``function`` adds both to the batches of ``source``; None means that ``source`` contains them.
    ``by_engine``: the engine's own functions computed them, so later steps may use these functions
    too. ``unhashed`` are the original rows if the engine would hash them again in each pass: passes
    in Python read these and hash them in Python.
    """

    source: Relation
    function: HashRows | None
    request: ExportRequest
    by_engine: bool = False
    unhashed: Relation | None = None

    def relation(self, engine: Engine) -> Relation:
        """Return all columns with hash and group."""
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
        threads: int = _COUNTING_THREADS,
    ) -> Result:
        """Aggregate hash, group and some columns; ``function`` is applied to the batches first."""
        rows = self
        if self.unhashed is not None:
            rows = HashedRows(self.unhashed, _hash_function(self.request), self.request)
        narrow = rows._narrow(engine, columns)
        functions: list[BatchFunction] = []
        if rows.function is not None:
            functions.append(replace(rows.function, with_columns=bool(columns)))
            if columns:
                fields = [self.request.schema.field(name) for name in narrow.schema.names]
                functions.append(partial(cast_batch, schema=pa.schema([*fields, *HASH_COLUMNS])))
        if function is not None:
            functions.append(function)
        mapped = MappedAccumulator(Chained(tuple(functions)), accumulator, threads)
        result: Result = engine.aggregate(narrow, mapped)
        return result

    def hashes(self, engine: Engine, *functions: BatchFunction | None) -> Relation:
        """Apply functions to hash and group only; they return the same two columns."""
        chained = [function for function in functions if function is not None]
        if self.function is not None:
            chained.insert(0, replace(self.function, with_columns=False))
        rows = self._narrow(engine, ())
        return engine.map_batches(rows, Chained(tuple(chained)), schema=HASH_COLUMNS)

    def mapped(self, engine: Engine, function: BatchFunction, *, schema: pa.Schema) -> Relation:
        """Apply a function to all columns with hash and group."""
        if self.function is not None:
            function = Chained((self.function, function))
        return engine.map_batches(self.source, function, schema=schema)

    def _narrow(self, engine: Engine, columns: Iterable[str]) -> Relation:
        """Return the source with the columns that a pass needs."""
        needed = {HASH, GROUP, *columns}
        if self.function is not None:
            needed = {*self.request.key, *self.request.rule.columns, *columns}
        names = [name for name in self.source.schema.names if name in needed]
        if names == self.source.schema.names:
            return self.source
        return engine.select(self.source, dict(zip(names, names, strict=True)))


def hash_rows(
    engine: Engine,
    relation: Relation,
    request: ExportRequest,
    *,
    plan: FeaturePlan | None,
    directory: str,
) -> HashedRows:
    """Return the rows with hash and group, for several passes.

    An engine that supports it keeps them in memory. Otherwise computed rows are staged as Parquet
    in ``directory``; the rows of one pinned group are read again in each pass, which is cheaper
    than staging them.
    """
    is_pinned_group = plan is not None and plan.left_source is not None and not plan.joins
    engine_rows = engine_hashed_rows(engine, relation, request)
    if engine_rows is not None:
        if is_pinned_group:
            return HashedRows(engine_rows, None, request, by_engine=True, unhashed=relation)
        staged = engine.stage(engine_rows, directory)
        return HashedRows(staged, None, request, by_engine=True)
    hashed = HashedRows(relation, _hash_function(request), request)
    hashed_relation = rows = hashed.relation(engine)
    if isinstance(engine, HoldsRows):
        rows = engine.hold(hashed_relation)
        if rows is not hashed_relation and not rows.single_use:
            return HashedRows(rows, None, request)
    if is_pinned_group and not relation.single_use:
        return hashed
    return HashedRows(engine.stage(rows, directory), None, request)


def _hash_function(request: ExportRequest) -> HashRows:
    return HashRows(request.rule, request.key, request.seed)
