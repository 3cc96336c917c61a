"""Feature group definitions: declarations, declared column types, and comparison of definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.cast_lines import exact_cast_line
from featurestore.arrow.fitting import can_fit
from featurestore.arrow.schemas import parse_type
from featurestore.arrow.types import feature_type, is_nested
from featurestore.delta import iceberg
from featurestore.errors import (
    DefinitionMismatch,
    InvalidArgument,
    UnsupportedType,
    did_you_mean,
    listing,
)
from featurestore.featuregroups.conform import ConvertColumns
from featurestore.model.arguments import as_tuple
from featurestore.model.featuregroup import (
    VALIDATION_POLICIES,
    ExternalRows,
    FeatureGroupSpec,
    check_tags,
)
from featurestore.model.times import format_duration, parse_duration, parse_ttl
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.validator import find_validator

# An Arrow type, or its name such as "decimal(20, 4)".
TypeName: TypeAlias = str | pa.DataType
# The fields that must be equal in two definitions, in addition to the columns.
# Other arguments, such as the description, can differ without a change of the stored rows.
_COMPARED_FIELDS = (
    "primary_key",
    "event_time",
    "created_time",
    "partition_by",
    "ttl",
    "expectations",
)
# Other fields of a definition, whose change needs no other rows.
_OTHER_FIELDS = (
    "validation",
    "statistics",
    "event_time_tolerance",
    "compact",
    "iceberg",
    "external",
)
# The fields whose change requires the next version of a group.
FIXED_FIELDS = (
    "primary_key",
    "event_time",
    "created_time",
    "partition_by",
    "iceberg",
    "external",
)


@dataclass(frozen=True)
class DeclaredTypes:
    """Declared column types by name, and the declared type of all other decimal columns."""

    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    decimal: pa.DataType | None = None

    def schema(self, batch_schema: pa.Schema, *, library: str) -> pa.Schema:
        """Return the schema of a dataframe with the declared types applied.

        Raises:
            InvalidArgument: A name is not a column, or a column cannot be converted to its type.
        """
        for name in self.columns:
            if name not in batch_schema.names:
                raise InvalidArgument(
                    f"Unknown column {name!r} in dtypes=. Available: "
                    f"{listing(batch_schema.names, limit=50)}.",
                    hint=did_you_mean(name, batch_schema.names, write="dtypes={{{!r}: '...'}}"),
                )
        fields = []
        for batch_field in batch_schema:
            column_type = self.columns.get(batch_field.name)
            if column_type is None:
                column_type = self._replace_decimals(batch_field.type)
            if not can_fit(batch_field.type, column_type):
                line = exact_cast_line(library, batch_field.name, batch_field.type, column_type)
                raise InvalidArgument(
                    f"Column {batch_field.name!r} is {batch_field.type}, which dtypes= does not "
                    f"convert to {column_type}: values are never parsed or rounded.",
                    hint=line or f"cast the column {batch_field.name!r}",
                )
            fields.append(batch_field.with_type(column_type))
        return pa.schema(fields)

    def _replace_decimals(self, kind: pa.DataType) -> pa.DataType:
        """Return the type with decimals replaced by the declared decimal type."""
        if self.decimal is None:
            return kind
        if pat.is_decimal(kind):
            return self.decimal
        if is_nested(kind) and not pat.is_struct(kind):
            item = pa.field("item", self._replace_decimals(kind.value_type))
            return pa.list_(item, kind.list_size if pat.is_fixed_size_list(kind) else -1)
        return kind


@dataclass(frozen=True)
class Declaration:
    """The arguments that define a group, without its rows. None means not declared."""

    primary_key: str | Sequence[str] = ()
    event_time: str | None = None
    created_time: str | None = None
    partition_by: str | Sequence[str] = ()
    ttl: timedelta | str | None = None
    expectations: object = None
    validation: str = "strict"
    statistics: bool = True
    description: str = ""
    descriptions: Mapping[str, str] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    job: str | None = None
    event_time_tolerance: timedelta | str | None = None
    compact: str | None = None
    iceberg: bool = False
    external: ExternalRows | None = None
    types: DeclaredTypes = field(default_factory=DeclaredTypes)


def build_spec(
    declared: Declaration, *, name: str, version: int, schema: pa.Schema
) -> FeatureGroupSpec:
    """Return the group definition for a declaration and a dataframe schema."""
    check_validation_policy(declared.validation)
    check_tags(declared.tags)
    check_description(declared.description)
    check_descriptions(declared.descriptions or {}, schema.names)
    tolerance = timedelta(0)
    if declared.event_time_tolerance is not None:
        tolerance = parse_duration(declared.event_time_tolerance, argument="event_time_tolerance")
    if declared.iceberg:
        iceberg.check_schema(schema, as_tuple(declared.partition_by))
    return FeatureGroupSpec(
        name=name,
        version=version,
        schema=schema,
        primary_key=as_tuple(declared.primary_key),
        event_time=declared.event_time,
        created_time=declared.created_time,
        partition_by=_partition_columns(declared, schema),
        ttl=parse_ttl(declared.ttl),
        expectations=normalize_expectations(declared.expectations),
        validation=declared.validation,
        statistics=bool(declared.statistics),
        job=declared.job,
        event_time_tolerance=tolerance,
        compact=declared.compact,
        iceberg=declared.iceberg,
        external=declared.external,
    )


def _partition_columns(declared: Declaration, schema: pa.Schema) -> tuple[str, ...]:
    """Return the declared partition columns, which must have values that can name folders."""
    names = as_tuple(declared.partition_by)
    types = {column.name: column.type for column in schema}
    for name in names:
        kind = types.get(name)
        if kind is not None and (pat.is_binary(kind) or is_nested(kind)):
            raise InvalidArgument(
                f"partition_by={name!r} has type {kind}, whose values cannot be folder names.",
                hint="partition by integers, strings, booleans or dates",
            )
    if names and len(names) == len(schema):
        raise InvalidArgument(
            "partition_by contains every column, so the data files would be empty."
        )
    return names


def check_primary_key(declared: Declaration) -> None:
    """Reject a primary key that contains a time column of the group.

    Key columns are joined by equality, so a row would match only labels of exactly that time.
    """
    key_columns = as_tuple(declared.primary_key)
    times = [name for name in (declared.event_time, declared.created_time) if name in key_columns]
    if not times:
        return
    entity_columns = [name for name in key_columns if name not in times]
    hint = f"primary_key={entity_columns!r}, event_time={declared.event_time!r}"
    if not entity_columns:
        hint = f"primary_key={times!r} without event_time= joins rows with equal {times[0]!r}"
    raise InvalidArgument(
        f"primary_key contains {listing(times)}, a time of the group. Key and times already "
        "identify a row; a time in the key would be joined by equality, not as of the label time.",
        hint=hint,
    )


def normalize_expectations(expectations: object) -> tuple[Mapping[str, Any], ...]:
    """Convert expectations (dicts, objects or a suite) to dicts with "type" and "kwargs"."""
    if expectations is None:
        return ()
    # An empty list requires no validator, which may not be installed.
    if isinstance(expectations, list | tuple) and not expectations:
        return ()
    return find_validator().normalize(expectations)


def check_validation_policy(policy: str | None) -> None:
    """Reject an unknown validation policy; None means the group's policy."""
    if policy is not None and policy not in VALIDATION_POLICIES:
        raise InvalidArgument(
            f"validation={policy!r} is not a validation policy.",
            hint=did_you_mean(policy, VALIDATION_POLICIES, write="validation={!r}")
            or f"one of {', '.join(VALIDATION_POLICIES)}",
        )


