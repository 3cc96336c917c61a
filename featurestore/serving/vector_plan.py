"""The plan of a vector: the columns of an entity, the values to read, and the computations.

The plan follows the retrieval plan of the view, so that columns, order and types of a vector are
those of ``view.get_features``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore import usersql
from featurestore.arrow.bounds import contains_times
from featurestore.arrow.frames import array_from_values
from featurestore.arrow.types import feature_schema, is_exact
from featurestore.arrow.unstorable import is_missing
from featurestore.arrow.values import ConversionError, Convert, from_json, value_converter
from featurestore.errors import InvalidArgument, find_similar_names, listing
from featurestore.model.feature_view import FeatureViewSpec, ViewStep
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import parse_group_reference
from featurestore.model.plan import FeaturePlan, Join, OnDemandOutput, Output
from featurestore.model.requests import RowsRequest
from featurestore.model.times import utc_now
from featurestore.plugins.engine import RowsFunction
from featurestore.retrieval.catalog import RegisteredSpecs
from featurestore.retrieval.execution import micros_to_times
from featurestore.retrieval.resolve import equal_key, find_spec, is_whole_number, join_key_types
from featurestore.retrieval.view_rows import label_group_types, retrieve_rows
from featurestore.serving.vectors import check_entity
from featurestore.session import Session

# Texts of whole numbers that no decimal key has.
_ANY_INTEGER = pa.decimal256(76, 0)
# By the number of a row: a key without an equal in the type of its column, and what depends on it.
UnmatchedKeys = Mapping[int, set[str]]
_UNMATCHED = object()


@dataclass(frozen=True)
class GroupRead:
    """The value of one group for an entity.

    ``key_columns`` are the columns with the key, in primary-key order; ``outputs`` are the columns
    of the group and their names in the vector. ``number`` is the position among all reads.
    """

    number: int
    spec: FeatureGroupSpec
    key_columns: tuple[str, ...]
    outputs: tuple[Output, ...]

    @property
    def group(self) -> tuple[str, int]:
        """The name and version of the group."""
        return self.spec.name, self.spec.version


@dataclass(frozen=True)
class Computation:
    """On-demand features that one query computes from the columns ``inputs``.

    ``inputs_by_name`` has the inputs of each feature. ``function`` returns the features ``times``
    as microseconds since 1970.
    """

    inputs: tuple[str, ...]
    names: tuple[str, ...]
    function: RowsFunction
    times: tuple[OnDemandOutput, ...]
    inputs_by_name: Mapping[str, tuple[str, ...]]

    def add_to(self, rows: Sequence[dict[str, Any]], unmatched: UnmatchedKeys) -> None:
        """Add the features to rows of their inputs; those of unmatched keys are null.

        Raises:
            OutOfRange: A time is outside of the years 1 to 9999; names its column.
        """
        columns = [[row[name] for row in rows] for name in self.inputs]
        for row, values in zip(rows, self.function(columns, len(rows)), strict=True):
            row.update(zip(self.names, values, strict=True))
        for output in self.times:
            times = micros_to_times([row[output.name] for row in rows], output)
            for row, time in zip(rows, times, strict=True):
                row[output.name] = time
        for number, names in unmatched.items():
            for name in self.names:
                # The key is null here, which the feature must not replace by another value.
                if not names.isdisjoint(self.inputs_by_name[name]):
                    rows[number][name] = None
                    names.add(name)


@dataclass(frozen=True)
class VectorStage:
    """One round trip: first the computations, then the reads, whose keys may depend on them."""

    computations: tuple[Computation, ...]
    reads: tuple[GroupRead, ...]


@dataclass(frozen=True)
class VectorPlan:
    """The steps from an entity to the values of its columns.

    ``schema`` has the types of all columns: those of the entity and all features. ``features`` are
    the columns of the vector, in the order of the view.
    """

    stages: tuple[VectorStage, ...]
    schema: pa.Schema
    features: tuple[str, ...]

    @property
    def reads(self) -> tuple[GroupRead, ...]:
        """The reads of all stages."""
        return tuple([read for stage in self.stages for read in stage.reads])

    @property
    def typed_columns(self) -> dict[str, pa.DataType]:
        """The columns of the entity and of published values, whose values have their types."""
        computed = {
            name
            for stage in self.stages
            for computation in stage.computations
            for name in computation.names
        }
        return {field.name: field.type for field in self.schema if field.name not in computed}


@dataclass(frozen=True)
class EntityColumns:
    """The columns that an entity must have.

    ``types`` has their types. The type None is that of the value of a request: neither the view nor
    a group determines it. ``key_types`` has the types of the keys that are joined with a column.
    ``key_inputs`` are the keys that are also inputs of a computation or a model.
    """

    types: Mapping[str, pa.DataType | None]
    key_types: Mapping[str, tuple[pa.DataType, ...]]
    key_inputs: frozenset[str]

    def parse_json(self, entity: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the JSON values of an entity to values of its columns.

        A value without an equal is returned as it is; the parser of entities refuses it.
        """
        return {name: self._parse_value(name, value) for name, value in entity.items()}

    def _parse_value(self, name: str, value: Any) -> Any:
        declared = self.types.get(name)
        if declared is None:
            return value
        key_types = self.key_types.get(name, ())
        number_type = [_ANY_INTEGER] if any(map(pat.is_decimal, key_types)) else []
        for dtype in (declared, *key_types, *number_type):
            try:
                return from_json(value, dtype)
            except ConversionError:
                continue
        return value


