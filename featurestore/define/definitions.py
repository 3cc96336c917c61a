"""The functions that define the objects of a project; their arguments are those of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal

import pyarrow as pa

from featurestore.delta import commits
from featurestore.errors import InvalidArgument
from featurestore.featuregroups.comparison import (
    CHANGEABLE_FIELDS,
    StoredDefinition,
    describe_changes,
)
from featurestore.featuregroups.definition import build_spec, declare_group, metadata_of
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.registration import JobFile
from featurestore.model.alert import Channel, validate_channel
from featurestore.model.arguments import (
    calling_globals,
    calling_position,
    check_version,
    with_suggestions,
)
from featurestore.model.featuregroup import normalize_tags
from featurestore.model.group_options import (
    GroupOptions,
    TypeName,
    check_primary_key,
    declared_types,
)
from featurestore.model.names import check_name
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.project import CHANNEL, GROUP, SOURCE, VIEW
from featurestore.model.requests import ViewRequest
from featurestore.model.source import SourceSpec
from featurestore.model.window_features import WindowFeature
from featurestore.plugins.source import SourceQuery
from featurestore.sources.frame import build_query, external_rows
from featurestore.sources.registration import build_source
from featurestore.transform import Chain

# Global variable of a module that lists its definitions, including those without a variable.
DEFINITIONS = "__featurestore_definitions__"


@dataclass(frozen=True)
class GroupContent:
    """The declaration of a feature group; without ``schema``, a source has the columns.

    The definition decides about all metadata of the stored group. Subclasses decide about a part.
    """

    declared: GroupOptions
    version: int | None
    schema: pa.Schema | None = None
    query: SourceQuery | None = None
    # Whether a definition that cannot be applied in place creates the next version, or is refused.
    creates_versions: ClassVar[bool] = False
    changeable_fields: ClassVar[tuple[str, ...]] = CHANGEABLE_FIELDS

    def merge_metadata(self, stored: commits.Meta) -> commits.Meta:
        """Return the metadata of the stored group after the application of the definition."""
        return metadata_of(self.declared)

    def describe_changes(self, before: StoredDefinition, now: StoredDefinition) -> list[str]:
        """Describe the changed fields and metadata of the stored group."""
        return describe_changes(before, now)


@dataclass(frozen=True)
class JobContent:
    """A job, and the file that defines it."""

    job: JobDefinition
    file: JobFile


Content = GroupContent | ViewRequest | JobContent | SourceSpec | Channel


@dataclass(frozen=True)
class Definition:
    """An object of a project, with the file and line of its definition."""

    object_type: str
    name: str
    content: Content
    file: str = ""
    line: int = 0

    def __repr__(self) -> str:
        return f"<{self.object_type} {self.name!r}>"


@with_suggestions
def featuregroup(
    name: str,
    *,
    schema: Mapping[str, TypeName] | pa.Schema,
    primary_key: str | Sequence[str] = (),
    event_time: str | None = None,
    created_time: str | None = None,
    partition_by: str | Sequence[str] = (),
    version: int | None = None,
    ttl: timedelta | str | None = None,
    description: str = "",
    descriptions: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    expectations: object = None,
    validation: str = "strict",
    event_time_tolerance: timedelta | str | None = None,
    statistics: bool = True,
    compact: Literal["auto"] | None = None,
) -> Definition:
    """Define a feature group by its columns; ``apply`` creates it without rows.

    Rows come from ``insert_into_featuregroup`` or from a job with this target. New columns and
    wider decimals change the group; other changes need the next version.

    Args:
        name: ``[a-z][a-z0-9_]{0,62}``.
        schema: The type of each column, as an Arrow type or by name: ``{"trip": "int64", "tip":
            "decimal(20, 4)"}``.
        primary_key: As for ``create_featuregroup``, like all other arguments.
        event_time: Column with the time to which a row applies.
        created_time: Column with the time at which a row became known.
        partition_by: Columns by whose values the files are partitioned into folders.
        version: The version that the definition describes; None: the latest one.
        ttl: How long a value may be used after its event time.
        description: A description for other users.
        descriptions: Descriptions of features.
        tags: Tags, which can be searched.
        expectations: Great Expectations objects, a suite, or dicts with type and kwargs.
        validation: "strict", "warn", "quarantine" or "off".
        event_time_tolerance: How far an event time may be in the future without a warning.
        statistics: Whether to compute statistics on each write.
        compact: "auto" merges small files after writes.

    >>> from featurestore import define
    >>> trips = define.featuregroup(
    ...     "trips", schema={"trip": "int64", "left_at": "timestamp"}, primary_key="trip"
    ... )
    >>> trips
    <featuregroup 'trips'>
    """
    check_name(name)
    if not isinstance(schema, Mapping | pa.Schema) or not len(schema):
        raise InvalidArgument(
            f"schema={schema!r} does not map columns to types.",
            hint="schema={'trip': 'int64', 'left_at': 'timestamp'}",
        )
    if isinstance(schema, pa.Schema):
        schema = dict(zip(schema.names, schema.types, strict=True))
    types = declared_types(schema)
    declared = declare_group(
        primary_key=primary_key,
        event_time=event_time,
        created_time=created_time,
        partition_by=partition_by,
        ttl=ttl,
        expectations=expectations,
        validation=validation,
        statistics=statistics,
        description=description,
        descriptions=descriptions,
        tags=tags,
        event_time_tolerance=event_time_tolerance,
        compact=compact,
        types=types,
    )
    stored_schema = pa.schema(list(types.columns.items()))
    # The store checks a definition again when it creates the group.
    check_primary_key(declared)
    build_spec(declared, name=name, version=_check_version(version) or 1, schema=stored_schema)
    return _add(calling_globals(), GROUP, name, GroupContent(declared, version, stored_schema))


@with_suggestions
def external_featuregroup(
    name: str,
    *,
    source: str,
    table: str | None = None,
    sql: str | None = None,
    path: str | None = None,
    columns: Sequence[str] | None = None,
    primary_key: str | Sequence[str] = (),
    event_time: str | None = None,
    created_time: str | None = None,
    rename: Mapping[str, str] | str | None = None,
    version: int | None = None,
    ttl: timedelta | str | None = None,
    description: str = "",
    descriptions: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    expectations: object = None,
    snapshots: Literal["training", "never"] = "training",
) -> Definition:
    """Define a feature group over a source, whose rows are not copied.

    The arguments are those of ``create_external_featuregroup``. ``version`` is the version that the
    definition describes; None: the latest one. ``plan`` and ``apply`` read the columns from the
    source when they create the group.

    >>> from featurestore import define
    >>> define.external_featuregroup("customers", source="shop", table="people", primary_key="id")
    <featuregroup 'customers'>
    """
    check_name(name)
    query = build_query(table=table, sql=sql, path=path, columns=columns, rename=rename)
    declared = declare_group(
        primary_key=primary_key,
        event_time=event_time,
        created_time=created_time,
        ttl=ttl,
        expectations=expectations,
        statistics=False,
        description=description,
        descriptions=descriptions,
        tags=tags,
        external=external_rows(source, query, snapshots=snapshots),
    )
    check_primary_key(declared)
    return _add(
        calling_globals(), GROUP, name, GroupContent(declared, _check_version(version), query=query)
    )


@with_suggestions
def feature_view(
    name: str,
    *,
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature | Mapping[str, Any]],
    labels: str | None = None,
    label: str | Sequence[str] | None = None,
    label_time: str | None = None,
    transformations: Mapping[str, Chain] | None = None,
    description: str = "",
    tags: Mapping[str, str] | None = None,
) -> Definition:
    """Define a feature view; the arguments are those of ``create_feature_view``.

    A view is immutable, so a changed definition becomes its next version.

    >>> from featurestore import define
    >>> define.feature_view("delays", features=["weather.temp"], labels="questions", label="late")
    <feature_view 'delays'>
    """
    request = ViewRequest(
        name=check_name(name, noun="feature view"),
        features=features,
        labels=labels,
        label=label,
        label_time=label_time,
        transformations=transformations,
        description=description,
        tags=normalize_tags(tags),
    )
    return _add(calling_globals(), VIEW, name, request)


@with_suggestions
def source(
    name: str,
    uri: str,
    *,
    secret: str | None = None,
    options: Mapping[str, object] | None = None,
    description: str = "",
) -> Definition:
    """Define a source of rows; the arguments are those of ``add_source``.

    A password is never in a definition: ``secret`` is "env:NAME", "file:path" or "environment".

    >>> from featurestore import define
    >>> define.source("shop", "postgresql://reader@db/shop", secret="env:SHOP_PASSWORD")
    <source 'shop'>
    """
    spec = build_source(
        name, uri, secret=secret, options=dict(options or {}), description=description
    )
    return _add(calling_globals(), SOURCE, name, spec)


@with_suggestions
def alert_channel(name: str, uri: str, *, secret: str | None = None) -> Definition:
    """Define an alert channel; the arguments are those of ``add_alert_channel``.

    >>> from featurestore import define
    >>> define.alert_channel("ops", "log")
    <alert_channel 'ops'>
    """
    return _add(calling_globals(), CHANNEL, name, validate_channel(name, uri, secret))


def _check_version(version: int | None) -> int | None:
    return None if version is None else check_version(version)


def _add(module: dict[str, Any], object_type: str, name: str, content: Content) -> Definition:
    """Add a definition to the list of the module that defines it."""
    file, line = calling_position(module) or ("", 0)
    definition = Definition(object_type, name, content, file, line)
    module.setdefault(DEFINITIONS, []).append(definition)
    return definition
