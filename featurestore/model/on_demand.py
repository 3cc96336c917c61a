"""On-demand features, computed from each row at retrieval and never stored.

The same expression runs for training and for scoring, on every engine. A Narwhals function is
converted to DuckDB SQL once, when the feature is defined; the SQL is then checked and translated
for each engine like a handwritten expression, so retrieval needs no Python code.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from featurestore.arrow.column_names import check_feature_names
from featurestore.errors import ColumnConflict, InvalidArgument, listing, missing_extra
from featurestore.model.json_object import JsonObject

# A function of named inputs as Narwhals expressions that returns an expression.
RowFunction = Callable[[Mapping[str, Any]], Any]

TYPES = ("int64", "float64", "string", "bool", "date", "timestamp")
_SELECT = "SELECT "


@dataclass(frozen=True)
class OnDemandFeature:
    """A feature that an SQL expression computes from features and label columns of the same row.

    ``source`` is the SHA-256 of the function that was converted to SQL, or None for handwritten
    SQL.
    """

    name: str
    sql: str
    source: str | None = None

    @property
    def sha256(self) -> str:
        """The SHA-256 of the SQL expression."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def to_json(self) -> dict[str, str]:
        """Return the JSON object that plans, manifests and feature views store."""
        data = {"name": self.name, "sql": self.sql, "sha256": self.sha256}
        if self.source is not None:
            data["source"] = self.source
        return data

    @classmethod
    def from_json(cls, data: JsonObject) -> OnDemandFeature:
        """Parse the output of ``to_json``; raise MalformedJson if it was modified."""
        source = None
        if "source" in data:
            source = data.text("source")
        feature_spec = cls(data.text("name"), data.text("sql"), source)
        if data.text("sha256") != feature_spec.sha256:
            raise data.wrong_type_error("sha256", "the hash of its expression")
        return feature_spec


def feature(
    name: str, sql: str | RowFunction, *, inputs: Mapping[str, str] | None = None
) -> OnDemandFeature:
    """Return an on-demand feature for ``get_features``, computed from each row at retrieval.

    Args:
        name: The column name.
        sql: An expression of the other requested features and the label columns, in the SQL of
            ``FeatureFrame.filter``: the subset of DuckDB SQL that is equal on every engine. It
            cannot read the clock or aggregate rows. Alternatively, a function of ``{input:
            expression}`` that returns a Narwhals expression (extra ``jobs``), which is converted to
            SQL once; the feature stores the SQL and the hash of the function's source code.
        inputs: The input types of a function: int64, float64, string, bool, date, timestamp.

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
                f"The feature {name!r} is a function, which requires the types of its inputs.",
                hint=f"featurestore.feature({name!r}, ..., inputs={{'distance': 'int64'}})",
            )
        return OnDemandFeature(name, function_to_sql(sql, inputs, name=name), hash_source(sql))
    if not isinstance(sql, str) or not sql.strip():
        raise InvalidArgument(
            f"The feature {name!r} is {sql!r}, not an SQL expression.",
            hint="featurestore.feature('per_seat', 'distance / seats')",
        )
    return OnDemandFeature(name, sql.strip())


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


def find_plan_features(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
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


def function_to_sql(function: RowFunction, inputs: Mapping[str, str], *, name: str) -> str:
    """Convert a function of its inputs to an expression in DuckDB SQL.

    Args:
        function: Takes ``{input: Narwhals expression}`` and returns an expression.
        inputs: The type of each input, one of ``TYPES``.
        name: The feature name, for error messages.

    Raises:
        InvalidArgument: The function does not return an expression of one row of its inputs.
        MissingExtra: Narwhals is not installed.

    >>> function_to_sql(lambda row: row["distance"] / row["seats"],
    ...     {"distance": "int64", "seats": "int64"}, name="per_seat")
    '("distance" / "seats")'
    """
    check_feature_names(list(inputs))
    invalid_inputs = [f"{column}: {kind!r}" for column, kind in inputs.items() if kind not in TYPES]
    if invalid_inputs or not inputs:
        raise InvalidArgument(
            f"The inputs {dict(inputs)!r} of feature {name!r} have no supported types.",
            hint=f"inputs={{'distance': 'int64'}}; supported types: {listing(TYPES)}",
        )
    try:
        import narwhals as nw
        from narwhals.sql import TZ, table
    except ImportError as error:
        raise missing_extra("narwhals", "jobs") from error
    types: dict[str, Any] = {
        "int64": nw.Int64,
        "float64": nw.Float64,
        "string": nw.String,
        "bool": nw.Boolean,
        "date": nw.Date,
        "timestamp": nw.Datetime("us", TZ.time_zone),
    }
    # Narwhals keeps its tables, so the name of the table must be unique.
    request = f"request_{uuid.uuid4().hex}"
    rows = table(request, {column: types[kind] for column, kind in inputs.items()})
    expression = function({column: nw.col(column) for column in inputs})
    if not isinstance(expression, nw.Expr):
        raise InvalidArgument(
            f"The function of feature {name!r} returned {type(expression).__name__}, not a Narwhals expression.",
            hint="for example lambda row: row['distance'] / row['seats']",
        )
    try:
        text: str = rows.select(computed=expression).to_sql()
    except Exception as error:  # of Narwhals and of DuckDB, which have no common class
        raise InvalidArgument(
            f"The function of feature {name!r} cannot be converted to SQL: {error}"
        ) from error
    end = f' AS "computed" FROM "{request}"'
    # Any other form of the query aggregates or joins rows.
    if not text.startswith(_SELECT) or not text.endswith(end):
        raise InvalidArgument(
            f"The function of feature {name!r} reads several rows: {text.replace(request, 'rows')}",
            hint="a feature is computed from one row; for aggregates use featurestore.window(...)",
        )
    return text.removeprefix(_SELECT).removesuffix(end)


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
