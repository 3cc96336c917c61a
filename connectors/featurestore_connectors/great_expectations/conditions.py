"""Row conditions: a small grammar of comparisons, or SQL, both parsed to trees of SQL nodes.

Great Expectations passes the string ``row_condition`` to ``DataFrame.query``, which executes calls
in it. Expectations are stored with a table, so their conditions are untrusted: they are parsed
in this module, and never passed to the library. ``predicates`` runs the SQL. A condition is SQL, as
``usersql`` defines it, if ``condition_parser`` is "sql". Otherwise it has this grammar:

    condition   = conjunction {("or" | "|") conjunction}
    conjunction = negation {("and" | "&") negation}
    negation    = {"not" | "~"} ("(" condition ")" | test)
    test        = operand comparison operand {comparison operand}
                | column ["not"] "in" "[" literal {"," literal} "]"
                | column "is" ["not"] "null"  |  column ".notnull()"  |  column
    operand     = column | literal
    column      = name | "`" any name "`" | "col(" text ")"
    literal     = number | text | "true" | "false" | "date(" text ")"

``~`` is only allowed before brackets, a column or a null test: before a comparison, pandas inverts
the bits of the column. As in pandas, comparisons with missing values are false, except for ``!=``
and ``not in``, which are true. NaN is a missing value.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidExpectation, InvalidSql, listing
from featurestore.model.json_object import JsonMapping
from featurestore.plugins.validator import Expectation
from featurestore.usersql import DIALECT, parse_statement, quote
from featurestore_connectors.great_expectations.predicates import (
    constant_sql,
    has_value,
    in_set,
    is_true,
)

if TYPE_CHECKING:
    from sqlglot import exp

Value = str | int | float | Decimal | bool
# The ``condition_parser`` of conditions in SQL.
SQL = "sql"
# Expectations about column names and column counts, which need no values and have no condition.
NAMES_ONLY = frozenset(
    {
        "expect_column_to_exist",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
    }
)

# Conditions are untrusted. The limits bound the parser, its recursion and numbers.
_MAX_LENGTH = 10_000
_MAX_DEPTH = 50
_MAX_DIGITS = 100
# The nodes of comparisons, and the comparisons in SQL.
_NODES = {"==": "EQ", "!=": "NEQ", "<": "LT", "<=": "LTE", ">": "GT", ">=": "GTE"}
_SIGNS = {"EQ": "=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# The names of a qualified column in sqlglot, the outermost first.
_NAME_LEVELS = ("catalog", "db", "table", "this")
_SYNONYMS = {"&": "and", "|": "or"}
_TRUTH = {"true": True, "false": False}
_NULLS = ("null", "none")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<quoted>`[^`]+`)
      | (?P<word>[^\W\d]\w*)
      | (?P<sign>==|!=|<=|>=|[<>()\[\],&|~.\-])
    )""",
    re.VERBOSE | re.DOTALL,
)
_GRAMMAR = (
    "compare columns with values, combined with and, or, not, in [...], is null: "
    "\"age >= 18 and country in ['NL', 'SE']\""
)


