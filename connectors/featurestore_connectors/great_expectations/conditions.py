"""Row conditions: a small grammar of comparisons, translated to the SQL of conditions.

Great Expectations passes the string ``row_condition`` to ``DataFrame.query``, which executes calls
in it. Expectations are stored with a table, so their conditions are untrusted: they are parsed
here, and never passed to the library. ``predicates`` runs the SQL.

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
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidExpectation, listing
from featurestore.usersql import quote
from featurestore_connectors.great_expectations.predicates import (
    constant_sql,
    has_value,
    in_set,
    is_true,
)

Literal = str | int | float | Decimal | bool

# Conditions are untrusted. The limits bound the parser, its recursion and numbers.
_MAX_LENGTH = 10_000
_MAX_DEPTH = 50
_MAX_DIGITS = 100
# The comparisons of row conditions in SQL.
_COMPARISONS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
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


class Condition(Protocol):
    """A condition on rows."""

    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns that the condition reads."""
        ...

    def sql(self, schema: pa.Schema) -> str:
        """Return the condition in SQL, which is true or false for each row of a table.

        Raises:
            InvalidExpectation: Values cannot be compared because of their types.
        """
        ...


@dataclass(frozen=True)
class Column:
    """A reference to a column."""

    name: str

    def type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the column in a table."""
        if self.name not in schema.names:
            raise InvalidExpectation(
                f"A row_condition uses the unknown column {self.name!r}. Available: "
                f"{listing(schema.names)}."
            )
        return schema.field(self.name).type


@dataclass(frozen=True)
class Comparison:
    """A comparison of a column with another column or with a value."""

    column: Column
    sign: str
    operand: Column | Literal

    def columns(self) -> tuple[str, ...]:
        if isinstance(self.operand, Column):
            return self.column.name, self.operand.name
        return (self.column.name,)

    def sql(self, schema: pa.Schema) -> str:
        # For missing values != is true, so that it is the negation of ==.
        if self.sign == "!=":
            return f"not {Comparison(self.column, '==', self.operand).sql(schema)}"
        kind, sign = self.column.type(schema), _COMPARISONS[self.sign]
        name = quote(self.column.name)
        tests = [has_value(self.column.name, kind)]
        if isinstance(self.operand, Column):
            tests.append(has_value(self.operand.name, self.operand.type(schema)))
            tests.append(f"{name} {sign} {quote(self.operand.name)}")
            return is_true(" and ".join(tests))
        constant = self._constant(self.operand, kind)
        if constant is None and sign == "=":
            return "false"
        if constant is None:
            raise InvalidExpectation(
                f"A row_condition compares {self.column.name!r} ({kind}) by {self.sign!r} with an "
                f"incompatible value: {self.operand!r}."
            )
        return is_true(" and ".join([*tests, f"{name} {sign} {constant}"]))

    def _constant(self, value: Literal, kind: pa.DataType) -> str | None:
        return _time_or_constant(self.column.name, value, kind)


@dataclass(frozen=True)
class Membership:
    """A test for membership in a list of values."""

    column: Column
    values: tuple[Literal, ...]

    def columns(self) -> tuple[str, ...]:
        return (self.column.name,)

    def sql(self, schema: pa.Schema) -> str:
        kind = self.column.type(schema)
        constants = [_time_or_constant(self.column.name, value, kind) for value in self.values]
        return in_set(self.column.name, constants)


@dataclass(frozen=True)
class Missing:
    """A test for missing values."""

    column: Column

    def columns(self) -> tuple[str, ...]:
        return (self.column.name,)

    def sql(self, schema: pa.Schema) -> str:
        return f"not ({has_value(self.column.name, self.column.type(schema))})"


@dataclass(frozen=True)
class Flag:
    """A boolean column as a condition."""

    column: Column

    def columns(self) -> tuple[str, ...]:
        return (self.column.name,)

    def sql(self, schema: pa.Schema) -> str:
        if not pat.is_boolean(self.column.type(schema)):
            raise InvalidExpectation(
                f"A row_condition uses {self.column.name!r} as a condition, which is not boolean.",
                hint=_GRAMMAR,
            )
        return is_true(quote(self.column.name))


@dataclass(frozen=True)
class Negation:
    """The negation of a condition."""

    condition: Condition

    def columns(self) -> tuple[str, ...]:
        return self.condition.columns()

    def sql(self, schema: pa.Schema) -> str:
        return f"not ({self.condition.sql(schema)})"


@dataclass(frozen=True)
class Combination:
    """A conjunction or disjunction of conditions."""

    conditions: tuple[Condition, ...]
    word: str

    def columns(self) -> tuple[str, ...]:
        names = [name for each in self.conditions for name in each.columns()]
        return tuple(dict.fromkeys(names))

    def sql(self, schema: pa.Schema) -> str:
        return f" {self.word} ".join(f"({each.sql(schema)})" for each in self.conditions)


def _time_or_constant(name: str, value: Literal, kind: pa.DataType) -> str | None:
    """Return a value in SQL; None if no value of the type equals it."""
    constant = constant_sql(value, kind)
    if constant is None and isinstance(value, str) and pat.is_temporal(kind):
        raise InvalidExpectation(
            f"A row_condition compares the times of {name!r} with {value!r}, which is not a time.",
            hint="write ISO 8601, such as '2024-01-31T12:00:00Z'",
        )
    return constant


def parse_condition(condition: object) -> Condition | None:
    """Parse a row condition from a string or from a Great Expectations condition in JSON.

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
    if isinstance(condition, str):
        return _Parser(condition).parse()
    return _from_json(condition, depth=0)


