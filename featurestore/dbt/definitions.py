"""Definitions of external feature groups from dbt nodes: rows, keys, times, tags, expectations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar

import pyarrow as pa

from featurestore.dbt import expectations as dbt_tests
from featurestore.dbt.expectations import DbtColumns, Expectation, NotConvertible, RelatedGroup
from featurestore.dbt.freshness import find_max_age
from featurestore.dbt.keys import find_columns, read_key
from featurestore.dbt.manifest import DbtNode, DbtProject, is_node_id, parse_owner
from featurestore.dbt.snapshots import SQL_KINDS, SnapshotTable
from featurestore.define.definitions import GroupContent
from featurestore.delta import commits
from featurestore.errors import InvalidDbtProject, InvalidExpectation, did_you_mean, listing
from featurestore.featuregroups.comparison import StoredDefinition, describe_changes
from featurestore.featuregroups.definition import declare_group, normalize_expectations
from featurestore.model.group_options import GroupOptions
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.plugins.validator import find_validator

# The keys of meta.featurestore.
SETTINGS = (
    "columns",
    "created_time",
    "event_time",
    "freshness",
    "name",
    "owner",
    "primary_key",
    "snapshots",
    "tags",
    "ttl",
)
# Tags that an import sets, and removes when they no longer apply.
NODE_TAG, PROJECT_TAG, PATH_TAG, TAGS_TAG = "dbt_node", "dbt_project", "dbt_path", "dbt_tags"
DBT_TAGS = (NODE_TAG, PROJECT_TAG, PATH_TAG, TAGS_TAG)
_PLAIN_NAME = re.compile(r"[\w$ -]+")
_COLUMN = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class NodeDefinition:
    """The external feature group of a dbt node.

    ``sql`` replaces ``table`` for snapshots whose rows may end. ``notes`` describe what was not
    imported. ``max_age`` is the limit of the freshness monitor.
    """

    node: DbtNode
    name: str
    table: str | None
    sql: str | None
    columns: tuple[str, ...]
    declared: GroupOptions
    max_age: timedelta | None
    snapshots: str
    notes: tuple[str, ...]


class DbtGroup(GroupContent):
    """The definition of a node's group: descriptions and tags of users remain in the store."""

    creates_versions: ClassVar[bool] = True
    changeable_fields: ClassVar[tuple[str, ...]] = ("ttl", "expectations")

    def merge_metadata(self, stored: commits.Meta) -> commits.Meta:
        """Return the stored metadata with that of dbt."""
        declared = self.declared
        tags = {key: value for key, value in stored.tags.items() if key not in DBT_TAGS}
        return commits.Meta(
            description=declared.description or stored.description,
            features={**stored.features, **declared.descriptions},
            tags={**tags, **declared.tags},
        )

    def describe_changes(self, before: StoredDefinition, now: StoredDefinition) -> list[str]:
        """Describe the changed fields, descriptions and tags, each by its name."""
        stored, merged = before.meta, now.meta
        differences = describe_changes(before, replace(now, meta=stored))
        if stored.description != merged.description:
            differences.append("description")
        for column, text in merged.features.items():
            if stored.features.get(column) != text:
                differences.append(f"description of {column!r}")
        for key in sorted({*stored.tags, *merged.tags}):
            old, new = stored.tags.get(key), merged.tags.get(key)
            if old != new:
                differences.append(f"tag {key}: {old or 'none'} -> {new or 'none'}")
        return differences


def group_name(node: DbtNode) -> str:
    """Return the name of a node's feature group; earlier versions of a model have a suffix."""
    if node.settings is not None and "name" in node.settings.data:
        return node.settings.text("name")
    return node.name if node.is_latest else f"{node.name}_v{node.model_version}"


def table_of(node: DbtNode, source_kind: str) -> str:
    """Return the table of a node as its source names it, with the schema.

    Raises:
        InvalidDbtProject: The name of the table cannot be addressed.
    """
    for name in (node.schema, node.identifier):
        if not _PLAIN_NAME.fullmatch(name):
            raise InvalidDbtProject(f"{node}: {name!r} is not a supported name of a table.")
    if not is_node_id(node.unique_id):
        raise InvalidDbtProject(f"{node}: {node.unique_id!r} is not a supported id of a node.")
    # These sources name the tables of their main schema without it.
    if source_kind in ("duckdb", "sqlite") and node.schema == "main":
        return node.identifier
    return f"{node.schema}.{node.identifier}"


