"""On-demand features: computed from each row when features are retrieved, stored nowhere.

The same expression runs for training and for scoring, on every engine. A function of Narwhals is
converted to DuckDB's SQL once, where the feature is defined; the SQL is then checked and translated
for every engine like a handwritten expression, and retrieval needs no Python code.
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

# Gets the named inputs as Narwhals expressions and returns one.
RowFunction = Callable[[Mapping[str, Any]], Any]

TYPES = ("int64", "float64", "string", "bool", "date", "timestamp")
_SELECT = "SELECT "


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
            f"The feature {name!r} is {sql!r}, not an expression.",
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


def function_to_sql(function: RowFunction, inputs: Mapping[str, str], *, name: str) -> str:
    """Return the expression that a function makes of its inputs, in DuckDB's SQL.

    Args:
        function: Gets ``{input: Narwhals expression}`` and returns an expression.
        inputs: The type of each input, one of ``TYPES``.
        name: Of the feature, for messages.

    Raises:
        InvalidArgument: The function makes no expression over one row of its inputs.
        MissingExtra: Narwhals is not installed.

    >>> function_to_sql(lambda row: row["distance"] / row["seats"],
    ...     {"distance": "int64", "seats": "int64"}, name="per_seat")
    '("distance" / "seats")'
    """
    check_feature_names(list(inputs))
    wrong = [f"{column}: {kind!r}" for column, kind in inputs.items() if kind not in TYPES]
    if wrong or not inputs:
        raise InvalidArgument(
            f"The inputs {dict(inputs)!r} of feature {name!r} have no types that are known.",
            hint=f"inputs={{'distance': 'int64'}}; types are {listing(TYPES)}",
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
    # Narwhals keeps its tables, and none may have the name of another.
    request = f"request_{uuid.uuid4().hex}"
    rows = table(request, {column: types[kind] for column, kind in inputs.items()})
    expression = function({column: nw.col(column) for column in inputs})
    if not isinstance(expression, nw.Expr):
        raise InvalidArgument(
            f"The function of feature {name!r} returned {type(expression).__name__}, not an expression.",
            hint="lambda row: row['distance'] / row['seats'], in the expressions of Narwhals",
        )
    try:
        text: str = rows.select(computed=expression).to_sql()
    except Exception as error:  # of Narwhals and of DuckDB, which have no common class
        raise InvalidArgument(
            f"The function of feature {name!r} has no expression in SQL: {error}"
        ) from error
    end = f' AS "computed" FROM "{request}"'
    if not text.startswith(_SELECT) or not text.endswith(end):
        raise InvalidArgument(
            f"The function of feature {name!r} reads several rows: {text.replace(request, 'rows')}",
            hint="a feature is computed from one row; for aggregates use featurestore.window(...)",
        )
    return text.removeprefix(_SELECT).removesuffix(end)


def source_hash(function: Callable[..., Any]) -> str:
    """Return the SHA-256 of a function's source.

    Raises:
        InvalidArgument: It has none.
    """
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InvalidArgument(
            f"The source of {function!r} is not available, so its changes cannot be detected.",
            hint="write the function into a file, with def",
        ) from error
    return hashlib.sha256(source.encode()).hexdigest()
