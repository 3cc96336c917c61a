"""The manifest of a dbt project: models, snapshots, seeds, sources and their tests.

A manifest is untrusted data. Its size is limited, every value that is used has a checked type, and
neither its SQL nor its Jinja is executed or copied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from featurestore.dbt.snapshots import SnapshotConfig
from featurestore.errors import InvalidDbtProject, listing
from featurestore.model.json_object import JsonObject, MalformedJson, parse_object
from featurestore.storage import storage_for

# The schema of dbt 1.8 and later.
MANIFEST_VERSION = 12
# A manifest of ten thousand models has about 200 MB.
MAX_MANIFEST_BYTES = 512 << 20
MAX_NODES = 200_000
MAX_NAME_LENGTH = 255
TABLE_KINDS = ("model", "snapshot", "seed", "source")
_SCHEMA = re.compile(r"/dbt/manifest/v(\d{1,4})(\.json)?$")
_NODE_ID = re.compile(r"(?:model|snapshot|seed|source)(?:\.[\w-]+){2,4}")
# The table of a test on a source, which has no "attached_node".
_TESTED_SOURCE = re.compile(r"\bsource\('([^']+)',\s*'([^']+)'\)")
_DEFAULT_THRESHOLD = "!=0"
_PERIODS = {"minute": 1, "hour": 60, "day": 24 * 60}
_SNAPSHOT_COLUMNS = (
    "dbt_valid_from",
    "dbt_valid_to",
    "dbt_updated_at",
    "dbt_scd_id",
    "dbt_is_deleted",
)


# The kind of tests that are SQL files, which return the failing rows.
SINGULAR = "singular"


@dataclass(frozen=True)
class DbtTest:
    """A data test of a table; ``test_type`` is SINGULAR for a test that is a SQL file.

    ``namespace`` is the package of the test, None for those of dbt. ``where`` is the SQL condition of
    the tested rows. ``limits`` are settings for which no expectation exists, such as ``warn_if``.
    ``tables`` are the ids of the tables that the test reads.
    """

    name: str
    test_type: str
    namespace: str | None
    arguments: Mapping[str, Any]
    column: str | None
    is_warning: bool = False
    limits: tuple[str, ...] = ()
    where: str | None = None
    tables: tuple[str, ...] = ()

    @property
    def compares_tables(self) -> bool:
        """Whether the test checks that values exist in another table."""
        return self.namespace is None and self.test_type == "relationships"

    @property
    def covers_all_rows(self) -> bool:
        """Whether the test fails for any row that violates it."""
        return not self.limits and self.where is None


@dataclass(frozen=True)
class DbtNode:
    """A table of a dbt project; ``settings`` is ``meta.featurestore``, None without it.

    ``constraint_key`` are the columns of the ``primary_key`` constraint. ``columns`` are the
    descriptions by column. ``freshness`` is the maximum age of the rows, measured by ``loaded_at``.
    """

    unique_id: str
    resource_type: str
    name: str
    package: str
    path: str
    fqn: tuple[str, ...]
    tags: tuple[str, ...]
    database: str | None
    schema: str
    identifier: str
    materialized: str
    description: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    constraint_key: tuple[str, ...] = ()
    event_time: str | None = None
    owner: str | None = None
    group: str | None = None
    model_version: str | None = None
    is_latest: bool = True
    loaded_at: str | None = None
    freshness: timedelta | None = None
    snapshot: SnapshotConfig | None = None
    settings: JsonObject | None = None
    is_excluded: bool = False
    tests: tuple[DbtTest, ...] = ()

    def __str__(self) -> str:
        return f"dbt {self.resource_type} {self.unique_id.partition('.')[2]!r}"


@dataclass(frozen=True)
class DbtProject:
    """A parsed manifest: its tables by unique id, and the nodes that each table depends on."""

    name: str
    dbt_version: str
    nodes: Mapping[str, DbtNode]
    parents: Mapping[str, tuple[str, ...]]
    disabled: frozenset[str] = frozenset()


def is_node_id(text: str) -> bool:
    """Return whether a text is the unique id of a dbt table.

    >>> is_node_id("model.shop.orders"), is_node_id("model.shop.{{ x }}")
    (True, False)
    """
    return len(text) <= 4 * MAX_NAME_LENGTH and _NODE_ID.fullmatch(text) is not None


def read_project(path: str | os.PathLike[str]) -> DbtProject:
    """Read the manifest of a dbt project.

    Raises:
        InvalidDbtProject: The file does not exist, is not a manifest of a supported version, or has
            a node with an invalid value; the message names the node.
    """
    file = os.path.abspath(os.fspath(path))
    storage = storage_for(file)
    if not storage.is_file(file):
        raise InvalidDbtProject(
            f"{file!r} is not a file.",
            hint="pass the file that dbt writes: target/manifest.json; dbt parse creates it",
        )
    if storage.size(file) > MAX_MANIFEST_BYTES:
        raise InvalidDbtProject(
            f"{file!r} has {storage.size(file):,} bytes; a manifest has at most "
            f"{MAX_MANIFEST_BYTES:,} bytes."
        )
    try:
        manifest = JsonObject(parse_object(storage.read_bytes(file)))
        check_version(manifest, file)
        return parse_project(manifest)
    except MalformedJson as error:
        raise InvalidDbtProject(
            f"{file!r} is not a valid dbt manifest: {error}.", hint="dbt parse writes it again"
        ) from error


def check_version(manifest: JsonObject, file: str) -> None:
    """Raise an error for a manifest of an unsupported version."""
    metadata = manifest.object("metadata")
    schema = metadata.optional_text("dbt_schema_version") or ""
    match = _SCHEMA.search(schema)
    version = int(match[1]) if match else None
    if version != MANIFEST_VERSION:
        dbt_version = metadata.optional_text("dbt_version") or "unknown"
        raise InvalidDbtProject(
            f"{file!r} has the schema {schema[:100]!r} of dbt {dbt_version[:100]}; supported is the manifest "
            f"version v{MANIFEST_VERSION} of dbt 1.8 and later.",
            hint="run dbt parse with dbt-core 1.8 or later",
        )


def parse_project(manifest: JsonObject) -> DbtProject:
    """Parse the tables, tests and dependencies of a manifest."""
    metadata = manifest.object("metadata")
    owners = parse_owners(manifest)
    node_objects = dict(_objects(manifest, "nodes"))
    table_objects = {
        unique_id: node
        for unique_id, node in (node_objects | dict(_objects(manifest, "sources"))).items()
        if node.optional_text("resource_type") in TABLE_KINDS
    }
    tests = parse_tests(node_objects.values(), table_objects)
    nodes = {
        unique_id: parse_node(unique_id, node, owners, tests.get(unique_id, ()))
        for unique_id, node in table_objects.items()
    }
    parents = {}
    if manifest.data.get("parent_map") is not None:
        parent_map = manifest.object("parent_map")
        parents = {unique_id: parent_map.texts(unique_id) for unique_id in parent_map.data}
    disabled = JsonObject.from_value(manifest.data.get("disabled") or {}, "disabled").data
    return DbtProject(
        name=_name(metadata, "project_name"),
        dbt_version=metadata.text("dbt_version"),
        nodes=nodes,
        parents=parents,
        disabled=frozenset(disabled),
    )


def _objects(manifest: JsonObject, name: str) -> Iterator[tuple[str, JsonObject]]:
    """Yield the members of an object of objects; errors in them name the node."""
    members = manifest.object(name).data
    if len(members) > MAX_NODES:
        raise MalformedJson(f"{name} has {len(members):,} members, more than {MAX_NODES:,}")
    for unique_id, value in members.items():
        yield unique_id, JsonObject.from_value(value, unique_id)


def parse_owners(manifest: JsonObject) -> dict[str, str]:
    """Return the owner of each dbt group by the name of the group."""
    owners = {}
    if manifest.data.get("groups") is not None:
        for _, group in _objects(manifest, "groups"):
            owner = parse_owner(group.data.get("owner"))
            if owner is not None:
                owners[group.text("name")] = owner
    return owners


def parse_owner(value: object) -> str | None:
    """Return the owner of a dbt node: a string, or the email or name of an object.

    >>> parse_owner({"name": "Ada", "email": "ada@example.com"}), parse_owner("@growth")
    ('ada@example.com', '@growth')
    """
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, Mapping):
        for key in ("email", "name"):
            text = value.get(key)
            if isinstance(text, str) and text.strip():
                return text.strip()
    return None


def parse_tests(
    nodes: Iterable[JsonObject], tables: Mapping[str, JsonObject]
) -> dict[str, list[DbtTest]]:
    """Parse the data tests; return them by the unique id of each table that they test."""
    sources = {
        node.texts("fqn")[-2:]: unique_id
        for unique_id, node in tables.items()
        if node.text("resource_type") == "source"
    }
    tests: dict[str, list[DbtTest]] = {}
    for node in nodes:
        if node.optional_text("resource_type") == "test":
            test = parse_test(node)
            is_singular = test.test_type == SINGULAR
            for table in test.tables if is_singular else (find_tested_node(node, sources),):
                tests.setdefault(table, []).append(test)
    return tests


def parse_node(
    unique_id: str, node: JsonObject, owners: Mapping[str, str], tests: Iterable[DbtTest]
) -> DbtNode:
    """Parse a model, snapshot, seed or source; ``owners`` are those of the dbt groups."""
    config = _optional_object(node, "config")
    resource_type = node.text("resource_type")
    meta = {**_optional_object(node, "meta").data, **_optional_object(config, "meta").data}
    settings = meta.get("featurestore")
    group = config.optional_text("group") or node.optional_text("group")
    is_source = resource_type == "source"
    settings_object = None
    if settings is not None and settings is not False:
        settings_object = JsonObject.from_value(settings, f"{unique_id}: meta.featurestore")
    version = node.data.get("version")
    columns, constraint_key = parse_columns(node)
    freshness, loaded_at = parse_freshness(node, config) if is_source else (None, None)
    return DbtNode(
        unique_id=unique_id,
        resource_type=resource_type,
        name=_name(node, "name"),
        package=_name(node, "package_name"),
        path=node.text("original_file_path"),
        fqn=node.texts("fqn"),
        tags=node.texts("tags") if node.data.get("tags") is not None else (),
        database=node.optional_text("database"),
        schema=_name(node, "schema"),
        identifier=_name(node, "identifier" if is_source else "alias"),
        materialized="source"
        if is_source
        else config.optional_text("materialized") or resource_type,
        description=node.optional_text("description") or "",
        columns=columns,
        constraint_key=constraint_key,
        event_time=config.optional_text("event_time"),
        owner=parse_owner(meta.get("owner")) or owners.get(group or ""),
        group=group,
        model_version=None if version is None else str(version),
        is_latest=version is None or str(version) == str(node.data.get("latest_version")),
        loaded_at=loaded_at,
        freshness=freshness,
        snapshot=parse_snapshot(config) if resource_type == "snapshot" else None,
        settings=settings_object,
        is_excluded=settings is False,
        tests=tuple(sorted(tests, key=lambda test: test.name)),
    )


def parse_columns(node: JsonObject) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the column descriptions, and the columns of the primary key constraint."""
    descriptions, column_key = {}, []
    for column in _optional_object(node, "columns").data.values():
        column_object = JsonObject.from_value(column, f"{node.path}.columns")
        name = _name(column_object, "name")
        descriptions[name] = column_object.optional_text("description") or ""
        if any(
            constraint.optional_text("type") == "primary_key"
            for constraint in _constraints(column_object)
        ):
            column_key.append(name)
    for constraint in _constraints(node):
        if constraint.optional_text("type") == "primary_key":
            return descriptions, constraint.texts("columns")
    return descriptions, tuple(column_key)


