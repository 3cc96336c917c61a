"""Proofs that one query over a chunk of windows returns the rows of one query per window.

A query over a chunk reads the inputs of all its windows, and binds ``$window_start`` and
``$window_end`` to the bounds of the chunk. This is much faster than a query per window, and allowed
only if the syntax tree proves that the rows are the same:

- The query is one SELECT that computes its rows from single input rows or from groups of them.
- Exactly one of its tables is an input with a time. That input is read once, and no join adds rows
  without one of its rows. All windows read the same rows of the other tables. Therefore each input
  row, joined, belongs to exactly one window.
- The parameters are only the half-open bounds of the time of this input. Its rows are between the
  bounds of their window and of the chunk, so these conditions are true for all of them.
- The event time is computed from the time of the input by monotonic steps, such as ``date_trunc``
  and the addition of a fixed interval. It is then enough to check the first and the last instant of
  a window: if their event times are inside the window, so are all event times between them.
- Rows are grouped by the event time. Rows of two windows never have the same event time, so no
  group has rows of two windows.

The proof does not cover the last bits of floating point sums, which depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore import usersql
from featurestore.model.job import JobSpec
from featurestore.model.times import Window, to_micros
from featurestore.usersql.queries import REPEATABLE, SUMS, VARYING

if TYPE_CHECKING:
    from sqlglot import exp

Micros = NDArray[np.int64]
TimeTransform = Callable[[Micros], Micros]
# Seconds of the units with a fixed length, and NumPy's codes of the units for truncation.
_FIXED = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_CALENDAR = {"second": "s", "minute": "m", "hour": "h", "day": "D", "month": "M", "year": "Y"}
# 1970-01-01 was a Thursday, and weeks begin on Monday.
_MONDAY = 3
_DAY = 86_400_000_000
# The origin of time_bucket is Monday, 2000-01-03.
_BUCKET_ORIGIN = 946_857_600_000_000
# Casts of a time that keep it, in a session whose time zone is UTC.
_TIME_TYPES = frozenset({"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ"})

# Syntax that computes a row from one row or one group. Subqueries, windows, limits and other
# syntax may combine rows of different windows.
_ROW_NODE_NAMES = """
    Select From Join Where Group Having Order Ordered Distinct Table TableAlias Tuple Column
    Identifier Star Alias Paren Literal Boolean Null Var Placeholder Parameter And Or Not
    EQ NEQ LT LTE GT GTE NullSafeEQ NullSafeNEQ Is In Between Like ILike RegexpLike Glob SimilarTo
    Escape Add Sub Mul Div IntDiv Mod Pow Neg DPipe BitwiseAnd BitwiseOr BitwiseXor BitwiseNot
    BitwiseLeftShift BitwiseRightShift Case If Cast TryCast DataType DataTypeParam Extract Interval
    AtTimeZone Collate Anonymous StartsWith Filter WithinGroup Dot Bracket Slice Array Struct
    PropertyEQ JSONExtract JSONExtractScalar
"""
_ROW_NODES = frozenset(_ROW_NODE_NAMES.split())
_CLAUSES = frozenset({"expressions", "from_", "joins", "where", "group", "having", "order"})
_JOIN_CLAUSES = frozenset({"this", "side", "kind", "on", "using", "method"})
# Aggregates whose result depends on the order of rows by its last bits at most; of the others that
# vary, it depends on the order of rows.
_ROUNDED_NAMES = """
    corr covar_pop covar_samp favg fsum kahan_sum kurtosis kurtosis_pop product regr_avgx regr_avgy
    regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev stddev_pop
    stddev_samp sumkahan var_pop var_samp variance
