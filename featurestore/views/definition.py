"""What ``create_feature_view`` was asked, checked and pinned to versions of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featurestore.arrow.arrow_json import type_from_json, type_to_json
from featurestore.errors import FeatureNotFound, InvalidArgument, listing
from featurestore.model.feature_view import JOINS, FeatureViewSpec, ViewFeature, ViewStep
from featurestore.model.featuregroup import check_tags
from featurestore.model.names import check_name
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.references import format_group_reference, parse_group_reference
from featurestore.model.times import utc_now
from featurestore.model.window_features import WindowFeature, parse_window
from featurestore.retrieval.catalog import RegisteredSpecs
from featurestore.retrieval.resolve import find_spec, resolve
from featurestore.retrieval.windows import aggregate_type
from featurestore.session import Session
from featurestore.transform.chain_json import chains_to_json
from featurestore.transform.steps import Chain
from featurestore.usersql import check_column_expression

Asked = str | WindowFeature | OnDemandFeature
Features = Asked | Sequence[Asked | Mapping[str, Any]]
_STEP = ("features", "join_key", "join")


def define(
    session: Session,
    name: str,
    *,
    features: Features,
    labels: str | None,
    label: str | Sequence[str] | None,
    label_time: str | None,
    description: str,
    tags: Mapping[str, str],
    transformations: Mapping[str, Chain],
) -> FeatureViewSpec:
    """Return a view as it can be served; its version is still to be claimed.

    Raises:
        InvalidArgument: An argument is not what a view can hold.
        FeatureNotFound: A feature or label does not exist.
    """
    check_name(name, noun="feature view")
    check_tags(tags)
    specs = RegisteredSpecs(session)
    steps = []
    for asked in _steps(features):
        steps.append(_step(asked, specs))
    side = None
    if labels is not None:
        side = _label_side(labels, specs)
    _check_label_time(label_time)
    written = chains_to_json(transformations, _feature_types(steps))
    return FeatureViewSpec(
        name=name,
        version=1,
        steps=tuple(steps),
        labels=side,
        label=_names(label),
        label_time=label_time,
        description=description,
        tags=dict(tags),
        created=utc_now().isoformat(),
        transformations=written,
    )


def _feature_types(steps: Sequence[ViewStep]) -> pa.Schema:
    """Return the types of the plain features of some steps, under their names in the rows."""
    fields = []
    for step in steps:
        for feature in step.features:
            if feature.window is None:
                fields.append(pa.field(feature.name, type_from_json(feature.type)))
    return pa.schema(fields)


def check_label(spec: FeatureViewSpec, columns: Sequence[str]) -> None:
    """Make sure that the rows of a view hold its labels."""
    absent = [name for name in spec.label if name not in columns]
    if absent:
        raise FeatureNotFound(
            f"The rows of feature view {spec.name!r} have no columns {listing(absent)} to be its "
            f"label; they have {listing(columns, limit=30)}."
        )


def _steps(features: Features) -> list[Mapping[str, Any]]:
    """Return the calls that a list says: its references are the first, each object is one more."""
    if isinstance(features, str | WindowFeature | OnDemandFeature | Mapping):
        features = [features]
    first: list[Asked] = []
    further: list[Mapping[str, Any]] = []
    for each in features:
        if isinstance(each, Mapping):
            further.append(each)
        elif further:
            raise InvalidArgument(
                f"The reference {each!r} stands behind an object.",
                hint="references first; those of one more join: {'features': [...], 'join_key': "
                "...}",
            )
        elif not isinstance(each, str | WindowFeature | OnDemandFeature):
            raise InvalidArgument(
                f"{each!r} is no reference, which is all that a feature view keeps.",
                hint="write its rows to a group, and name that group's features",
            )
        else:
            first.append(each)
    if first:
        return [{"features": first}, *further]
    return further


def _step(asked: Mapping[str, Any], specs: RegisteredSpecs) -> ViewStep:
    unknown = [name for name in asked if name not in _STEP]
    join = asked.get("join", "left")
    if unknown or "features" not in asked or join not in JOINS:
        raise InvalidArgument(
            f"{dict(asked)!r} is no step of a feature view.",
            hint="{'features': ['airports.altitude as dest_altitude'], 'join_key': {'dest': "
            "'faa'}, 'join': 'left'}",
        )
    found = []
    on_demand = []
    for wanted in _listed(asked["features"]):
        if isinstance(wanted, OnDemandFeature):
            check_column_expression(wanted.sql)
            on_demand.append(wanted)
            continue
        if isinstance(wanted, WindowFeature):
            found.append(_window(wanted, specs))
            continue
        for feature in resolve(wanted, specs=specs, groups_with=specs.groups_with):
            group, version = feature.group
            kind = type_to_json(feature.spec.schema.field(feature.column).type)
            found.append(ViewFeature(group, version, feature.column, feature.name, kind))
    return ViewStep(tuple(found), _plain(asked.get("join_key")), join, tuple(on_demand))


def _listed(features: Any) -> list[Asked]:
    """Return references and aggregates in order, aggregates that were written as text read."""
    given = [features] if isinstance(features, Asked) else list(features)
    found: list[Asked] = []
    for each in given:
        if isinstance(each, str) and "|" in each:
            each = parse_window(each)
        found.append(each)
    return found


def _window(wanted: WindowFeature, specs: RegisteredSpecs) -> ViewFeature:
    """Return an aggregate of the version of its group that is the latest now."""
    (feature,) = resolve(str(wanted.reference), specs=specs)
    aggregate_type(feature, wanted)  # raises where the function has no meaning for the column
    group, version = feature.group
    pinned = replace(wanted, reference=replace(wanted.reference, version=version))
    kind = type_to_json(feature.spec.schema.field(feature.column).type)
    return ViewFeature(group, version, feature.column, wanted.name, kind, pinned)


def _plain(join_key: Any) -> Any:
    """Return ``join_key=`` as JSON holds it."""
    if isinstance(join_key, Mapping):
        return {name: _plain(value) for name, value in join_key.items()}
    if join_key is None or isinstance(join_key, str):
        return join_key
    return list(join_key)


def _label_side(labels: object, specs: RegisteredSpecs) -> str:
    if not isinstance(labels, str):
        raise InvalidArgument(
            f"labels={type(labels).__name__} cannot be kept in a feature view: it names a group.",
            hint="make a group of the labels, or leave labels out and give them to "
            "view.get_features(labels=...)",
        )
    name, version = parse_group_reference(labels)
    spec = find_spec(name, version=version, specs=specs)
    return format_group_reference(spec.name, spec.version)


def _check_label_time(label_time: object) -> None:
    if label_time is not None and not isinstance(label_time, str):
        raise InvalidArgument(
            f"label_time={label_time!r} is one time for all rows, which a feature view does not "
            "keep.",
            hint="label_time='the time column'; one time goes to view.get_features(label_time=...)",
        )


def _names(label: str | Sequence[str] | None) -> tuple[str, ...]:
    if label is None:
        return ()
    if isinstance(label, str):
        return (label,)
    return tuple(label)
