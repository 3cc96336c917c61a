"""Conditions on rows, translated from DuckDB's SQL to the SQL of an engine.

A condition is parsed, each node gets a kind (string, integer, timestamp ...) from the column
types, and the engine's SQL is written from the templates in ``functions``. A condition therefore
has the same meaning on every engine, and only names and constants of the user's SQL reach an
engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.values import ConversionError, from_text
from featurestore.errors import InvalidSql, did_you_mean, listing
from featurestore.model.runtime import check_time
from featurestore.model.times import is_finer_than_microseconds
from featurestore.usersql import functions as sql_functions
from featurestore.usersql.constants import (
    MIRRORED,
    Number,
    is_narrowed,
    narrow_comparison,
    number_literal,
    to_number,
)
from featurestore.usersql.costs import check_costs
from featurestore.usersql.functions import SqlFunction, ValueType
from featurestore.usersql.text import DIALECT, parse_statement, quote, quoting_hint, shorten_sql

if TYPE_CHECKING:
    from sqlglot import exp

_NUMERIC: tuple[ValueType, ...] = ("integer", "decimal", "float", "number")
_ORDERED: tuple[ValueType, ...] = (
    *_NUMERIC,
    "unsigned",
    "boolean",
    "string",
    "binary",
    "date",
    "timestamp",
)
# Months, quarters and years are missing because their length in microseconds depends on the date.
_INTERVALS = {
    "MICROSECOND": timedelta(microseconds=1),
    "MILLISECOND": timedelta(milliseconds=1),
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
    "WEEK": timedelta(weeks=1),
}
_TYPE_KINDS: dict[str, ValueType] = {
    "BIGINT": "integer", "INT": "integer", "DOUBLE": "number", "TEXT": "string", "VARCHAR": "string",
    "DATE": "date", "TIMESTAMP": "timestamp", "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp", "TIMESTAMPLTZ": "timestamp", "VARBINARY": "binary",
}  # fmt: skip
# The types of casts in SQL.
_SQL_TYPES: dict[ValueType, str] = {
    "boolean": "boolean", "integer": "bigint", "number": "double", "string": "varchar",
    "date": "date", "timestamp": "timestamptz", "binary": "blob",
}  # fmt: skip


def predicate(sql: str, *, schema: pa.Schema, dialect: str) -> str:
    """Translate a row condition to the SQL of an engine.

    >>> schema = pa.schema([("speed", pa.float64()), ("zone", pa.string())])
    >>> predicate("speed >= 10 and zone = 'A'", schema=schema, dialect="spark")
    "((`speed` >= CAST(10 AS DOUBLE)) AND (`zone` = 'A'))"

    Raises:
        InvalidSql: The SQL is not a condition, uses unknown columns, or uses expressions that
            differ between engines; the hint suggests an alternative.
    """
    condition = expression(sql, schema=schema, dialect=dialect)
    if condition.value_type != "boolean":
        raise InvalidSql(
            f"{shorten_sql(sql)} is not a condition: its type is {condition.value_type}, not boolean.",
            hint="compare it with a value, for example speed > 10",
        )
    return condition.sql


def fix_clock(sql: str, *, now: datetime) -> str:
    """Replace ``now()`` and other clock functions of a condition with constants.

    A condition without clock functions is returned unchanged.

    >>> fix_clock("seen > now() - interval 1 day", now=datetime(2024, 1, 1, tzinfo=UTC))
    "seen > CAST('2024-01-01 00:00:00+00:00' AS TIMESTAMPTZ) - INTERVAL '1' DAY"
    """
    from sqlglot import exp

    tree = parse_statement(sql, expected="condition", calls_by_name=True)
    clocks = [node for node in tree.walk() if _clock_name(node) is not None]
    # Callers compare the result with their SQL to detect clock functions, so SQL without them keeps
    # its formatting.
    if not clocks:
        return sql
    # Every clock function of a condition gets the same instant, as in one SQL statement.
    for node in clocks:
        name = _clock_name(node)
        if name in ("current_date", "today"):
            constant = exp.cast(exp.Literal.string(now.date().isoformat()), "date")
        else:
            constant = exp.cast(exp.Literal.string(str(now)), "timestamptz", dialect=DIALECT)
        # The root of a tree has no parent in which replace() could substitute it.
        if node is tree:
            return constant.sql(dialect=DIALECT)
        node.replace(constant)
    return tree.sql(dialect=DIALECT)


def _clock_name(node: exp.Expr) -> str | None:
    """Return the name of a clock function, or None for other nodes."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
    # Keywords such as CURRENT_DATE are parsed to node classes, not to calls by name.
    elif isinstance(node, exp.CurrentDate):
        name = "current_date"
    elif isinstance(node, exp.CurrentTimestamp | exp.Localtimestamp):
        name = "current_timestamp"
    else:
        return None
    if name in sql_functions.CLOCK:
        return name
    return None


@dataclass(frozen=True)
class TypedSql:
    """The engine SQL and the kind of a node; ``constant`` is its value if it is constant."""

    sql: str
    value_type: ValueType
    constant: object = None
    arrow: pa.DataType | None = None


# Each conversion of a hint parses the condition again.
_MAX_CONVERSIONS = 5
_CONVERTED = "write the constant in the type of the column: "
# A result of a case without a type.
_NULL = TypedSql("NULL", "null")
# Functions of a list and a value; the list must be written in the condition.
_LIST_TESTS = ("contains", "list_contains", "list_has", "array_contains", "array_has")
_INTERVAL_TEXT = re.compile(
    r"(?:(-?\d{1,9}) days?)?(?: ?(-?)(\d{1,9}):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?)?"
)