@dataclass(frozen=True)
class RowCondition:
    """A condition on rows as a tree of SQL nodes.

    Under the notation "sql" it has the meaning of SQL, where a comparison with null is null. Under
    "python" it has that of pandas: ``!=`` and ``not in`` are true for missing values, other
    comparisons are false, and NaN is missing.
    """

    tree: exp.Expr
    notation: Literal["python", "sql"] = "python"

    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns that the condition reads."""
        from sqlglot import exp

        columns = self.tree.find_all(exp.Column, bfs=False)
        # The outermost name of ``a.b`` is the column, and the second a field of the struct.
        names = [
            next(column.args[key].name for key in _NAME_LEVELS if column.args.get(key))
            for column in columns
        ]
        return tuple(dict.fromkeys(names))

    def sql(self, schema: pa.Schema) -> str:
        """Return the condition in the SQL of ``usersql``.

        Raises:
            InvalidExpectation: Values cannot be compared because of their types.
        """
        if self.notation == "sql":
            return self.tree.sql(dialect=DIALECT)
        return _write(self.tree, schema)


def _write(node: exp.Expr, schema: pa.Schema) -> str:
    """Write a condition in the notation of Python, which is true or false for each row."""
    from sqlglot import exp

    if isinstance(node, exp.And | exp.Or):
        return _write_chain(node, schema)
    if isinstance(node, exp.Not):
        return f"not ({_write(node.this, schema)})"
    if isinstance(node, exp.Is):
        return f"not ({has_value(node.this.name, _type_of(node.this, schema))})"
    if isinstance(node, exp.In):
        constants = [_constant_sql(node.this, value, schema) for value in node.expressions]
        return in_set(node.this.name, constants)
    if isinstance(node, exp.Column):
        if not pat.is_boolean(_type_of(node, schema)):
            raise InvalidExpectation(
                f"A row_condition uses {node.name!r} as a condition, which is not boolean.",
                hint=_GRAMMAR,
            )
        return is_true(quote(node.name))
    # For missing values != is true, so that it is the negation of ==.
    if isinstance(node, exp.NEQ):
        equal = exp.EQ(this=node.this.copy(), expression=node.expression.copy())
        return f"not {_write_comparison(equal, schema)}"
    return _write_comparison(node, schema)


def _write_chain(node: exp.Expr, schema: pa.Schema) -> str:
    # A long chain is a deep tree, which is written without recursion.
    node_type, operands = type(node), []
    while type(node) is node_type:
        operands.append(node.expression)
        node = node.this
    operands.append(node)
    texts = [f"({_write(operand, schema)})" for operand in reversed(operands)]
    return f" {node_type.__name__.lower()} ".join(texts)


def _write_comparison(node: exp.Expr, schema: pa.Schema) -> str:
    from sqlglot import exp

    column, operand = node.this, node.expression
    sign = _SIGNS[type(node).__name__]
    dtype = _type_of(column, schema)
    tests = [has_value(column.name, dtype)]
    if isinstance(operand, exp.Column):
        tests.append(has_value(operand.name, _type_of(operand, schema)))
        tests.append(f"{quote(column.name)} {sign} {quote(operand.name)}")
        return is_true(" and ".join(tests))
    constant = _constant_sql(column, operand, schema)
    if constant is None and sign == "=":
        return "false"
    if constant is None:
        raise InvalidExpectation(
            f"A row_condition compares {column.name!r} ({dtype}) by {sign!r} with an incompatible "
            f"value: {_value_of(operand)!r}."
        )
    return is_true(" and ".join([*tests, f"{quote(column.name)} {sign} {constant}"]))


def _constant_sql(column: exp.Expr, constant: exp.Expr, schema: pa.Schema) -> str | None:
    """Return a value in SQL; None if no value of the type equals it."""
    value, dtype = _value_of(constant), _type_of(column, schema)
    sql = constant_sql(value, dtype)
    if sql is None and isinstance(value, str) and pat.is_temporal(dtype):
        raise InvalidExpectation(
            f"A row_condition compares the times of {column.name!r} with {value!r}, which is not a "
            "time.",
            hint="write ISO 8601, such as '2024-01-31T12:00:00Z'",
        )
    return sql


def _type_of(column: exp.Expr, schema: pa.Schema) -> pa.DataType:
    if column.name not in schema.names:
        raise InvalidExpectation(
            f"A row_condition uses the unknown column {column.name!r}. Available: "
            f"{listing(schema.names)}."
        )
    return schema.field(column.name).type


# -- nodes -------------------------------------------------------------------------------


def _column(name: str) -> exp.Expr:
    from sqlglot import exp

    return exp.column(name, quoted=True)


def _constant(value: Value) -> exp.Expr:
    from sqlglot import exp

    if isinstance(value, bool):
        return exp.Boolean(this=value)
    return exp.Literal(this=str(value), is_string=isinstance(value, str))


def _value_of(constant: exp.Expr) -> Value:
    """Return the value of a node of ``_constant``."""
    from sqlglot import exp

    if isinstance(constant, exp.Boolean):
        return bool(constant.this)
    text = str(constant.this)
    if constant.args["is_string"]:
        return text
    return int(text) if re.fullmatch(r"-?\d+", text) else Decimal(text)


def _negate_if(condition: exp.Expr, negated: bool) -> exp.Expr:
    from sqlglot import exp

    return exp.Not(this=condition) if negated else condition


def _is_missing(column: exp.Expr) -> exp.Expr:
    from sqlglot import exp

    return exp.Is(this=column, expression=exp.Null())


def _combine(conditions: list[exp.Expr], word: str) -> exp.Expr:
    from sqlglot import exp

    node_type = exp.And if word == "and" else exp.Or
    return reduce(
        lambda combined, condition: node_type(this=combined, expression=condition), conditions
    )


def _build_comparison(first: exp.Expr, sign: str, second: exp.Expr) -> exp.Expr | None:
    """Return a comparison with the column first, or None if it is not one of a column."""
    from sqlglot import exp

    if not isinstance(first, exp.Column):
        first, sign, second = second, _MIRRORED[sign], first
    if not isinstance(first, exp.Column):
        return None
    if not isinstance(second, exp.Null):
        return getattr(exp, _NODES[sign])(this=first, expression=second)
    if sign in ("==", "!="):
        return _negate_if(_is_missing(first), sign == "!=")
    return None


# -- text --------------------------------------------------------------------------------


def row_condition(expectation: Expectation) -> RowCondition | None:
    """Return the row condition of an expectation, or None if it applies to all rows."""
    if expectation["type"] in NAMES_ONLY:
        return None
    kwargs = expectation["kwargs"]
    return parse_condition(kwargs.get("row_condition"), kwargs.get("condition_parser"))


def parse_condition(condition: object, notation: object = None) -> RowCondition | None:
    """Parse a row condition from a string or from a Great Expectations condition in JSON.

    Args:
        condition: The condition; None or "" for all rows.
        notation: "sql" for a string in SQL, as ``condition_parser`` of an expectation.

    Raises:
        InvalidExpectation: The condition does not match the grammar.

    >>> parse_condition("age >= 18 and not `home town` in ['Oslo']").columns()
    ('age', 'home town')
    >>> parse_condition("age.map(print)")
    Traceback (most recent call last):
    featurestore.errors.InvalidExpectation: row_condition="age.map(print)" cannot be read: '.map' at
    character 3. Hint: ...
    """
    if condition is None or condition == "":
        return None
    if notation == SQL:
        if not isinstance(condition, str):
            raise _invalid_condition_error(condition)
        _check_length(condition)
        try:
            tree = parse_statement(condition, expected="condition", calls_by_name=True)
        except InvalidSql as error:
            raise InvalidExpectation(
                f'row_condition="{condition}" cannot be read: {error.message}', hint=error.hint
            ) from error
        return RowCondition(tree, "sql")
    if isinstance(condition, str):
        return RowCondition(_ConditionParser(condition).parse())
    return RowCondition(_from_json(condition, depth=0))


def _check_length(text: str) -> None:
    if len(text) > _MAX_LENGTH:
        raise InvalidExpectation(
            f"A row_condition has {len(text):,} characters; the maximum is {_MAX_LENGTH:,}."
        )


class _ConditionParser:
    """Recursive descent parser for a condition string."""

    def __init__(self, text: str) -> None:
        _check_length(text)
        self._text = text
        self._tokens = list(self._tokenize())
        self._position = 0
        self._depth = 0

    def parse(self) -> exp.Expr:
        condition = self._parse_condition()
        if self._kind != "end":
            raise self._unexpected_token()
        return condition

    def _tokenize(self) -> Iterator[tuple[str, str, int]]:
        """Yield tokens as (kind, text, position), with ``&`` and ``|`` converted to words."""
        position = 0
        while self._text[position:].strip():
            match = _TOKEN.match(self._text, position)
            if match is None:
                remainder = self._text[position:].lstrip()
                raise self._error(remainder[:10], len(self._text) - len(remainder))
            token_type = str(match.lastgroup)
            text = match.group(token_type)
            if text in _SYNONYMS:
                token_type, text = "word", _SYNONYMS[text]
            yield token_type, text, match.start(match.lastgroup or 0)
            position = match.end()
        yield "end", "", len(self._text)

    @property
    def _kind(self) -> str:
        return self._tokens[self._position][0]

    def _is_next(self, *texts: str) -> bool:
        token_type, text, _ = self._tokens[self._position]
        return token_type in ("sign", "word") and text.lower() in texts

    def _accept(self, *texts: str) -> bool:
        if not self._is_next(*texts):
            return False
        self._position += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._unexpected_token()

    def _next_text(self) -> str:
        text = self._tokens[self._position][1]
        self._position += 1
        return text

    def _unexpected_token(self, sign: str | None = None) -> InvalidExpectation:
        token_type, text, position = self._tokens[self._position]
        if sign is not None:
            text, position = sign, self._text.index(sign)
        if text == "." and token_type == "sign":
            text += self._tokens[self._position + 1][1]
        return self._error(text, position)

    def _error(self, text: str, position: int) -> InvalidExpectation:
        problem = f"{text!r} at character {position}" if text else "unexpected end"
        return InvalidExpectation(
            f'row_condition="{self._text}" cannot be read: {problem}.', hint=_GRAMMAR
        )

    def _parse_condition(self) -> exp.Expr:
        return self._parse_combination("or", self._parse_conjunction)

    def _parse_conjunction(self) -> exp.Expr:
        return self._parse_combination("and", self._parse_negation)

    def _parse_combination(self, word: str, parse: Callable[[], exp.Expr]) -> exp.Expr:
        conditions = [parse()]
        while self._accept(word):
            conditions.append(parse())
        return _combine(conditions, word)

    def _parse_negation(self) -> exp.Expr:
        """Parse a test or a condition in brackets, with any number of negations."""
        from sqlglot import exp

        negated = inverted = False
        while self._is_next("not", "~"):
            inverted = self._next_text() == "~"
            negated = not negated
        if self._accept("("):
            condition = self._parse_nested()
        else:
            condition = self._parse_test()
            if inverted and not isinstance(condition, exp.Column | exp.Is | exp.Not):
                # pandas would invert the bits of the column before the comparison.
                raise self._unexpected_token("~")
        return _negate_if(condition, negated)

    def _parse_nested(self) -> exp.Expr:
        """Parse a condition in brackets, up to the maximum depth."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._unexpected_token()
        condition = self._parse_condition()
        self._expect(")")
        self._depth -= 1
        return condition

    def _parse_test(self) -> exp.Expr:
        """Parse a comparison, a membership test, a null test, or a boolean column."""
        from sqlglot import exp

        operand = self._parse_operand()
        if self._is_next(*_NODES):
            return self._parse_comparisons(operand)
        if not isinstance(operand, exp.Column):
            raise self._unexpected_token()
        if self._accept("."):
            if not self._is_next("notnull", "notna", "isnull", "isna"):
                self._position -= 1
                raise self._unexpected_token()
            negated = self._next_text().lower() in ("notnull", "notna")
            self._expect("(")
            self._expect(")")
            return _negate_if(_is_missing(operand), negated)
        if self._accept("is"):
            negated = self._accept("not")
            if not self._accept(*_NULLS):
                raise self._unexpected_token()
            return _negate_if(_is_missing(operand), negated)
        negated = self._accept("not")
        if self._accept("in"):
            membership = exp.In(this=operand, expressions=self._parse_list())
            return _negate_if(membership, negated)
        if negated:
            raise self._unexpected_token()
        return operand

    def _parse_comparisons(self, first: exp.Expr) -> exp.Expr:
        """Parse a comparison, or a chain such as ``1 < x <= 3`` as a conjunction."""
        comparisons: list[exp.Expr] = []
        while self._is_next(*_NODES):
            sign = self._next_text()
            second = self._parse_operand()
            comparison = _build_comparison(first, sign, second)
            if comparison is None:
                raise self._unexpected_token()
            comparisons.append(comparison)
            # A node has one parent only.
            first = second.copy()
        return _combine(comparisons, "and")

    def _parse_operand(self) -> exp.Expr:
        """Parse a column, a literal or null."""
        from sqlglot import exp

        if self._is_next("("):
            raise self._unexpected_token()
        if self._accept("-"):
            if self._kind != "number":
                raise self._unexpected_token()
            return _constant(self._parse_number(sign="-"))
        if self._kind == "number":
            return _constant(self._parse_number())
        if self._kind == "text":
            return _constant(_unescape(self._next_text()))
        if self._kind == "quoted":
            return _column(self._next_text()[1:-1])
        if self._kind != "word" or self._is_next("and", "or", "not", "in", "is"):
            raise self._unexpected_token()
        word = self._next_text()
        if self._is_next("("):
            return self._parse_call(word)
        if word.lower() in _NULLS:
            return exp.Null()
        truth = _TRUTH.get(word.lower())
        return _column(word) if truth is None else _constant(truth)

    def _parse_number(self, *, sign: str = "") -> int | Decimal:
        text = self._tokens[self._position][1]
        if len(text) > _MAX_DIGITS or math.isinf(float(text)):
            raise self._unexpected_token()
        self._position += 1
        return int(sign + text) if text.isdecimal() else Decimal(sign + text)

    def _parse_call(self, word: str) -> exp.Expr:
        """Parse ``col("x")`` or ``date("2024-01-01")``; reject other calls."""
        if word not in ("col", "date"):
            self._position -= 1
            raise self._unexpected_token()
        self._expect("(")
        if self._kind != "text":
            raise self._unexpected_token()
        text = _unescape(self._next_text())
        self._expect(")")
        return _column(text) if word == "col" else _constant(text)

    def _parse_list(self) -> list[exp.Expr]:
        """Parse a list of literals."""
        from sqlglot import exp

        # pandas accepts tuples and lists.
        close = ")"
        if not self._accept("("):
            self._expect("[")
            close = "]"
        values: list[exp.Expr] = []
        while not self._accept(close):
            if values:
                self._expect(",")
            value = self._parse_operand()
            if isinstance(value, exp.Null | exp.Column):
                self._position -= 1
                raise self._unexpected_token()
            values.append(value)
        return values


