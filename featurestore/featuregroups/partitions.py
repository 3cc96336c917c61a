"""Partition columns: an empty text cannot name a folder (Delta reads it back as null), so it is refused."""

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
    """Passes batches through and raises at an empty text in one of the columns; runs where the rows are."""

    columns: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self.columns:
            if pc.any(pc.equal(batch.column(batch.schema.get_field_index(name)), "")).as_py():
                raise _empty(name)
        return batch


@dataclass(frozen=True)
class HasEmpty(Accumulator[str | None, str | None]):
    """The first column with an empty text, or None; as an accumulator, for rows that can be read twice."""

    columns: tuple[str, ...]

    def start(self) -> str | None:
        return None

    def update(self, state: str | None, batch: pa.RecordBatch) -> str | None:
        for name in self.columns:
            if (
                state is None
                and pc.any(pc.equal(batch.column(batch.schema.get_field_index(name)), "")).as_py()
            ):
                return name
        return state

    def merge(self, left: str | None, right: str | None) -> str | None:
        return left or right

    def finish(self, state: str | None) -> str | None:
        return state


def refuse_empty(relation: Relation, spec: FeatureGroupSpec, *, engine: Engine) -> Relation:
    """Return the rows, which now fail at an empty text in a partition column while they are written."""
    texts = _texts(spec)
    return (
        engine.map_batches(relation, RefuseEmpty(texts), schema=relation.schema)
        if texts
        else relation
    )


def check_staged(relation: Relation, spec: FeatureGroupSpec, *, engine: Engine) -> None:
    """Refuse staged rows with an empty text in a partition column."""
    texts = _texts(spec)
    if not texts:
        return
    found = engine.aggregate(
        engine.select(relation, {name: name for name in texts}), HasEmpty(texts)
    )
    if found is not None:
        raise _empty(found)


def _texts(spec: FeatureGroupSpec) -> tuple[str, ...]:
    return tuple(name for name in spec.partition_by if pat.is_string(spec.schema.field(name).type))


def _empty(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"The partition column {name!r} has empty texts, which Delta would read back as null.",
        hint=f"give them a name, for example 'none', or leave {name!r} out of partition_by",
    )
