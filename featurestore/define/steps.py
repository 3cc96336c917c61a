"""Comparison of definitions with a store: the step that applies a difference, for each kind.

A comparison reads a draft of the registry, and registers new objects there, so that later
definitions can refer to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from featurestore.alerts.channels import add_channel
from featurestore.define.definitions import Definition, GroupContent, JobContent
from featurestore.errors import FeatureGroupNotFound, FeatureStoreError
from featurestore.external.reading import build_source
from featurestore.jobs.publish_jobs import check_catalog_job
from featurestore.jobs.registration import (
    check_channels,
    check_expectations,
    check_queries,
    register_job,
)
from featurestore.jobs.shared_targets import Registration, check_targets
from featurestore.jobs.window_changes import find_target_version, put_job
from featurestore.jobs.window_jobs import check_window_job, with_primary_key
from featurestore.model.alert import Channel
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.job import StreamWork
from featurestore.model.plan import Source
from featurestore.model.project import SOURCE, PlannedChange
from featurestore.model.requests import RowsRequest, ViewRequest
from featurestore.model.source import SourceSpec
from featurestore.plugins.source import SourceQuery
from featurestore.registry import alerts, featuregroups, jobs, projects, sources
from featurestore.registry.artifacts import feature_views
from featurestore.retrieval.catalog import Pins, RegisteredSpecs
from featurestore.retrieval.view_rows import retrieve_rows
from featurestore.session import Session
from featurestore.sources import registration
from featurestore.sources.frame import source_schema
from featurestore.streams import check_stream_definition, check_topic
from featurestore.views import definition as views


@dataclass(frozen=True)
class SourceLookups:
    """The columns that queries of sources have, and the topics that exist, or their errors."""

    columns: Mapping[tuple[str, str], pa.Schema | FeatureStoreError]
    topics: Mapping[tuple[str, str], FeatureStoreError | None]

    def schema(self, session: Session, source: SourceSpec, query: SourceQuery) -> pa.Schema:
        """Return the columns of a query."""
        key = (source.name, query.hash)
        # Another process may have deleted the group since the sources were read.
        if key not in self.columns:
            return source_schema(session, source, query)
        columns = self.columns[key]
        if isinstance(columns, FeatureStoreError):
            raise columns
        return columns

    def check_topic(self, session: Session, source: str, topic: str) -> None:
        """Raise an error if a topic does not exist."""
        if (source, topic) not in self.topics:
            check_topic(session, registration.get(session, source), topic)
            return
        error = self.topics[source, topic]
        if error is not None:
            raise error


def read_sources(
    session: Session, definitions: Sequence[Definition], project: str | None
) -> SourceLookups:
    """Read what the definitions of new external groups and changed stream jobs refer to."""
    columns: dict[tuple[str, str], pa.Schema | FeatureStoreError] = {}
    topics: dict[tuple[str, str], FeatureStoreError | None] = {}
    usable = find_usable_sources(session, definitions, project)
    for definition in definitions:
        content = definition.content
        if isinstance(content, GroupContent) and content.declared.external is not None:
            source = usable.get(content.declared.external.source)
            query = content.query
            if source is None or query is None or content.schema is not None:
                continue
            if _is_registered(session, definition):
                continue
            try:
                columns[source.name, query.hash] = source_schema(session, source, query)
            except FeatureStoreError as error:
                columns[source.name, query.hash] = error
        elif isinstance(content, JobContent) and isinstance(content.job.spec.work, StreamWork):
            stream = content.job.spec.work.stream
            source = usable.get(stream.source)
            if source is None or _is_registered(session, definition):
                continue
            try:
                check_topic(session, source, stream.topic)
                topics[source.name, stream.topic] = None
            except FeatureStoreError as error:
                topics[source.name, stream.topic] = error
    return SourceLookups(columns, topics)


def find_usable_sources(
    session: Session, definitions: Sequence[Definition], project: str | None
) -> dict[str, SourceSpec]:
    """Return the sources by name as they will be after the plan, without refused definitions."""
    with session.registry.reading() as connection:
        usable = {spec.name: spec for spec in sources.list_all(connection)}
        owners = {name: projects.owner(connection, SOURCE, name) for name in usable}
    for definition in definitions:
        spec = definition.content
        if not isinstance(spec, SourceSpec) or owners.get(spec.name) not in (None, project):
            continue
        try:
            # This checks the URI and the options. The draft raises the error.
            build_source(session, spec)
        except FeatureStoreError:
            continue
        registration.grant_source(session, spec)
        usable[spec.name] = spec
    return usable


def _is_registered(session: Session, definition: Definition) -> bool:
    """Return whether a group, or a job with the same definition, is registered."""
    content = definition.content
    with session.registry.reading() as connection:
        if isinstance(content, JobContent):
            job = jobs.find(connection, definition.name)
            return job is not None and job.spec.hash == content.job.spec.hash
        assert isinstance(content, GroupContent)
        return featuregroups.find(connection, definition.name, content.version) is not None


# The table id of groups that exist only in a draft.
DRAFT_TABLE = "draft"
# Longer values are not printed in plans.
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class ProjectStep:
    """A planned change, and the function that applies it to the store."""

    change: PlannedChange
    run: Callable[[Session], object] = field(repr=False)


@dataclass(frozen=True)
class Draft:
    """A session whose registry is a draft, the groups that jobs write, and the reads of sources.

    ``registration`` contains all jobs of the project, ``current_versions`` the newest version of each
    group that its definitions describe. It is filled before views are compared.
    """

    session: Session
    job_targets: Collection[str]
    reads: SourceLookups
    registration: Registration
    current_versions: dict[str, int] = field(default_factory=dict)


def compare_source(draft: Draft, definition: Definition, position: str) -> ProjectStep | None:
    """Return the step that registers a source, or replaces its registration."""
    spec = definition.content
    assert isinstance(spec, SourceSpec)
    build_source(draft.session, spec)  # checks the URI and the options
    registry = draft.session.registry
    with registry.transaction() as connection:
        if registration.is_registered(connection, spec):
            return None
        earlier = None
        if spec.name in sources.names(connection):
            earlier = sources.get(connection, spec.name)
            sources.remove(connection, spec.name)
        sources.add(connection, spec)
    details = [] if earlier is None else describe_differences(earlier.to_json(), spec.to_json())
    change = _change(definition, earlier is None, details, position)
    return ProjectStep(change, lambda session: registration.put(session, spec))


def compare_channel(draft: Draft, definition: Definition, position: str) -> ProjectStep | None:
    """Return the step that adds an alert channel, or replaces it."""
    channel = definition.content
    assert isinstance(channel, Channel)
    with draft.session.registry.transaction() as connection:
        channels = {stored.name: stored for stored in alerts.channels(connection)}
        earlier = channels.get(channel.name)
        if earlier == channel:
            return None
        alerts.put_channel(connection, channel)
    # Addresses of channels may contain tokens, so they are not printed.
    details = [] if earlier is None else ["another address or secret"]
    change = _change(definition, earlier is None, details, position)
    return ProjectStep(
        change,
        lambda session: add_channel(session, channel.name, channel.uri, secret=channel.secret),
    )


def compare_view(draft: Draft, definition: Definition, position: str) -> ProjectStep | None:
    """Return the step that creates the next version of a feature view."""
    content = definition.content
    assert isinstance(content, ViewRequest)
    try:
        spec = views.define(draft.session, content, current_versions=draft.current_versions)
    except FeatureGroupNotFound as error:
        if not any(f"{name!r}" in error.message for name in draft.job_targets):
            raise
        raise FeatureGroupNotFound(
            error.message,
            hint="a job creates the group at its first run: define its columns by "
            "define.featuregroup(...), or apply the view after this run",
        ) from error
    with draft.session.registry.reading() as connection:
        versions = feature_views.versions(connection, definition.name)
        # Training datasets refer to versions by number, also to deleted ones.
        used_versions = feature_views.used_versions(connection, definition.name)
    details: list[str] = []
    if versions:
        earlier = views.get(draft.session, definition.name, max(versions))
        details = describe_differences(comparable_view(earlier), comparable_view(spec))
        if not details:
            return None
        details += describe_returns(draft, earlier, spec)
    version = max([*versions, *used_versions], default=0) + 1
    check_view_rows(draft, spec)
    with draft.session.registry.transaction() as connection:
        feature_views.add(connection, replace(spec, version=version))
    change = _change(definition, not versions, details, position, version=version)
    return ProjectStep(change, lambda session: views.create(session, spec, version=version))


def describe_returns(draft: Draft, before: FeatureViewSpec, now: FeatureViewSpec) -> list[str]:
    """Describe the groups of which a view reads an earlier version again, after a revert in git."""
    earlier_versions = dict(sorted(before.groups))
    returns = []
    for name, version in sorted(now.groups):
        latest = earlier_versions.get(name, version)
        if version < latest:
            returns.append(
                f"feature group {name!r} version {version} is current again, as the project defines "
                f"it; version {latest} remains"
            )
            if name in draft.job_targets:
                returns.append(f"jobs still write the latest version of {name!r}")
    return returns


def check_view_rows(draft: Draft, spec: FeatureViewSpec) -> None:
    """Check the joins and the label of a view, also over groups that exist only in the draft."""
    if spec.labels is None:
        return
    rows = retrieve_rows(draft.session, spec, RowsRequest(), pins=DraftPins(draft.session))
    views.check_label(spec, rows.columns)


class DraftPins(Pins):
    """Pins for checks of definitions: groups of a draft have a definition, but no table yet."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._registered = RegisteredSpecs(session)
        super().__init__(session, self._registered)

    def source(self, group: tuple[str, int]) -> Source:
        """Return a group of the draft as a table without rows."""
        name, version = group
        path = self._session.featuregroup_path(name, version)
        spec = self._registered[name][version]
        return Source(spec, path, 0, DRAFT_TABLE, unique=True, rows=0, bytes=0)


