"""Conforming: how the columns of a batch become those of a group, by name and without loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.errors import InvalidArgument, SchemaMismatch, listing
from featurestore.model.arrow_cast import cast_batch
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.types import widens
from featurestore.plugins.engine import Engine, Relation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Conformed:
    """Rows that have exactly the columns of the group, with those that it gains by this write."""

    relation: Relation
    spec: FeatureGroupSpec
    added: tuple[pa.Field, ...] = ()


@dataclass(frozen=True)
class Cast:
    """Casts record batches to a schema; runs where the rows are."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return cast_batch(batch, self.schema)


def conform(
    relation: Relation, spec: FeatureGroupSpec, *, engine: Engine, schema_change: str | None
) -> Conformed:
    """Return the rows with the columns of the group, in its order and types.

    Raises:
        SchemaMismatch: Lists every column that is missing, unknown or of a type that does not fit.
    """
    if schema_change not in (None, "add"):
        raise InvalidArgument(
            f"schema_change={schema_change!r} is not known.", hint="schema_change='add', or None"
        )
    added = check_columns(relation.schema, spec, schema_change=schema_change)
    wider = spec.with_columns(added)
    if relation.schema.names != wider.schema.names:
        relation = engine.select(relation, {name: name for name in wider.schema.names})
    if not _equal(relation.schema, wider.schema):
        relation = engine.map_batches(relation, Cast(wider.schema), schema=wider.schema)
    return Conformed(relation, wider, tuple(added))


def check_columns(
    given: pa.Schema, spec: FeatureGroupSpec, *, schema_change: str | None
) -> list[pa.Field]:
    """Return the columns that are new, which ``schema_change="add"`` allows.

    Raises:
        SchemaMismatch: Lists every column that is missing, unknown or of a type that does not fit.
    """
    held = {field.name: field.type for field in spec.schema}
    new = [field for field in given if field.name not in held]
    problems = _unfitting(given, held)
    twins = _twins(new, spec.schema.names)
    refused = bool(new) and schema_change is None and not twins
    if twins:
        problems.append(f"new columns differ from existing ones only in case: {', '.join(twins)}")
    elif refused:
        unknown = [f"{field.name!r} ({field.type})" for field in new]
        problems.append(f"unknown: {', '.join(unknown)}")
    if problems:
        only_new = refused and len(problems) == 1
        raise SchemaMismatch(
            f"The rows do not fit feature group {spec.name!r} version {spec.version}: "
            f"{'; '.join(problems)}.",
            hint=_way_out(problems, only_new=only_new),
        )
    return [field.with_nullable(True) for field in new]


def _unfitting(given: pa.Schema, held: Mapping[str, pa.DataType]) -> list[str]:
    """Say which columns of the group the rows lack, or have with types that do not fit."""
    types = {field.name: field.type for field in given}
    problems, absent = [], []
    for name, wanted in held.items():
        kind = types.get(name)
        if kind is None:
            absent.append(name)
        elif not widens(kind, wanted):
            problems.append(f"{name!r} is {kind} where the group has {wanted}")
    if absent:
        problems.append(f"missing: {listing(absent)}")
    return problems


def _way_out(problems: Sequence[str], *, only_new: bool) -> str:
    if only_new:
        return "schema_change='add' lets new nullable columns in"
    if all(problem.startswith("missing") for problem in problems):
        return "columns match by name; give a column of nulls where values are unknown"
    return "cast the columns, or make a new version of the group with create_featuregroup(...)"


def _twins(new: Sequence[pa.Field], names: Sequence[str]) -> list[str]:
    """Return the pairs of a new column and one whose name differs in case only, as texts."""
    folded = {name.lower(): name for name in names}
    pairs = []
    for field in new:
        twin = folded.get(field.name.lower())
        if twin is not None:
            pairs.append(f"{field.name!r} and {twin!r}")
    return pairs


def _equal(left: pa.Schema, right: pa.Schema) -> bool:
    if left.names != right.names:
        return False
    # Equality of nested types overlooks the names of list items, which later readers would see.
    return list(map(str, left.types)) == list(map(str, right.types))
