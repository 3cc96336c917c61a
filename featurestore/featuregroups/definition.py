"""Definitions: from the arguments of a call to a spec, and from two specs to what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import (
    DefinitionMismatch,
    InvalidArgument,
    did_you_mean,
    listing,
)
from featurestore.featuregroups.declared_types import DeclaredTypes
from featurestore.model.durations import format_duration, parse_duration, parse_ttl
from featurestore.model.external import ExternalRows
from featurestore.model.featuregroup import VALIDATION_POLICIES, FeatureGroupSpec, check_tags
from featurestore.model.types import is_nested
from featurestore.plugins.validator import find_validator


@dataclass(frozen=True)
class Declaration:
    """What a caller declares about a group, beside its rows. None means: not said."""

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
    external: ExternalRows | None = None
    types: DeclaredTypes = field(default_factory=DeclaredTypes)


def define(
    declared: Declaration, *, name: str, version: int, schema: pa.Schema
) -> FeatureGroupSpec:
    """Return the spec of a declaration over the columns of a dataframe."""
    check_policy(declared.validation)
    check_tags(declared.tags)
    check_text(declared.description)
    check_descriptions(declared.descriptions or {}, schema.names)
    return FeatureGroupSpec(
        name=name,
        version=version,
        schema=schema,
        primary_key=columns(declared.primary_key, argument="primary_key"),
        event_time=declared.event_time,
        created_time=declared.created_time,
        partition_by=_partitions(declared, schema),
        ttl=parse_ttl(declared.ttl),
        expectations=plain_expectations(declared.expectations),
        validation=declared.validation,
        statistics=bool(declared.statistics),
        job=declared.job,
        event_time_tolerance=_tolerance(declared),
        compact=declared.compact,
        external=declared.external,
    )


def check_key(declared: Declaration) -> None:
    """Refuse a primary key that holds a time of the group.

    It would be joined by equality, and so answer labels of exactly that time alone.
    """
    named = columns(declared.primary_key, argument="primary_key")
    times = [name for name in (declared.event_time, declared.created_time) if name in named]
    if not times:
        return
    entity = [name for name in named if name not in times]
    hint = f"primary_key={entity!r}, event_time={declared.event_time!r}"
    if not entity:
        hint = f"primary_key={times!r} without event_time= joins rows of equal {times[0]!r}"
    raise InvalidArgument(
        f"primary_key holds {listing(times)}, a time of the group. A row is identified by its key "
        "and its times anyway; a time in the key would be joined by equality, not as of the "
        "label's time.",
        hint=hint,
    )


def columns(given: str | Sequence[str], *, argument: str) -> tuple[str, ...]:
    """Return column names given as one text or as a sequence."""
    names: tuple[Any, ...] = (given,)
    if isinstance(given, Iterable) and not isinstance(given, str):
        names = tuple(given)
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgument(
            f"{argument}={given!r} is no list of column names.", hint=f"{argument}=['id']"
        )
    return names


def plain_expectations(given: object) -> tuple[Mapping[str, Any], ...]:
    """Return expectations (plain dicts, objects or a suite) as plain dicts ``{"type".

    ..., "kwargs": {...}}``.
    """
    if given is None:
        return ()
    if isinstance(given, list | tuple) and not given:
        return ()
    return find_validator().normalize(given)


def check_policy(policy: str | None) -> None:
    """Refuse what is no validation policy (None: the group's own)."""
    if policy is not None and policy not in VALIDATION_POLICIES:
        raise InvalidArgument(
            f"validation={policy!r} is not a policy.",
            hint=did_you_mean(policy, VALIDATION_POLICIES, write="validation={!r}")
            or f"one of {', '.join(VALIDATION_POLICIES)}",
        )


def check_text(description: object) -> None:
    """Refuse a description that is no text."""
    if not isinstance(description, str):
        raise InvalidArgument(
            f"description={description!r} is no text.", hint="description='Hourly weather'"
        )


def check_descriptions(given: object, columns: Sequence[str]) -> dict[str, str]:
    """Return descriptions of features; InvalidArgument where they name none or are no texts."""
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"descriptions={given!r} is no dict of texts.", hint="descriptions={'temp': 'in F'}"
        )
    for feature, text in given.items():
        if feature not in columns:
            raise InvalidArgument(
                f"descriptions names {feature!r}, which is no column. There are "
                f"{listing(columns, limit=50)}.",
                hint=did_you_mean(feature, columns, write="descriptions={{{!r}: '...'}}"),
            )
        if not isinstance(text, str):
            raise InvalidArgument(
                f"The description of {feature!r} is {text!r}, no text.",
                hint=f"descriptions={{{feature!r}: '...'}}",
            )
    return dict(given)


# What two definitions must have in common, beside their columns.
_COMPARED = ("primary_key", "event_time", "created_time", "partition_by", "ttl", "expectations")


def check_same(declared: Declaration, stored: FeatureGroupSpec, *, given: pa.Schema) -> None:
    """Refuse a declaration that differs from the stored definition.

    Columns of the dataframe must be those of the group; what the caller left at its default and the
    group sets (tags, description, policy) is no part of the definition.

    Raises:
        DefinitionMismatch: Lists every difference.
    """
    asked = define(declared, name=stored.name, version=stored.version, schema=given)
    differences = []
    for label in _COMPARED:
        before, now = getattr(stored, label), getattr(asked, label)
        if before != now:
            differences.append(f"{label}: stored {_shown(before)}, given {_shown(now)}")
    differences += _column_differences(stored.schema, asked.schema, declared.types)
    if differences:
        raise DefinitionMismatch(
            f"Feature group {stored.name!r} version {stored.version} is defined otherwise: "
            f"{'; '.join(differences)}.",
            hint="create_featuregroup(...) makes the next version",
        )


def _column_differences(stored: pa.Schema, asked: pa.Schema, declared: DeclaredTypes) -> list[str]:
    given = {column.name: column.type for column in asked}
    found = []
    for column in stored:
        kind = given.pop(column.name, None)
        if kind is None:
            found.append(f"column {column.name!r} ({column.type}) is missing")
        elif kind != column.type and not _follows_batch(kind, column, declared):
            found.append(f"column {column.name!r}: stored {column.type}, given {kind}")
    found += [f"column {name!r} is new" for name in given]
    return found


def _follows_batch(kind: pa.DataType, stored: pa.Field, declared: DeclaredTypes) -> bool:
    """Tell whether a type differs by the digits of a batch alone: nobody declared them."""
    if declared.decimal is not None or stored.name in declared.columns:
        return False
    return pat.is_decimal(kind) and pat.is_decimal(stored.type)


def _tolerance(declared: Declaration) -> timedelta:
    given = declared.event_time_tolerance
    if given is None:
        return timedelta(0)
    return parse_duration(given, argument="event_time_tolerance")


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return repr(format_duration(value))
    if isinstance(value, tuple):
        return repr(list(value))
    return repr(value)


def _partitions(declared: Declaration, schema: pa.Schema) -> tuple[str, ...]:
    names = columns(declared.partition_by, argument="partition_by")
    types = {column.name: column.type for column in schema}
    for name in names:
        kind = types.get(name)
        if kind is not None and (pat.is_binary(kind) or is_nested(kind)):
            raise InvalidArgument(
                f"partition_by={name!r} has type {kind}; folders are named by its values.",
                hint="partition by integers, strings, booleans or dates",
            )
    if names and len(names) == len(schema):
        raise InvalidArgument("partition_by names every column, so the files would be empty.")
    return names
