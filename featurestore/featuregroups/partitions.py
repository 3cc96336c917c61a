"""Partition columns.

An empty text cannot name a folder (Delta reads it back as null), so it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import InvalidArgument
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Accumulator, Engine, Relation


@dataclass(frozen=True)
class RefuseEmpty:
    """Passes batches through and raises at an empty text in one of the columns.

    Runs where the rows are.
    """

    columns: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        empty = _first_empty(batch, self.columns)
        if empty is not None:
            raise _empty(empty)
        return batch


@dataclass(frozen=True)
class HasEmpty(Accumulator[str | None, str | None]):
    """The first column with an empty text, or None.

    As an accumulator, for rows that can be read twice.
    """

    columns: tuple[str, ...]

    def start(self) -> str | None:
        return None

    def update(self, state: str | None, batch: pa.RecordBatch) -> str | None:
        if state is not None:
            return state
        return _first_empty(batch, self.columns)

    def merge(self, left: str | None, right: str | None) -> str | None:
        return left or right

    def finish(self, state: str | None) -> str | None:
        return state


def refuse_empty(relation: Relation, spec: FeatureGroupSpec, *, engine: Engine) -> Relation:
    """Return the rows, which fail at an empty text in a partition column while they are written."""
    texts = _texts(spec)
    if not texts:
        return relation
    return engine.map_batches(relation, RefuseEmpty(texts), schema=relation.schema)


def check_staged(relation: Relation, spec: FeatureGroupSpec, *, engine: Engine) -> None:
    """Refuse staged rows with an empty text in a partition column."""
    texts = _texts(spec)
    if not texts:
        return
    selected = engine.select(relation, {name: name for name in texts})
    empty = engine.aggregate(selected, HasEmpty(texts))
    if empty is not None:
        raise _empty(empty)


def _texts(spec: FeatureGroupSpec) -> tuple[str, ...]:
    return tuple(name for name in spec.partition_by if pat.is_string(spec.schema.field(name).type))


def _first_empty(batch: pa.RecordBatch, columns: tuple[str, ...]) -> str | None:
    """Return the first of the columns in which a batch has an empty text."""
    for name in columns:
        values = batch.column(batch.schema.get_field_index(name))
        if pc.any(pc.equal(values, "")).as_py():
            return name
    return None


def _empty(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"The partition column {name!r} has empty texts, which Delta would read back as null.",
        hint=f"give them a name, for example 'none', or leave {name!r} out of partition_by",
    )