def expression(sql: str, *, schema: pa.Schema, dialect: str) -> TypedSql:
    """Translate an expression of row columns to the SQL of an engine; raise like ``predicate``."""
    try:
        return _translate(sql, schema, dialect, conversions=_MAX_CONVERSIONS)
    except InvalidSql as error:

        def is_valid(quoted_sql: str, _: set[str]) -> bool:
            try:
                _translate(quoted_sql, schema, dialect)
            except InvalidSql:
                return False
            return True

        # A column may have the name of a word of SQL.
        hint = quoting_hint(sql, is_valid=is_valid, columns=schema.names)
        if hint is None:
            raise
        raise InvalidSql(error.message, hint=hint) from error


def _translate(sql: str, schema: pa.Schema, dialect: str, *, conversions: int = 0) -> TypedSql:
    """Translate an expression without a hint for columns that need quotes.

    ``conversions`` is the number of comparisons in which a hint may convert constants.
    """
    tree = parse_statement(sql, expected="condition", calls_by_name=True)
    try:
        check_costs(sql, tree)
        return _ConditionWriter(sql, schema, dialect, conversions).write(tree)
    except RecursionError as error:
        # The writer recurses for each nesting level, so a deep user condition can exhaust Python's
        # stack.
        raise InvalidSql(f"{shorten_sql(sql)} is nested too deeply.") from error