def check_description(description: object) -> None:
    """Reject a description that is not a string."""
    if not isinstance(description, str):
        raise InvalidArgument(
            f"description={description!r} is not a string.", hint="description='Hourly weather'"
        )


def check_descriptions(descriptions: object, columns: Sequence[str]) -> dict[str, str]:
    """Check feature descriptions and return them as a dict.

    Raises:
        InvalidArgument: A name is not a column, or a description is not a string.
    """
    if not isinstance(descriptions, Mapping):
        raise InvalidArgument(
            f"descriptions={descriptions!r} is not a dict of strings.",
            hint="descriptions={'temp': 'in F'}",
        )
    for feature, text in descriptions.items():
        if feature not in columns:
            raise InvalidArgument(
                f"Unknown column {feature!r} in descriptions=. Available: "
                f"{listing(columns, limit=50)}.",
                hint=did_you_mean(feature, columns, write="descriptions={{{!r}: '...'}}"),
            )
        if not isinstance(text, str):
            raise InvalidArgument(
                f"The description of {feature!r} is {text!r}, not a string.",
                hint=f"descriptions={{{feature!r}: '...'}}",
            )
    return dict(descriptions)


def check_same_definition(
    declared: Declaration, stored_spec: FeatureGroupSpec, *, batch_schema: pa.Schema
) -> None:
    """Reject a declaration that differs from the stored definition.

    The dataframe must have exactly the columns of the group. Tags, descriptions and the validation
    policy are not compared.

    Raises:
        DefinitionMismatch: The definitions differ; the message lists every difference.
    """
    declared_spec = build_spec(
        declared, name=stored_spec.name, version=stored_spec.version, schema=batch_schema
    )
    compared_fields: tuple[str, ...] = _COMPARED_FIELDS
    if declared.external is not None:
        compared_fields = (*_COMPARED_FIELDS, "external")
    differences = definition_differences(
        stored_spec, declared_spec, declared.types, compared_fields=compared_fields
    )
    if differences:
        hint = "create_featuregroup(...) creates the next version"
        if all(each.startswith(("ttl:", "expectations:")) for each in differences):
            hint = f"update_featuregroup({stored_spec.name!r}, ...) changes the existing version"
        raise DefinitionMismatch(
            f"Feature group {stored_spec.name!r} version {stored_spec.version} has a different "
            f"definition: {'; '.join(differences)}.",
            hint=hint,
        )