def entity_columns(
    session: Session, spec: FeatureViewSpec, more: Mapping[str, pa.DataType]
) -> EntityColumns:
    """Return the columns that an entity must have.

    These are the join keys, the inputs of on-demand features, and the columns ``more``, except
    those that the view provides.
    """
    registered = RegisteredSpecs(session)
    label_types = label_group_types(spec, registered)
    needed: dict[str, pa.DataType | None] = {}
    keys: dict[str, dict[pa.DataType, None]] = {}
    inputs = {name.lower() for name in more}
    # Columns in SQL expressions are matched without case.
    available: set[str] = set()
    for step in spec.steps:
        for column, kinds in _key_types(step, available, label_types, registered).items():
            if column.lower() not in available:
                needed.setdefault(column, label_types.get(column, kinds[0]))
                keys.setdefault(column, {}).update(dict.fromkeys(kinds))
        available.update(feature.name.lower() for feature in step.features)
        available.update(feature.name.lower() for feature in step.on_demand)
        for feature in step.on_demand:
            for column in usersql.expression_columns(feature.sql):
                inputs.add(column.lower())
                name = _match_name(column, [*needed, *label_types, *more])
                if name.lower() not in available and name not in needed:
                    needed[name] = label_types.get(name, more.get(name))
    for name, dtype in more.items():
        if name.lower() not in available:
            needed.setdefault(name, dtype)
    key_types = {name: tuple(kinds) for name, kinds in keys.items()}
    key_inputs = frozenset([name for name in keys if name.lower() in inputs])
    return EntityColumns(needed, key_types, key_inputs)


def label_time_column(session: Session, spec: FeatureViewSpec) -> str | None:
    """Return the column with the time of the labels of a view, if it has one."""
    if spec.label_time is not None or spec.labels is None:
        return spec.label_time
    name, version = parse_group_reference(spec.labels)
    return find_spec(name, version=version, specs=RegisteredSpecs(session)).event_time


def _key_types(
    step: ViewStep,
    available: Iterable[str],
    label_types: Mapping[str, pa.DataType],
    registered: RegisteredSpecs,
) -> dict[str, tuple[pa.DataType, ...]]:
    """Return the columns that a step joins on, with the types of the keys."""
    groups = dict.fromkeys([(feature.group, feature.version) for feature in step.features])
    specs = [find_spec(name, version=version, specs=registered) for name, version in groups]
    candidates = {*available, *label_types, *_names_in(step.join_key)}
    for group in specs:
        candidates.update(group.primary_key)
        # In ``join_key``, the name of a group is not that of a column.
        if group.name not in label_types:
            candidates.discard(group.name)
    columns = pa.schema([pa.field(name, pa.null()) for name in sorted(candidates)])
    return join_key_types(columns, specs, step.join_key)


def _names_in(join_key: Any) -> list[str]:
    """Return all names in a stored ``join_key``."""
    if isinstance(join_key, Mapping):
        return [*join_key, *[name for value in join_key.values() for name in _names_in(value)]]
    if isinstance(join_key, str):
        return [join_key]
    return list(join_key or ())


