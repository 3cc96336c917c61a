"""Rows of feature views: the retrieval that a view defines, and the checks that it can run."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from featurestore.errors import FeatureGroupNotFound, FeatureViewBroken
from featurestore.model.feature_view import FeatureViewSpec, ViewFeature, incompatible_features
from featurestore.model.names import format_group_reference, parse_group_reference
from featurestore.model.requests import RetrievalRequest, RowsRequest
from featurestore.retrieval.catalog import Pins, RegisteredSpecs
from featurestore.retrieval.features import get_features
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.resolve import find_spec
from featurestore.session import Session


def retrieve_rows(
    session: Session,
    spec: FeatureViewSpec,
    request: RowsRequest,
    *,
    label_types: Mapping[str, pa.DataType] | None = None,
    pins: Pins | None = None,
) -> FeatureFrame:
    """Return a lazy frame with the rows of a view; all steps read the same Delta versions.

    Untyped label columns get their types from ``label_types``, or else from the view's label group.
    ``pins`` are the versions to read; None pins the latest versions, or those of ``as_of``.

    Raises:
        FeatureViewBroken: A group no longer has a feature of the view.
    """
    registered = RegisteredSpecs(session)
    check_view(spec, registered, action="read")
    rows = spec.labels if request.labels is None else request.labels
    time = spec.label_time if request.label_time is None else request.label_time
    # One set of pins for all steps: a commit between two steps would otherwise mix versions.
    pins = pins or Pins(session, registered, as_of=request.as_of)
    types = {**label_group_types(spec, registered), **(label_types or {})}
    for step in spec.steps:
        # The rows of each step are the labels of the next.
        step_request = RetrievalRequest(
            features=step.requests,
            labels=rows,
            label_time=time,
            join_key=step.join_key,
            join=step.join,
        )
        rows = get_features(session, step_request, pins=pins, label_types=types)
    # After all steps, because each step reads only some of the pinned groups.
    pins.check_used()
    assert isinstance(rows, FeatureFrame)
    return rows.of_view(spec.name, spec.version, labels=spec.label)


def label_group_types(spec: FeatureViewSpec, registered: RegisteredSpecs) -> dict[str, pa.DataType]:
    """Return the column types of a view's label group; {} without one."""
    if spec.labels is None:
        return {}
    name, version = parse_group_reference(spec.labels)
    schema = find_spec(name, version=version, specs=registered).schema
    return dict(zip(schema.names, schema.types, strict=True))


def check_view(spec: FeatureViewSpec, registered: RegisteredSpecs, *, action: str) -> None:
    """Check that the groups of a view have its features; ``action`` is a participle for the error.

    Raises:
        FeatureViewBroken: A group no longer has a feature of the view.
    """
    problems = find_problems(spec, registered)
    if problems:
        raise FeatureViewBroken(
            f"Feature view {spec.name!r} version {spec.version} cannot be {action}: "
            f"{'; '.join(problems)}.",
            hint="restore the group, or create the next version of the view",
        )


def find_problems(spec: FeatureViewSpec, registered: RegisteredSpecs) -> list[str]:
    """Return a message for each group that lacks features of the view."""
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
            messages.append(f"{reference} no longer exists")
            continue
        missing = incompatible_features(features, group)
        if missing:
            messages.append(f"{reference}: {', '.join(missing)}")
    return messages
