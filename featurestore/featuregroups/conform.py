"""Conforming: how the columns of a batch become those of a group, by name and without loss.

Types that do not hold all values of the group's are fitted value by value (``model.fitting``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.errors import InvalidArgument, SchemaMismatch, listing
from featurestore.featuregroups.widening import with_value
from featurestore.model.arrays import UNEQUAL_SHAPES_HINT
from featurestore.model.arrow_cast import cast_batch
from featurestore.model.cast_lines import cast_line
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.fitting import Misfit, can_fit, cast_exactly
from featurestore.model.shapes import describe, shape_of
from featurestore.model.types import is_nested, widens, wider_decimal
from featurestore.model.untyped import refuse_untyped, typing_lines
from featurestore.plugins.engine import Engine, Relation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NEXT_VERSION = "make the next version of the group with create_featuregroup(...)"


@dataclass(frozen=True)
class Conformed:
    """Rows that have exactly the columns of the group, with those that it gains by this write."""

    relation: Relation
    spec: FeatureGroupSpec
    added: tuple[pa.Field, ...] = ()
    unchecked: bool = False
    """Whether values decide if the rows can be written: reading them may raise."""


@dataclass(frozen=True)
class Fit:
    """Gives record batches the types of a group; runs where the rows are.

    ``group`` and ``library`` are what messages name: the group, the kind of the dataframe.
    ``way_out`` ends their hints. ``can_widen``: the write may ask for more digits of decimals.
    """

    schema: pa.Schema
    group: str
    library: str
    way_out: str = _NEXT_VERSION
    can_widen: bool = False

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the types of ``schema``.

        Raises:
            SchemaMismatch: A value does not fit; names the first of its column.
        """
        columns = []
        for field in self.schema:
            columns.append(self._fitted(batch.column(field.name), field))
        return cast_batch(pa.RecordBatch.from_arrays(columns, self.schema.names), self.schema)

    def _fitted(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if widens(column.type, field.type):
            return column  # cast with the batch
        try:
            return cast_exactly(column, field.type)
        except Misfit as misfit:
            raise SchemaMismatch(
                f"The rows do not fit {self.group}: {field.name!r} is {describe(column.type)} "
                f"where the group has {describe(field.type)}, and {misfit}.",
                hint=self._way_out(column.type, field, misfit),
            ) from misfit

    def _way_out(self, given: pa.DataType, field: pa.Field, misfit: Misfit) -> str:
        if misfit.value is None:
            return UNEQUAL_SHAPES_HINT
        line = cast_line(self.library, field.name, given, field.type)
        way_out = self.way_out
        wider = wider_decimal(given, field.type)
        if wider is not None and way_out == _NEXT_VERSION:
            types = f"dtypes={{{field.name!r}: 'decimal({wider.precision}, {wider.scale})'}}"
            way_out = f"make the next version of the group with create_featuregroup(..., {types})"
        ways = [line or "cast the column", way_out]
        if self.can_widen and with_value(misfit.value, field.type) is not None:
            ways.insert(0, "schema_change='add' widens the column")
        return ", or ".join(ways)


def conform(
    relation: Relation,
    spec: FeatureGroupSpec,
    *,
    engine: Engine,
    schema_change: str | None,
    library: str = "pandas",
    beside: Sequence[pa.Field] = (),
) -> Conformed:
    """Return the rows with the columns of the group, in its order and types.

    ``library`` is the kind of the dataframe that the rows come from, whose words hints use.
    ``beside`` are columns that the rows have and keep, and that the group does not get.

    Raises:
        SchemaMismatch: Lists every column that is missing, unknown or of a type that does not fit.
    """
    if schema_change not in (None, "add"):
        raise InvalidArgument(
            f"schema_change={schema_change!r} is not known.", hint="schema_change='add', or None"
        )
    apart = {field.name for field in beside}
    given = pa.schema([field for field in relation.schema if field.name not in apart])
    added = check_columns(given, spec, schema_change=schema_change, library=library)
    wider = spec.with_columns(added)
    schema = pa.schema([*wider.schema, *beside])
    if relation.schema.names != schema.names:
        relation = engine.select(relation, {name: name for name in schema.names})
    unchecked = not all(map(widens, relation.schema.types, schema.types))
    if not _equal(relation.schema, schema):
        fit = Fit(schema, _title(spec), library, can_widen=schema_change is None)
        relation = engine.map_batches(relation, fit, schema=schema)
    return Conformed(relation, wider, tuple(added), unchecked)


def check_columns(
    given: pa.Schema,
    spec: FeatureGroupSpec,
    *,
    schema_change: str | None,
    library: str = "pandas",
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
        unknown = [f"{field.name!r} ({describe(field.type)})" for field in new]
        problems.append(f"unknown: {', '.join(unknown)}")
    if problems:
        only_new = refused and len(problems) == 1
        raise SchemaMismatch(
            f"The rows do not fit {_title(spec)}: {'; '.join(problems)}.",
            hint=_way_out(problems, _casts(given, held, library), only_new=only_new),
        )
    refuse_untyped(pa.schema(new), what="The dataframe", hint=partial(_typing, library))
    return [field.with_nullable(True) for field in new]


def _typing(language: str, columns: pa.Schema) -> str:
    """Return what gives new columns without values a type."""
    lines = typing_lines(language, columns)
    return lines or f"leave {listing(columns.names)} out until a row has a value there"


def _unfitting(given: pa.Schema, held: Mapping[str, pa.DataType]) -> list[str]:
    """Say which columns of the group the rows lack, or have with types that do not fit."""
    types = {field.name: field.type for field in given}
    problems, absent = [], []
    for name, wanted in held.items():
        kind = types.get(name)
        if kind is None:
            absent.append(name)
        elif not can_fit(kind, wanted):
            problems.append(f"{name!r} is {describe(kind)} where the group has {describe(wanted)}")
    if absent:
        problems.append(f"missing: {listing(absent)}")
    return problems


def _casts(given: pa.Schema, held: Mapping[str, pa.DataType], library: str) -> list[str]:
    """Return the lines that cast the columns whose types do not fit."""
    lines = []
    for field in given:
        wanted = held.get(field.name)
        if wanted is None or can_fit(field.type, wanted):
            continue
        if shape_of(wanted):
            is_array = is_nested(field.type)
            lines.append(
                UNEQUAL_SHAPES_HINT if is_array else f"give arrays of shape {shape_of(wanted)}"
            )
            continue
        line = cast_line(library, field.name, field.type, wanted)
        if line is not None:
            lines.append(line)
    return lines


def _title(spec: FeatureGroupSpec) -> str:
    return f"feature group {spec.name!r} version {spec.version}"


def _way_out(problems: Sequence[str], casts: Sequence[str], *, only_new: bool) -> str:
    if only_new:
        return "schema_change='add' lets new nullable columns in"
    if all(problem.startswith("missing") for problem in problems):
        return "columns match by name; give a column of nulls where values are unknown"
    return f"{'; '.join(casts) or 'cast the columns'}, or {_NEXT_VERSION}"


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
