"""Rows with their hash and group, readable as often as an export needs them, and no more columns than a pass needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from featurestore.hashing import row_hash
from featurestore.model.plan import FeaturePlan
from featurestore.plugins.engine import Accumulator, BatchFunction, Engine, Relation
from featurestore.training.export.boundaries import GROUP, HASH, to_sortable
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.split_rules import SplitRule, group_of_rows

State = TypeVar("State")
Result = TypeVar("Result")

HASHED = pa.schema([(HASH, pa.int64()), (GROUP, pa.int64())])
_COUNTING_THREADS = 2


@dataclass(frozen=True)
class Prepare:
    """Adds row hash and group to record batches."""

    rule: SplitRule
    key: tuple[str, ...]
    seed: int

    keep: bool = True

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns ``HASH`` and ``GROUP``, behind those of the batch if ``keep``."""
        hashes = row_hash(batch, columns=self.key, seed=self.seed)
        groups = group_of_rows(batch, rule=self.rule, hashes=hashes, seed=self.seed)
        arrays, names = [pa.array(to_sortable(hashes)), pa.array(groups)], [HASH, GROUP]
        if self.keep:
            arrays, names = [*batch.columns, *arrays], [*batch.schema.names, *names]
        return pa.RecordBatch.from_arrays(arrays, names=names)


@dataclass(frozen=True)
class Then:
    """Two functions over batches in one: rows cross from the engine and back once, not twice."""

    first: BatchFunction
    second: BatchFunction

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what the second makes of what the first makes."""
        return self.second(self.first(batch))


@dataclass(frozen=True)
class AccumulateMapped(Accumulator[Any, Any]):
    """An accumulator over what a function makes of batches."""

    function: BatchFunction | None
    accumulator: Accumulator[Any, Any]
    threads: int = _COUNTING_THREADS

    def start(self) -> Any:
        """Return the accumulator's empty state."""
        return self.accumulator.start()

    def update(self, state: Any, batch: pa.RecordBatch) -> Any:
        """Add what the function makes of a batch."""
        return self.accumulator.update(
            state, batch if self.function is None else self.function(batch)
        )

    def merge(self, left: Any, right: Any) -> Any:
        """Merge two states of the accumulator."""
        return self.accumulator.merge(left, right)

    def finish(self, state: Any) -> Any:
        """Return what the accumulator gives."""
        return self.accumulator.finish(state)


@dataclass(frozen=True)
class Prepared:
    """Rows with hash and group. ``function`` adds them to the batches of ``source``; None: ``source`` holds them."""

    source: Relation
    function: Prepare | None
    request: ExportRequest

    def rows(self, engine: Engine) -> Relation:
        """Return all columns, hash and group."""
        if self.function is None:
            return self.source
        return engine.map_batches(
            self.source, self.function, schema=pa.schema([*self.request.schema, *HASHED])
        )

    def aggregate(
        self,
        engine: Engine,
        accumulator: Accumulator[State, Result],
        *,
        columns: Iterable[str] = (),
        then: BatchFunction | None = None,
    ) -> Result:
        """Return what an accumulator makes of hash, group and some columns, changed by ``then``."""
        wanted = tuple(columns)
        steps: list[BatchFunction] = []
        if self.function is not None:
            steps.append(replace(self.function, keep=bool(wanted)))
        if then is not None:
            steps.append(then)
        function = None if not steps else steps[0] if len(steps) == 1 else Then(*steps)
        found: Result = engine.aggregate(
            self._narrow(engine, wanted), AccumulateMapped(function, accumulator)
        )
        return found

    def mapped(self, engine: Engine, function: BatchFunction, *, schema: pa.Schema) -> Relation:
        """Return what a function makes of all columns, hash and group."""
        chained = function if self.function is None else Then(self.function, function)
        return engine.map_batches(self.source, chained, schema=schema)

    def _narrow(self, engine: Engine, columns: Iterable[str]) -> Relation:
        deciding = (
            (HASH, GROUP)
            if self.function is None
            else (*self.request.key, *self.request.rule.columns)
        )
        needed = {*columns, *deciding}
        return engine.select(
            self.source, {name: name for name in self.source.schema.names if name in needed}
        )


def prepare(
    engine: Engine,
    relation: Relation,
    request: ExportRequest,
    *,
    plan: FeaturePlan | None,
    directory: str,
) -> Prepared:
    """Return the rows with hash and group.

    Computed rows are kept as Parquet in ``directory``. The rows of one pinned group are read anew instead: that takes
    less than writing and reading them.
    """
    fresh = Prepared(relation, Prepare(request.rule, request.key, request.seed), request)
    if relation.single_use or plan is None or plan.left_source is None or plan.joins:
        return Prepared(engine.stage(fresh.rows(engine), directory), None, request)
    return fresh
