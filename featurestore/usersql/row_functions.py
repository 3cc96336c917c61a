"""Features of one row as SQL expressions or as Narwhals functions.

A Narwhals function is converted to DuckDB SQL once, when the feature is defined; the SQL is then
checked and translated for each engine like a handwritten expression, so retrieval needs no Python
code. A function that is not equal on every engine is refused at its definition, by the name of the
Narwhals method.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.arrow.column_names import check_feature_names
from featurestore.errors import InvalidArgument, InvalidSql, listing, missing_extra
from featurestore.model.on_demand import OnDemandFeature, hash_source
from featurestore.usersql.expressions import column_expression

if TYPE_CHECKING:
    import narwhals as nw

# A function of named inputs as Narwhals expressions that returns an expression.
RowFunction = Callable[[Mapping[str, Any]], Any]

TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
# The Narwhals methods that are equal on every engine, for the types that SQL conditions support.
_METHODS_LISTED = """
    abs cast clip dt.date dt.day dt.hour dt.minute dt.month dt.offset_by dt.ordinal_day dt.second
    dt.truncate dt.weekday dt.year fill_nan fill_null is_between is_finite is_in is_nan is_null
    nw.all_horizontal nw.any_horizontal nw.coalesce nw.lit nw.max_horizontal nw.min_horizontal
    nw.sum_horizontal nw.when str.contains str.ends_with str.len_chars str.replace_all
    str.slice str.starts_with