def _match_name(column: str, names: Iterable[str]) -> str:
    """Return the name that equals a column of an expression without case, or the column."""
    return next((name for name in names if name.lower() == column.lower()), column)


def plan_vector(session: Session, spec: FeatureViewSpec, entity: pa.Schema) -> VectorPlan:
    """Return the plan for entities with these columns; only definitions and logs are read.

    Raises:
        FeatureViewBroken: A group no longer has a feature of the view.
        InvalidSql: An on-demand feature does not support the types of its inputs.
    """
    request = RowsRequest(labels=entity.empty_table(), label_time=utc_now())
    frame = retrieve_rows(session, spec, request)
    steps: list[FeaturePlan] = []
    plan = frame.plan
    while plan is not None:
        steps.insert(0, plan)
        plan = plan.left_plan
    builder = _PlanBuilder(session, entity)
    for step in steps:
        for join in step.joins:
            builder.add_read(join)
        if step.on_demand:
            builder.add_computation(step.on_demand, step.left_schema)
    features = [name for name in frame.columns if name not in entity.names]
    return VectorPlan(builder.stages(), frame.schema, tuple(features))


class _PlanBuilder:
    """Assigns reads and computations to stages.

    The level of a column is the number of round trips after which it is available.
    """

    def __init__(self, session: Session, entity: pa.Schema) -> None:
        self._session = session
        self._levels = dict.fromkeys(entity.names, 0)
        self._reads: list[tuple[int, GroupRead]] = []
        self._computations: list[tuple[int, Computation]] = []

    def add_read(self, join: Join) -> None:
        """Add the read of a joined group."""
        spec = join.source.spec
        left_columns = {key: column for column, key in join.on}
        if set(left_columns) != set(spec.primary_key):
            raise InvalidArgument(
                f"Feature group {spec.name!r} version {spec.version} has no primary key, so its "
                "values cannot be read by key.",
                hint=f"create its next version with primary_key={list(left_columns)!r}",
            )
        key_columns = tuple([left_columns[key] for key in spec.primary_key])
        level = max([self._levels[column] for column in key_columns])
        self._reads.append((level, GroupRead(len(self._reads), spec, key_columns, join.outputs)))
        self._levels.update(dict.fromkeys([output.name for output in join.outputs], level + 1))

    def add_computation(self, outputs: Sequence[OnDemandOutput], schema: pa.Schema) -> None:
        """Add the on-demand features of a step."""
        inputs_by_name: dict[str, tuple[str, ...]] = {}
        expressions, fields, times = [], [], []
        for output in outputs:
            sql, _ = usersql.column_expression(
                output.feature.sql, schema=schema, dialect=usersql.DIALECT
            )
            field = pa.field(output.name, output.kind)
            if contains_times(output.kind):
                # Python has no times beyond the years 1 to 9999, which must be refused by name.
                midnight = f"CAST({sql} AS TIMESTAMP)" if pat.is_date(output.kind) else sql
                sql, field = f"epoch_us({midnight})", field.with_type(pa.int64())
                times.append(output)
            expressions.append(sql)
            fields.append(field)
            columns = usersql.expression_columns(output.feature.sql)
            inputs_by_name[output.name] = tuple(
                [_match_name(column, schema.names) for column in columns]
            )
        inputs = dict.fromkeys(chain.from_iterable(inputs_by_name.values()))
        function = self._session.engine.prepare_rows(
            expressions,
            inputs=pa.schema([schema.field(name) for name in inputs]),
            kinds=pa.schema(fields),
        )
        names = tuple([output.name for output in outputs])
        level = max([0, *[self._levels[column] for column in inputs]])
        computation = Computation(tuple(inputs), names, function, tuple(times), inputs_by_name)
        self._computations.append((level, computation))
        self._levels.update(dict.fromkeys(names, level))

    def stages(self) -> tuple[VectorStage, ...]:
        """Return the stages in order."""
        levels = [level for level, _ in (*self._reads, *self._computations)]
        return tuple(
            [
                VectorStage(
                    tuple(
                        [computation for level, computation in self._computations if level == stage]
                    ),
                    tuple([read for level, read in self._reads if level == stage]),
                )
                for stage in range(max(levels) + 1)
            ]
        )


