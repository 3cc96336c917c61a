"""Transformations that are asked for, as a feature view keeps them: rules and options, not fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from featurestore.errors import FeatureViewDamaged, InvalidArgument
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.transform.fit import check_asked
from featurestore.transform.rules import RULES
from featurestore.transform.steps import Chain, Step

Written = Mapping[str, Sequence[Mapping[str, Any]]]


def to_written(asked: Mapping[str, Chain], known: pa.Schema) -> dict[str, list[dict[str, Any]]]:
    """Return chains as JSON; those of known columns are checked against their types.

    Columns of the label side are checked when a dataset is made.
    """
    if not isinstance(asked, Mapping):
        check_asked(asked, known)
    written = {}
    for name, chain in asked.items():
        if name in known.names or not isinstance(chain, Chain):
            check_asked({name: chain}, known)
        for step in chain.steps:
            if step.fit is not None:
                raise InvalidArgument(
                    f"The chain of {name!r} has fitted=, a Python function that a feature view "
                    "does not keep.",
                    hint="view.create_training_dataset(..., transformations={...})",
                )
        written[name] = [step.to_json() for step in chain.steps]
    return written


def from_written(written: Written, *, view: str) -> dict[str, Chain]:
    """Return the chains that a view keeps.

    Raises:
        FeatureViewDamaged: They are not what this release writes.
    """
    asked = {}
    for name, steps in written.items():
        try:
            asked[name] = Chain(tuple(_step(JsonObject.of(step, name)) for step in steps))
        except MalformedJson as error:
            raise FeatureViewDamaged(
                f"The transformations of feature view {view!r} are not ones that this release "
                f"knows: {error}.",
                hint="view.create_training_dataset(..., transformations={...})",
            ) from error
    return asked


def _step(data: JsonObject) -> Step:
    rule = RULES.get(data.text("rule"))
    if rule is None:
        raise data.wrong("rule", "a rule that this release knows")
    options = data.object("options")
    rule.check(options, None)
    return Step(rule.name, options.data)
