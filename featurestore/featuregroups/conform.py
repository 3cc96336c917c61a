"""Conversion of rows to the columns of a group, matched by name and without loss.

If a type conversion can lose information, each value is checked (``arrow.exact_casts``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.arrow.arrays import UNEQUAL_SHAPES_HINT
from featurestore.arrow.casts import cast_batch
from featurestore.arrow.exact_casts import InexactValueError, cast_exactly
from featurestore.arrow.fitting import can_fit, can_widen, wider_decimal
from featurestore.arrow.hints import cast_hint, exact_cast_hint
from featurestore.arrow.types import array_shape, describe, is_nested
from featurestore.arrow.untyped import refuse_untyped, typing_hint
from featurestore.errors import InvalidArgument, SchemaMismatch, listing
from featurestore.featuregroups.schema_change import widen_for_value
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Engine, Relation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NEXT_VERSION = "create the next version of the group with create_featuregroup(...)"


@dataclass(frozen=True)
class ConvertColumns:
    """Batch function that converts record batches to the column types of a group.

    The engine calls it in its workers. Error messages name ``group``; hints end with
    ``fallback_hint``. If ``can_widen``, hints suggest
    ``schema_change="add"`` for decimals that are too narrow.
    """

    schema: pa.Schema
    group: str
    fallback_hint: str = _NEXT_VERSION
    can_widen: bool = False

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the types of ``schema``.

        Raises:
            SchemaMismatch: A value does not fit its column; the message names the first one.
        """
        columns = [self._convert_column(batch.column(field.name), field) for field in self.schema]
        return cast_batch(pa.RecordBatch.from_arrays(columns, self.schema.names), self.schema)

    def _convert_column(self, column: pa.Array, field: pa.Field) -> pa.Array:
        """Convert a column, or raise SchemaMismatch if a value does not fit the type."""
        if can_widen(column.type, field.type):
            return column  # cast with the batch
        try:
            return cast_exactly(column, field.type)
        except InexactValueError as misfit:
            raise SchemaMismatch(
                f"The rows do not fit {self.group}: {field.name!r} is {describe(column.type)} "
                f"where the group has {describe(field.type)}, and {misfit}.",
                hint=self._misfit_hint(column.type, field, misfit),
            ) from misfit

    def _misfit_hint(
        self, batch_type: pa.DataType, field: pa.Field, misfit: InexactValueError
    ) -> str:
        """Return a hint with the ways to write a value that does not fit its column."""
        if misfit.value is None:
            return UNEQUAL_SHAPES_HINT
        fallback = self.fallback_hint
        wider = wider_decimal(batch_type, field.type)
        if wider is not None and fallback == _NEXT_VERSION:
            types = f"dtypes={{{field.name!r}: 'decimal({wider.precision}, {wider.scale})'}}"
            fallback = (
                f"create the next version of the group with create_featuregroup(..., {types})"
            )
        # A cast would round or omit the value.
        suggestions = [fallback]
        if self.can_widen and widen_for_value(misfit.value, field.type) is not None:
            suggestions.insert(0, "schema_change='add' widens the column")
        return ", or ".join(suggestions)


def convert_columns(
    relation: Relation,
    schema: pa.Schema,
    spec: FeatureGroupSpec,
    *,
    engine: Engine,
    may_widen: bool,
) -> Relation:
    """Return the rows with exactly the columns of a schema, in its order and types.

    Messages name the group. If ``may_widen``, hints suggest ``schema_change="add"``.
    """
    if relation.schema.names != schema.names:
        relation = engine.select(relation, {name: name for name in schema.names})
    if _is_same_schema(relation.schema, schema):
        return relation
    converter = ConvertColumns(schema, _group_title(spec), can_widen=may_widen)
    return engine.map_batches(relation, converter, schema=schema)