def _constraints(owner: JsonObject) -> list[JsonObject]:
    return owner.objects("constraints") if owner.data.get("constraints") else []


def parse_freshness(node: JsonObject, config: JsonObject) -> tuple[timedelta | None, str | None]:
    """Return the maximum age of a source's rows, and its column ``loaded_at_field``."""
    loaded_at = node.optional_text("loaded_at_field") or config.optional_text("loaded_at_field")
    freshness = _optional_object(node, "freshness")
    for limit in ("error_after", "warn_after"):
        after = _optional_object(freshness, limit)
        if after.data.get("count") is not None and after.data.get("period") is not None:
            return parse_period(after, "count", "period"), loaded_at
    return None, loaded_at


def parse_period(owner: JsonObject, count: str, period: str) -> timedelta:
    """Parse a number of minutes, hours or days, such as ``{"count": 12, "period": "hour"}``."""
    unit = owner.text(period).lower()
    if unit not in _PERIODS:
        raise owner.wrong_type_error(period, f"one of {listing(_PERIODS)}")
    return timedelta(minutes=owner.number(count, minimum=1, maximum=1_000_000) * _PERIODS[unit])


def parse_snapshot(config: JsonObject) -> SnapshotConfig:
    """Parse the configuration of a snapshot."""
    key = config.data.get("unique_key")
    unique_key: tuple[str, ...] = ()
    if key is not None:
        unique_key = (key,) if isinstance(key, str) else config.texts("unique_key")
    renamed = _optional_object(config, "snapshot_meta_column_names")
    columns = {name: renamed.optional_text(name) or name for name in _SNAPSHOT_COLUMNS}
    hard_deletes = config.optional_text("hard_deletes") or "ignore"
    # The option of dbt 1.8, which "hard_deletes" replaces.
    if config.data.get("invalidate_hard_deletes") is True:
        hard_deletes = "invalidate"
    # The strategy "check" takes new rows also if their updated_at is not later.
    strategy, updated_at = config.optional_text("strategy"), config.data.get("updated_at")
    has_later_times = strategy == "timestamp" or (strategy == "check" and updated_at is None)
    return SnapshotConfig(
        unique_key,
        columns,
        is_chain=hard_deletes == "ignore" and has_later_times,
        has_current_marker=config.data.get("dbt_valid_to_current") is not None,
    )


