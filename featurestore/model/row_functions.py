"""Conversion of Narwhals functions of one row to SQL expressions.

Narwhals turns the expression into DuckDB's SQL, which is then checked and brought to every engine
like SQL that was written by hand. So a function is run once, where it is named, and what is kept is
text, which needs no Python where features are retrieved.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from featurestore.arrow.column_names import check_feature_names
from featurestore.errors import InvalidArgument, listing, missing_extra

# Gets the named inputs as Narwhals expressions and returns one.
RowFunction = Callable[[Mapping[str, Any]], Any]

TYPES = ("int64", "float64", "string", "bool", "date", "timestamp")
_SELECT = "SELECT "


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
            f"The function of feature {name!r} looks at several rows: {text.replace(request, 'rows')}",
            hint="what a row is computed of is that row alone; aggregates are "
            "featurestore.window(...)",
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
            f"{function!r} has no source that could be told from another one's.",
            hint="write the function into a file, with def",
        ) from error
    return hashlib.sha256(source.encode()).hexdigest()