class _ConditionWriter:
    """Writes the nodes of a condition as the SQL of an engine."""

    def __init__(self, sql: str, schema: pa.Schema, dialect: str, conversions: int) -> None:
        from sqlglot import exp

        self._conversions = conversions
        self._sql = sql
        self._dialect = dialect
        self._schema = schema
        # DuckDB and Spark compare column names without case.
        self._columns = {name.lower(): name for name in schema.names}
        # Only these nodes are supported; all other nodes are rejected.
        self._writers: dict[type[exp.Expr], Callable[[exp.Expr], TypedSql]] = {
            exp.Paren: lambda node: self.write(node.this),
            exp.Column: self._write_column,
            exp.Dot: self._write_column,
            exp.Literal: self._write_literal,
            exp.Boolean: self._write_boolean,
            exp.Neg: self._write_negative,
            exp.And: self._write_junction,
            exp.Or: self._write_junction,
            exp.Not: self._write_not,
            exp.Is: self._write_is_test,
            exp.In: self._write_in,
            exp.Between: self._write_between,
            exp.Like: self._write_like,
            exp.Case: self._write_case_node,
            exp.If: self._write_if,
            exp.Cast: self._write_cast,
            exp.Extract: self._write_extract,
            exp.Anonymous: self._write_call,
        }
        self._comparisons: dict[type[exp.Expr], str] = {
            exp.EQ: "=",
            exp.NEQ: "<>",
            exp.LT: "<",
            exp.LTE: "<=",
            exp.GT: ">",
            exp.GTE: ">=",
            exp.NullSafeEQ: "IS NOT DISTINCT FROM",
            exp.NullSafeNEQ: "IS DISTINCT FROM",
        }
        self._operators: dict[type[exp.Expr], str] = {
            exp.Add: "+",
            exp.Sub: "-",
            exp.Mul: "*",
            exp.Div: "/",
            exp.Mod: "%",
            exp.DPipe: "||",
        }

    def write(self, node: exp.Expr) -> TypedSql:
        """Write a node as the SQL of the engine."""
        # A server limits the duration of a request, and a user condition can be large.
        check_time()
        node_type = type(node)
        if node_type in self._comparisons:
            return self._write_comparison(self._comparisons[node_type], node)
        if node_type in self._operators:
            return self._write_operator(self._operators[node_type], node)
        if node_type in self._writers:
            return self._writers[node_type](node)
        raise self._unsupported_error(node)

    # -- columns and constants ------------------------------------------------------------

    def _write_column(self, node: exp.Expr) -> TypedSql:
        """Return the SQL of a column or a struct field.

        A condition has no tables, so ``a.b`` is a struct field.
        """
        from sqlglot import exp

        if not isinstance(node, exp.Column) or node.is_star or node.args.get("join_mark"):
            raise self._unsupported_error(node)
        column, *fields = node.parts
        first = column.name
        if first.lower() not in self._columns:
            raise InvalidSql(
                f"{shorten_sql(self._sql)} names the unknown column {first!r}. Available: "
                f"{listing(self._columns.values(), limit=50)}.",
                hint=self._column_hint(column),
            )
        names = [self._columns[first.lower()]]
        arrow = self._schema.field(names[0]).type
        for name in [field.name for field in fields]:
            field = _field(arrow, name)
            if field is None:
                raise InvalidSql(
                    f"{shorten_sql(self._sql)}: {'.'.join(names)} has no field {name!r}. "
                    f"Available: {listing(_field_names(arrow), limit=50)}.",
                    hint=did_you_mean(name, _field_names(arrow))
                    or f"{'.'.join(names)} has the type {arrow}",
                )
            names.append(field.name)
            arrow = field.type
        sql = ".".join([quote(name, dialect=self._dialect) for name in names])
        return TypedSql(sql, _value_kind(arrow), arrow=arrow)

    def _write_literal(self, node: exp.Expr) -> TypedSql:
        if node.args["is_string"]:
            return self._write_string(node.name)
        literal = node.name
        if re.fullmatch(r"\d+", literal):
            # Constants of 64 bits without a sign are valid in comparisons with uint64 columns.
            if int(literal) >= 2**64:
                raise InvalidSql(f"{shorten_sql(self._sql)}: {literal} has more than 64 bits.")
            return TypedSql(literal, "integer", constant=int(literal))
        # Decimals of both engines have at most 38 digits.
        if re.fullmatch(r"\d+\.\d*|\.\d+", literal) and len(literal) <= 38:
            return TypedSql(literal, "decimal", constant=Decimal(literal))
        if re.fullmatch(r"(\d+\.?\d*|\.\d+)[eE][-+]?\d{1,3}", literal) and math.isfinite(
            float(literal)
        ):
            return _write_double(literal)
        raise InvalidSql(
            f"{shorten_sql(self._sql)}: {literal} is not a number.", hint="write 10, 0.5 or 1e-3"
        )

    def _write_string(self, value: str) -> TypedSql:
        from sqlglot import exp

        return TypedSql(
            # sqlglot escapes the string for the dialect: a backslash is an escape character in
            # Spark only.
            exp.Literal.string(value).sql(dialect=self._dialect),
            "string",
            constant=value,
        )

    def _write_boolean(self, node: exp.Expr) -> TypedSql:
        return TypedSql(str(bool(node.this)).upper(), "boolean")

    def _write_negative(self, node: exp.Expr) -> TypedSql:
        operand = self.write(node.this)
        if isinstance(operand.constant, int | Decimal) and operand.value_type in _NUMERIC:
            constant = operand.constant
            # The negation of a decimal would be rounded to 28 digits.
            negated = -constant if isinstance(constant, int) else constant.copy_negate()
            return TypedSql(f"-{operand.sql}", operand.value_type, constant=negated)
        # The negative of the smallest 64-bit integer does not exist. A subtraction returns null for
        # it, like other integer arithmetic.
        if operand.value_type == "integer":
            return self._write_function(
                "-", sql_functions.OPERATORS["-"], [TypedSql("0", "integer"), operand]
            )
        if operand.value_type in ("number", "float"):
            return TypedSql(f"(-{self._convert_to_number(operand)})", "number")
        raise self._wrong_kinds_error("-", [operand])

    def _write_timestamp(self, value: datetime) -> TypedSql:
        formatted_time = value.astimezone(UTC).isoformat(sep=" ", timespec="microseconds")
        word = "TIMESTAMPTZ"
        if self._dialect == "spark":
            word = "TIMESTAMP"
        return TypedSql(f"{word} '{formatted_time}'", "timestamp", constant=value)

    def _write_date(self, value: date) -> TypedSql:
        return TypedSql(f"DATE '{value.isoformat()}'", "date", constant=value)

    # -- comparisons with constants -------------------------------------------------------

    def _write_comparison(self, sign: str, node: exp.Expr) -> TypedSql:
        """Write a comparison; constants are converted to the type of a numeric column."""
        first, second = self.write(node.this), self.write(node.expression)
        if _is_constant_of(second, first):
            return self._compare_column(sign, first, second)
        if _is_constant_of(first, second):
            return self._compare_column(MIRRORED.get(sign, sign), second, first)
        first_sql, second_sql = self._to_comparable(
            [first, second],
            [node.this, node.expression],
            is_equality=sign not in ("<", "<=", ">", ">="),
        )
        return TypedSql(f"({first_sql} {sign} {second_sql})", "boolean")

    def _compare_column(self, sign: str, column: TypedSql, constant: TypedSql) -> TypedSql:
        """Compare a numeric column with a constant, by value."""
        number, dtype = _number_of(constant), column.arrow
        if sign not in MIRRORED:  # IS [NOT] DISTINCT FROM
            value = to_number(number, dtype)
            if value is None:
                return TypedSql("FALSE" if "NOT" in sign else "TRUE", "boolean")
            return TypedSql(
                f"({column.sql} {sign} {self._write_number(value, constant, dtype)})", "boolean"
            )
        narrowed = narrow_comparison(MIRRORED[MIRRORED[sign]], number, dtype)
        if isinstance(narrowed, bool):
            return self._decide(column, narrowed)
        narrowed_sign, value = narrowed
        literal = self._write_number(value, constant, dtype)
        return TypedSql(f"({column.sql} {narrowed_sign} {literal})", "boolean")

    def _decide(self, column: TypedSql, result: bool) -> TypedSql:
        """Write a condition with one result for all values, and null for null."""
        if result:
            return TypedSql(f"({column.sql} IS NOT NULL OR CAST(NULL AS BOOLEAN))", "boolean")
        return TypedSql(f"({column.sql} IS NULL AND CAST(NULL AS BOOLEAN))", "boolean")

    def _write_number(self, value: Number, constant: TypedSql, dtype: pa.DataType) -> str:
        """Return a number of the type of a column as a literal."""
        if pat.is_decimal(dtype):
            return f"CAST('{value:f}' AS DECIMAL({dtype.precision}, {dtype.scale}))"
        if isinstance(value, int):
            return str(value)
        if not pat.is_float64(dtype):
            return f"CAST('{value!r}' AS FLOAT)"
        if value == float(_number_of(constant)):
            return self._convert_to_number(constant)
        return f"CAST('{value!r}' AS DOUBLE)"

    # -- logic ----------------------------------------------------------------------------

    def _write_condition(self, node: exp.Expr) -> str:
        condition = self.write(node)
        if condition.value_type != "boolean":
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: the type of {node.sql(dialect=DIALECT)!r} is "
                f"{condition.value_type}, not boolean.",
                hint="compare it with a value, for example speed > 10",
            )
        return condition.sql

    def _write_junction(self, node: exp.Expr) -> TypedSql:
        """Write a chain of AND or OR."""
        word = type(node).__name__.upper()
        # Long AND chains are deep trees, so they are written without recursion.
        operands = []
        while type(node).__name__.upper() == word:
            operands.append(self._write_condition(node.expression))
            node = node.this
        operands.append(self._write_condition(node))
        return TypedSql(f"({f' {word} '.join(reversed(operands))})", "boolean")

    def _write_not(self, node: exp.Expr) -> TypedSql:
        return TypedSql(f"(NOT {self._write_condition(node.this)})", "boolean")

    def _write_is_test(self, node: exp.Expr) -> TypedSql:
        from sqlglot import exp

        if isinstance(node.expression, exp.Null):
            return TypedSql(f"({self.write(node.this).sql} IS NULL)", "boolean")
        if isinstance(node.expression, exp.Boolean):
            word = self._write_boolean(node.expression).sql
            return TypedSql(f"({self._write_condition(node.this)} IS {word})", "boolean")
        raise self._unsupported_error(node)

    def _write_in(self, node: exp.Expr) -> TypedSql:
        choice_nodes = node.expressions
        if not choice_nodes:
            raise self._unsupported_error(node)
        # sqlglot stores a subquery, an UNNEST or a field in other arguments than ``expressions``.
        for name, argument in node.args.items():
            if argument and name not in ("this", "expressions"):
                raise self._unsupported_error(node)
        return self._write_choices(node.this, choice_nodes)

    def _write_list_test(self, choices: exp.Expr, value: exp.Expr) -> TypedSql:
        """Write ``contains([1, 2], n)``, which is ``n IN (1, 2)`` without the nulls of the list."""
        from sqlglot import exp

        # DuckDB: an empty list contains nothing, not even null.
        if not choices.expressions:
            return TypedSql("FALSE", "boolean")
        constants = [node for node in choices.expressions if type(node) is not exp.Null]
        if not constants:
            return self._decide(self.write(value), False)
        return self._write_choices(value, constants)

    def _write_choices(self, value_node: exp.Expr, choice_nodes: Sequence[exp.Expr]) -> TypedSql:
        """Write the test whether a value is one of some choices."""
        column, constants = self.write(value_node), list(map(self.write, choice_nodes))
        if all(_is_constant_of(constant, column) for constant in constants):
            choices = []
            for constant in constants:
                number = to_number(_number_of(constant), column.arrow)
                if number is not None:
                    choices.append(self._write_number(number, constant, column.arrow))
            if not choices:
                return self._decide(column, False)
            return TypedSql(f"({column.sql} IN ({', '.join(choices)}))", "boolean")
        value, *choices = self._to_comparable(
            [column, *constants], [value_node, *choice_nodes], is_equality=True
        )
        return TypedSql(f"({value} IN ({', '.join(choices)}))", "boolean")

    def _write_between(self, node: exp.Expr) -> TypedSql:
        if node.args.get("symmetric"):
            raise self._unsupported_error(node)
        operand_nodes = [node.this, node.args["low"], node.args["high"]]
        operands = list(map(self.write, operand_nodes))
        column, *bounds = operands
        if all(_is_constant_of(bound, column) for bound in bounds):
            first = self._compare_column(">=", column, bounds[0])
            last = self._compare_column("<=", column, bounds[1])
            return TypedSql(f"({first.sql} AND {last.sql})", "boolean")
        value, low, high = self._to_comparable(operands, operand_nodes, is_equality=False)
        return TypedSql(f"({value} BETWEEN {low} AND {high})", "boolean")

    def _write_like(self, node: exp.Expr) -> TypedSql:
        value, pattern = self.write(node.this), self.write(node.expression)
        # A pattern must be a constant, because a backslash in it escapes in Spark but not in
        # DuckDB.
        if value.value_type != "string" or not isinstance(pattern.constant, str):
            raise self._wrong_kinds_error("like", [value, pattern])
        if "\\" in pattern.constant:
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: a backslash in a pattern is an escape character "
                "on some engines only.",
                hint=sql_functions.REPLACEMENTS["regexp_matches"],
            )
        word = "LIKE"
        if node.args.get("negate"):
            word = "NOT LIKE"
        return TypedSql(f"({value.sql} {word} {pattern.sql})", "boolean")

    def _write_case_node(self, node: exp.Expr) -> TypedSql:
        from sqlglot import exp

        if node.this is not None:
            raise self._unsupported_error(node)
        branches = node.args["ifs"]
        conditions = [self._write_condition(branch.this) for branch in branches]
        results = [self._write_result(branch.args["true"]) for branch in branches]
        default = node.args.get("default")
        # A default of NULL equals a missing default.
        if default is not None and not isinstance(default, exp.Null):
            results.append(self.write(default))
        return self._write_case(conditions, results)

    def _write_result(self, node: exp.Expr) -> TypedSql:
        """Write the result of a branch, which may be NULL without a type."""
        from sqlglot import exp

        return _NULL if isinstance(node, exp.Null) else self.write(node)

    def _write_if(self, node: exp.Expr) -> TypedSql:
        results = [self._write_result(node.args["true"])]
        if node.args.get("false") is not None:
            results.append(self._write_result(node.args["false"]))
        return self._write_case([self._write_condition(node.this)], results)

    def _write_case(self, conditions: Sequence[str], results: Sequence[TypedSql]) -> TypedSql:
        typed = [result for result in results if result is not _NULL]
        if not typed:
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: all results of a case are null.",
                hint="cast(null as double)",
            )
        value_type, converted = self._convert_to_common_kind(typed)
        remaining = iter(converted)
        values = [result.sql if result is _NULL else next(remaining) for result in results]
        case_sql = "CASE"
        for condition, value in zip(conditions, values, strict=False):
            case_sql += f" WHEN {condition} THEN {value}"
        if len(values) > len(conditions):
            case_sql += f" ELSE {values[-1]}"
        return TypedSql(f"({case_sql} END)", value_type)

    # -- functions ------------------------------------------------------------------------

    def _write_operator(self, operator: str, node: exp.Expr) -> TypedSql:
        first, second = node.this.unnest(), node.expression.unnest()
        if _is_interval(second):
            return self._shift_time(operator, self.write(first), second)
        if _is_interval(first) and operator == "+":
            return self._shift_time(operator, self.write(second), first)
        operands = [self.write(node.this), self.write(node.expression)]
        return self._write_function(operator, sql_functions.OPERATORS[operator], operands)

    def _write_call(self, node: exp.Expr) -> TypedSql:
        from sqlglot import exp

        name = node.name.lower()
        name = sql_functions.ALIASES.get(name, name)
        arguments = node.expressions
        if name in _LIST_TESTS and len(arguments) == 2 and isinstance(arguments[0], exp.Array):
            return self._write_list_test(arguments[0], arguments[1])
        if name in sql_functions.SAME_KIND_FUNCTIONS and arguments:
            return self._write_choice(name, arguments)
        if name == "date_part" and len(arguments) == 2:
            return self._write_date_part(arguments[0], arguments[1])
        functions = sql_functions.FUNCTIONS.get(name) or sql_functions.OPERATORS.get(name)
        if functions is None:
            raise self._unknown_function_error(node.name)
        return self._write_function(name, functions, list(map(self.write, arguments)))

    def _write_extract(self, node: exp.Expr) -> TypedSql:
        return self._write_date_part(node.this, node.expression)

    def _write_date_part(self, field: exp.Expr, time: exp.Expr) -> TypedSql:
        name = field.name.lower()
        name = sql_functions.ALIASES.get(name, name)
        functions = sql_functions.FUNCTIONS.get(name)
        # This excludes functions such as abs, which are not fields of a time.
        if functions is None or functions[0].arguments != ("timestamp",):
            raise self._unknown_function_error(name)
        return self._write_function(name, functions, [self.write(time)])

    def _write_choice(self, name: str, nodes: Sequence[exp.Expr]) -> TypedSql:
        """Write a function that returns one of its arguments."""
        arguments = list(map(self.write, nodes))
        if name == "nullif" and len(arguments) != 2:
            raise self._wrong_kinds_error(name, arguments)
        try:
            value_type, values = self._convert_to_common_kind(arguments)
        except InvalidSql as error:
            line = self._convert_constants(arguments, nodes)
            hint = error.hint if line is None else f"{_CONVERTED}{line}"
            raise InvalidSql(error.message, hint=hint) from error
        return TypedSql(f"{name}({', '.join(values)})", value_type)

    def _write_function(
        self, name: str, functions: Sequence[SqlFunction], arguments: list[TypedSql]
    ) -> TypedSql:
        """Return a call of the first overload that accepts the argument kinds."""
        for function in functions:
            if len(function.arguments) != len(arguments):
                continue
            converted = []
            for argument, value_type in zip(arguments, function.arguments, strict=True):
                value = self._convert_argument(argument, value_type)
                if value is not None:
                    converted.append(value)
            if len(converted) == len(arguments):
                return TypedSql(
                    function.template(self._dialect).format(*converted), function.result
                )
        raise self._wrong_kinds_error(name, arguments, functions)

    def _convert_argument(self, argument: TypedSql, value_type: ValueType) -> str | None:
        """Convert an argument to a kind; return None if it cannot be converted."""
        if value_type == "count":
            # Zero and negative positions and lengths count differently in DuckDB and Spark.
            if isinstance(argument.constant, int) and argument.constant >= 1:
                return argument.sql
            return None
        if value_type == "unit":
            # Engines accept further units, whose truncation was not compared.
            if str(argument.constant).lower() in sql_functions.UNITS:
                return argument.sql.lower()
            return None
        if argument.value_type == value_type:
            return argument.sql
        if value_type == "number" and argument.value_type in _NUMERIC:
            return self._convert_to_number(argument)
        if (
            value_type == "timestamp"
            and argument.value_type == "string"
            and isinstance(argument.constant, str)
        ):
            return self._constant_time(argument.constant, "timestamp").sql
        return None

    def _convert_to_number(self, operand: TypedSql) -> str:
        if operand.value_type == "number":
            return operand.sql
        if isinstance(operand.constant, Decimal):
            return f"CAST('{operand.constant}' AS DOUBLE)"
        return f"CAST({operand.sql} AS DOUBLE)"

    # -- kinds ----------------------------------------------------------------------------

    def _convert_to_common_kind(self, values: Sequence[TypedSql]) -> tuple[ValueType, list[str]]:
        """Return the common kind of values, and the converted values."""
        kinds = {value.value_type for value in values}
        # Integer columns of different widths would get an engine-dependent result type.
        if kinds <= {"integer"}:
            return "integer", [f"CAST({value.sql} AS BIGINT)" for value in values]
        if len(kinds) == 1 and values[0].value_type in _ORDERED:
            return values[0].value_type, [value.sql for value in values]
        if kinds <= set(_NUMERIC):
            return "number", list(map(self._convert_to_number, values))
        raise self._wrong_kinds_error("a choice between values", values)

    def _to_comparable(
        self, operands: list[TypedSql], nodes: Sequence[exp.Expr], *, is_equality: bool
    ) -> list[str]:
        """Convert the operands of a comparison to comparable kinds."""
        kinds = {operand.value_type for operand in operands}
        times = {"date", "timestamp"}
        if kinds & times and kinds <= {*times, "string"}:
            return self._to_comparable_times(operands, kinds)
        if kinds <= {*_NUMERIC, "unsigned"}:
            return self._to_comparable_numbers(operands, kinds)
        if len(kinds) == 1 and operands[0].value_type in _ORDERED:
            return [operand.sql for operand in operands]
        raise self._incomparable_error(operands, nodes, is_equality=is_equality)

    def _to_comparable_numbers(self, operands: list[TypedSql], kinds: set[ValueType]) -> list[str]:
        """Convert numbers to types that all engines compare equally."""
        columns = {operand.value_type for operand in operands if operand.constant is None}
        if columns == {"float"} and "number" not in kinds:
            # Like DuckDB: a constant is rounded to the nearest float32.
            converted = []
            for operand in operands:
                if operand.constant is None:
                    converted.append(operand.sql)
                else:
                    converted.append(f"CAST('{operand.constant}' AS FLOAT)")
            return converted
        # Engines compare integers, uint64 and decimals exactly; a cast to double would round beyond
        # 2**53.
        if kinds <= {"integer", "unsigned", "decimal"}:
            return [operand.sql for operand in operands]
        return list(map(self._convert_to_number, operands))

    def _to_comparable_times(self, operands: list[TypedSql], kinds: set[ValueType]) -> list[str]:
        """Convert dates, timestamps and string constants to the same kind."""
        is_date = "timestamp" not in kinds
        converted = []
        for operand in operands:
            if operand.value_type == "string":
                # An engine would parse strings of a column in its own formats, so only constants
                # are times.
                if not isinstance(operand.constant, str):
                    raise self._wrong_kinds_error("a comparison", operands)
                # If one string has a time of day, all operands are compared as timestamps.
                is_date = is_date and re.fullmatch(r"\d{4}-\d\d-\d\d", operand.constant) is not None
        for operand in operands:
            if operand.value_type == "string":
                value_type: ValueType = "timestamp"
                if is_date:
                    value_type = "date"
                converted.append(self._constant_time(str(operand.constant), value_type).sql)
            elif operand.value_type == "date" and not is_date:
                converted.append(self._apply_cast(operand, "timestamp").sql)
            else:
                converted.append(operand.sql)
        return converted

    def _constant_time(self, string: str, value_type: ValueType) -> TypedSql:
        """Convert a string constant to a date or a timestamp in UTC."""
        if value_type == "timestamp" and is_finer_than_microseconds(string):
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: {string!r} is finer than a microsecond.",
                hint="write '2024-01-31 12:00:00.123456+00:00'",
            )
        try:
            if value_type == "date":
                return self._write_date(date.fromisoformat(string))
            value = datetime.fromisoformat(string)
        except ValueError as error:
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: {string!r} is not a {value_type}.",
                hint="write '2024-01-31' or '2024-01-31 12:00:00+00:00'",
            ) from error
        # Times without a time zone are UTC everywhere in the store, not in the session time zone.
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        try:
            # A shift to UTC can leave the years 1 to 9999.
            return self._write_timestamp(value)
        except OverflowError as error:
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: {string!r} is outside of the years 1 to 9999."
            ) from error

    def _write_cast(self, node: exp.Expr) -> TypedSql:
        target = node.args["to"]
        value_type = _TYPE_KINDS.get(str(target.this.name))
        operand = self.write(node.this)
        if value_type is None:
            raise InvalidSql(
                f"{shorten_sql(self._sql)} casts to the unsupported type "
                f"{target.sql(dialect=DIALECT).lower()}. Available: {listing(_SQL_TYPES.values())}.",
                hint="for example cast(seats as double)",
            )
        if target.expressions or node.args.get("format"):
            raise self._unsupported_error(node)
        # Constant times are converted here, because the formats that engines accept differ.
        if isinstance(operand.constant, str) and value_type in ("date", "timestamp"):
            return self._constant_time(operand.constant, value_type)
        if isinstance(operand.constant, str) and value_type == "binary":
            return self._parse_binary(operand.constant)
        # Engines convert a literal through their decimal types, which may round twice.
        if value_type == "number" and isinstance(operand.constant, str | int | Decimal):
            return self._constant_double(operand.constant)
        return self._apply_cast(operand, value_type)

    def _constant_double(self, constant: str | int | Decimal) -> TypedSql:
        """Convert a constant to the nearest double."""
        if isinstance(constant, str):
            try:
                value = from_text(constant, pa.float64())
            except ConversionError as error:
                raise InvalidSql(
                    f"{shorten_sql(self._sql)}: {constant!r} is not a number.",
                    hint="write 10, 0.5, 1e-3, 'inf'::double or 'nan'::double",
                ) from error
            if not math.isfinite(value):
                name = "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
                return TypedSql(f"CAST('{name}' AS DOUBLE)", "number")
        return _write_double(str(constant))

    def _apply_cast(self, operand: TypedSql, value_type: ValueType) -> TypedSql:
        if operand.value_type == value_type:
            return operand
        cast = sql_functions.CASTS.get((operand.value_type, value_type))
        if operand.value_type == "null":
            cast = sql_functions.CASTS_OF_NULL.get(value_type)
        if cast is None:
            types = [
                _SQL_TYPES[target]
                for source, target in sql_functions.CASTS
                if source == operand.value_type
            ]
            raise InvalidSql(
                f"{shorten_sql(self._sql)} casts {operand.value_type} to {value_type}, which differs between "
                f"engines. Available types for {operand.value_type}: {listing(types)}.",
                hint=f"for example cast(x as {types[0]})"
                if types
                else f"use a column of the type {value_type}",
            )
        return TypedSql(cast.template(self._dialect).format(operand.sql), value_type)

    def _parse_binary(self, string: str) -> TypedSql:
        r"""Parse DuckDB's binary notation, with ``\xFF`` for bytes that are not ASCII."""
        matches = re.findall(r"\\x([0-9A-Fa-f]{2})|([^\\])", string)
        value = bytearray()
        for code, char in matches:
            if code:
                value.append(int(code, 16))
            else:
                value.append(ord(char) % 256)
        if not re.fullmatch(r"(?:\\x[0-9A-Fa-f]{2}|[\x20-\x5b\x5d-\x7e])*", string):
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: {string!r} is not a binary constant.",
                hint=r"'\xFF'::blob",
            )
        if self._dialect == "spark":
            return TypedSql(f"X'{value.hex()}'", "binary", constant=bytes(value))
        return TypedSql(f"unhex('{value.hex()}')", "binary", constant=bytes(value))

    def _shift_time(self, operator: str, time: TypedSql, interval: exp.Expr) -> TypedSql:
        """Return a time plus or minus an interval, evaluated immediately for constants."""
        step = self._parse_interval(interval)
        if operator == "-":
            step = -step
        if operator not in ("+", "-") or time.value_type not in ("date", "timestamp"):
            raise self._wrong_kinds_error(operator, [time, TypedSql("", "interval")])
        if time.constant is not None:
            value = time.constant
            # A date plus an interval is a timestamp at midnight UTC, on every engine.
            if not isinstance(value, datetime):
                midnight = datetime.min.time()
                value = datetime.combine(value, midnight, tzinfo=UTC)  # type: ignore[arg-type]
            try:
                return self._write_timestamp(value + step)
            except OverflowError as error:
                raise InvalidSql(
                    f"{shorten_sql(self._sql)}: the result is outside of the years 1 to 9999."
                ) from error
        timestamp = self._apply_cast(time, "timestamp")
        # Arithmetic on microseconds is independent of the session time zone, which interval
        # arithmetic in engines is not: a day may have 23 or 25 hours there.
        micros = step // timedelta(microseconds=1)
        if self._dialect == "spark":
            return TypedSql(
                f"timestamp_micros(unix_micros({timestamp.sql}) + {micros})", "timestamp"
            )
        return TypedSql(f"make_timestamptz(epoch_us({timestamp.sql}) + {micros})", "timestamp")

    def _parse_interval(self, node: exp.Expr) -> timedelta:
        from sqlglot import exp

        if isinstance(node, exp.Cast):
            return self._parse_interval_text(node)
        unit = amount = ""
        if node.args.get("unit") is not None:
            unit = node.args["unit"].name.upper().rstrip("S")
        if node.this is not None:
            amount = node.this.name
        if unit not in _INTERVALS or not re.fullmatch(r"-?\d{1,9}", amount):
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: {node.sql(dialect=DIALECT)} has no fixed length.",
                hint=f"interval 3 days; available units: {listing(map(str.lower, _INTERVALS))}",
            )
        # Compared before the multiplication, which would overflow a timedelta.
        if abs(int(amount)) > (datetime.max - datetime.min) / _INTERVALS[unit]:
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: {node.sql(dialect=DIALECT)} is longer than the years 1 "
                "to 9999.",
                hint="times must be in the years 1 to 9999",
            )
        return int(amount) * _INTERVALS[unit]

    def _parse_interval_text(self, node: exp.Expr) -> timedelta:
        """Parse a cast such as ``'2 days 03:00:00'::interval``."""
        match = _INTERVAL_TEXT.fullmatch(node.this.name)
        if match is None or not any(match.groups()):
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: {node.this.name!r} has no fixed length.",
                hint="'2 days 03:00:00'::interval",
            )
        days, sign, hours, minutes, seconds, fraction = match.groups(default="0")
        clock = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
        clock += timedelta(microseconds=int(fraction.ljust(6, "0")))
        try:
            return timedelta(days=int(days)) + (-clock if sign == "-" else clock)
        except OverflowError as error:
            raise InvalidSql(
                f"{shorten_sql(self._sql)}: {node.this.name} is longer than the years 1 to 9999.",
                hint="times must be in the years 1 to 9999",
            ) from error

    # -- refusals -------------------------------------------------------------------------

    def _unsupported_error(self, node: exp.Expr) -> InvalidSql:
        sql = node.sql(dialect=DIALECT)
        hint = sql_functions.REPLACEMENTS.get(type(node).__name__.lower())
        if type(node).__name__ == "IntDiv":
            # The hint must be valid SQL when it is pasted: operators bind differently without
            # parentheses.
            dividend, divisor = _parenthesize(node.this), _parenthesize(node.args["expression"])
            hint = f"({dividend} - {dividend} % {divisor}) / {divisor} is the integer quotient"
        return InvalidSql(
            f"{shorten_sql(self._sql)} contains {sql!r}, which is not supported in a condition on "
            "one row.",
            hint=hint or "for example \"zone = 'A' and speed > 10\"",
        )

    def _column_hint(self, name: exp.Expr) -> str:
        """Return the hint for the name of an unknown column."""
        constant = f"a string constant takes single quotes: '{name.name}'"
        if name.args.get("quoted"):
            return constant
        return did_you_mean(name.name, self._columns.values()) or constant

    def _unknown_function_error(self, name: str) -> InvalidSql:
        names = sorted({*sql_functions.FUNCTIONS, *sql_functions.SAME_KIND_FUNCTIONS})
        # A function of DuckDB is not misspelled: "last" looks like "least".
        similar = None
        if name.lower() not in sql_functions.duckdb_functions():
            similar = did_you_mean(name, names, write="{}()")
        hint = f"supported functions: {listing(names, limit=60)}"
        if similar is not None:
            hint = f"{similar} {hint}"
        if name.lower() in sql_functions.CLOCK:
            hint = "call fix_clock() first"
        return InvalidSql(
            f"{shorten_sql(self._sql)} uses {name.lower()}, which was not verified to be equal on "
            "every engine.",
            hint=sql_functions.REPLACEMENTS.get(name.lower(), hint),
        )

    def _incomparable_error(
        self, operands: Sequence[TypedSql], nodes: Sequence[exp.Expr], *, is_equality: bool
    ) -> InvalidSql:
        """Return the error for a comparison; its hint has constants of the column's type."""
        error = self._wrong_kinds_error("a comparison", operands)
        texts = [operand for operand in operands if operand.value_type == "string"]
        # Numbers as texts have another order.
        is_ordered_text = not is_equality and any(operand.constant is None for operand in texts)
        line = None if is_ordered_text else self._convert_constants(operands, nodes)
        hint = error.hint
        if line is not None:
            hint = f"{_CONVERTED}{line}"
        # Numbers as texts also equal other constants: 1.50 is not equal to '1.5' as a text.
        elif "null" not in [operand.value_type for operand in operands] and (
            is_ordered_text or any(operand.constant is not None for operand in texts)
        ):
            hint = "use operands of one type"
        return InvalidSql(error.message, hint=hint)

    def _convert_constants(
        self, operands: Sequence[TypedSql], nodes: Sequence[exp.Expr]
    ) -> str | None:
        """Return the condition with its constants converted to the type of the compared column.

        None if a constant has no equal in the type, or if the condition would still be invalid.
        """
        columns = [operand for operand in operands if operand.constant is None]
        types = {str(operand.arrow) for operand in columns}
        if len(types) != 1 or columns[0].arrow is None or self._conversions == 0:
            return None
        literals = []
        for operand, node in zip(operands, nodes, strict=True):
            if operand.constant is None or operand.value_type == columns[0].value_type:
                continue
            literal = _literal_of(operand.constant, columns[0].arrow)
            if literal is None:
                return None
            literals.append((node, literal))
        root = nodes[0].root().copy()
        for node, literal in literals:
            _same_node(root, node).replace(literal)
        line = root.sql(dialect=DIALECT)
        try:
            _translate(line, self._schema, self._dialect, conversions=self._conversions - 1)
        except InvalidSql as error:
            # The next comparison of the condition has its own hint.
            _, is_converted, line = (error.hint or "").partition(_CONVERTED)
            return line if is_converted else None
        return line

    def _wrong_kinds_error(
        self, name: str, operands: Sequence[TypedSql], functions: Sequence[SqlFunction] = ()
    ) -> InvalidSql:
        kinds = [operand.value_type for operand in operands]
        if functions:
            signatures = [f"({', '.join(function.arguments)})" for function in functions]
            hint = f"argument types of {name}: {' or '.join(signatures)}"
        else:
            casts = [
                f"{source} to {target}: cast(x as {_SQL_TYPES[target]})"
                for source, target in permutations(dict.fromkeys(kinds), 2)
                if (source, target) in sql_functions.CASTS
                or (source == "null" and target in sql_functions.CASTS_OF_NULL)
            ]
            hint = "; ".join(casts) or "use operands of one type"
        return InvalidSql(
            f"{shorten_sql(self._sql)}: {name} does not support the types {', '.join(kinds)}.",
            hint=hint,
        )


