"""Feature view definitions: creation, storage, lookup and retrieval."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featurestore.arrow.schemas import type_from_json, type_to_json
from featurestore.errors import (
    FeatureNotFound,
    FeatureStoreError,
    FeatureViewExists,
    InvalidArgument,
    listing,
)
from featurestore.model.feature_view import (
    JOINS,
    FeatureViewSpec,
    ViewFeature,
    ViewStep,
)
from featurestore.model.featuregroup import check_tags, normalize_tags
from featurestore.model.names import check_name, format_group_reference, parse_group_reference
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.requests import RequestedFeature, RowsRequest, ViewRequest
from featurestore.model.times import utc_now
from featurestore.model.window_features import WindowFeature, parse_window
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.views import VIEWS
from featurestore.registry.artifacts import feature_views
from featurestore.retrieval.catalog import RegisteredSpecs
from featurestore.retrieval.resolve import find_spec, resolve
from featurestore.retrieval.view_rows import retrieve_rows
from featurestore.retrieval.windows import infer_aggregate_type
from featurestore.session import Session
from featurestore.storage.failures import warn_after_publication
from featurestore.storage.publication import Publication
from featurestore.training.export.assignment import to_column_names
from featurestore.transform.fit import chains_to_json
from featurestore.usersql import check_column_expression

_STEP_KEYS = ("features", "join_key", "join")


def define(
    session: Session, request: ViewRequest, *, current_versions: Mapping[str, int] | None = None
) -> FeatureViewSpec:
    """Validate the definition of a view and return its spec; ``create`` assigns the version.

    References without a version are pinned to ``current_versions`` of their groups, and those to
    other groups to the latest version.

    Raises:
        InvalidArgument: A view does not support an argument.
        FeatureNotFound: A feature or label does not exist.
    """
    tags = normalize_tags(request.tags)
    check_name(request.name, noun="feature view")
    check_tags(tags)
    specs = RegisteredSpecs(session, current_versions=current_versions)
    steps = [_parse_step(step, specs) for step in _group_steps(request)]
    label_group = None
    if request.labels is not None:
        label_group = _resolve_label_group(request.labels, specs)
    if request.label_time is not None and not isinstance(request.label_time, str):
        raise InvalidArgument(
            f"label_time={request.label_time!r} is one time for all rows, but a feature view stores a "
            "column name.",
            hint="label_time='the time column', or pass the time to "
            "view.get_features(label_time=...)",
        )
    # Checked now against the pinned types, because a view is immutable.
    transformations = chains_to_json(request.transformations or {}, _feature_types(steps))
    return FeatureViewSpec(
        name=request.name,
        version=1,
        steps=tuple(steps),
        labels=label_group,
        label=to_column_names(request.label),
        label_time=request.label_time,
        description=request.description,
        tags=tags,
        created=utc_now().isoformat(),
        transformations=transformations,
    )


def _feature_types(steps: Sequence[ViewStep]) -> pa.Schema:
    """Return the output names and types of the plain features of view steps."""
    fields = []
    for step in steps:
        for feature in step.features:
            if feature.window is None:
                fields.append(pa.field(feature.name, type_from_json(feature.type)))
    return pa.schema(fields)


def check_label(spec: FeatureViewSpec, columns: Sequence[str]) -> None:
    """Check that the label columns of a view are among its output columns."""
    missing_columns = [name for name in spec.label if name not in columns]
    if missing_columns:
        raise FeatureNotFound(
            f"Unknown label columns {listing(missing_columns)} of feature view {spec.name!r}. "
            f"Available: {listing(columns, limit=30)}."
        )


def _group_steps(request: ViewRequest) -> list[Mapping[str, Any]]:
    """Group requested features into steps.

    References form the first step, and each object forms a further step.
    """
    requests = request.features
    if isinstance(requests, str | WindowFeature | OnDemandFeature | Mapping):
        requests = [requests]
    leading_items: list[RequestedFeature] = []
    further_steps: list[Mapping[str, Any]] = []
    for requested in requests:
        if isinstance(requested, Mapping):
            further_steps.append(requested)
        # Steps are joined one after another, so a reference after a step would move before it and
        # change the column order.
        elif further_steps:
            raise InvalidArgument(
                f"The reference {requested!r} follows a step.",
                hint="list references before steps; a step is {'features': [...], 'join_key': ...}",
            )
        elif not isinstance(requested, str | WindowFeature | OnDemandFeature):
            raise InvalidArgument(
                f"{requested!r} is not a feature reference; a feature view stores only references.",
                hint="write its rows to a feature group, and pass references to this group",
            )
        else:
            leading_items.append(requested)
    if leading_items:
        return [{"features": leading_items}, *further_steps]
    return further_steps


def _parse_step(step: Mapping[str, Any], specs: RegisteredSpecs) -> ViewStep:
    """Resolve the features of a step and pin their group versions."""
    unknown = [name for name in step if name not in _STEP_KEYS]
    join = step.get("join", "left")
    if unknown or "features" not in step or join not in JOINS:
        raise InvalidArgument(
            f"{dict(step)!r} is not a step of a feature view.",
            hint="{'features': ['airports.altitude as dest_altitude'], 'join_key': {'dest': "
            "'faa'}, 'join': 'left'}",
        )
    view_features = []
    on_demand = []
    requested = step["features"]
    for feature_item in [requested] if isinstance(requested, RequestedFeature) else requested:
        if isinstance(feature_item, str) and "|" in feature_item:
            feature_item = parse_window(feature_item)
        if isinstance(feature_item, OnDemandFeature):
            check_column_expression(feature_item.sql)
            on_demand.append(feature_item)
            continue
        if isinstance(feature_item, WindowFeature):
            view_features.append(_pin_window(feature_item, specs))
            continue
        for feature in resolve(feature_item, specs=specs, groups_with=specs.groups_with):
            group, version = feature.group
            json_type = type_to_json(feature.spec.schema.field(feature.column).type)
            view_features.append(
                ViewFeature(group, version, feature.column, feature.name, json_type)
            )
    return ViewStep(tuple(view_features), _to_json(step.get("join_key")), join, tuple(on_demand))


def _pin_window(window: WindowFeature, specs: RegisteredSpecs) -> ViewFeature:
    """Pin an aggregate to the latest version of its group."""
    (feature,) = resolve(str(window.reference), specs=specs)
    infer_aggregate_type(feature, window)  # raises if the function does not support the column
    group, version = feature.group
    # The version is pinned, so that a later version of the group does not change the view.
    pinned_window = replace(window, reference=replace(window.reference, version=version))
    json_type = type_to_json(feature.spec.schema.field(feature.column).type)
    return ViewFeature(group, version, feature.column, window.name, json_type, pinned_window)


def _to_json(join_key: Any) -> Any:
    """Convert ``join_key=`` to JSON values."""
    if isinstance(join_key, Mapping):
        return {name: _to_json(value) for name, value in join_key.items()}
    if join_key is None or isinstance(join_key, str):
        return join_key
    return list(join_key)


def _resolve_label_group(labels: object, specs: RegisteredSpecs) -> str:
    if not isinstance(labels, str):
        raise InvalidArgument(
            f"labels={type(labels).__name__}: a feature view stores the name of a feature group.",
            hint="write the labels to a feature group, or omit labels= and pass them to "
            "view.get_features(labels=...)",
        )
    name, version = parse_group_reference(labels)
    spec = find_spec(name, version=version, specs=specs)
    return format_group_reference(spec.name, spec.version)


def create(session: Session, spec: FeatureViewSpec, *, version: int | None) -> FeatureViewSpec:
    """Publish a checked view as the next version, or as the requested one, and return its spec.

    The view is published by linking its file atomically under the final name.

    Raises:
        FeatureViewExists: The version exists, or another process is writing it.
    """
    if spec.labels is not None:
        # Checked before the intent: an invalid label must not leave a version behind.
        check_label(spec, retrieve_rows(session, spec, RowsRequest()).columns)
    with in_flight(session, operation=VIEWS.creation, name=spec.name, version=version) as run:
        view = replace(spec, version=run.version)
        directory = session.paths.feature_view(view.name, view.version)
        staged = VIEWS.published_file(run.staging)
        # The file is complete before it is linked, so readers never see a partial definition.
        session.storage.write_atomically(staged, view.to_bytes())
        session.storage.make_directory(os.path.dirname(directory), durable=True)
        session.storage.make_directory(directory, durable=True)
        # Recovery may have revoked a run that was considered dead; after this check only the link
        # follows.
        run.check_intent()
        with Publication() as publication:
            # A link fails if the name exists, so that of two processes only one publishes a
            # version.
            if not publication.link(staged, VIEWS.published_file(directory)):
                raise FeatureViewExists(
                    f"Version {view.version} of feature view {view.name!r} already exists.",
                    hint="omit version= to create the next version",
                )
        run.committed_version = view.version
        # The view is published. Recovery completes the registration if it fails here.
        with warn_after_publication(f"Feature view {view.name!r} version {view.version}"):
            with session.registry.transaction() as connection:
                feature_views.add(connection, view)
            run.registered = True
    return view


def get(session: Session, name: str, version: int | None) -> FeatureViewSpec:
    """Return a version of a view; None means the latest.

    Raises:
        FeatureViewNotFound: The view or version does not exist; the message lists available ones.
    """
    with session.registry.reading() as connection:
        key = feature_views.get(connection, name, version)
    session.record_read(feature_views.object_kind, *key)
    return _read_view(session, *key)


def list_views(
    session: Session, *, limit: int | None = None, offset: int = 0
) -> list[FeatureViewSpec]:
    """Return all versions of all views, or one page; skip damaged views with a warning."""
    with session.registry.reading() as connection:
        keys = feature_views.list_all(connection, limit=limit, offset=offset)
    session.record_reads(feature_views.object_kind, keys)
    views_read = []
    for name, version in keys:
        try:
            views_read.append(_read_view(session, name, version))
        except FeatureStoreError as error:
            # One damaged view must not hide the others.
            warnings.warn(
                f"The feature view {name} version {version} is skipped: {error.message}",
                stacklevel=2,
            )
    return views_read


def remove(session: Session, name: str, version: int) -> None:
    """Delete a version of a view; training datasets created from it still refer to it."""
    if version is None:
        raise InvalidArgument("delete_feature_view requires a version.", hint="version=1")
    with session.registry.reading() as connection:
        feature_views.get(connection, name, version)
    with in_flight(session, operation=VIEWS.removal, name=name, version=version) as run:
        # Unregistered first: no reader finds the version from the commit on, and recovery removes
        # the files after a crash.
        with session.registry.transaction() as connection:
            VIEWS.unregister(connection, name, version)
        VIEWS.remove(session.paths, name, version)
        run.registered = True


def list_datasets(session: Session, name: str, version: int) -> list[tuple[str, int]]:
    """Return the name and version of each training dataset created from a view."""
    with session.registry.reading() as connection:
        return feature_views.datasets_of(connection, name, version)


def _read_view(session: Session, name: str, version: int) -> FeatureViewSpec:
    return VIEWS.read(session.paths.feature_view(name, version), name, version)