def comparable_view(spec: FeatureViewSpec) -> dict[str, Any]:
    """Return the definition of a view without the fields that each version sets."""
    data = spec.to_json()
    for name in ("version", "created", "format"):
        del data[name]
    for step in data["steps"]:
        for feature in step["features"]:
            # Writes widen the decimals of a group without a new version.
            feature.pop("type")
    comparable: dict[str, Any] = json.loads(json.dumps(data))
    return comparable


def compare_job(draft: Draft, definition: Definition, position: str) -> ProjectStep | None:
    """Return the step that registers a job, or its next version."""
    content = definition.content
    assert isinstance(content, JobContent)
    session, spec = draft.session, content.job.spec
    check_channels(session, [spec])
    check_expectations([spec])
    check_queries(session, [spec])
    check_catalog_job(session, spec)
    spec = with_primary_key(session, spec)
    with session.registry.reading() as connection:
        earlier = jobs.find(connection, spec.name)
    if earlier is not None and earlier.spec.hash == spec.hash:
        return None
    pins = DraftPins(session)
    check_window_job(session, spec, future_groups=draft.job_targets, pins=pins)
    if isinstance(spec.work, StreamWork):
        stream = spec.work.stream
        check_stream_definition(session, spec.name, spec.work)
        draft.reads.check_topic(session, stream.source, stream.topic)
    origin = content.file.origin
    registration = draft.registration.replace_spec(spec)
    version = find_target_version(session, spec)
    with session.registry.transaction() as connection:
        former = check_targets(connection, session, registration, name=spec.name)
        job = put_job(connection, session, spec, origin=origin, version=version, former=former)
    details = []
    if earlier is not None:
        details = describe_differences(earlier.spec.to_json(), spec.to_json())
    details += job.changes
    change = _change(definition, earlier is None, details, position)
    return ProjectStep(
        change, lambda store: register_job(store, spec, content.file, registration=registration)
    )


def _change(
    definition: Definition,
    is_new: bool,
    details: list[str],
    position: str,
    *,
    version: int | None = None,
) -> PlannedChange:
    return PlannedChange(
        "create" if is_new else "change",
        definition.object_type,
        definition.name,
        version=version,
        details=tuple(details),
        position=position,
    )


def describe_differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe the fields that differ between two definitions; long values are only named."""
    differences = []
    for name in sorted({*before, *now} - {"created"}):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        texts = [json.dumps(value, default=str, ensure_ascii=False) for value in (old, new)]
        if max(map(len, texts)) > _LONGEST_VALUE:
            differences.append(f"another {name}")
        else:
            differences.append(f"{name}: {texts[0]} becomes {texts[1]}")
    return differences
