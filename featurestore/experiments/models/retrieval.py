"""The feature retrieval of a training dataset, reusable for other labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.json_object import JsonObject
from featurestore.model.manifest import Manifest
from featurestore.model.on_demand import OnDemandFeature, features_of_plan
from featurestore.model.references import FeatureReference
from featurestore.model.window_features import WindowFeature
from featurestore.model.window_json import window_from_json
from featurestore.session import Session
from featurestore.views.definition import define


def retrieval_of(
    session: Session, manifest: Manifest, *, name: str, inputs: Collection[str], label: list[str]
) -> FeatureViewSpec:
    """Return the features of a training dataset that a model needs, with group versions.

    Each call of ``get_features`` is a step. Columns of the labels remain label columns; filters and
    samples of the training rows do not apply.

    Raises:
        FeatureNotFound, FeatureGroupNotFound: A group was deleted.
    """
    steps: list[Mapping[str, Any]] = []
    if manifest.plan is not None:
        needed = None if features_of_plan(manifest.plan) else set(inputs)
        _add_steps(manifest.plan, steps, needed)
    time = None
    if manifest.plan is not None:
        time = _label_time(manifest.plan)
    spec = define(
        session,
        name,
        features=steps,
        labels=None,
        label=None,
        label_time=time,
        description="",
        tags={},
        transformations={},
    )
    return replace(spec, label=tuple(label))


def _label_time(plan: Mapping[str, Any]) -> str | None:
    root_plan = plan
    while root_plan.get("left_plan") is not None:
        root_plan = root_plan["left_plan"]
    time = root_plan.get("left_time")
    return None if time is None else str(time)


def _add_steps(
    plan: Mapping[str, Any], steps: list[Mapping[str, Any]], needed: set[str] | None
) -> None:
    """Append the steps of a plan's JSON after those of its input plan.

    Join columns of a later step are needed from an earlier one.
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
            if needed is None or output["name"] in needed or plan["how"] == "inner":
                join_features.append(_feature_of_output(join, output))
        if join_features:
            features += join_features
            group = f"{source['featuregroup']}@v{source['version']}"
            join_key[group] = dict(join["on"])
    for each in plan.get("on_demand", ()):
        features.append(OnDemandFeature.from_json(JsonObject.from_value(each)))
    if features:
        steps.append({"features": features, "join_key": join_key, "join": plan["how"]})


def _feature_of_output(join: Mapping[str, Any], output: Mapping[str, Any]) -> str | WindowFeature:
    """Return the feature of a join output, as an argument of ``get_features``."""
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