class _Parser:
    """Recursive descent parser for a condition string."""

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > _MAX_LENGTH:
            raise InvalidExpectation(
                f"A row_condition has {len(text):,} characters; the maximum is {_MAX_LENGTH:,}."
            )
        self._tokens = list(self._tokenize())
        self._position = 0
        self._depth = 0

    def parse(self) -> Condition:
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
            kind = str(match.lastgroup)
            text = match.group(kind)
            if text in _SYNONYMS:
                kind, text = "word", _SYNONYMS[text]
            yield kind, text, match.start(match.lastgroup or 0)
            position = match.end()
        yield "end", "", len(self._text)

    @property
    def _kind(self) -> str:
        return self._tokens[self._position][0]

    def _is_next(self, *texts: str) -> bool:
        kind, text, _ = self._tokens[self._position]
        return kind in ("sign", "word") and text.lower() in texts

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
        kind, text, position = self._tokens[self._position]
        if sign is not None:
            text, position = sign, self._text.index(sign)
        if text == "." and kind == "sign":
            text += self._tokens[self._position + 1][1]
        return self._error(text, position)

    def _error(self, text: str, position: int) -> InvalidExpectation:
        problem = f"{text!r} at character {position}" if text else "unexpected end"
        return InvalidExpectation(
            f'row_condition="{self._text}" cannot be read: {problem}.', hint=_GRAMMAR
        )

    def _parse_condition(self) -> Condition:
        return self._parse_combination("or", self._parse_conjunction)

    def _parse_conjunction(self) -> Condition:
        return self._parse_combination("and", self._parse_negation)

    def _parse_combination(self, word: str, parse: Callable[[], Condition]) -> Condition:
        conditions = [parse()]
        while self._accept(word):
            conditions.append(parse())
        return _combine(conditions, word)

    def _parse_negation(self) -> Condition:
        """Parse a test or a condition in brackets, with any number of negations."""
        negated = inverted = False
        while self._is_next("not", "~"):
            inverted = self._next_text() == "~"
            negated = not negated
        if self._accept("("):
            condition = self._parse_nested()
        else:
            condition = self._parse_test()
            if inverted and isinstance(condition, Comparison | Combination | Membership):
                # pandas would invert the bits of the column before the comparison.
                raise self._unexpected_token("~")
        return _negate_if(condition, negated)

    def _parse_nested(self) -> Condition:
        """Parse a condition in brackets, up to the maximum depth."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._unexpected_token()
        condition = self._parse_condition()
        self._expect(")")
        self._depth -= 1
        return condition

    def _parse_test(self) -> Condition:
        """Parse a comparison, a membership test, a null test, or a boolean column."""
        operand = self._parse_operand()
        if self._is_next(*_COMPARISONS):
            return self._parse_comparisons(operand)
        if not isinstance(operand, Column):
            raise self._unexpected_token()
        if self._accept("."):
            if not self._is_next("notnull", "notna", "isnull", "isna"):
                self._position -= 1
                raise self._unexpected_token()
            negated = self._next_text().lower() in ("notnull", "notna")
            self._expect("(")
            self._expect(")")
            return _negate_if(Missing(operand), negated)
        if self._accept("is"):
            negated = self._accept("not")
            if not self._accept(*_NULLS):
                raise self._unexpected_token()
            return _negate_if(Missing(operand), negated)
        negated = self._accept("not")
        if self._accept("in"):
            return _negate_if(Membership(operand, self._parse_list()), negated)
        if negated:
            raise self._unexpected_token()
        return Flag(operand)

    def _parse_comparisons(self, first: Column | Literal | None) -> Condition:
        """Parse a comparison, or a chain such as ``1 < x <= 3`` as a conjunction."""
        comparisons: list[Condition] = []
        while self._is_next(*_COMPARISONS):
            sign = self._next_text()
            second = self._parse_operand()
            comparison = _build_comparison(first, sign, second)
            if comparison is None:
                raise self._unexpected_token()
            comparisons.append(comparison)
            first = second
        return _combine(comparisons, "and")

    def _parse_operand(self) -> Column | Literal | None:
        """Parse a column or a literal; None is the literal null."""
        if self._is_next("("):
            raise self._unexpected_token()
        if self._accept("-"):
            if self._kind != "number":
                raise self._unexpected_token()
            return -self._parse_number()
        if self._kind == "number":
            return self._parse_number()
        if self._kind == "text":
            return _unescape(self._next_text())
        if self._kind == "quoted":
            return Column(self._next_text()[1:-1])
        if self._kind != "word" or self._is_next("and", "or", "not", "in", "is"):
            raise self._unexpected_token()
        word = self._next_text()
        if self._is_next("("):
            return self._parse_call(word)
        if word.lower() in _NULLS:
            return None
        return _TRUTH.get(word.lower(), Column(word))

    def _parse_number(self) -> int | Decimal:
        text = self._tokens[self._position][1]
        if len(text) > _MAX_DIGITS or math.isinf(float(text)):
            raise self._unexpected_token()
        self._position += 1
        return int(text) if text.isdecimal() else Decimal(text)

    def _parse_call(self, word: str) -> Column | Literal:
        """Parse ``col("x")`` or ``date("2024-01-01")``; reject other calls."""
        if word not in ("col", "date"):
            self._position -= 1
            raise self._unexpected_token()
        self._expect("(")
        if self._kind != "text":
            raise self._unexpected_token()
        text = _unescape(self._next_text())
        self._expect(")")
        return Column(text) if word == "col" else text

    def _parse_list(self) -> tuple[Literal, ...]:
        """Parse a list of literals."""
        # pandas accepts tuples and lists.
        close = ")"
        if not self._accept("("):
            self._expect("[")
            close = "]"
        values: list[Literal] = []
        while not self._accept(close):
            if values:
                self._expect(",")
            value = self._parse_operand()
            if value is None or isinstance(value, Column):
                self._position -= 1
                raise self._unexpected_token()
            values.append(value)
        return tuple(values)


def _negate_if(condition: Condition, negated: bool) -> Condition:
    return Negation(condition) if negated else condition


def _combine(conditions: list[Condition], word: str) -> Condition:
    return conditions[0] if len(conditions) == 1 else Combination(tuple(conditions), word)


def _build_comparison(
    first: Column | Literal | None, sign: str, second: Column | Literal | None
) -> Condition | None:
    """Return a comparison with the column first, or None if neither operand is a column."""
    if not isinstance(first, Column):
        first, sign, second = second, _MIRRORED[sign], first
    if not isinstance(first, Column):
        return None
    if second is not None:
        return Comparison(first, sign, second)
    if sign == "==":
        return Missing(first)
    if sign == "!=":
        return Negation(Missing(first))
    return None


def _unescape(token: str) -> str:
    escapes = {"n": "\n", "t": "\t"}
    return re.sub(
        r"\\(.)", lambda match: escapes.get(match[1], match[1]), token[1:-1], flags=re.DOTALL
    )


# -- JSON of great_expectations.expectations.row_conditions ------------------------------


def _from_json(condition: object, *, depth: int) -> Condition:
    """Parse a condition in the JSON form of Great Expectations."""
    if not isinstance(condition, Mapping) or depth > _MAX_DEPTH:
        raise _invalid_condition_error(condition)
    kind = condition.get("type")
    if kind == "pass_through" and isinstance(condition.get("pass_through_filter"), str):
        return _Parser(condition["pass_through_filter"]).parse()
    if kind in ("and", "or"):
        conditions = condition.get("conditions")
        if not isinstance(conditions, list) or not conditions:
            raise _invalid_condition_error(condition)
        return Combination(
            tuple(_from_json(each, depth=depth + 1) for each in conditions), str(kind)
        )
    column = condition.get("column")
    name = column.get("name") if isinstance(column, Mapping) else None
    if not isinstance(name, str):
        raise _invalid_condition_error(condition)
    if kind == "nullity" and isinstance(condition.get("is_null"), bool):
        return _negate_if(Missing(Column(name)), not condition["is_null"])
    if kind == "comparison":
        return _comparison_from_json(Column(name), condition)
    raise _invalid_condition_error(condition)


def _comparison_from_json(column: Column, condition: Mapping[str, Any]) -> Condition:
    """Parse a comparison in the JSON form of Great Expectations."""
    sign, value = condition.get("operator"), condition.get("parameter")
    if sign in ("IN", "NOT_IN") and isinstance(value, list):
        if not all(isinstance(each, Literal) for each in value):
            raise _invalid_condition_error(condition)
        return _negate_if(Membership(column, tuple(value)), sign == "NOT_IN")
    if isinstance(sign, str) and sign in _COMPARISONS and isinstance(value, Literal):
        return Comparison(column, sign, value)
    raise _invalid_condition_error(condition)


def _invalid_condition_error(condition: object) -> InvalidExpectation:
    return InvalidExpectation(
        f"row_condition={reprlib.repr(condition)} cannot be read.",
        hint=_GRAMMAR,
    )