def _write_double(literal: str) -> TypedSql:
    return TypedSql(f"CAST('{literal}' AS DOUBLE)", "number", constant=Decimal(literal))


def _literal_of(constant: object, dtype: pa.DataType) -> exp.Expr | None:
    """Return the literal of a type that equals a constant, or None if no value equals it."""
    from sqlglot import exp

    if pat.is_string(dtype) or pat.is_large_string(dtype):
        if isinstance(constant, int | Decimal):
            return exp.Literal.string(format(Decimal(constant), "f"))
        return None
    is_number = pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_decimal(dtype)
    if not isinstance(constant, str) or not (is_number or pat.is_boolean(dtype)):
        return None
    try:
        value = from_text(constant, dtype)
    except ConversionError:
        # No value of the type equals the number, but it can be compared with them.
        if not is_number or not re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", constant):
            return None
        value = Decimal(constant)
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if not math.isfinite(value):
        return exp.cast(exp.Literal.string(constant), "double")
    literal = exp.Literal.number(number_literal(value).removeprefix("-"))
    return exp.Neg(this=literal) if value < 0 else literal


def _same_node(root: exp.Expr, node: exp.Expr) -> exp.Expr:
    """Return the node of a copied tree at the position of a node."""
    path: list[tuple[str, int | None]] = []
    while node.parent is not None and node.arg_key is not None:
        path.append((node.arg_key, node.index))
        node = node.parent
    for key, index in reversed(path):
        child = root.args[key]
        root = child if index is None else child[index]
    return root