def parse_test(node: JsonObject) -> DbtTest:
    """Parse a data test."""
    metadata, config = _optional_object(node, "test_metadata"), _optional_object(node, "config")
    depends_on = _optional_object(node, "depends_on")
    arguments = dict(_optional_object(metadata, "kwargs").data)
    column = arguments.pop("column_name", None) or node.data.get("column_name")
    arguments.pop("model", None)
    limits = []
    for threshold in ("warn_if", "error_if"):
        value = config.optional_text(threshold) or _DEFAULT_THRESHOLD
        if value.replace(" ", "") != _DEFAULT_THRESHOLD:
            limits.append(threshold)
    return DbtTest(
        name=node.text("name"),
        test_type=metadata.text("name") if metadata.data else SINGULAR,
        namespace=metadata.optional_text("namespace"),
        arguments=arguments,
        # dbt allows quoted names.
        column=column.strip('"`') if isinstance(column, str) else None,
        is_warning=(config.optional_text("severity") or "error").lower() == "warn",
        limits=tuple(limits),
        where=config.optional_text("where"),
        tables=depends_on.texts("nodes") if depends_on.data.get("nodes") is not None else (),
    )


def find_tested_node(test: JsonObject, sources: Mapping[tuple[str, ...], str]) -> str:
    """Return the unique id of the table that a test reads, "" if it is unknown."""
    attached = test.optional_text("attached_node")
    if attached is not None:
        return attached
    arguments = _optional_object(test.object("test_metadata"), "kwargs")
    match = _TESTED_SOURCE.search(arguments.optional_text("model") or "")
    return sources.get(match.groups(), "") if match else ""


def _optional_object(owner: JsonObject, name: str) -> JsonObject:
    """Return an object, an empty one if it is null or missing."""
    if owner.data.get(name) is None:
        return JsonObject({}, f"{owner.path}.{name}")
    return owner.object(name)


def _name(owner: JsonObject, name: str) -> str:
    text = owner.text(name)
    if not 0 < len(text) <= MAX_NAME_LENGTH:
        raise owner.wrong_type_error(name, f"a name of 1 to {MAX_NAME_LENGTH} characters")
    return text