def define_node(
    project: DbtProject, node: DbtNode, schema: pa.Schema, *, source_kind: str
) -> NodeDefinition:
    """Return the definition of a node's feature group for the columns of its table.

    Raises:
        NotImportable: The table has no key, or several possible keys.
        InvalidDbtProject: A column does not exist, or a setting is invalid; the message names the
            node.
    """
    try:
        return _NodeReader(project, node, DbtColumns(schema), source_kind).define()
    except (MalformedJson, NotConvertible) as error:
        raise InvalidDbtProject(f"{node}: {error}.") from error


def add_relationships(
    definition: NodeDefinition, schema: pa.Schema, groups: Mapping[str, RelatedGroup]
) -> NodeDefinition:
    """Return a definition with the tests that compare with other tables as expectations.

    ``groups`` are the feature groups of the project by the ids of their nodes, including those of
    the same import. Tests without an equivalent are noted.
    """
    node, columns = definition.node, DbtColumns(schema)
    expectations: list[Expectation] = []
    notes = []
    for test in node.tests:
        if not test.compares_tables:
            continue
        try:
            expectation = dbt_tests.convert_relationship(
                test, columns, tested_node=node.unique_id, groups=groups
            )
            expectations += normalize_expectations([expectation])
        except (NotConvertible, InvalidExpectation) as error:
            reason = error.message if isinstance(error, InvalidExpectation) else str(error)
            notes.append(f"{node}: test {test.name!r} was not imported: {reason}")
    declared = definition.declared
    existing = tuple(normalize_expectations(declared.expectations))
    new = [expectation for expectation in expectations if expectation not in existing]
    return replace(
        definition,
        declared=replace(declared, expectations=(*existing, *new)),
        notes=(*definition.notes, *notes),
    )


