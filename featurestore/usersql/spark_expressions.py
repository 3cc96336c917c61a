"""Expressions of a query, written as Spark SQL that is equal to DuckDB's result.

Each node gets DuckDB's type; conversions that DuckDB inserts silently become casts. Only names and
constants of the user's SQL reach Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from featurestore.errors import InvalidSql
from featurestore.model.runtime import check_time
from featurestore.usersql import typed_values
from featurestore.usersql.spark_clauses import CallWriter
from featurestore.usersql.spark_functions import OPERATOR_WRITERS, family_is_nested, ordered_hint
from featurestore.usersql.spark_scopes import Scope
from featurestore.usersql.text import DIALECT, quote
from featurestore.usersql.typed_values import (
    NULL,
    DifferentForm,
    DuckDBOnly,
    DuckDBTypes,
    TypedValue,
)

if TYPE_CHECKING:
    from sqlglot import exp

# Microseconds of the units of an interval with a fixed length, and months of the others.
_MICROSECONDS = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000, "DAY": 86_400_000_000, "WEEK": 7 * 86_400_000_000,
}  # fmt: skip
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12, "DECADE": 120, "CENTURY": 1200}
# A date plus days, and the days between dates.
_DATE_FORMS = {
    ("date", "+", "integer"): "date_add({0}, CAST({1} AS INT))",
    ("integer", "+", "date"): "date_add({1}, CAST({0} AS INT))",
    ("date", "-", "integer"): "date_sub({0}, CAST({1} AS INT))",
    ("date", "-", "date"): "CAST(datediff({0}, {1}) AS BIGINT)",
}
_UNORDERED = ("=", "<>", "IS NOT DISTINCT FROM", "IS DISTINCT FROM")


# Writes a subquery: its Spark SQL and its columns.
QueryWriter = Callable[["exp.Expr", Scope], "tuple[str, Sequence[tuple[str, TypedValue]]]"]


class ExpressionWriter(CallWriter):
    """Writes the expressions of one SELECT.

    Args:
        scope: The names that the expressions may use.
        types: DuckDB's types.
        parameters: DuckDB's types of the parameters by name.
        write_query: Writes a subquery.
        windows: The windows of the WINDOW clause by lower-case name.
    """

    def __init__(
        self,
        scope: Scope,
        types: DuckDBTypes,
        parameters: Mapping[str, str],
        write_query: QueryWriter,
        windows: Mapping[str, exp.Expr],
    ) -> None:
        from sqlglot import exp

        super().__init__(scope, types, windows)
        self._parameters = parameters
        self._write_query = write_query
        self._writers: dict[type[exp.Expr], Callable[[exp.Expr], TypedValue]] = {
            exp.Paren: self._write_parentheses,
            exp.Column: self._write_column,
            exp.Dot: self._write_column,
            exp.Literal: self._write_literal,
            exp.Boolean: self._write_boolean,
            exp.Null: lambda _: TypedValue("NULL", NULL, constant="NULL"),
            exp.Placeholder: self._write_parameter,
            exp.Parameter: self._write_parameter,
            exp.Neg: self._write_negative,
            exp.And: self._write_junction,
            exp.Or: self._write_junction,
            exp.Not: self._write_not,
            exp.Is: self._write_is_test,
            exp.In: self._write_in,
            exp.Between: self._write_between,
            exp.Like: self._write_like,
            exp.Case: self._write_case,
            exp.If: self._write_if,
            exp.Cast: self._write_cast,
            exp.Extract: lambda node: self.write_field(node.this.name, node.expression),
            exp.Anonymous: self.write_call,
            exp.Filter: self.write_call,
            exp.Window: self.write_window,
            exp.Exists: self._write_exists,
            exp.Subquery: self._write_subquery,
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

    def write(self, node: exp.Expr) -> TypedValue:
        """Return the Spark SQL and the type of an expression.

        Raises:
            InvalidSql: A name is unknown, or DuckDB rejects the types.
            DuckDBOnly: The expression was not compared with Spark.
            DifferentForm: The expression has another result on Spark.
        """
        check_time()
        try:
            return self._write(node)
        except DifferentForm as error:
            if error.hint is None or "{0}" not in error.hint:
                raise
            # The hint is the form itself in another spelling.
            operands = node.expressions or [node.this, node.args.get("expression")]
            texts = [operand.sql(dialect=DIALECT) for operand in operands if operand is not None]
            raise DifferentForm(error.form, error.hint.format(*texts)) from error

    def _write(self, node: exp.Expr) -> TypedValue:
        node_type = type(node)
        if node_type in self._comparisons:
            operands = [self.write(node.this), self.write(node.expression)]
            return self._compare(self._comparisons[node_type], operands)
        if node_type in self._operators:
            return self._write_operator(self._operators[node_type], node)
        if node_type in self._writers:
            return self._writers[node_type](node)
        raise DuckDBOnly(node.sql(dialect=DIALECT))

    def write_condition(self, node: exp.Expr) -> TypedValue:
        """Return an expression as a boolean."""
        value = self.write(node)
        return typed_values.with_flags(
            TypedValue(typed_values.convert(value, "BOOLEAN", self._types), "BOOLEAN"), [value]
        )

    # -- names and constants ----------------------------------------------------------------

    def _write_parentheses(self, node: exp.Expr) -> TypedValue:
        value = self.write(node.this)
        return value.with_sql(f"({value.sql})")

    def _write_column(self, node: exp.Expr) -> TypedValue:
        from sqlglot import exp

        if not isinstance(node, exp.Column) or node.is_star or node.args.get("join_mark"):
            raise DuckDBOnly(node.sql(dialect=DIALECT))
        first, *fields = [identifier.name for identifier in node.parts]
        source = self.scope.find_source(first) if fields else None
        value = None if source is None else source.find(fields[0])
        if value is not None:
            fields = fields[1:]
        else:
            value = self.scope.find(first)
        if value is None:
            if self.scope.find_source(first) is not None and not fields:
                raise DuckDBOnly(f"the row {first}", f"select {first}.*")
            raise InvalidSql(f"unknown column {node.sql(dialect=DIALECT)}.")
        for name in fields:
            value = self._read_field(value, name)
        return value

    def _read_field(self, value: TypedValue, name: str) -> TypedValue:
        from sqlglot import exp

        if value.family != "struct":
            raise InvalidSql(
                f"{name!r} is a field of {typed_values.type_name(value.type)}, not of a struct."
            )
        dtype = self._types.type_of(
            f"struct_extract({value.stand_in}, {exp.Literal.string(name).sql(dialect=DIALECT)})"
        )
        return value.with_sql(f"{value.sql}.{quote(name, dialect='spark')}", dtype)

    def _write_literal(self, node: exp.Expr) -> TypedValue:
        sql = node.sql(dialect=DIALECT)
        dtype = self._types.type_of(sql)
        constant = TypedValue("", dtype, constant=sql)
        return constant.with_sql(typed_values.literal(constant, dtype, self._types))

    def _write_boolean(self, node: exp.Expr) -> TypedValue:
        word = "TRUE" if node.this else "FALSE"
        return TypedValue(word, "BOOLEAN", constant=word)

    def _write_parameter(self, node: exp.Expr) -> TypedValue:
        if node.name not in self._parameters:
            raise InvalidSql(f"the parameter ${node.name} has no value.")
        return TypedValue(f"${node.name}", self._parameters[node.name])

    def _write_negative(self, node: exp.Expr) -> TypedValue:
        operand = self.write(node.this)
        if operand.constant is not None:
            sql = f"-{operand.constant}"
            constant = TypedValue("", self._types.type_of(sql), constant=sql)
            return constant.with_sql(typed_values.literal(constant, constant.type, self._types))
        dtype = self._types.type_of(f"-({operand.stand_in})")
        sql = f"(-{operand.sql})"
        if dtype.startswith("U"):
            sql = typed_values.narrow(f"(-CAST({operand.sql} AS DECIMAL(38,0)))", dtype)
        return typed_values.with_flags(TypedValue(sql, dtype), [operand])

    # -- conditions -------------------------------------------------------------------------

    def _write_junction(self, node: exp.Expr) -> TypedValue:
        """Write a chain of AND or OR, which is a deep tree, without recursion."""
        node_type, operands = type(node), []
        while type(node) is node_type:
            operands.append(self.write_condition(node.expression))
            node = node.this
        operands.append(self.write_condition(node))
        word = f" {node_type.__name__.upper()} "
        sql = word.join(operand.sql for operand in reversed(operands))
        return typed_values.with_flags(TypedValue(f"({sql})", "BOOLEAN"), operands)

    def _write_not(self, node: exp.Expr) -> TypedValue:
        operand = self.write_condition(node.this)
        return operand.without_constant().with_sql(f"(NOT {operand.sql})")

    def _write_is_test(self, node: exp.Expr) -> TypedValue:
        from sqlglot import exp

        if isinstance(node.expression, exp.Null):
            operand, word = self.write(node.this), "NULL"
        elif isinstance(node.expression, exp.Boolean):
            operand, word = self.write_condition(node.this), str(node.expression.this).upper()
        else:
            raise DuckDBOnly(node.sql(dialect=DIALECT))
        return typed_values.with_flags(
            TypedValue(f"({operand.sql} IS {word})", "BOOLEAN"), [operand]
        )

    def _compare(self, sign: str, operands: Sequence[TypedValue]) -> TypedValue:
        first, second = self._to_comparable(operands, is_ordered=sign not in _UNORDERED)
        return typed_values.with_flags(
            TypedValue(f"({first} {sign} {second})", "BOOLEAN"), operands
        )

    def _to_comparable(self, values: Sequence[TypedValue], *, is_ordered: bool) -> list[str]:
        """Return values in the type in which DuckDB compares them."""
        # DuckDB converts a constant text to the type of the other values.
        typed = [value for value in values if value.family != "string" or value.constant is None]
        families = {value.family for value in typed} - {"null"}
        if "string" in families and len(families) > 1:
            names = " with ".join(typed_values.type_name(value.type) for value in values)
            raise DuckDBOnly(f"the comparison of {names}", "cast(n as varchar) = s")
        common = self._types.common_type([*typed] if families else [*values])
        if is_ordered and family_is_nested(values):
            texts = [ordered_hint(value, number) for number, value in enumerate(values)]
            raise DifferentForm(f"the order of {typed_values.type_name(common)}", " < ".join(texts))
        return [typed_values.convert(value, common, self._types) for value in values]

    def _write_in(self, node: exp.Expr) -> TypedValue:
        query = node.args.get("query")
        if query is not None:
            return self._write_in_query(node, query)
        if not node.expressions or node.args.get("unnest") or node.args.get("field"):
            raise DuckDBOnly(node.sql(dialect=DIALECT))
        values = [self.write(node.this), *map(self.write, node.expressions)]
        value, *choices = self._to_comparable(values, is_ordered=False)
        return typed_values.with_flags(
            TypedValue(f"({value} IN ({', '.join(choices)}))", "BOOLEAN"), values
        )

    def _write_in_query(self, node: exp.Expr, query: exp.Expr) -> TypedValue:
        value = self.write(node.this)
        sql, columns = self._write_query(query.unnest(), self.scope)
        if len(columns) != 1:
            raise InvalidSql(f"a subquery with {len(columns)} columns is not a list of values.")
        first, second = self._to_comparable([value, columns[0][1]], is_ordered=False)
        text = f"({first} IN (SELECT {second} FROM ({sql})))"
        return typed_values.with_flags(TypedValue(text, "BOOLEAN"), [value])

    def _write_exists(self, node: exp.Expr) -> TypedValue:
        sql, _ = self._write_query(node.this.unnest(), self.scope)
        return TypedValue(f"(EXISTS ({sql}))", "BOOLEAN")

    def _write_subquery(self, node: exp.Expr) -> TypedValue:
        sql, columns = self._write_query(node.unnest(), self.scope)
        if len(columns) != 1:
            raise InvalidSql(f"a subquery with {len(columns)} columns is not a value.")
        return TypedValue(f"({sql})", columns[0][1].type)

    def _write_between(self, node: exp.Expr) -> TypedValue:
        if node.args.get("symmetric"):
            raise DuckDBOnly(node.sql(dialect=DIALECT))
        values = [
            self.write(node.this),
            self.write(node.args["low"]),
            self.write(node.args["high"]),
        ]
        value, low, high = self._to_comparable(values, is_ordered=True)
        return typed_values.with_flags(
            TypedValue(f"({value} BETWEEN {low} AND {high})", "BOOLEAN"), values
        )

    def _write_like(self, node: exp.Expr) -> TypedValue:
        values = [self.write(node.this), self.write(node.expression)]
        text, pattern = [typed_values.convert(value, "VARCHAR", self._types) for value in values]
        # A backslash in a pattern escapes the next character on Spark only.
        backslash = typed_values.string_literal("\\")
        escaped = f"replace({pattern}, {backslash}, {typed_values.string_literal(chr(92) * 2)})"
        word = "NOT LIKE" if node.args.get("negate") else "LIKE"
        return typed_values.with_flags(TypedValue(f"({text} {word} {escaped})", "BOOLEAN"), values)

    def _write_case(self, node: exp.Expr) -> TypedValue:
        conditions, results = [], []
        for branch in node.args["ifs"]:
            if node.this is None:
                conditions.append(self.write_condition(branch.this))
            else:
                operands = [self.write(node.this), self.write(branch.this)]
                conditions.append(self._compare("=", operands))
            results.append(self.write(branch.args["true"]))
        if node.args.get("default") is not None:
            results.append(self.write(node.args["default"]))
        return self._choose(conditions, results)

    def _write_if(self, node: exp.Expr) -> TypedValue:
        results = [self.write(node.args["true"])]
        if node.args.get("false") is not None:
            results.append(self.write(node.args["false"]))
        return self._choose([self.write_condition(node.this)], results)

    def _choose(
        self, conditions: Sequence[TypedValue], results: Sequence[TypedValue]
    ) -> TypedValue:
        branches = [f"WHEN true THEN {result.stand_in}" for result in results[: len(conditions)]]
        default = "".join(f" ELSE {result.stand_in}" for result in results[len(conditions) :])
        dtype = self._types.type_of(f"CASE {' '.join(branches)}{default} END")
        sql = "CASE"
        for condition, result in zip(conditions, results, strict=False):
            sql += f" WHEN {condition.sql} THEN {typed_values.convert(result, dtype, self._types)}"
        for result in results[len(conditions) :]:
            sql += f" ELSE {typed_values.convert(result, dtype, self._types)}"
        return typed_values.with_flags(TypedValue(f"{sql} END", dtype), [*conditions, *results])

    # -- operators and functions --------------------------------------------------------------

    def _write_operator(self, operator: str, node: exp.Expr) -> TypedValue:
        from sqlglot import exp

        first, second = node.this.unnest(), node.expression.unnest()
        if isinstance(second, exp.Interval) and operator in ("+", "-"):
            return self._shift_time(operator, self.write(first), second)
        if isinstance(first, exp.Interval) and operator == "+":
            return self._shift_time(operator, self.write(second), first)
        values = [self.write(node.this), self.write(node.expression)]
        dtype = self._types.type_of(f"({values[0].stand_in}) {operator} ({values[1].stand_in})")
        families = (values[0].family, operator, values[1].family)
        if "date" in families or "timestamp" in families:
            template = _DATE_FORMS.get(families)
            if template is None:
                names = f"{typed_values.type_name(values[0].type)} {operator} {typed_values.type_name(values[1].type)}"
                raise DuckDBOnly(names, "epoch_us(a) - epoch_us(b), or t + interval 1 day")
            return typed_values.with_flags(
                TypedValue(template.format(*(v.sql for v in values)), dtype), values
            )
        if dtype == NULL:
            return TypedValue("NULL", NULL)
        sql = OPERATOR_WRITERS[operator](values[0], values[1], dtype, self._types)
        return typed_values.with_flags(TypedValue(sql, dtype), values)

    def _shift_time(self, operator: str, time: TypedValue, interval: exp.Expr) -> TypedValue:
        """Return a date or time plus or minus a constant interval; a date becomes a timestamp."""
        unit = interval.args.get("unit")
        name = "" if unit is None else unit.name.upper()
        name = name.removesuffix("S") if name.removesuffix("S") in _MICROSECONDS | _MONTHS else name
        amount = "" if interval.this is None else interval.this.name
        if not re.fullmatch(r"-?\d{1,9}", amount) or name not in _MICROSECONDS | _MONTHS:
            units = ", ".join([*_MICROSECONDS, *_MONTHS]).lower()
            raise DuckDBOnly(interval.sql(dialect=DIALECT), f"interval 3 days; units: {units}")
        number = int(amount) if operator == "+" else -int(amount)
        dtype = self._types.type_of(f"({time.stand_in}) + INTERVAL '{number}' {name}")
        if time.family not in ("date", "timestamp"):
            raise DuckDBOnly(f"{typed_values.type_name(time.type)} {operator} interval")
        timestamp = (
            typed_values.convert(time, "TIMESTAMP", self._types)
            if time.family == "date"
            else time.sql
        )
        if name in _MONTHS:
            sql = f"({timestamp} + make_ym_interval(0, {number * _MONTHS[name]}))"
        else:
            micros = number * _MICROSECONDS[name]
            sql = f"timestamp_micros(unix_micros({timestamp}) + {micros}L)"
        return typed_values.with_flags(TypedValue(sql, dtype), [time])

    def _write_cast(self, node: exp.Expr) -> TypedValue:
        from sqlglot import exp

        target = node.args["to"].sql(dialect=DIALECT)
        if type(node) is not exp.Cast or node.args.get("format"):
            raise DuckDBOnly(node.sql(dialect=DIALECT))
        operand = self.write(node.this)
        dtype = self._types.type_of(f"CAST(NULL AS {target})")
        sql = typed_values.convert(operand, dtype, self._types)
        constant = None if operand.constant is None else f"CAST({operand.constant} AS {target})"
        return typed_values.with_flags(TypedValue(sql, dtype, constant=constant), [operand])
