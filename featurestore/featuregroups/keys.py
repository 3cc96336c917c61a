"""Keys: duplicates inside one batch, and whether keys stay unique in the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.delta import commits
from featurestore.errors import DuplicateKeys
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Accumulator, Engine, Relation

_EXAMPLES = 5


def refuse_duplicates(relation: Relation, spec: FeatureGroupSpec, *, engine: Engine) -> None:
    """Refuse rows that hold a key more than once, with examples."""
    found, examples = engine.duplicates(relation, spec.upsert_key, limit=_EXAMPLES)
    if found:
        raise DuplicateKeys(
            f"{found} keys ({', '.join(spec.upsert_key)}) occur more than once in the rows for {spec.name!r}, "
            f"for example {'; '.join(_example(each) for each in examples)}.",
            hint="on_duplicates='last' keeps the last row of each key",
        )


def claim(
    engine: Engine, relation: Relation, group: OpenGroup, mode: str, *, unique_batch: bool | None
) -> dict[str, Any]:
    """Return what the commit may claim about the uniqueness of (primary key, event time, created time).

    A claim is made only where it is cheap to prove: see ``featurestore.delta.commits`` for what each one means, and
    for what is noted of the version that the writer saw.
    """
    seen = commits.seen_by_writer(group.path, group.delta_version)
    return {**seen, **_claim(engine, relation, group, mode, unique_batch=unique_batch)}


def _claim(
    engine: Engine, relation: Relation, group: OpenGroup, mode: str, *, unique_batch: bool | None
) -> dict[str, Any]:
    spec = group.spec
    if not spec.primary_key or unique_batch is not True:
        return {"unique": False} if unique_batch is False else {}
    if mode == "upsert":
        return {"unique": "kept"}
    if mode == "overwrite":
        return {"unique": True}
    if mode != "append":
        return {}
    base = {"unique": "kept_after"}
    if group.state.rows == 0:
        return base
    return base if _is_later(engine, relation, group) else {}


def _is_later(engine: Engine, relation: Relation, group: OpenGroup) -> bool:
    """Tell whether every row of the batch is later than every row of the table."""
    column = group.spec.event_time
    bounds = None if column is None else group.state.bounds(column)
    last = None if bounds is None else bounds.greatest()
    if column is None or last is None:
        return False
    first = engine.aggregate(engine.select(relation, {column: column}), Least(column))
    if first == _NO_ROWS:
        return True
    return first is not None and first > last


@dataclass(frozen=True)
class Least(Accumulator[Any, Any]):
    """The least time of a column, as ``featurestore.delta.bounds`` counts it; None where one is missing."""

    column: str

    def start(self) -> Any:
        return _NO_ROWS

    def update(self, state: Any, batch: pa.RecordBatch) -> Any:
        if batch.num_rows == 0:
            return state
        values = batch.column(batch.schema.get_field_index(self.column))
        if values.null_count:
            return self.merge(state, None)
        counted = values.cast(pa.int32() if pat.is_date(values.type) else pa.int64())
        return self.merge(state, pc.min(counted).as_py())

    def merge(self, left: Any, right: Any) -> Any:
        if left == _NO_ROWS:
            return right
        if right == _NO_ROWS:
            return left
        return None if left is None or right is None else min(left, right)

    def finish(self, state: Any) -> Any:
        return state


_NO_ROWS = "no rows"


def _example(values: dict[str, Any]) -> str:
    count = values.get("n")
    key = ", ".join(f"{name}={value!r}" for name, value in values.items() if name != "n")
    return f"({key}) {count} times" if count is not None else f"({key})"