def definition_differences(
    stored_spec: FeatureGroupSpec,
    declared_spec: FeatureGroupSpec,
    declared: DeclaredTypes,
    *,
    compared_fields: Sequence[str] = (*_COMPARED_FIELDS, *_OTHER_FIELDS),
) -> list[str]:
    """Describe the differences between two definitions, in the arguments and the columns."""
    differences = []
    for label in compared_fields:
        before, now = getattr(stored_spec, label), getattr(declared_spec, label)
        if before != now:
            differences.append(
                f"{label}: stored {format_value(before)}, declared {format_value(now)}"
            )
    return differences + _column_differences(stored_spec.schema, declared_spec.schema, declared)


def _column_differences(
    stored_schema: pa.Schema, declared_schema: pa.Schema, declared: DeclaredTypes
) -> list[str]:
    """Describe missing, new and retyped columns."""
    types_by_name = {column.name: column.type for column in declared_schema}
    differences = []
    for column in stored_schema:
        kind = types_by_name.pop(column.name, None)
        if kind is None:
            differences.append(f"column {column.name!r} ({column.type}) is missing")
        elif kind != column.type and not _is_undeclared_decimal(kind, column, declared):
            differences.append(f"column {column.name!r}: stored {column.type}, declared {kind}")
    differences += [f"column {name!r} is new" for name in types_by_name]
    return differences


def _is_undeclared_decimal(
    kind: pa.DataType, stored_column: pa.Field, declared: DeclaredTypes
) -> bool:
    """Return True if both types are decimals and the caller declared no type for the column."""
    # Later writes may have widened the stored type, so it may differ from the type of this
    # dataframe.
    if declared.decimal is not None or stored_column.name in declared.columns:
        return False
    return pat.is_decimal(kind) and pat.is_decimal(stored_column.type)


def format_value(value: object) -> str:
    """Format a value of a definition for messages."""
    if isinstance(value, timedelta):
        return repr(format_duration(value))
    if isinstance(value, tuple):
        return repr(list(value))
    return repr(value)


def declared_types(
    dtypes: Mapping[str, TypeName] | None, decimal_type: TypeName | None
) -> DeclaredTypes:
    """Return the types declared by the arguments ``dtypes`` and ``decimal_type``.

    Raises:
        UnsupportedType: A type is unknown or cannot be stored.

    >>> declared_types({"price": "decimal(20, 4)"}, None).columns
    {'price': Decimal128Type(decimal128(20, 4))}
    """
    if not isinstance(dtypes, Mapping | None):
        raise InvalidArgument(
            f"dtypes={dtypes!r} is not a mapping.", hint="dtypes={'price': 'decimal(20, 4)'}"
        )
    columns = {}
    for name, type_name in (dtypes or {}).items():
        columns[name] = _storable_type(
            parse_type(type_name, column=name), f"dtypes={{{name!r}: ...}}"
        )
    decimal = None
    if decimal_type is not None:
        decimal = _storable_type(parse_type(decimal_type, column="decimal_type"), "decimal_type")
        if not pat.is_decimal(decimal):
            raise UnsupportedType(
                f"decimal_type={decimal_type!r} is not a decimal type.",
                hint="decimal_type='decimal(20, 4)'",
            )
    return DeclaredTypes(columns, decimal)


def _storable_type(kind: pa.DataType, argument: str) -> Any:
    """Return the feature type for a declared type, or raise UnsupportedType."""
    stored_type = feature_type(kind)
    if stored_type is None:
        raise UnsupportedType(
            f"{argument}: {kind} cannot be stored.",
            hint="decimals have at most 38 digits; type names are those of Arrow",
        )
    return stored_type


def convert_relation(
    rows: Relation, declared: DeclaredTypes, *, name: str, engine: Engine, library: str
) -> Relation:
    """Convert rows to the declared types; reading raises an error if a value does not fit."""
    schema = declared.schema(rows.schema, library=library)
    if schema == rows.schema:
        return rows
    return engine.map_batches(rows, _type_converter(schema, name), schema=schema)


def convert_reader(
    rows: pa.RecordBatchReader, declared: DeclaredTypes, *, name: str, library: str
) -> pa.RecordBatchReader:
    """Convert a stream to the declared types."""
    schema = declared.schema(rows.schema, library=library)
    if schema == rows.schema:
        return rows
    converter = _type_converter(schema, name)
    return pa.RecordBatchReader.from_batches(schema, map(converter, rows))


def _type_converter(schema: pa.Schema, name: str) -> ConvertColumns:
    title = f"the declared types of feature group {name!r}"
    return ConvertColumns(schema, title, fallback_hint="declare a wider type in dtypes=")
