"""On-demand features, computed from each row at retrieval and never stored.

The same expression runs for training and for scoring, on every engine.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from featurestore.errors import ColumnConflict, InvalidArgument
from featurestore.model.json_object import JsonMapping, JsonObject
from featurestore.model.records import OMIT_DEFAULT, Record


@dataclass(frozen=True)
class OnDemandFeature(Record, keys=("name", "sql", "sha256", "source")):
    """A feature that an SQL expression computes from features and label columns of the same row.

    ``source`` is the SHA-256 of the function that was converted to SQL, or None for handwritten
    SQL.
    """

    name: str
    sql: str
    source: Annotated[str | None, OMIT_DEFAULT] = None

    @property
    def sha256(self) -> str:
        """The SHA-256 of the SQL expression."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def check_json(self, data: JsonMapping) -> OnDemandFeature:
        """Refuse an expression that was modified."""
        if JsonObject(data).text("sha256") != self.sha256:
            raise JsonObject(data).wrong_type_error("sha256", "the hash of its expression")
        return self


def check_new_names(features: Iterable[OnDemandFeature], existing_names: Iterable[str]) -> None:
    """Refuse names that other columns of the rows have, ignoring case like the engines.

    Raises:
        ColumnConflict: A name is taken.
    """
    used_names = {name.lower() for name in existing_names}
    for feature in features:
        if feature.name.lower() in used_names:
            raise ColumnConflict(
                f"The on-demand feature {feature.name!r} has the name of another column (ignoring "
                "case).",
                hint=f"featurestore.feature('{feature.name}_2', ...)",
            )
        # Features of the same call must not share a name, either.
        used_names.add(feature.name.lower())


def find_plan_features(plan: JsonMapping) -> list[JsonMapping]:
    """Return the on-demand features in a plan's JSON, with those of its input plans first."""
    features = []
    left_plan = plan.get("left_plan")
    if isinstance(left_plan, Mapping):
        features += find_plan_features(left_plan)
    listed = plan.get("on_demand")
    if isinstance(listed, list):
        # Manifests may come from other stores, so other entries are skipped.
        features += [feature_json for feature_json in listed if isinstance(feature_json, Mapping)]
    return features


def hash_source(function: Callable[..., Any]) -> str:
    """Return the SHA-256 of a function's source code.

    Raises:
        InvalidArgument: The source code is not available.
    """
    try:
        # The hash does not depend on the indentation of a nested function.
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InvalidArgument(
            f"The source of {function!r} is not available, so its changes cannot be detected.",
            hint="define the function in a file with def",
        ) from error
    return hashlib.sha256(source.encode()).hexdigest()
