"""Feature group definitions: their options, and the conversion of rows to declared types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import is_nested
from featurestore.delta import commits, iceberg
from featurestore.errors import (
    InvalidArgument,
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
    normalize_tags,
)
from featurestore.model.group_options import DeclaredTypes, GroupOptions
from featurestore.model.times import parse_duration, parse_ttl
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.validator import find_validator


def declare_group(
    *,
    primary_key: str | Sequence[str] = (),
    event_time: str | None = None,
    created_time: str | None = None,
    partition_by: str | Sequence[str] = (),
    ttl: timedelta | str | None = None,
    expectations: object = None,
    validation: str = "strict",
    event_time_tolerance: timedelta | str | None = None,
    statistics: bool = True,
    compact: str | None = None,
    iceberg: bool = False,
    description: str = "",
    descriptions: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    types: DeclaredTypes | None = None,
    external: ExternalRows | None = None,
) -> GroupOptions:
    """Return the options for the arguments of ``create_featuregroup`` and its relatives."""
    tolerance = timedelta(0)
    if event_time_tolerance is not None:
        tolerance = parse_duration(event_time_tolerance, argument="event_time_tolerance")
    return GroupOptions(
        primary_key=as_tuple(primary_key),
        event_time=event_time,
        created_time=created_time,
        partition_by=as_tuple(partition_by),
        ttl=parse_ttl(ttl),
        expectations=normalize_expectations(expectations),
        validation=validation,
        event_time_tolerance=tolerance,
        statistics=bool(statistics),
        compact=compact,
        iceberg=iceberg,
        description=description,
        descriptions=descriptions or {},
        tags=normalize_tags(tags),
        types=types or DeclaredTypes(),
        external=external,
    )


def build_spec(
    options: GroupOptions, *, name: str, version: int, schema: pa.Schema
) -> FeatureGroupSpec:
    """Return the group definition for its options and a dataframe schema."""
    check_validation_policy(options.validation)
    check_tags(options.tags)
    check_description(options.description)
    check_descriptions(options.descriptions, schema.names)
    if options.iceberg:
        iceberg.check_schema(schema, options.partition_by)
    _check_partition_columns(options.partition_by, schema)
    return FeatureGroupSpec(
        name=name,
        version=version,
        schema=schema,
        primary_key=options.primary_key,
        event_time=options.event_time,
        created_time=options.created_time,
        partition_by=options.partition_by,
        ttl=options.ttl,
        expectations=options.expectations,
        validation=options.validation,
        statistics=options.statistics,
        job=options.job,
        event_time_tolerance=options.event_time_tolerance,
        compact=options.compact,
        iceberg=options.iceberg,
        external=options.external,
    )


def _check_partition_columns(names: Sequence[str], schema: pa.Schema) -> None:
    """Reject partition columns whose values cannot name folders, and partitions by all columns."""
    types = {column.name: column.type for column in schema}
    for name in names:
        dtype = types.get(name)
        if dtype is not None and (pat.is_binary(dtype) or is_nested(dtype)):
            raise InvalidArgument(
                f"partition_by={name!r} has type {dtype}, whose values cannot be folder names.",
                hint="partition by integers, strings, booleans or dates",
            )
    if names and len(names) == len(schema):
        raise InvalidArgument(
            "partition_by contains every column, so the data files would be empty."
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


def metadata_of(options: GroupOptions) -> commits.Meta:
    """Return the description, feature descriptions and tags that options declare."""
    return commits.Meta(options.description, dict(options.tags), dict(options.descriptions))


def convert_relation(
    rows: Relation, declared: DeclaredTypes, *, name: str, engine: Engine
) -> Relation:
    """Convert rows to the declared types; reading raises an error if a value does not fit."""
    schema = declared.schema(rows.schema)
    if schema == rows.schema:
        return rows
    return engine.map_batches(rows, _type_converter(schema, name), schema=schema)


def convert_reader(
    rows: pa.RecordBatchReader, declared: DeclaredTypes, *, name: str
) -> pa.RecordBatchReader:
    """Convert a stream to the declared types."""
    schema = declared.schema(rows.schema)
    if schema == rows.schema:
        return rows
    converter = _type_converter(schema, name)
    return pa.RecordBatchReader.from_batches(schema, map(converter, rows))


def _type_converter(schema: pa.Schema, name: str) -> ConvertColumns:
    title = f"the declared types of feature group {name!r}"
    return ConvertColumns(schema, title, fallback_hint="declare a wider type in dtypes=")
