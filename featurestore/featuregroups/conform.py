"""Conforming: the columns of a batch become those of a group, by name and without loss.

Types that do not fit in general are converted value by value (``arrow.fitting``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.arrow.arrays import UNEQUAL_SHAPES_HINT
from featurestore.arrow.cast_lines import cast_line
from featurestore.arrow.casts import cast_batch
from featurestore.arrow.fitting import (
    InexactValueError,
    can_fit,
    can_widen,
    cast_exactly,
    wider_decimal,
)
from featurestore.arrow.types import array_shape, describe, is_nested
from featurestore.arrow.untyped import format_typing_lines, refuse_untyped
from featurestore.errors import InvalidArgument, SchemaMismatch, listing
from featurestore.featuregroups.schema_change import with_value
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Engine, Relation
from featurestore.statistics import StatisticsState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NEXT_VERSION = "make the next version of the group with create_featuregroup(...)"


@dataclass(frozen=True)
class Batch:
    """The rows of one write on their way to the commit.

    Attributes:
        relation: The rows, with exactly the columns of ``spec``.
        spec: The definition of the group, with the new columns of this write.
        added: The new columns.
        unchecked: Whether the rows may have unsupported values: reading them may raise.
        report: The report of the audit; None without one.
        quarantined: The rows that failed the audit, with their reasons.
        unique: Whether the keys are unique and without nulls; None: not known.
        statistics_state: The statistics of the rows, if they were counted during staging.
        mode: The mode of the commit if it is not that of the write.
        deletes: The keys of stored rows that the same commit deletes.
    """

    relation: Relation
    spec: FeatureGroupSpec
    added: tuple[pa.Field, ...] = ()
    unchecked: bool = False
    report: ValidationReport | None = None
    quarantined: Relation | None = None
    unique: bool | None = None
    statistics_state: StatisticsState | None = None
    mode: str | None = None
    deletes: Relation | None = None

    @property
    def outcome(self) -> str | None:
        """The outcome for the commit: "passed", "warned" or "quarantined"; None without an audit."""
        if self.report is None:
            return None
        if self.quarantined is not None:
            return "quarantined"
        return "passed" if self.report.success else "warned"


@dataclass(frozen=True)
class Fit:
    """The step that converts record batches to the types of a group; runs on the engine's workers.

    Messages name ``group`` and use code of ``library``; ``fallback_hint`` ends their hints.
    ``can_widen``: the write may widen decimals with ``schema_change="add"``.
    """

    schema: pa.Schema
    group: str
    library: str
    fallback_hint: str = _NEXT_VERSION
    can_widen: bool = False

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the types of ``schema``.

        Raises:
            SchemaMismatch: A value does not fit; names the first of its column.
        """
        columns = [self._fitted(batch.column(field.name), field) for field in self.schema]
        return cast_batch(pa.RecordBatch.from_arrays(columns, self.schema.names), self.schema)

    def _fitted(self, column: pa.Array, field: pa.Field) -> pa.Array:
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
        if misfit.value is None:
            return UNEQUAL_SHAPES_HINT
        line = cast_line(self.library, field.name, batch_type, field.type)
        fallback = self.fallback_hint
        wider = wider_decimal(batch_type, field.type)
        if wider is not None and fallback == _NEXT_VERSION:
            types = f"dtypes={{{field.name!r}: 'decimal({wider.precision}, {wider.scale})'}}"
            fallback = f"make the next version of the group with create_featuregroup(..., {types})"
        suggestions = [line or "cast the column", fallback]
        if self.can_widen and with_value(misfit.value, field.type) is not None:
            suggestions.insert(0, "schema_change='add' widens the column")
        return ", or ".join(suggestions)