class _NodeReader:
    """Derives the parts of a definition from a node and the columns of its table."""

    def __init__(
        self, project: DbtProject, node: DbtNode, columns: DbtColumns, source_kind: str
    ) -> None:
        self._project = project
        self._node = node
        self._columns = columns
        self._source_kind = source_kind
        self._settings = node.settings or JsonObject({}, f"{node.unique_id}: meta.featurestore")
        self._notes: list[str] = []

    def define(self) -> NodeDefinition:
        self._check_settings()
        node, settings = self._node, self._settings
        event_time, created_time = self._times()
        primary_key = read_key(
            node, self._columns, times=(event_time, created_time), notes=self._notes
        )
        sql, column_names = self._rows(primary_key, event_time, created_time)
        descriptions = {}
        for name, text in node.columns.items():
            column = self._columns.find(name)
            if column in column_names and text.strip():
                descriptions[str(column)] = text.strip()
        declared = declare_group(
            primary_key=primary_key,
            event_time=event_time,
            created_time=created_time,
            ttl=settings.optional_text("ttl"),
            expectations=self._expectations(
                column_names, complete_columns=None if sql is None else (*primary_key, event_time)
            ),
            statistics=False,
            description=node.description.strip(),
            descriptions=descriptions,
            tags=self._tags(),
        )
        return NodeDefinition(
            node=node,
            name=group_name(node),
            table=None if sql else table_of(node, self._source_kind),
            sql=sql,
            columns=column_names,
            declared=declared,
            max_age=find_max_age(node, event_time=event_time, notes=self._notes),
            snapshots=settings.optional_text("snapshots") or "training",
            notes=tuple(f"{node}: {note}" for note in self._notes),
        )

    def _check_settings(self) -> None:
        for key in self._settings.data:
            if key not in SETTINGS:
                raise InvalidDbtProject(
                    f"{self._node}: unknown key {key!r} in meta.featurestore. Available: "
                    f"{listing(SETTINGS, limit=20)}.",
                    hint=did_you_mean(key, SETTINGS, write="meta: {{featurestore: {{{}: ...}}}}"),
                )

    # -- times ------------------------------------------------------------------------------------

    def _times(self) -> tuple[str | None, str | None]:
        """Return the event time and the created time.

        A version of a snapshot is valid from ``dbt_valid_from``. If the rows have an event time of
        their own, the version became known at that time.
        """
        node, settings = self._node, self._settings
        event_time = self._time_column(settings.optional_text("event_time"), "event_time")
        event_time = event_time or self._time_column(node.event_time, "event_time")
        created_time = self._time_column(settings.optional_text("created_time"), "created_time")
        if node.snapshot is not None:
            names = node.snapshot.columns
            valid_from = self._time_column(names["dbt_valid_from"], "dbt_valid_from")
            if event_time in (None, valid_from):
                updated_at = self._columns.find(names["dbt_updated_at"])
                return valid_from, created_time or updated_at
            return event_time, created_time or valid_from
        if node.loaded_at is not None:
            # loaded_at_field may be SQL, which has no column.
            loaded_at = self._columns.find(node.loaded_at)
            if loaded_at is None:
                self._notes.append(f"loaded_at_field {node.loaded_at!r} is not a column")
            elif event_time is None:
                event_time = loaded_at
            elif created_time is None and loaded_at != event_time:
                created_time = loaded_at
        return event_time, created_time

    def _time_column(self, name: str | None, role: str) -> str | None:
        if name is None:
            return None
        column = self._columns.find(name)
        if column is None:
            raise InvalidDbtProject(
                f"{self._node}: {role} {name!r} is not a column of its table. Available: "
                f"{listing(self._columns.schema.names, limit=30)}.",
                hint=did_you_mean(name, self._columns.schema.names) or "dbt run builds the table",
            )
        return column

    # -- rows -------------------------------------------------------------------------------------

    def _rows(
        self, primary_key: Sequence[str], event_time: str | None, created_time: str | None
    ) -> tuple[str | None, tuple[str, ...]]:
        """Return the query of the rows if the table is not sufficient, and the columns to read."""
        settings, snapshot = self._settings, self._node.snapshot
        column_names = tuple(self._columns.schema.names)
        if snapshot is not None:
            roles = (*primary_key, event_time, created_time)
            # A later run of dbt sets dbt_valid_to, so it would leak the future as a feature.
            added = {self._columns.find(name) for name in snapshot.columns.values()}
            column_names = tuple(
                name for name in column_names if name in roles or name not in added
            )
        if "columns" in settings.data:
            requested_columns = find_columns(
                self._node,
                self._columns,
                settings.texts("columns"),
                origin="meta.featurestore.columns",
            )
            required = (*primary_key, event_time, created_time)
            column_names = tuple(
                name for name in column_names if name in requested_columns or name in required
            )
        if snapshot is None or snapshot.is_chain:
            return None, column_names
        valid_from = self._columns.find(snapshot.columns["dbt_valid_from"])
        if event_time != valid_from or self._source_kind not in SQL_KINDS:
            reason = f"in sources of kind {self._source_kind!r}"
            if event_time != valid_from:
                reason = "with an event time other than dbt_valid_from"
            self._notes.append(
                f"rows keep their values after dbt_valid_to, as of deleted entities, {reason}"
            )
            return None, column_names
        table = SnapshotTable(
            table_of(self._node, self._source_kind),
            self._columns,
            snapshot,
            column_names,
            primary_key,
            created_time,
        )
        return table.to_sql(), column_names

    # -- tags, expectations, freshness ------------------------------------------------------------

    def _tags(self) -> dict[str, str]:
        node, tags = self._node, {}
        if "tags" in self._settings.data:
            tags = self._settings.object("tags").read_values(JsonObject.text)
        owner = parse_owner(self._settings.data.get("owner")) or node.owner
        if owner is not None:
            tags["owner"] = owner
        tags |= {NODE_TAG: node.unique_id, PROJECT_TAG: self._project.name, PATH_TAG: node.path}
        if node.tags:
            tags[TAGS_TAG] = ", ".join(sorted(set(node.tags)))
        return tags

    def _expectations(
        self, column_names: Sequence[str], *, complete_columns: Sequence[str | None] | None
    ) -> tuple[Expectation, ...]:
        """Return the tests as expectations; tests without an equivalent are noted.

        ``complete_columns`` are those without nulls in the rows that a query adds to the table, None
        if it adds none.
        """
        schema = pa.schema([self._columns.schema.field(name) for name in column_names])
        expectations: dict[str, Expectation] = {}
        for test in self._node.tests:
            if test.test_type in dbt_tests.RECENCY_TESTS or test.compares_tables:
                continue
            try:
                expectation = dbt_tests.to_expectation(test, DbtColumns(schema))
                (normalized,) = normalize_expectations([expectation])
                validator = find_validator()
                is_row_level = validator.is_row_level(normalized)
                if complete_columns is not None:
                    requires_values = normalized["type"] == dbt_tests.NOT_NULL
                    is_complete = normalized["kwargs"].get("column") in complete_columns
                    if not is_row_level or (requires_values and not is_complete):
                        raise NotConvertible("the group adds rows at the ends of versions")
                if is_row_level:
                    # An expectation that these types cannot meet would block the other expectations
                    # of the group at each validation.
                    columns = list(validator.columns(normalized))
                    validator.check(schema.empty_table().select(columns), [normalized])
            except (NotConvertible, InvalidExpectation) as error:
                reason = error.message if isinstance(error, InvalidExpectation) else str(error)
                self._notes.append(f"test {test.name!r} was not imported: {reason}")
            else:
                for difference in dbt_tests.differences(normalized, test, DbtColumns(schema)):
                    self._notes.append(f"test {test.name!r}: {difference}")
                # dbt packages may define the same test twice.
                expectations[repr(normalized)] = normalized
        return tuple(expectations.values())
