"""Uniqueness of keys: duplicates inside one batch, and claims about the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import DuplicateKeys
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Accumulator, Engine, Relation

_EXAMPLES = 5


def refuse_duplicates(relation: Relation, spec: FeatureGroupSpec, *, engine: Engine) -> None:
    """Refuse rows with duplicate keys, with examples."""
    count, examples = engine.duplicates(relation, spec.upsert_key, limit=_EXAMPLES)
    if count:
        shown = "; ".join(_example(each) for each in examples)
        raise DuplicateKeys(
            f"{count} keys ({', '.join(spec.upsert_key)}) occur more than once in the rows for "
            f"{spec.name!r}, for example {shown}.",
            hint="on_duplicates='last' keeps the last row of each key",
        )


def claim(
    engine: Engine, relation: Relation, group: OpenGroup, mode: str, *, unique_batch: bool | None
) -> dict[str, Any]:
    """Return the commit's claim about the uniqueness of primary key and times.

    A claim is made only where it is cheap to prove; ``featurestore.delta.commits`` describes the
    claims, and the metadata of the version that the writer saw.
    """
    return {
        **group.seen_by_writer(),
        **_claim_for_mode(engine, relation, group, mode, unique_batch=unique_batch),
    }


def _claim_for_mode(
    engine: Engine, relation: Relation, group: OpenGroup, mode: str, *, unique_batch: bool | None
) -> dict[str, Any]:
    if unique_batch is False:
        return {"unique": False}
    if unique_batch is None or not group.spec.primary_key:
        return {}
    if mode == "upsert":
        return {"unique": "kept"}
    if mode == "overwrite":
        return {"unique": True}
    if mode == "append" and (group.state.rows == 0 or _is_later(engine, relation, group)):
        return {"unique": "kept_after"}
    return {}


def _is_later(engine: Engine, relation: Relation, group: OpenGroup) -> bool:
    """Return True if every row of the batch is later than every row of the table."""
    column = group.spec.event_time
    if column is None:
        return False
    bounds = group.state.bounds(column)
    last = None if bounds is None else bounds.maximum()
    if last is None:
        return False
    first = engine.aggregate(engine.select(relation, {column: column}), Earliest(column))
    if first == _NO_ROWS:
        return True
    return first is not None and first > last


@dataclass(frozen=True)
class Earliest(Accumulator[Any, Any]):
    """The minimum of a time column in the unit of ``featurestore.delta.bounds``; None with nulls."""

    column: str

    def start(self) -> Any:
        return _NO_ROWS

    def update(self, state: Any, batch: pa.RecordBatch) -> Any:
        if batch.num_rows == 0:
            return state
        values = batch.column(batch.schema.get_field_index(self.column))
        if values.null_count:
            return self.merge(state, None)
        integer_type = pa.int32() if pat.is_date(values.type) else pa.int64()
        return self.merge(state, pc.min(values.cast(integer_type)).as_py())

    def merge(self, first: Any, second: Any) -> Any:
        if first == _NO_ROWS:
            return second
        if second == _NO_ROWS:
            return first
        if first is None or second is None:
            return None
        return min(first, second)

    def finish(self, state: Any) -> Any:
        return state


_NO_ROWS = "no rows"


def _example(values: dict[str, Any]) -> str:
    key = dict(values)
    count = key.pop("n", None)
    shown = ", ".join(f"{name}={value!r}" for name, value in key.items())
    if count is None:
        return f"({shown})"
    return f"({shown}) {count} times"