def check_columns(
    batch_schema: pa.Schema,
    spec: FeatureGroupSpec,
    *,
    schema_change: str | None,
) -> list[pa.Field]:
    """Return the new columns of a batch; only ``schema_change="add"`` allows new columns.

    Raises:
        InvalidArgument: ``schema_change`` is unknown.
        SchemaMismatch: Columns are missing or unknown, or have incompatible types; lists all.
    """
    if schema_change not in (None, "add"):
        raise InvalidArgument(
            f"Unknown schema_change={schema_change!r}.", hint="schema_change='add', or None"
        )
    column_types = {field.name: field.type for field in spec.schema}
    new_columns = [field for field in batch_schema if field.name not in column_types]
    problems = _column_problems(batch_schema, column_types)
    # Delta, Spark and DuckDB do not distinguish column names that differ only in case.
    case_conflicts = _case_conflicts(new_columns, spec.schema.names)
    has_unknown_columns = bool(new_columns) and schema_change is None and not case_conflicts
    if case_conflicts:
        problems.append(
            f"new columns differ from existing ones only in case: {', '.join(case_conflicts)}"
        )
    elif has_unknown_columns:
        unknown = [f"{field.name!r} ({describe(field.type)})" for field in new_columns]
        problems.append(f"unknown: {', '.join(unknown)}")
    if problems:
        only_new = has_unknown_columns and len(problems) == 1
        raise SchemaMismatch(
            f"The rows do not fit {_group_title(spec)}: {'; '.join(problems)}.",
            hint=_columns_hint(
                problems, _cast_hints(batch_schema, column_types), only_new=only_new
            ),
        )
    refuse_untyped(
        pa.schema(new_columns),
        subject="The dataframe",
        hint=typing_hint,
    )
    # Existing rows have null in new columns.
    return [field.with_nullable(True) for field in new_columns]


def _column_problems(batch_schema: pa.Schema, column_types: Mapping[str, pa.DataType]) -> list[str]:
    """Describe incompatible types, one message for each column, and missing columns."""
    types = {field.name: field.type for field in batch_schema}
    problems, missing_names = [], []
    for name, column_type in column_types.items():
        batch_type = types.get(name)
        if batch_type is None:
            missing_names.append(name)
        elif not can_fit(batch_type, column_type):
            problems.append(
                f"{name!r} is {describe(batch_type)} where the group has {describe(column_type)}"
            )
    if missing_names:
        problems.append(f"missing: {listing(missing_names)}")
    return problems


def _cast_hints(batch_schema: pa.Schema, column_types: Mapping[str, pa.DataType]) -> list[str]:
    """Return advice for the columns with incompatible types: one line casts all that it can."""
    targets, lines = {}, []
    for field in batch_schema:
        column_type = column_types.get(field.name)
        if column_type is None or can_fit(field.type, column_type):
            continue
        if array_shape(column_type):
            is_array = is_nested(field.type)
            lines.append(
                UNEQUAL_SHAPES_HINT
                if is_array
                else f"use arrays of shape {array_shape(column_type)}"
            )
            continue
        if exact_cast_hint(field.name, field.type, column_type) is not None:
            targets[field.name] = column_type
    return [cast_hint(targets), *lines] if targets else lines


def _group_title(spec: FeatureGroupSpec) -> str:
    return f"feature group {spec.name!r} version {spec.version}"


def _columns_hint(problems: Sequence[str], casts: Sequence[str], *, only_new: bool) -> str:
    if only_new:
        return "schema_change='add' adds new nullable columns"
    if all(problem.startswith("missing") for problem in problems):
        return "columns match by name; add a column of nulls if its values are unknown"
    if not casts:
        return f"cast the columns, or {_NEXT_VERSION}"
    # A line with a comment can be pasted.
    return f"{'; '.join(casts)}  # or {_NEXT_VERSION}"


def _case_conflicts(new_columns: Sequence[pa.Field], names: Sequence[str]) -> list[str]:
    """Describe pairs of a new and an existing column whose names differ only in case."""
    names_by_lower_case = {name.lower(): name for name in names}
    pairs = []
    for field in new_columns:
        existing_name = names_by_lower_case.get(field.name.lower())
        if existing_name is not None:
            pairs.append(f"{field.name!r} and {existing_name!r}")
    return pairs


def _is_same_schema(first: pa.Schema, second: pa.Schema) -> bool:
    if first.names != second.names:
        return False
    # Arrow ignores list item names when it compares types, but readers of the table see them.
    return list(map(str, first.types)) == list(map(str, second.types))
