"""Chains of feature views as JSON: rules and options, not fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from featurestore.errors import FeatureViewDamaged, InvalidArgument
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.transform.fit import check_chains
from featurestore.transform.rules import RULES
from featurestore.transform.steps import Chain, Step

ChainsJson = Mapping[str, Sequence[Mapping[str, Any]]]


def chains_to_json(
    chains: Mapping[str, Chain], schema: pa.Schema
) -> dict[str, list[dict[str, Any]]]:
    """Return chains as JSON after checking those of known columns against their types.

    Columns of the labels are checked when a dataset is created.
    """
    if not isinstance(chains, Mapping):
        check_chains(chains, schema)
    payload = {}
    for name, chain in chains.items():
        if name in schema.names or not isinstance(chain, Chain):
            check_chains({name: chain}, schema)
        for step in chain.steps:
            if step.fit is not None:
                raise InvalidArgument(
                    f"The chain of {name!r} has fitted=, a Python function that a feature view "
                    "does not store.",
                    hint="view.create_training_dataset(..., transformations={...})",
                )
        payload[name] = [step.to_json() for step in chain.steps]
    return payload


def chains_from_json(payload: ChainsJson, *, view: str) -> dict[str, Chain]:
    """Return the chains of a feature view.

    Raises:
        FeatureViewDamaged: The JSON is not valid in this release.
    """
    chains = {}
    for name, steps in payload.items():
        try:
            chains[name] = Chain(tuple(_step(JsonObject.from_value(step, name)) for step in steps))
        except MalformedJson as error:
            raise FeatureViewDamaged(
                f"The transformations of feature view {view!r} are not supported by this release: "
                f"{error}.",
                hint="view.create_training_dataset(..., transformations={...})",
            ) from error
    return chains


def _step(data: JsonObject) -> Step:
    rule = RULES.get(data.text("rule"))
    if rule is None:
        raise data.wrong("rule", "a rule that this release knows")
    options = data.object("options")
    rule.check(options, None)
    return Step(rule.name, options.data)
