"""Rows with their hash and group, readable as often as an export needs them.

A pass reads no more columns than it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from featurestore.arrow.arrow_cast import cast_batch
from featurestore.hashing import row_hash
from featurestore.model.plan import FeaturePlan
from featurestore.plugins.engine import Accumulator, BatchFunction, Engine, HoldsRows, Relation
from featurestore.training.export.engine_hashes import hashed_by_engine
from featurestore.training.export.hash_columns import GROUP, HASH, HASH_COLUMNS, to_sortable
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.split_rules import SplitRule, group_of_rows

State = TypeVar("State")
Result = TypeVar("Result")
_COUNTING_THREADS = 2


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

    None: ``source`` holds them. ``by_engine``: they are what the engine's own functions made of the
    rows, so it has these functions for what follows. ``given`` are the rows before that where the
    engine hashes them anew in each pass: a pass of Python's takes them and hashes them itself.
    """

    source: Relation
    function: HashRows | None
    request: ExportRequest
    by_engine: bool = False
    given: Relation | None = None

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
        threads: int = _COUNTING_THREADS,
    ) -> Result:
        """Return what an accumulator makes of hash, group and some columns.

        ``function`` changes the batches first.
        """
        rows = self
        if self.given is not None:
            rows = HashedRows(self.given, _hashing(self.request), self.request)
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
        """Return what functions make of hash and group alone: the same columns of other rows."""
        chained = [function for function in functions if function is not None]
        if self.function is not None:
            chained.insert(0, replace(self.function, with_columns=False))
        rows = self._narrow(engine, ())
        return engine.map_batches(rows, Chained(tuple(chained)), schema=HASH_COLUMNS)

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
    """Return the rows with hash and group, to be read several times.

    Where the engine can hold them in memory, it does. Else computed rows are staged as Parquet in
    ``directory``, and the rows of one pinned group are read anew: that takes less than writing and
    reading them.
    """
    is_pinned_group = plan is not None and plan.left_source is not None and not plan.joins
    by_engine = hashed_by_engine(engine, relation, request)
    if by_engine is not None:
        if is_pinned_group:
            return HashedRows(by_engine, None, request, by_engine=True, given=relation)
        staged = engine.stage(by_engine, directory)
        return HashedRows(staged, None, request, by_engine=True)
    hashed = HashedRows(relation, _hashing(request), request)
    given = rows = hashed.relation(engine)
    if isinstance(engine, HoldsRows):
        rows = engine.hold(given)
        if rows is not given and not rows.single_use:
            return HashedRows(rows, None, request)
    if is_pinned_group and not relation.single_use:
        return hashed
    return HashedRows(engine.stage(rows, directory), None, request)


def _hashing(request: ExportRequest) -> HashRows:
    return HashRows(request.rule, request.key, request.seed)