def _unescape(token: str) -> str:
    escapes = {"n": "\n", "t": "\t"}
    return re.sub(
        r"\\(.)", lambda match: escapes.get(match[1], match[1]), token[1:-1], flags=re.DOTALL
    )


# -- JSON of great_expectations.expectations.row_conditions ------------------------------


def _from_json(condition: object, *, depth: int) -> exp.Expr:
    """Parse a condition in the JSON form of Great Expectations."""
    if not isinstance(condition, Mapping) or depth > _MAX_DEPTH:
        raise _invalid_condition_error(condition)
    condition_type = condition.get("type")
    if condition_type == "pass_through" and isinstance(condition.get("pass_through_filter"), str):
        return _ConditionParser(condition["pass_through_filter"]).parse()
    if condition_type in ("and", "or"):
        conditions = condition.get("conditions")
        if not isinstance(conditions, list) or not conditions:
            raise _invalid_condition_error(condition)
        return _combine(
            [_from_json(member, depth=depth + 1) for member in conditions], str(condition_type)
        )
    column = condition.get("column")
    name = column.get("name") if isinstance(column, Mapping) else None
    if not isinstance(name, str):
        raise _invalid_condition_error(condition)
    if condition_type == "nullity" and isinstance(condition.get("is_null"), bool):
        return _negate_if(_is_missing(_column(name)), not condition["is_null"])
    if condition_type == "comparison":
        return _comparison_from_json(_column(name), condition)
    raise _invalid_condition_error(condition)


def _comparison_from_json(column: exp.Expr, condition: JsonMapping) -> exp.Expr:
    """Parse a comparison in the JSON form of Great Expectations."""
    from sqlglot import exp

    sign, value = condition.get("operator"), condition.get("parameter")
    values: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(constant, Value) for constant in values) or any(
        isinstance(constant, float) and not math.isfinite(constant) for constant in values
    ):
        raise _invalid_condition_error(condition)
    constants = [_constant(constant) for constant in values]
    if sign in ("IN", "NOT_IN") and isinstance(value, list):
        return _negate_if(exp.In(this=column, expressions=constants), sign == "NOT_IN")
    comparison = None
    if isinstance(sign, str) and sign in _NODES and not isinstance(value, list):
        comparison = _build_comparison(column, sign, constants[0])
    if comparison is None:
        raise _invalid_condition_error(condition)
    return comparison


def _invalid_condition_error(condition: object) -> InvalidExpectation:
    return InvalidExpectation(
        f"row_condition={reprlib.repr(condition)} cannot be read.",
        hint=_GRAMMAR,
    )
