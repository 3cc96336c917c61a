"""Row conditions: a small grammar of comparisons, parsed and compiled here.

Great Expectations hands the text of a ``row_condition`` to ``DataFrame.query``, which runs the
calls in it. Expectations are stored with a table, so their texts may be anybody's: they are parsed
here, and the library never sees one.

    condition   = conjunction {("or" | "|") conjunction}
    conjunction = negation {("and" | "&") negation}
    negation    = {"not" | "~"} ("(" condition ")" | test)
    test        = operand comparison operand {comparison operand}
                | column ["not"] "in" "[" literal {"," literal} "]"
                | column "is" ["not"] "null"  |  column ".notnull()"  |  column
    operand     = column | literal
    column      = name | "`" any name "`" | "col(" text ")"
    literal     = number | text | "true" | "false" | "date(" text ")"

``~`` stands before brackets, a column, or a test of null only: before a comparison pandas inverts
the bits of the column.
A comparison with a missing value is false, ``!=`` and ``not in`` are true, as in pandas.
"""

from __future__ import annotations

import math
import operator
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidExpectation, listing

if TYPE_CHECKING:
    import pandas as pd

Mask = npt.NDArray[np.bool_]
Literal = str | int | float | bool

_LONGEST = 10_000
_DEEPEST = 50
_MOST_DIGITS = 100
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
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
    """A condition that a row meets or does not meet."""

    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns that decide it."""
        ...

    def rows(self, frame: pd.DataFrame) -> Mask:
        """Mark the rows of a frame that meet it.

        InvalidExpectation when types cannot be compared.
        """
        ...


@dataclass(frozen=True)
class Column:
    """A column that is compared."""

    name: str

    def values(self, frame: pd.DataFrame) -> pd.Series:
        """Return the column of a frame."""
        if self.name not in frame.columns:
            raise InvalidExpectation(
                f"A row_condition names the column {self.name!r}; there are "
                f"{listing(frame.columns)}."
            )
        return frame[self.name]


@dataclass(frozen=True)
class Comparison:
    """A column compared with another one or with a value."""

    column: Column
    sign: str
    other: Column | Literal

    def columns(self) -> tuple[str, ...]:
        if isinstance(self.other, Column):
            return self.column.name, self.other.name
        return (self.column.name,)

    def rows(self, frame: pd.DataFrame) -> Mask:
        values = self.column.values(frame)
        present = _present(values)
        if isinstance(self.other, Column):
            others = self.other.values(frame)
            present &= _present(others)
            other: Any = others[present]
        else:
            other = _comparable(self.other, values)
        result = np.full(len(frame), self.sign == "!=")
        try:
            result[present] = _COMPARISONS[self.sign](values[present], other)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidExpectation(
                f"A row_condition compares {self.column.name!r} ({values.dtype}) by {self.sign!r} "
                "with what "
                f"it cannot be compared with: {error}."
            ) from error
        return result


@dataclass(frozen=True)
class Membership:
    """A column whose value is one of some values."""

    column: Column
    values: tuple[Literal, ...]

    def columns(self) -> tuple[str, ...]:
        return (self.column.name,)

    def rows(self, frame: pd.DataFrame) -> Mask:
        column = self.column.values(frame)
        allowed = [_comparable(value, column) for value in self.values]
        return _present(column) & np.asarray(column.isin(allowed), dtype=np.bool_)


@dataclass(frozen=True)
class Missing:
    """A column without a value."""

    column: Column

    def columns(self) -> tuple[str, ...]:
        return (self.column.name,)

    def rows(self, frame: pd.DataFrame) -> Mask:
        return ~_present(self.column.values(frame))


@dataclass(frozen=True)
class Flag:
    """A boolean column that is true."""

    column: Column

    def columns(self) -> tuple[str, ...]:
        return (self.column.name,)

    def rows(self, frame: pd.DataFrame) -> Mask:
        values = self.column.values(frame)
        present = _present(values)
        result = np.zeros(len(frame), dtype=np.bool_)
        known = values[present]
        if not all(isinstance(value, bool | np.bool_) for value in known):
            raise InvalidExpectation(
                f"A row_condition names {self.column.name!r} alone, which is not boolean.",
                hint=_GRAMMAR,
            )
        result[present] = known.astype(bool)
        return result


@dataclass(frozen=True)
class Negation:
    """What does not meet a condition."""

    condition: Condition

    def columns(self) -> tuple[str, ...]:
        return self.condition.columns()

    def rows(self, frame: pd.DataFrame) -> Mask:
        return ~self.condition.rows(frame)


@dataclass(frozen=True)
class Combination:
    """All of some conditions, or any of them."""

    conditions: tuple[Condition, ...]
    word: str

    def columns(self) -> tuple[str, ...]:
        names = [name for each in self.conditions for name in each.columns()]
        return tuple(dict.fromkeys(names))

    def rows(self, frame: pd.DataFrame) -> Mask:
        every = [each.rows(frame) for each in self.conditions]
        if self.word == "and":
            return np.logical_and.reduce(every)
        return np.logical_or.reduce(every)


def parse_condition(given: object) -> Condition | None:
    """Return a row condition, given as a text or as JSON of Great Expectations' own conditions.

    Raises:
        InvalidExpectation: It is not of the grammar.

    >>> parse_condition("age >= 18 and not `home town` in ['Oslo']").columns()
    ('age', 'home town')
    >>> parse_condition("age.map(print)")
    Traceback (most recent call last):
    featurestore.errors.InvalidExpectation: row_condition="age.map(print)" cannot be read: '.map' at
    character 3. Hint: ...
    """
    if given is None or given == "":
        return None
    if isinstance(given, str):
        return _Parser(given).parsed()
    return _from_json(given, depth=0)


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > _LONGEST:
            raise InvalidExpectation(
                f"A row_condition has {len(text):,} characters; at most {_LONGEST:,} are read."
            )
        self._tokens = list(self._tokenized())
        self._next = 0
        self._depth = 0

    def parsed(self) -> Condition:
        condition = self._condition()
        if self._kind != "end":
            raise self._failure()
        return condition

    def _tokenized(self) -> Iterator[tuple[str, str, int]]:
        """Yield (kind, text, position); words for signs that mean the same."""
        at = 0
        while self._text[at:].strip():
            found = _TOKEN.match(self._text, at)
            if found is None:
                rest = self._text[at:].lstrip()
                raise self._error(rest[:10], len(self._text) - len(rest))
            kind = str(found.lastgroup)
            text = found.group(kind)
            if text in _SYNONYMS:
                kind, text = "word", _SYNONYMS[text]
            yield kind, text, found.start(found.lastgroup or 0)
            at = found.end()
        yield "end", "", len(self._text)

    @property
    def _kind(self) -> str:
        return self._tokens[self._next][0]

    def _is(self, *texts: str) -> bool:
        kind, text, _ = self._tokens[self._next]
        return kind in ("sign", "word") and text.lower() in texts

    def _take(self, *texts: str) -> bool:
        if not self._is(*texts):
            return False
        self._next += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._failure()

    def _taken(self) -> str:
        text = self._tokens[self._next][1]
        self._next += 1
        return text

    def _failure(self, sign: str | None = None) -> InvalidExpectation:
        kind, text, at = self._tokens[self._next]
        if sign is not None:
            text, at = sign, self._text.index(sign)
        if text == "." and kind == "sign":
            text += self._tokens[self._next + 1][1]
        return self._error(text, at)

    def _error(self, text: str, at: int) -> InvalidExpectation:
        wrong = f"{text!r} at character {at}" if text else "it ends too early"
        return InvalidExpectation(
            f'row_condition="{self._text}" cannot be read: {wrong}.', hint=_GRAMMAR
        )

    def _condition(self) -> Condition:
        return self._combined("or", self._conjunction)

    def _conjunction(self) -> Condition:
        return self._combined("and", self._negation)

    def _combined(self, word: str, part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return _combination(parts, word)

    def _negation(self) -> Condition:
        negated = inverted = False
        while self._is("not", "~"):
            inverted = self._taken() == "~"
            negated = not negated
        if self._take("("):
            condition = self._nested()
        else:
            condition = self._test()
            if inverted and isinstance(condition, Comparison | Combination | Membership):
                # pandas would invert the bits of the column and compare then.
                raise self._failure("~")
        return _negated(condition, negated)

    def _nested(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._failure()
        condition = self._condition()
        self._expect(")")
        self._depth -= 1
        return condition

    def _test(self) -> Condition:
        left = self._operand()
        if self._is(*_COMPARISONS):
            return self._comparisons(left)
        if not isinstance(left, Column):
            raise self._failure()
        if self._take("."):
            if not self._is("notnull", "notna", "isnull", "isna"):
                self._next -= 1
                raise self._failure()
            negated = self._taken().lower() in ("notnull", "notna")
            self._expect("(")
            self._expect(")")
            return _negated(Missing(left), negated)
        if self._take("is"):
            negated = self._take("not")
            if not self._take(*_NULLS):
                raise self._failure()
            return _negated(Missing(left), negated)
        negated = self._take("not")
        if self._take("in"):
            return _negated(Membership(left, self._list()), negated)
        if negated:
            raise self._failure()
        return Flag(left)

    def _comparisons(self, left: Column | Literal | None) -> Condition:
        """Return one comparison, or the conjunction of a chain: ``1 < x <= 3``."""
        parts: list[Condition] = []
        while self._is(*_COMPARISONS):
            sign = self._taken()
            right = self._operand()
            compared = _compared(left, sign, right)
            if compared is None:
                raise self._failure()
            parts.append(compared)
            left = right
        return _combination(parts, "and")

    def _operand(self) -> Column | Literal | None:
        if self._is("("):
            raise self._failure()
        if self._take("-"):
            if self._kind != "number":
                raise self._failure()
            return -self._number()
        if self._kind == "number":
            return self._number()
        if self._kind == "text":
            return _unescaped(self._taken())
        if self._kind == "quoted":
            return Column(self._taken()[1:-1])
        if self._kind != "word" or self._is("and", "or", "not", "in", "is"):
            raise self._failure()
        word = self._taken()
        if self._is("("):
            return self._call(word)
        if word.lower() in _NULLS:
            return None
        return _TRUTH.get(word.lower(), Column(word))

    def _number(self) -> int | float:
        text = self._tokens[self._next][1]
        if text.isdecimal() and len(text) <= _MOST_DIGITS:
            return int(self._taken())
        if text.isdecimal() or math.isinf(float(text)):
            raise self._failure()
        return float(self._taken())

    def _call(self, word: str) -> Column | Literal:
        """Return the column of ``col("x")`` or the text of ``date("2024-01-01")``.

        There are no other calls.
        """
        if word not in ("col", "date"):
            self._next -= 1
            raise self._failure()
        self._expect("(")
        if self._kind != "text":
            raise self._failure()
        text = _unescaped(self._taken())
        self._expect(")")
        return Column(text) if word == "col" else text

    def _list(self) -> tuple[Literal, ...]:
        close = ")"
        if not self._take("("):
            self._expect("[")
            close = "]"
        values: list[Literal] = []
        while not self._take(close):
            if values:
                self._expect(",")
            value = self._operand()
            if value is None or isinstance(value, Column):
                self._next -= 1
                raise self._failure()
            values.append(value)
        return tuple(values)


def _negated(condition: Condition, negated: bool) -> Condition:
    return Negation(condition) if negated else condition


def _combination(parts: list[Condition], word: str) -> Condition:
    return parts[0] if len(parts) == 1 else Combination(tuple(parts), word)


def _compared(
    left: Column | Literal | None, sign: str, right: Column | Literal | None
) -> Condition | None:
    """Return the comparison with a column first; None where no column is compared."""
    if not isinstance(left, Column):
        left, sign, right = right, _MIRRORED[sign], left
    if not isinstance(left, Column):
        return None
    if right is not None:
        return Comparison(left, sign, right)
    if sign == "==":
        return Missing(left)
    if sign == "!=":
        return Negation(Missing(left))
    return None


def _unescaped(token: str) -> str:
    meant = {"n": "\n", "t": "\t"}
    return re.sub(
        r"\\(.)", lambda found: meant.get(found[1], found[1]), token[1:-1], flags=re.DOTALL
    )


def _present(values: pd.Series) -> Mask:
    return np.array(values.notna(), dtype=np.bool_)


def _comparable(value: Literal, column: pd.Series) -> Any:
    """Return a text as a time where the column holds times; naive ones are UTC."""
    if not isinstance(value, str) or column.dtype.kind != "M":
        return value
    try:
        time = datetime.fromisoformat(value)
    except ValueError as error:
        raise InvalidExpectation(
            f"A row_condition compares the times of {column.name!r} with {value!r}, which is no "
            "time.",
            hint="write ISO 8601, such as '2024-01-31T12:00:00Z'",
        ) from error
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    if getattr(column.dtype, "tz", None) is None:
        return time.astimezone(UTC).replace(tzinfo=None)
    return time


# -- the JSON objects of great_expectations.expectations.row_conditions -----------------


def _from_json(given: object, *, depth: int) -> Condition:
    if not isinstance(given, Mapping) or depth > _DEEPEST:
        raise _unknown(given)
    kind = given.get("type")
    if kind == "pass_through" and isinstance(given.get("pass_through_filter"), str):
        return _Parser(given["pass_through_filter"]).parsed()
    if kind in ("and", "or"):
        parts = given.get("conditions")
        if not isinstance(parts, list) or not parts:
            raise _unknown(given)
        return Combination(tuple(_from_json(each, depth=depth + 1) for each in parts), str(kind))
    named = given.get("column")
    name = named.get("name") if isinstance(named, Mapping) else None
    if not isinstance(name, str):
        raise _unknown(given)
    if kind == "nullity" and isinstance(given.get("is_null"), bool):
        return _negated(Missing(Column(name)), not given["is_null"])
    if kind == "comparison":
        return _comparison_from_json(Column(name), given)
    raise _unknown(given)


def _comparison_from_json(column: Column, given: Mapping[str, Any]) -> Condition:
    sign, value = given.get("operator"), given.get("parameter")
    if sign in ("IN", "NOT_IN") and isinstance(value, list):
        if not all(isinstance(each, Literal) for each in value):
            raise _unknown(given)
        return _negated(Membership(column, tuple(value)), sign == "NOT_IN")
    if isinstance(sign, str) and sign in _COMPARISONS and isinstance(value, Literal):
        return Comparison(column, sign, value)
    raise _unknown(given)


def _unknown(given: object) -> InvalidExpectation:
    return InvalidExpectation(
        f"row_condition={reprlib.repr(given)} cannot be read.",
        hint=_GRAMMAR,
    )
