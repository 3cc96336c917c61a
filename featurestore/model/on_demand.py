"""On-demand features: computed of each row when features are retrieved, stored nowhere.

The same expression runs for training and for scoring, on every engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from featurestore.arrow.column_names import check_feature_names
from featurestore.errors import ColumnConflict, InvalidArgument
from featurestore.model.json_object import JsonObject
from featurestore.model.row_functions import RowFunction, function_to_sql, source_hash


@dataclass(frozen=True)
class OnDemandFeature:
    """A feature that an SQL expression makes of the features and label columns of its row.

    ``source``: the SHA-256 of the function that the expression was made by; None: it was written.
    """

    name: str
    sql: str
    source: str | None = None

    @property
    def sha256(self) -> str:
        """The SHA-256 of the expression as it was written."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def to_json(self) -> dict[str, str]:
        """Return what plans, manifests and feature views write."""
        data = {"name": self.name, "sql": self.sql, "sha256": self.sha256}
        if self.source is not None:
            data["source"] = self.source
        return data

    @classmethod
    def from_json(cls, data: JsonObject) -> OnDemandFeature:
        """Return the feature that ``to_json`` wrote; MalformedJson where it was changed."""
        source = None
        if "source" in data:
            source = data.text("source")
        feature_spec = cls(data.text("name"), data.text("sql"), source)
        if data.text("sha256") != feature_spec.sha256:
            raise data.wrong("sha256", "the hash of its expression")
        return feature_spec


def feature(
    name: str, sql: str | RowFunction, *, inputs: Mapping[str, str] | None = None
) -> OnDemandFeature:
    """Return an on-demand feature for ``get_features``, computed from each row at retrieval.

    Args:
        name: Of the column.
        sql: An expression over the other requested features and the columns of the labels,
            in the SQL of ``FeatureFrame.filter``: DuckDB's, with what means the same on every
            engine. It cannot read the clock or aggregate rows. Or a function of
            ``{input: expression}`` to an expression of Narwhals (extra ``jobs``), which is made
            SQL here, once; the feature keeps that and the hash of the function's source.
        inputs: The types of a function's inputs: int64, float64, string, bool, date, timestamp.

    Raises:
        InvalidName: The name is not valid for a feature.
        InvalidArgument: The expression is neither a string nor a function of one row.

    >>> feature("per_seat", "distance / seats").name
    'per_seat'
    >>> far = feature("far", lambda row: row["distance"] > 1000, inputs={"distance": "int64"})
    >>> far.sql
    '("distance" > 1000)'
    """
    check_feature_names([name])
    if callable(sql):
        if inputs is None:
            raise InvalidArgument(
                f"The feature {name!r} is a function whose inputs have no types.",
                hint=f"featurestore.feature({name!r}, ..., inputs={{'distance': 'int64'}})",
            )
        return OnDemandFeature(name, function_to_sql(sql, inputs, name=name), source_hash(sql))
    if not isinstance(sql, str) or not sql.strip():
        raise InvalidArgument(
            f"The feature {name!r} is {sql!r}, which is no expression.",
            hint="featurestore.feature('per_seat', 'distance / seats')",
        )
    return OnDemandFeature(name, sql.strip())


def check_new_names(features: Iterable[OnDemandFeature], existing_names: Iterable[str]) -> None:
    """Refuse names that other columns of the rows have, ignoring case as the engines do.

    Raises:
        ColumnConflict: A name is taken.
    """
    used_names = {name.lower() for name in existing_names}
    for each in features:
        if each.name.lower() in used_names:
            raise ColumnConflict(
                f"The on-demand feature {each.name!r} has the name of another column (ignoring "
                "case).",
                hint=f"featurestore.feature('{each.name}_2', ...)",
            )
        used_names.add(each.name.lower())


def features_of_plan(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the on-demand features of a plan's JSON, those of the plans that feed it first."""
    features = []
    left_plan = plan.get("left_plan")
    if isinstance(left_plan, Mapping):
        features += features_of_plan(left_plan)
    listed = plan.get("on_demand")
    if isinstance(listed, list):
        features += [each for each in listed if isinstance(each, Mapping)]
    return features
