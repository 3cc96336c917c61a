"""The rows of a feature view: chained calls of get_features, one for each step."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from featurestore.errors import FeatureGroupNotFound, FeatureViewBroken
from featurestore.model.feature_view import FeatureViewSpec, ViewFeature, incompatible_features
from featurestore.model.references import format_group_reference, parse_group_reference
from featurestore.retrieval import FeatureFrame, get_features
from featurestore.retrieval.catalog import AsOfArgument, Pins, RegisteredSpecs
from featurestore.retrieval.planner import LabelTime
from featurestore.retrieval.resolve import find_spec
from featurestore.session import Session


def rows_of(
    session: Session,
    spec: FeatureViewSpec,
    *,
    labels: object | None = None,
    label_time: LabelTime | None = None,
    as_of: AsOfArgument | None = None,
    label_types: Mapping[str, pa.DataType] | None = None,
) -> FeatureFrame:
    """Return the rows of a view lazily; all its calls read the same Delta versions.

    Columns of labels without a type have that of ``label_types``, else of the view's label group.

    Raises:
        FeatureViewBroken: A group no longer has a feature of the view.
    """
    registered = RegisteredSpecs(session)
    view_problems = problems(spec, registered)
    if view_problems:
        raise FeatureViewBroken(
            f"Feature view {spec.name!r} version {spec.version} cannot be read: "
            f"{'; '.join(view_problems)}.",
            hint="restore the group, or make the next version of the view",
        )
    rows = labels
    if rows is None:
        rows = spec.labels
    time = label_time
    if time is None:
        time = spec.label_time
    pins = Pins(session, registered, as_of=as_of)
    types = {**_types(spec, registered), **(label_types or {})}
    for step in spec.steps:
        rows = get_features(
            session,
            step.requests,
            labels=rows,
            label_time=time,
            join_key=step.join_key,
            join=step.join,
            pins=pins,
            label_types=types,
        )
    pins.check_used()
    assert isinstance(rows, FeatureFrame)
    return rows.of_view(spec.name, spec.version)


def _types(spec: FeatureViewSpec, registered: RegisteredSpecs) -> dict[str, pa.DataType]:
    """Return the types of the columns of the label group that a view names."""
    if spec.labels is None:
        return {}
    name, version = parse_group_reference(spec.labels)
    schema = find_spec(name, version=version, specs=registered).schema
    return dict(zip(schema.names, schema.types, strict=True))


def problems(spec: FeatureViewSpec, registered: RegisteredSpecs) -> list[str]:
    """Return the missing features of a view, one line for each group."""
    features_by_group: dict[tuple[str, int], list[ViewFeature]] = {
        group: [] for group in spec.groups
    }
    for feature in spec.features:
        features_by_group[feature.group, feature.version].append(feature)
    messages = []
    for (name, version), features in features_by_group.items():
        reference = format_group_reference(name, version)
        try:
            group = find_spec(name, version=version, specs=registered)
        except FeatureGroupNotFound:
            messages.append(f"{reference} is gone")
            continue
        missing = incompatible_features(features, group)
        if missing:
            messages.append(f"of {reference} {', '.join(missing)}")
    return messages