def _is_interval(node: exp.Expr) -> bool:
    from sqlglot import exp

    if isinstance(node, exp.Cast):
        return node.this.is_string and str(node.args["to"].this.name) == "INTERVAL"
    return isinstance(node, exp.Interval)


def _is_constant_of(operand: TypedSql, column: TypedSql) -> bool:
    """Return whether an operand is a number that is compared with a numeric column."""
    if column.constant is not None or not is_narrowed(column.arrow):
        return False
    # Like DuckDB: a constant with an exponent is a double, with which float32 is compared exactly.
    if column.value_type == "float" and operand.value_type == "number":
        return False
    return isinstance(operand.constant, int | Decimal)


def _number_of(constant: TypedSql) -> int | Decimal:
    if not isinstance(constant.constant, int | Decimal):
        raise TypeError(f"{constant.sql} is not a number")
    return constant.constant


def _parenthesize(node: exp.Expr) -> str:
    """Return the SQL of an operand, in parentheses if it is compound."""
    sql: str = node.sql(dialect=DIALECT)
    is_whole = re.fullmatch(r"\w+|\(.*\)", sql) is not None
    return sql if is_whole else f"({sql})"


def _value_kind(dtype: pa.DataType) -> ValueType:
    # is_integer is also true for uint64, which must therefore be tested first.
    checks: list[tuple[Callable[[pa.DataType], bool], ValueType]] = [
        (pat.is_boolean, "boolean"),
        (pat.is_uint64, "unsigned"),
        (pat.is_integer, "integer"),
        (pat.is_float64, "number"),
        (pat.is_floating, "float"),
        (pat.is_decimal, "decimal"),
        (pat.is_string, "string"),
        (pat.is_large_string, "string"),
        (pat.is_date, "date"),
        (pat.is_timestamp, "timestamp"),
        (pat.is_struct, "struct"),
        (pat.is_binary, "binary"),
        (pat.is_large_binary, "binary"),
        (pat.is_null, "null"),
    ]
    for check, value_kind in checks:
        if check(dtype):
            return value_kind
    return "list"


def _field_names(dtype: pa.DataType) -> list[str]:
    """Return the fields of a struct type; other types have none."""
    if not pat.is_struct(dtype):
        return []
    return [dtype.field(index).name for index in range(dtype.num_fields)]


def _field(dtype: pa.DataType, name: str) -> pa.Field | None:
    if not pat.is_struct(dtype):
        return None
    for index in range(dtype.num_fields):
        if dtype.field(index).name.lower() == name.lower():
            return dtype.field(index)
    return None