class EntityParser:
    """Converts entities to rows of Python values, one for each column of a schema.

    A value is converted as by a write to a column of its type. The value of a key also may have the
    type of any joined key, or be a whole number that no key has. ``time_column`` is the label time
    of the view; an entity without it gets the current time.
    """

    def __init__(
        self, schema: pa.Schema, *, view: str, time_column: str | None, columns: EntityColumns
    ) -> None:
        self._view = view
        self._time_column = time_column if time_column in schema.names else None
        self._names = tuple([name for name in schema.names if name != self._time_column])
        self._key_inputs = tuple([name for name in schema.names if name in columns.key_inputs])
        self._converters = [(field.name, _entity_converter(field, columns)) for field in schema]
        self._types = dict(zip(schema.names, schema.types, strict=True))

    def parse(
        self, entities: Sequence[Mapping[str, Any]], now: Callable[[], datetime]
    ) -> tuple[list[dict[str, Any]], UnmatchedKeys]:
        """Return the values of entities in the types of their columns.

        A key that is also an input is null if it has no equal in the type of its column.

        Raises:
            InvalidArgument: A column is missing, or a value has another type.
        """
        rows = [self._parse(entity, now) for entity in entities]
        unmatched: dict[int, set[str]] = {}
        for name in self._key_inputs:
            for number, row in enumerate(rows):
                if row[name] is _UNMATCHED:
                    row[name] = None
                    unmatched.setdefault(number, set()).add(name)
        return rows, unmatched

    def _parse(self, entity: Mapping[str, Any], now: Callable[[], datetime]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        value: Any = None
        try:
            for name, convert in self._converters:
                value = entity[name]
                row[name] = None if value is None else convert(value)
        except KeyError:
            if self._time_column is not None and self._time_column not in entity:
                return self._parse({**entity, self._time_column: now()}, now)
            raise missing_column_error(name, entity, self._names, view=self._view) from None
        except TypeError:  # not a mapping
            check_entity(entity, self._names)
            raise
        except ConversionError as error:
            if value is not None and is_missing(value):  # pandas' NA, or NaN as a key
                return self._parse({**entity, name: None}, now)
            raise InvalidArgument(
                f"{name!r}: {value!r} is not a value of the type {self._types[name]}.",
                hint=f"the columns of an entity of feature view {self._view!r}: "
                f"{listing([f'{each}: {kind}' for each, kind in self._types.items()])}",
            ) from error
        return row


def missing_column_error(
    name: str, entity: Mapping[str, Any], names: Sequence[str], *, view: str
) -> InvalidArgument:
    """Return the error for an entity without one of its columns."""
    hint = f"get_vector({{{name!r}: ...}})"
    similar_names = find_similar_names(
        name, [column for column in map(str, entity) if column not in names]
    )
    if similar_names:
        hint = f"rename {similar_names[0]!r} to {name!r}"
    return InvalidArgument(
        f"The entity has no {name!r}. Feature view {view!r} requires {listing(names)}; the entity "
        f"has {listing(list(map(str, entity)))}.",
        hint=hint,
    )


def infer_type(values: Sequence[Any], *, name: str) -> pa.DataType:
    """Return the type of request values that neither the view nor a group determines.

    It is the type that the same values have in the labels of ``view.get_features``.
    """
    inferred = array_from_values(values, name=name).type
    return feature_schema(pa.schema([(name, inferred)])).field(0).type


def _entity_converter(field: pa.Field, columns: EntityColumns) -> Convert:
    """Return the conversion of a value of an entity.

    The value of a key that is also an input becomes ``_UNMATCHED`` if it has no equal in the type.
    """
    convert = value_converter(field.type)
    key_types = columns.key_types.get(field.name, ())
    is_number = any(map(is_exact, key_types))
    is_input = field.name in columns.key_inputs

    def convert_key(value: Any) -> Any:
        try:
            return convert(value)
        except ConversionError:
            for key_type in key_types:
                key = equal_key(value, key_type)
                if key is not None:
                    return _UNMATCHED if is_input and key_type != field.type else key
            if is_number and is_whole_number(value):
                return _UNMATCHED if is_input else None
            raise

    return convert_key if key_types else convert
