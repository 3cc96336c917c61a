"""The features of a training dataset as a request that can be repeated for predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.json_object import JsonObject
from featurestore.model.manifest import Manifest
from featurestore.model.names import FeatureReference
from featurestore.model.on_demand import OnDemandFeature, find_plan_features
from featurestore.model.window_features import WindowFeature, window_from_json
from featurestore.session import Session
from featurestore.views.definition import define


def build_retrieval(
    session: Session, manifest: Manifest, *, name: str, inputs: Collection[str], label: list[str]
) -> FeatureViewSpec:
    """Return the features of a training dataset that a model needs, with group versions.

    Each ``get_features`` call is a step. Columns of the labels remain label columns; filters and
    samples of the training rows do not apply.

    Raises:
        FeatureNotFound, FeatureGroupNotFound: A group was deleted.
    """
    steps: list[Mapping[str, Any]] = []
    if manifest.plan is not None:
        # On-demand features read other features, which are not in ``inputs``, so with them no
        # feature is dropped.
        needed = None if find_plan_features(manifest.plan) else set(inputs)
        _add_steps(manifest.plan, steps, needed)
    spec = define(
        session,
        name,
        features=steps,
        labels=None,
        label=None,
        label_time=None if manifest.plan is None else _label_time(manifest.plan),
        description="",
        tags={},
        transformations={},
    )
    return replace(spec, label=tuple(label))


def _label_time(plan: Mapping[str, Any]) -> str | None:
    """Return the name of the label time in a JSON plan, if any."""
    root_plan = plan
    # The labels, and so their time, belong to the first of the chained calls.
    while root_plan.get("left_plan") is not None:
        root_plan = root_plan["left_plan"]
    time = root_plan.get("left_time")
    return None if time is None else str(time)


def _add_steps(
    plan: Mapping[str, Any], steps: list[Mapping[str, Any]], needed: set[str] | None
) -> None:
    """Append the steps of a JSON plan after the steps of its input plan.

    Join columns of a later step are inputs of the earlier steps.
    """
    joins = [*plan.get("windows", ()), *plan["joins"]]
    if needed is not None:
        needed = set(needed)
        for join in joins:
            needed.update(left_column for left_column, _ in join["on"])
    if plan.get("left_plan") is not None:
        _add_steps(plan["left_plan"], steps, needed)
    features: list[str | WindowFeature | OnDemandFeature] = []
    join_key: dict[str, dict[str, str]] = {}
    for join in joins:
        source, join_features = join["source"], []
        for output in join["outputs"]:
            # An inner join also selects rows, so it is kept even if none of its features is an
            # input.
            if needed is None or output["name"] in needed or plan["how"] == "inner":
                join_features.append(_to_requested_feature(join, output))
        if join_features:
            features += join_features
            group = f"{source['featuregroup']}@v{source['version']}"
            join_key[group] = dict(join["on"])
    for feature in plan.get("on_demand", ()):
        features.append(OnDemandFeature.from_json(JsonObject.from_value(feature)))
    if features:
        steps.append({"features": features, "join_key": join_key, "join": plan["how"]})


def _to_requested_feature(
    join: Mapping[str, Any], output: Mapping[str, Any]
) -> str | WindowFeature:
    """Convert a join output back to a ``get_features`` argument."""
    source = join["source"]
    reference = FeatureReference(output["column"], source["featuregroup"], source["version"], None)
    if "function" not in output:
        if output["name"] != output["column"]:
            reference = replace(reference, alias=output["name"])
        return str(reference)
    key = [right for _, right in join["on"]]
    return window_from_json(
        JsonObject.from_value({**output, "feature": str(reference), "key": key})
    )