"""
_ORDER_DEPENDENT = VARYING - frozenset(_ROUNDED_NAMES.split())
_AGGREGATES = REPEATABLE | SUMS | VARYING
_OUTER, _INNER = ("", "OUTER"), ("", "INNER", "CROSS")


class Unproven(Exception):
    """A query is not proven; the message is the reason."""


def find_obstacle(
    spec: JobSpec,
    windows: Sequence[Window],
    *,
    schemas: Mapping[str, pa.Schema],
    times: Mapping[str, str],
) -> str | None:
    """Return why one query over windows may differ from a query per window, or None if it cannot.

    Args:
        spec: The job, whose query was validated.
        windows: The windows, oldest first.
        schemas: The schema of each input.
        times: The columns by which inputs are filtered to the window; inputs without one are read
            completely.
    """
    try:
        query = WindowedQuery.resolve(spec, schemas=schemas, times=times)
        query.check_bounds()
        query.check_event_time(windows)
        query.check_groups()
    except Unproven as obstacle:
        return str(obstacle)
    return None


@lru_cache(maxsize=256)
def parse_query(code: str) -> exp.Expr:
    """Return the syntax tree of a query. The tree is cached: callers must not modify it."""
    return usersql.parse_statement(code, expected="query", calls_by_name=True)


@dataclass(frozen=True)
class WindowedQuery:
    """A query whose result rows each depend on the input rows of one window, and static tables.

    Attributes:
        spec: The job.
        select: The syntax tree.
        columns: The column names of each table, in lower case, by the alias of the table.
        alias: The alias of the only table that is filtered by time, in lower case.
        time: Its time column, in lower case.
    """

    spec: JobSpec
    select: exp.Select
    columns: Mapping[str, list[str]]
    alias: str
    time: str

    @classmethod
    def resolve(
        cls, spec: JobSpec, *, schemas: Mapping[str, pa.Schema], times: Mapping[str, str]
    ) -> WindowedQuery:
        """Resolve the tables of a query.

        Raises:
            Unproven: Result rows may depend on the input rows of several windows.
        """
        if spec.lookback:
            raise Unproven("with lookback=, an input row belongs to several windows")
        select = _check_syntax(parse_query(spec.code))
        names = {name.lower(): name for name in schemas}
        columns: dict[str, list[str]] = {}
        windowed = []
        tables = [select.args["from_"].this, *(join.this for join in select.args.get("joins", ()))]
        for position, table in enumerate(tables):
            name = names[_check_table(table).lower()]
            alias = table.alias_or_name.lower()
            columns[alias] = [column.lower() for column in schemas[name].names]
            if name in times:
                windowed.append((position, alias, times[name]))
                _check_time_type(schemas[name].field(times[name]))
        if len(windowed) != 1:
            raise Unproven(f"the query reads inputs with a time {len(windowed)} times, not once")
        position, alias, time = windowed[0]
        for number, join in enumerate(select.args.get("joins", ()), 1):
            _check_join(join, number, windowed=position)
        return cls(spec, select, columns, alias, time.lower())

    def is_time(self, node: exp.Expr | None) -> bool:
        """Return whether an expression is the time column of the windowed table."""
        from sqlglot import exp

        if not isinstance(node, exp.Column) or node.name.lower() != self.time:
            return False
        if len(node.parts) == 1:  # an unqualified name, which must belong to no other table
            names = [name for table_names in self.columns.values() for name in table_names]
        else:
            names = self.columns[self.alias]
            if len(node.parts) > 2 or node.table.lower() != self.alias:
                return False
            # ``a.b`` is also the field ``b`` of a struct ``a``.
            if any(self.alias in table_names for table_names in self.columns.values()):
                return False
        return names.count(self.time) == 1

    def check_bounds(self) -> None:
        """Check that parameters are only the half-open bounds of the time.

        Raises:
            Unproven: A parameter has another use, where it would have the value of the chunk.
        """
        where = self.select.args.get("where")
        conditions = [] if where is None else list(_split_conjunction(where.this))
        in_bounds = {
            id(node)
            for condition in conditions
            if self._is_bound(condition)
            for node in _find_parameters(condition)
        }
        for node in _find_parameters(self.select):
            if id(node) not in in_bounds:
                raise Unproven(
                    f"${node.name} is used other than in {self.time} >= $window_start and "
                    f"{self.time} < $window_end"
                )

    def _is_bound(self, condition: exp.Expr) -> bool:
        """Return whether a condition is ``time >= $window_start`` or ``time < $window_end``."""
        from sqlglot import exp

        if isinstance(condition, exp.LTE | exp.GT):  # $window_start <= time
            column, parameter = condition.expression, condition.this
            name = "window_start" if isinstance(condition, exp.LTE) else "window_end"
        elif isinstance(condition, exp.GTE | exp.LT):
            column, parameter = condition.this, condition.expression
            name = "window_start" if isinstance(condition, exp.GTE) else "window_end"
        else:
            return False
        is_parameter = isinstance(parameter, exp.Parameter | exp.Placeholder)
        return is_parameter and parameter.name == name and self.is_time(column)

    def event_time(self) -> exp.Expr:
        """Return the expression of the event time in the result.

        Raises:
            Unproven: The result has none, or several columns of this name.
        """
        name = str(self.spec.event_time)
        outputs = [
            (output_name, node)
            for output_name, node in self._outputs()
            if output_name.lower() == name.lower()
        ]
        if [output_name for output_name, _ in outputs] != [name]:
            raise Unproven(f"the result has {len(outputs)} columns {name!r}, not one")
        return outputs[0][1]

    def _outputs(self) -> Iterator[tuple[str, exp.Expr]]:
        """Yield the names and expressions of the result columns."""
        from sqlglot import exp

        for node in self.select.expressions:
            if not node.is_star:
                yield node.alias_or_name, node.unalias()
                continue
            star = node.this if isinstance(node, exp.Column) else node
            if not isinstance(star, exp.Star) or any(star.args.values()):
                raise Unproven(f"the columns of {_quote_sql(node)} are not known")
            aliases = list(self.columns) if star is node else [node.table.lower()]
            for alias in aliases:
                for name in self.columns.get(alias, ()):
                    yield name, exp.column(name, table=alias)

    def check_event_time(self, windows: Sequence[Window]) -> None:
        """Check that the event time of every row is inside the window of its input row.

        Raises:
            Unproven: The syntax tree does not determine this, or it is false.
        """
        if any(before.end != after.start for before, after in pairwise(windows)):
            raise Unproven("there is time between the windows")
        node = self.event_time()
        steps = self.build_transform(node)
        if steps is None:
            raise Unproven(f"{_quote_sql(node)} is not a known function of {self.time}")
        starts = np.array([to_micros(window.start) for window in windows], np.int64)
        ends = np.array([to_micros(window.end) for window in windows], np.int64)
        # Inputs are read in [start, end), so the last instant is one microsecond before the end.
        first, last = steps(starts), steps(ends - 1)
        if self.spec.closed == "right":
            is_inside = (first > starts).all() and (last <= ends).all()
        else:
            is_inside = (first >= starts).all() and (last < ends).all()
        if not is_inside:
            raise Unproven(
                f"{_quote_sql(node)} may be outside of its window with closed={self.spec.closed!r}"
            )

    def check_groups(self) -> None:
        """Check that no group has input rows of two windows.

        Raises:
            Unproven: Rows are not grouped by the event time.
        """
        group_by = self.select.args.get("group")
        if group_by is None or group_by.args.get("all"):
            return
        time = self.event_time()
        if not any(self._determines_window(key, time) for key in group_by.expressions):
            raise Unproven(f"rows are not grouped by {self.spec.event_time!r}")

    def _determines_window(self, key: exp.Expr, time: exp.Expr) -> bool:
        """Return whether a key of GROUP BY is the event time, or the time of the input."""
        from sqlglot import exp

        if key == time or self.is_time(key):
            return True
        if isinstance(key, exp.Literal):
            names = [name for name, _ in self._outputs()]
            return key.name == str(names.index(str(self.spec.event_time)) + 1)
        # A column of a table hides the result column of the same name.
        is_hidden = any(key.name.lower() in names for names in self.columns.values())
        is_name = isinstance(key, exp.Column) and len(key.parts) == 1 and not is_hidden
        return is_name and key.name.lower() == str(self.spec.event_time).lower()

    def build_transform(self, node: exp.Expr) -> TimeTransform | None:
        """Return the monotonic function of the time that an expression computes; None if unknown."""
        from sqlglot import exp

        if self.is_time(node):
            return _identity
        if isinstance(node, exp.Paren):
            return self.build_transform(node.this)
        step, operand = _parse_step(node)
        if step is None or operand is None:
            return None
        before = self.build_transform(operand)
        return None if before is None else _compose(before, step)


def _check_syntax(tree: exp.Expr) -> exp.Select:
    """Return a tree whose result rows each depend on one joined input row, or a group of them."""
    from sqlglot import exp

    if not isinstance(tree, exp.Select) or tree.args.get("from_") is None:
        raise Unproven("the query is not a SELECT from a table")
    for node in tree.walk():
        is_subquery = isinstance(node, exp.Select) and node is not tree
        if is_subquery or type(node).__name__ not in _ROW_NODES:
            raise Unproven(f"{_quote_sql(node)} may combine rows of different windows")
        if isinstance(node, exp.Anonymous):
            _check_function(node, is_grouped=tree.args.get("group") is not None)
    _check_clauses(tree, _CLAUSES | {"distinct"})
    for node in tree.find_all(exp.Distinct):
        _check_clauses(node, frozenset({"expressions"}))  # DISTINCT ON selects any one row
    group_by = tree.args.get("group")
    if group_by is not None:
        _check_clauses(group_by, frozenset({"expressions", "all"}))
    elif tree.args.get("having") is not None:
        raise Unproven("without GROUP BY, the result has one row for all windows")
    return tree


def _check_clauses(node: exp.Expr, allowed: frozenset[str]) -> None:
    clauses = {name for name, value in node.args.items() if value}
    if not clauses <= allowed:
        raise Unproven(f"{_quote_sql(node)} may combine rows of different windows")


def _check_function(call: exp.Anonymous, *, is_grouped: bool) -> None:
    """Check that the result of a function depends on its row or its group only."""
    name = call.name.lower()
    if name in _ORDER_DEPENDENT or name == "columns":
        raise Unproven(f"{_quote_sql(call)} depends on the order in which rows are read")
    if name in _AGGREGATES and not is_grouped:
        raise Unproven("without GROUP BY, the result has one row for all windows")


def _check_table(table: exp.Expr) -> str:
    """Return the name of a table; raise Unproven if it is not an input as it is."""
    from sqlglot import exp

    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise Unproven(f"{_quote_sql(table)} is not an input")
    _check_clauses(table, frozenset({"this", "alias"}))
    if table.args.get("alias") is not None:
        _check_clauses(table.args["alias"], frozenset({"this"}))
    return table.name


def _check_time_type(field: pa.Field) -> None:
    is_exact = pat.is_timestamp(field.type) and field.type.unit != "ns"
    if not is_exact and not pat.is_date(field.type):
        raise Unproven(f"the time {field.name!r} has type {field.type}")


def _check_join(join: exp.Join, number: int, *, windowed: int) -> None:
    """Check that a join adds no rows without a row of the windowed table.

    Args:
        join: The join.
        number: The position of its table in the query; 0 is the table after FROM.
        windowed: The position of the windowed table.
    """
    _check_clauses(join, _JOIN_CLAUSES)
    method, side, kind = (str(join.args.get(name) or "") for name in ("method", "side", "kind"))
    is_inner = side == "" and kind in _INNER
    keeps_left = side in ("", "LEFT") and kind in ("SEMI", "ANTI")
    keeps_left = keeps_left or (side == "LEFT" and kind in _OUTER)
    keeps_right = side == "RIGHT" and kind in _OUTER
    if number > windowed:
        is_allowed = is_inner or keeps_left
    elif number == windowed:
        is_allowed = is_inner or keeps_right
    else:
        is_allowed = is_inner or keeps_left or keeps_right
    if not is_allowed or method not in ("", "NATURAL"):
        raise Unproven(f"{_quote_sql(join)} may add rows without a row of the window")


def _split_conjunction(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the conditions that AND combines."""
    from sqlglot import exp

    condition = condition.unnest()
    if isinstance(condition, exp.And):
        yield from _split_conjunction(condition.this)
        yield from _split_conjunction(condition.expression)
    else:
        yield condition


