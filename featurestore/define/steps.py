"""Comparison of definitions with a store: the step that applies a difference, for each kind.

A comparison reads a draft of the registry, and registers new objects there, so that later
definitions can refer to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from featurestore.alerts.channels import add_channel
from featurestore.define.definitions import Definition, JobContent, ViewContent
from featurestore.define.source_reads import SourceReads
from featurestore.errors import FeatureGroupNotFound
from featurestore.external.reading import build_source
from featurestore.jobs.catalog_jobs import check_catalog_job
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
from featurestore.model.plan import Source
from featurestore.model.project import PlannedChange
from featurestore.model.source import SourceSpec
from featurestore.registry import alerts, jobs, sources
from featurestore.registry.artifacts import feature_views
from featurestore.retrieval.catalog import Pins, RegisteredSpecs
from featurestore.retrieval.view_rows import retrieve_rows
from featurestore.session import Session
from featurestore.sources import registration
from featurestore.streams import check_stream_definition
from featurestore.views import definition as views

# The table id of groups that exist only in a draft.
DRAFT_TABLE = "draft"
# Longer values are not printed in plans.
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class Step:
    """A planned change, and the function that applies it to the store."""

    change: PlannedChange
    run: Callable[[Session], object] = field(repr=False)


@dataclass(frozen=True)
class Draft:
    """A session whose registry is a draft, the groups that jobs write, and the reads of sources.

    ``registration`` contains all jobs of the project.
    """

    session: Session
    job_targets: Collection[str]
    reads: SourceReads
    registration: Registration


def compare_source(draft: Draft, definition: Definition, position: str) -> Step | None:
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
    return Step(change, lambda session: registration.put(session, spec))


def compare_channel(draft: Draft, definition: Definition, position: str) -> Step | None:
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
    return Step(
        change,
        lambda session: add_channel(session, channel.name, channel.uri, secret=channel.secret),
    )


def compare_view(draft: Draft, definition: Definition, position: str) -> Step | None:
    """Return the step that creates the next version of a feature view."""
    content = definition.content
    assert isinstance(content, ViewContent)
    try:
        spec = views.define(draft.session, definition.name, **content.arguments)
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
    version = max([*versions, *used_versions], default=0) + 1
    check_view_rows(draft, spec)
    with draft.session.registry.transaction() as connection:
        feature_views.add(connection, replace(spec, version=version))
    change = _change(definition, not versions, details, position, version=version)
    return Step(change, lambda session: views.create(session, spec, version=version))


def check_view_rows(draft: Draft, spec: FeatureViewSpec) -> None:
    """Check the joins and the label of a view, also over groups that exist only in the draft."""
    if spec.labels is None:
        return
    rows = retrieve_rows(draft.session, spec, pins=DraftPins(draft.session))
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


def compare_job(draft: Draft, definition: Definition, position: str) -> Step | None:
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
    if spec.stream is not None:
        check_stream_definition(session, spec)
        draft.reads.check_topic(session, spec.stream.source, spec.stream.topic)
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
    return Step(
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