def conform(
    relation: Relation,
    spec: FeatureGroupSpec,
    *,
    engine: Engine,
    schema_change: str | None,
    library: str = "pandas",
    extra_columns: Sequence[pa.Field] = (),
) -> Batch:
    """Return the rows with the columns of the group, in its order and types.

    ``library`` is the dataframe library of the rows, for the code in hints. ``extra_columns`` stay
    in the rows, but do not become columns of the group.

    Raises:
        SchemaMismatch: Lists every column that is missing, unknown or of a type that does not fit.
    """
    if schema_change not in (None, "add"):
        raise InvalidArgument(
            f"schema_change={schema_change!r} is not known.", hint="schema_change='add', or None"
        )
    extra_names = {field.name for field in extra_columns}
    batch_schema = pa.schema([field for field in relation.schema if field.name not in extra_names])
    added = check_columns(batch_schema, spec, schema_change=schema_change, library=library)
    wider = spec.with_columns(added)
    schema = pa.schema([*wider.schema, *extra_columns])
    if relation.schema.names != schema.names:
        relation = engine.select(relation, {name: name for name in schema.names})
    unchecked = not all(map(can_widen, relation.schema.types, schema.types))
    if not _equal(relation.schema, schema):
        fit = Fit(schema, _title(spec), library, can_widen=schema_change is None)
        relation = engine.map_batches(relation, fit, schema=schema)
    return Batch(relation, wider, tuple(added), unchecked)


def check_columns(
    batch_schema: pa.Schema,
    spec: FeatureGroupSpec,
    *,
    schema_change: str | None,
    library: str = "pandas",
) -> list[pa.Field]:
    """Return the new columns, which ``schema_change="add"`` allows.

    Raises:
        SchemaMismatch: Lists every column that is missing, unknown or of a type that does not fit.
    """
    column_types = {field.name: field.type for field in spec.schema}
    new_columns = [field for field in batch_schema if field.name not in column_types]
    problems = _column_problems(batch_schema, column_types)
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
            f"The rows do not fit {_title(spec)}: {'; '.join(problems)}.",
            hint=_columns_hint(
                problems, _casts(batch_schema, column_types, library), only_new=only_new
            ),
        )
    refuse_untyped(
        pa.schema(new_columns), subject="The dataframe", hint=partial(_typing_hint, library)
    )
    return [field.with_nullable(True) for field in new_columns]


def _typing_hint(language: str, columns: pa.Schema) -> str:
    """Return the code that types new columns without values."""
    lines = format_typing_lines(language, columns)
    return lines or f"leave {listing(columns.names)} out until a row has a value there"


def _column_problems(batch_schema: pa.Schema, column_types: Mapping[str, pa.DataType]) -> list[str]:
    """Return a text for each column that is missing or has a type that does not fit."""
    types = {field.name: field.type for field in batch_schema}
    problems, missing_names = [], []
    for name, column_type in column_types.items():
        kind = types.get(name)
        if kind is None:
            missing_names.append(name)
        elif not can_fit(kind, column_type):
            problems.append(
                f"{name!r} is {describe(kind)} where the group has {describe(column_type)}"
            )
    if missing_names:
        problems.append(f"missing: {listing(missing_names)}")
    return problems


def _casts(
    batch_schema: pa.Schema, column_types: Mapping[str, pa.DataType], library: str
) -> list[str]:
    """Return the lines that cast the columns whose types do not fit."""
    lines = []
    for field in batch_schema:
        column_type = column_types.get(field.name)
        if column_type is None or can_fit(field.type, column_type):
            continue
        if array_shape(column_type):
            is_array = is_nested(field.type)
            lines.append(
                UNEQUAL_SHAPES_HINT
                if is_array
                else f"give arrays of shape {array_shape(column_type)}"
            )
            continue
        line = cast_line(library, field.name, field.type, column_type)
        if line is not None:
            lines.append(line)
    return lines


def _title(spec: FeatureGroupSpec) -> str:
    return f"feature group {spec.name!r} version {spec.version}"


def _columns_hint(problems: Sequence[str], casts: Sequence[str], *, only_new: bool) -> str:
    if only_new:
        return "schema_change='add' lets new nullable columns in"
    if all(problem.startswith("missing") for problem in problems):
        return "columns match by name; give a column of nulls where values are unknown"
    return f"{'; '.join(casts) or 'cast the columns'}, or {_NEXT_VERSION}"


def _case_conflicts(new_columns: Sequence[pa.Field], names: Sequence[str]) -> list[str]:
    """Return the pairs of a new and an existing column that differ only in case, as text."""
    names_by_lower_case = {name.lower(): name for name in names}
    pairs = []
    for field in new_columns:
        existing_name = names_by_lower_case.get(field.name.lower())
        if existing_name is not None:
            pairs.append(f"{field.name!r} and {existing_name!r}")
    return pairs


def _equal(first: pa.Schema, second: pa.Schema) -> bool:
    if first.names != second.names:
        return False
    # Equality of nested types ignores the names of list items, but later readers see them.
    return list(map(str, first.types)) == list(map(str, second.types))