def _find_parameters(node: exp.Expr) -> list[exp.Expr]:
    """Return the parameters of an expression, without the names inside them."""
    from sqlglot import exp

    parameters = node.find_all(exp.Parameter, exp.Placeholder)
    return [each for each in parameters if not isinstance(each.parent, exp.Parameter)]


def _quote_sql(node: exp.Expr) -> str:
    text = " ".join(node.sql(dialect=usersql.DIALECT).split())
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


# -- Monotonic steps of times -------------------------------------------------------------------


def _parse_step(node: exp.Expr) -> tuple[TimeTransform | None, exp.Expr | None]:
    """Return the monotonic step of an expression and its operand; None if unknown."""
    from sqlglot import exp

    if isinstance(node, exp.Cast):
        return _cast_to(str(node.to.this.name)), node.this
    if isinstance(node, exp.Add | exp.Sub):
        micros = _interval_micros(node.expression)
        if micros is None:
            return None, None
        return _shift_by(-micros if isinstance(node, exp.Sub) else micros), node.this
    if not isinstance(node, exp.Anonymous) or len(node.expressions) != 2:
        return None, None
    name, (first, operand) = node.name.lower(), node.expressions
    if name in ("date_trunc", "datetrunc") and isinstance(first, exp.Literal):
        return _truncate_to(_singular(first.name)), operand
    if name == "time_bucket":
        width = _interval_micros(first)
        return (_bucket_by(width) if width else None), operand
    return None, None