"""
METHODS = tuple(_METHODS_LISTED.split())
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|",
    "invert": "~", "neg": "-",
}  # fmt: skip
_BOUNDS = "compare with bounds: (row['x'] >= 2.5) & (row['x'] < 3.5)"
_LITERAL = "pass literal=True, which searches for the text itself"
_SPELLINGS = "list the spellings: row['x'].is_in(['a', 'A'])"
# Alternatives to common methods that differ between engines.
_ALTERNATIVES = {
    "//": "(row['n'] - row['n'] % 2) / 2 is the quotient of integers",
    "**": "multiply: row['x'] * row['x']",
    "nw.concat_str()": "featurestore.feature('zone_key', \"zone || '-' || other\")",
    "round()": _BOUNDS,
    "floor()": _BOUNDS,
    "ceil()": _BOUNDS,
    "str.contains()": _LITERAL,
    "str.replace_all()": _LITERAL,
    "str.to_lowercase()": _SPELLINGS,
    "str.to_uppercase()": _SPELLINGS,
}
_SELECT = "SELECT "


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


def function_to_sql(function: RowFunction, inputs: Mapping[str, str], *, name: str) -> str:
    """Convert a function of its inputs to an expression in DuckDB SQL.

    Args:
        function: Takes ``{input: Narwhals expression}`` and returns an expression.
        inputs: The type of each input, one of ``TYPES``.
        name: The feature name, for error messages.

    Raises:
        InvalidArgument: The function does not return an expression of one row of its inputs, or
            uses methods that differ between engines.
        MissingExtra: Narwhals is not installed.

    >>> function_to_sql(lambda row: row["distance"] / row["seats"],
    ...     {"distance": "int64", "seats": "int64"}, name="per_seat")
    '("distance" / "seats")'
    """
    check_feature_names(list(inputs))
    invalid_inputs = [
        f"{column}: {dtype!r}" for column, dtype in inputs.items() if dtype not in TYPES
    ]
    if invalid_inputs or not inputs:
        raise InvalidArgument(
            f"The inputs {dict(inputs)!r} of feature {name!r} have no supported types.",
            hint=f"inputs={{'distance': 'int64'}}; supported types: {listing(TYPES)}",
        )
    try:
        import narwhals as nw
        import narwhals.sql
    except ImportError as error:
        raise missing_extra("narwhals", "jobs") from error
    expression = function({column: nw.col(column) for column in inputs})
    if not isinstance(expression, nw.Expr):
        raise InvalidArgument(
            f"The function of feature {name!r} returned {type(expression).__name__}, not a Narwhals expression.",
            hint="for example lambda row: row['distance'] / row['seats']",
        )
    return _Converter(name, inputs).convert(expression)


@dataclass(frozen=True)
class _Converter:
    """Converts Narwhals expressions of typed inputs to SQL."""

    feature: str
    inputs: Mapping[str, str]

    def convert(self, expression: nw.Expr) -> str:
        """Return the SQL of an expression; raise InvalidArgument with the name of a method."""
        try:
            sql = self._to_sql(expression)
        except Exception as error:  # of Narwhals and of DuckDB, which have no common class
            raise self._unsupported_error(expression, "cannot be converted to SQL") from error
        # Any other form of the query aggregates or joins rows.
        if sql is None:
            raise InvalidArgument(
                f"The function of feature {self.feature!r} reads several rows.",
                hint="a feature is computed from one row; for aggregates use featurestore.window(...)",
            )
        try:
            self._check_engines(sql)
        except InvalidSql as error:
            reason = "was not verified to be equal on every engine"
            raise self._unsupported_error(expression, reason) from error
        return sql

    def _to_sql(self, expression: nw.Expr) -> str | None:
        """Return the SQL of an expression; None if it reads several rows."""
        import narwhals as nw
        from narwhals.sql import TZ, table

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
        rows = table(request, {column: types[dtype] for column, dtype in self.inputs.items()})
        query: str = rows.select(computed=expression).to_sql()
        end = f' AS "computed" FROM "{request}"'
        if not query.startswith(_SELECT) or not query.endswith(end):
            return None
        return query.removeprefix(_SELECT).removesuffix(end)

    def _check_engines(self, sql: str) -> None:
        """Raise InvalidSql for SQL that is not equal on every engine."""
        schema = pa.schema([(column, TYPES[dtype]) for column, dtype in self.inputs.items()])
        for dialect in ("duckdb", "spark"):
            column_expression(sql, schema=schema, dialect=dialect)

    def _is_supported(self, expression: nw.Expr) -> bool:
        try:
            sql = self._to_sql(expression)
            if sql is not None:
                self._check_engines(sql)
        except Exception:  # of Narwhals and of DuckDB, which have no common class
            return False
        return sql is not None

    def _unsupported_error(self, expression: nw.Expr, reason: str) -> InvalidArgument:
        method = self._find_unsupported(expression) or "a method"
        name = method.partition(" ")[0]
        hint = _ALTERNATIVES.get(name)
        if hint is None:
            hint = (
                f"supported methods: {listing(METHODS, limit=60)}; operators: + - * / % == < & | ~"
            )
        return InvalidArgument(
            f"The function of feature {self.feature!r} uses {method}, which {reason}.", hint=hint
        )

    def _find_unsupported(self, expression: nw.Expr) -> str | None:
        """Return the first method of an expression that is not supported, with its constants."""
        import narwhals as nw

        nodes = getattr(expression, "_nodes", ())
        for position, node in enumerate(nodes):
            if node.name in ("col", "lit"):
                continue
            for operand in node.exprs:
                if isinstance(operand, nw.Expr):
                    method = self._find_unsupported(operand)
                    if method is not None:
                        return method
            if not self._is_supported(nw.Expr(*nodes[: position + 1])):
                return _describe_method(node, is_function=position == 0)
        return None


def _describe_method(node: Any, *, is_function: bool) -> str:
    """Return the name of a method as it is written, and its constants.

    ``node`` is one of Narwhals' operations; it has a name and operands.
    """
    import narwhals as nw

    word = node.name.strip("_")
    if node.name.startswith("__"):
        name = _OPERATORS.get(word) or _OPERATORS.get(word.removeprefix("r")) or word
    elif node.name == "when_then":
        name = "nw.when()"
    else:
        name = f"nw.{node.name}()" if is_function else f"{node.name}()"
    # Options that are not set are False or None.
    values = [*node.exprs, *node.kwargs.values()]
    constants = [
        repr(value) for value in values if not isinstance(value, nw.Expr | bool | NoneType)
    ]
    return f"{name} with {', '.join(constants)}" if constants else name
