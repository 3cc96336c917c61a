"""SQL jobs: the query of one window, and of many at once where that gives the same rows.

A query over a chunk of neighbouring windows sees the inputs of all of them, and ``$window_start`` and ``$window_end``
are the chunk's. For many queries that gives the same rows as window by window, and takes a small part of the time.
``may_take_many`` is a rule on the text that lets through only queries whose rows cannot mix windows by their form:
one SELECT, no subqueries, window functions, limits or set operations; parameters only as outer bounds; where rows are
grouped, the event time is among the keys. What the form cannot tell (an event time of another hour than its rows) is
found out by computing some windows alone and comparing; see ``compute``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore import sql
from featurestore.hashing import row_hash
from featurestore.model.arrow_rows import rows_at
from featurestore.model.job import JobSpec
from featurestore.model.types import TIMESTAMP
from featurestore.model.window import Window
from featurestore.plugins.engine import Accumulator, Engine, Relation, TimeRange

if TYPE_CHECKING:
    from sqlglot import exp

_START, _END = "window_start", "window_end"
# Sums of floats depend on the order of their rows, which differs between a window alone and among others.
_FLOATS_AGREE = 1e-9


@dataclass(frozen=True)
class Query:
    """The query of a job on an engine."""

    spec: JobSpec
    engine: Engine

    def run(self, inputs: Mapping[str, Relation], window: Window) -> Relation:
        """Return the rows of a window from inputs that are cut already."""
        tables = list(inputs)
        text = _transpiled(self.spec.code, tuple(tables), self.engine.dialect)
        used = set(re.findall(r"\$([A-Za-z_][A-Za-z0-9_]*)", self.spec.code))
        bound = {_START: window.start, _END: window.end}
        return self.engine.user_sql(
            text, tables=inputs, parameters={name: bound[name] for name in bound if name in used}
        )


@lru_cache(maxsize=256)
def _transpiled(code: str, tables: tuple[str, ...], dialect: str) -> str:
    return sql.query(code, tables=tables, dialect=dialect)


@lru_cache(maxsize=256)
def parsed(code: str) -> exp.Expr:
    """Return the tree of a query, which nobody may change."""
    import sqlglot

    return sqlglot.parse_one(code, dialect=sql.DIALECT)


def may_take_many(spec: JobSpec, *, times: Sequence[str]) -> bool:
    """Tell whether a query has a form for which many windows at once give the rows of each.

    Args:
        spec: The job.
        times: The columns by which its inputs are cut; rows of two such inputs could meet across windows.
    """
    from sqlglot import exp

    tree = parsed(spec.code)
    mixing = (exp.Subquery, exp.CTE, exp.Window, exp.Limit, exp.Offset, exp.Distinct, exp.Qualify)
    if (
        spec.lookback
        or len(times) != 1
        or not isinstance(tree, exp.Select)
        or tree.find(*mixing) is not None
    ):
        return False
    if sum(1 for _ in tree.find_all(exp.Select)) != 1 or not _are_outer_bounds(tree, times[0]):
        return False
    if tree.find(exp.Anonymous) is not None:  # what it does is not known: it may aggregate
        return False
    time = next((each for each in tree.expressions if each.alias_or_name == spec.event_time), None)
    if time is None or any(each.is_star for each in tree.expressions):
        return False
    grouped = tree.args.get("group")
    if grouped is None:
        return tree.find(exp.AggFunc) is None
    return _is_key(time, grouped, tree)


def _is_key(time: exp.Expr, grouped: exp.Expr, tree: exp.Select) -> bool:
    """Tell whether rows are grouped by the event time, by name, position or expression; or by everything."""
    from sqlglot import exp

    if grouped.args.get("all"):
        return time.find(exp.AggFunc) is None
    position = str(tree.expressions.index(time) + 1)
    return any(
        each == time.unalias()
        or (isinstance(each, exp.Column) and not each.table and each.name == time.alias_or_name)
        or (isinstance(each, exp.Literal) and each.name == position)
        for each in grouped.expressions
    )


def _are_outer_bounds(tree: exp.Select, time: str) -> bool:
    """Tell whether parameters only bound the time of the input: the start from below, the end from above."""
    from sqlglot import exp

    bounds = {exp.GT: _START, exp.GTE: _START, exp.LT: _END, exp.LTE: _END}
    parameters = [node for node in tree.walk() if isinstance(node, exp.Parameter | exp.Placeholder)]
    outermost = [each for each in parameters if not isinstance(each.parent, exp.Parameter)]
    return all(
        bounds.get(type(each.parent)) == each.name  # type: ignore[arg-type]
        and each.arg_key == "expression"
        and each.parent is not None
        and isinstance(each.parent.this, exp.Column)
        and each.parent.this.name.lower() == time.lower()
        for each in outermost
    )


@dataclass(frozen=True)
class Digest:
    """What rows come to: their number, the sum of hashes of exact columns, the sums of float columns."""

    rows: int = 0
    hashed: int = 0
    floats: tuple[float, ...] = ()

    def agrees(self, other: Digest) -> bool:
        """Tell whether two digests are of the same rows, floats up to rounding."""
        if (self.rows, self.hashed) != (other.rows, other.hashed):
            return False
        pairs = zip(self.floats, other.floats, strict=bool(self.rows))
        return all(
            math.isclose(a, b, rel_tol=_FLOATS_AGREE, abs_tol=_FLOATS_AGREE) for a, b in pairs
        )


@dataclass(frozen=True)
class DigestAccumulator(Accumulator[Digest, Digest]):
    """Accumulates the digest of rows of any order."""

    def start(self) -> Digest:
        """Return the digest of no rows."""
        return Digest()

    def update(self, state: Digest, batch: pa.RecordBatch) -> Digest:
        """Add the rows of a batch."""
        if not batch.num_rows:
            return state
        floating = [field.name for field in batch.schema if pat.is_floating(field.type)]
        exact = [name for name in batch.schema.names if name not in floating]
        hashes: Any = row_hash(batch, columns=exact) if exact else np.zeros(1, dtype=np.uint64)
        sums: list[float] = []
        for name in floating:
            values = batch.column(batch.schema.get_field_index(name))
            plain: Any = pc.drop_null(values).to_numpy()
            sums += [
                float(np.nansum(plain)),
                float(values.null_count),
                float(np.isnan(plain).sum()),
            ]
        return self.merge(
            state, Digest(batch.num_rows, int(hashes.sum(dtype=np.uint64)), tuple(sums))
        )

    def merge(self, left: Digest, right: Digest) -> Digest:
        """Return the digest of both."""
        if not left.rows or not right.rows:
            return left if left.rows else right
        floats = tuple(a + b for a, b in zip(left.floats, right.floats, strict=True))
        return Digest(left.rows + right.rows, (left.hashed + right.hashed) % 2**64, floats)

    def finish(self, state: Digest) -> Digest:
        """Return the digest."""
        return state


@dataclass(frozen=True)
class PartsAccumulator(Accumulator[list[Digest], list[Digest]]):
    """Accumulates the digests of some ranges of the time of rows, in one pass."""

    ranges: tuple[TimeRange, ...]

    def start(self) -> list[Digest]:
        """Return the digests of no rows."""
        return [Digest() for _ in self.ranges]

    def update(self, state: list[Digest], batch: pa.RecordBatch) -> list[Digest]:
        """Add the rows of a batch to the ranges in which they lie."""
        accumulator = DigestAccumulator()
        pairs = zip(state, self.ranges, strict=True)
        return [
            accumulator.update(digest, rows_at(batch, pc.indices_nonzero(_inside(batch, wanted))))
            for digest, wanted in pairs
        ]

    def merge(self, left: list[Digest], right: list[Digest]) -> list[Digest]:
        """Return the digests of both."""
        return [DigestAccumulator().merge(*both) for both in zip(left, right, strict=True)]

    def finish(self, state: list[Digest]) -> list[Digest]:
        """Return the digest of each range."""
        return state


def _inside(batch: pa.RecordBatch, wanted: TimeRange) -> pa.Array:
    values = pc.cast(batch.column(batch.schema.get_field_index(wanted.column)), TIMESTAMP)
    start, end = (pa.scalar(side, TIMESTAMP) for side in (wanted.start, wanted.end))
    if wanted.closed == "right":
        return pc.and_(pc.greater(values, start), pc.less_equal(values, end))
    return pc.and_(pc.greater_equal(values, start), pc.less(values, end))