def _identity(micros: Micros) -> Micros:
    return micros


def _compose(first: TimeTransform, second: TimeTransform) -> TimeTransform:
    return lambda micros: second(first(micros))


def _singular(unit: str) -> str:
    return unit.lower().removesuffix("s")


def _cast_to(type_name: str) -> TimeTransform | None:
    if type_name == "DATE":
        return _truncate_to("day")
    return _identity if type_name in _TIME_TYPES else None


def _truncate_to(unit: str) -> TimeTransform | None:
    """Return the truncation to a calendar unit in UTC; None for unknown units."""
    if unit == "week":
        # Weeks begin on Monday.
        return lambda micros: ((micros // _DAY + _MONDAY) // 7 * 7 - _MONDAY) * _DAY
    code = _CALENDAR.get(unit)
    if code is None:
        return None
    return lambda micros: (
        micros.view("M8[us]").astype(f"M8[{code}]").astype("M8[us]").view(np.int64)
    )


def _shift_by(shift: int) -> TimeTransform:
    return lambda micros: micros + shift


def _bucket_by(width: int) -> TimeTransform:
    return lambda micros: (micros - _BUCKET_ORIGIN) // width * width + _BUCKET_ORIGIN


def _interval_micros(node: Any) -> int | None:
    """Return the length of a fixed interval; None for calendar units such as months."""
    from sqlglot import exp

    if not isinstance(node, exp.Interval):
        return None
    amount, unit = node.this, node.args.get("unit")
    if not isinstance(amount, exp.Literal) or not isinstance(unit, exp.Var):
        return None
    seconds = _FIXED.get(_singular(unit.name))
    if seconds is None or not amount.name.isdigit():
        return None
    return int(amount.name) * seconds * 1_000_000
