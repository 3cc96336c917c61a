"""Conditions on one row: DuckDB's SQL in, the same condition for either engine out.

A condition is parsed, every part of it is given a kind (text, integer, timestamp ...) from the
columns' types, and is then written anew for the engine from the templates of ``functions``. So it
means the same on every engine, and nothing of the user's text reaches an engine but names and
constants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidSql, listing
from featurestore.model.time_limits import check_time
from featurestore.usersql.functions import (
    ALIASES,
    CASTS,
    CASTS_OF_NULL,
    CHOOSING,
    CLOCK,
    FUNCTIONS,
    INSTEAD,
    OPERATORS,
    UNITS,
    Function,
    Kind,
)
from featurestore.usersql.text import DIALECT, parse_statement, quote, short

if TYPE_CHECKING:
    from sqlglot import exp

_NUMERIC: tuple[Kind, ...] = ("integer", "decimal", "float", "number")
_ORDERED: tuple[Kind, ...] = (
    *_NUMERIC,
    "unsigned",
    "boolean",
    "text",
    "binary",
    "date",
    "timestamp",
)
_INTERVALS = {
    "MICROSECOND": timedelta(microseconds=1),
    "MILLISECOND": timedelta(milliseconds=1),
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
    "WEEK": timedelta(weeks=1),
}
_TYPE_KINDS: dict[str, Kind] = {
    "BIGINT": "integer", "INT": "integer", "DOUBLE": "number", "TEXT": "text", "VARCHAR": "text",
    "DATE": "date", "TIMESTAMP": "timestamp", "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp", "TIMESTAMPLTZ": "timestamp", "VARBINARY": "binary",
}  # fmt: skip


def predicate(text: str, *, schema: pa.Schema, dialect: str) -> str:
    """Return a condition on the rows of a schema in the SQL of an engine.

    >>> schema = pa.schema([("speed", pa.float64()), ("zone", pa.string())])
    >>> predicate("speed >= 10 and zone = 'A'", schema=schema, dialect="spark")
    "((`speed` >= CAST(10 AS DOUBLE)) AND (`zone` = 'A'))"

    Raises:
        InvalidSql: It is no condition, names unknown columns, or says what does not mean the same
            on every engine; the hint is what to write.
    """
    condition = expression(text, schema=schema, dialect=dialect)
    if condition.kind != "boolean":
        raise InvalidSql(
            f"{short(text)} is no condition: it is {condition.kind}, neither true nor false.",
            hint="compare it with something",
        )
    return condition.sql


def fix_clock(text: str, *, now: datetime) -> str:
    """Return a condition in which the clock stands still: ``now()`` and its like are constants.

    A text without a clock comes back as it was.

    >>> fix_clock("seen > now() - interval 1 day", now=datetime(2024, 1, 1, tzinfo=UTC))
    "seen > CAST('2024-01-01 00:00:00+00:00' AS TIMESTAMPTZ) - INTERVAL '1' DAY"
    """
    from sqlglot import exp

    tree = parse_statement(text, what="condition", calls_by_name=True)
    clocks = []
    for node in tree.walk():
        if _clock_name(node) is not None:
            clocks.append(node)
    if not clocks:
        return text
    for node in clocks:
        name = _clock_name(node)
        if name in ("current_date", "today"):
            fixed = exp.cast(exp.Literal.string(now.date().isoformat()), "date")
        else:
            fixed = exp.cast(exp.Literal.string(str(now)), "timestamptz", dialect=DIALECT)
        if node is tree:
            return fixed.sql(dialect=DIALECT)
        node.replace(fixed)
    return tree.sql(dialect=DIALECT)


def _clock_name(node: exp.Expr) -> str | None:
    """Return the name of a clock function, None for everything else."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
    elif isinstance(node, exp.CurrentDate):
        name = "current_date"
    elif isinstance(node, exp.CurrentTimestamp | exp.Localtimestamp):
        name = "current_timestamp"
    else:
        return None
    if name in CLOCK:
        return name
    return None


@dataclass(frozen=True)
class Typed:
    """A part of a condition, written for the engine; ``constant`` is its value if it has one."""

    sql: str
    kind: Kind
    constant: object = None
    arrow: pa.DataType | None = None


def expression(text: str, *, schema: pa.Schema, dialect: str) -> Typed:
    """Return an expression over the columns of a row; errors as ``predicate``."""
    tree = parse_statement(text, what="condition", calls_by_name=True)
    try:
        return _Writer(text, schema, dialect).write(tree)
    except RecursionError as error:
        raise InvalidSql(f"{short(text)} is nested too deeply.") from error


class _Writer:
    """Writes the parts of one condition for one engine."""

    def __init__(self, text: str, schema: pa.Schema, dialect: str) -> None:
        from sqlglot import exp

        self._text = text
        self._dialect = dialect
        self._schema = schema
        self._columns = {name.lower(): name for name in schema.names}
        # Only these parts of a tree are known; everything else is refused.
        self._parts: dict[type[exp.Expr], Callable[[exp.Expr], Typed]] = {
            exp.Paren: lambda node: self.write(node.this),
            exp.Column: self._column,
            exp.Dot: self._column,
            exp.Literal: self._literal,
            exp.Boolean: self._boolean,
            exp.Neg: self._negative,
            exp.And: self._junction,
            exp.Or: self._junction,
            exp.Not: self._not,
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Like: self._like,
            exp.Case: self._case,
            exp.If: self._if,
            exp.Cast: self._cast,
            exp.Extract: self._extract,
            exp.Anonymous: self._call,
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

    def write(self, node: exp.Expr) -> Typed:
        """Return a part of the tree, written for the engine."""
        check_time()
        kind = type(node)
        if kind in self._comparisons:
            left, right = self._comparable([self.write(node.this), self.write(node.expression)])
            return Typed(f"({left} {self._comparisons[kind]} {right})", "boolean")
        if kind in self._operators:
            return self._operator(self._operators[kind], node)
        if kind in self._parts:
            return self._parts[kind](node)
        raise self._refused(node)

    # -- columns and constants ------------------------------------------------------------

    def _column(self, node: exp.Expr) -> Typed:
        """Return a column, or a field of a struct.

        A condition has no tables, so ``a.b`` is a field.
        """
        from sqlglot import exp

        if not isinstance(node, exp.Column) or node.is_star or node.args.get("join_mark"):
            raise self._refused(node)
        first, *fields = [part.name for part in node.parts]
        if first.lower() not in self._columns:
            raise InvalidSql(
                f"{short(self._text)} names a column that does not exist: {first!r}.",
                hint=f"the columns are {listing(self._columns.values(), limit=50)}; "
                "text goes in single quotes",
            )
        names = [self._columns[first.lower()]]
        arrow = self._schema.field(names[0]).type
        for name in fields:
            found = _field(arrow, name)
            if found is None:
                raise InvalidSql(
                    f"{short(self._text)}: {'.'.join(names)} has no field {name!r}.",
                    hint=f"{'.'.join(names)} is {arrow}",
                )
            names.append(found.name)
            arrow = found.type
        sql = ".".join([quote(name, dialect=self._dialect) for name in names])
        return Typed(sql, _kind_of(arrow), arrow=arrow)

    def _literal(self, node: exp.Expr) -> Typed:
        if node.args["is_string"]:
            return self._text_constant(node.name)
        text = node.name
        if re.fullmatch(r"\d+", text):
            if int(text) >= 2**64:
                raise InvalidSql(f"{short(self._text)}: {text} has more than 64 bits.")
            return Typed(text, "integer", constant=int(text))
        if re.fullmatch(r"\d+\.\d*|\.\d+", text) and len(text) <= 38:
            return Typed(text, "decimal", constant=Decimal(text))
        if re.fullmatch(r"(\d+\.?\d*|\.\d+)[eE][-+]?\d{1,3}", text) and math.isfinite(float(text)):
            return Typed(f"CAST('{text}' AS DOUBLE)", "number", constant=Decimal(text))
        raise InvalidSql(f"{short(self._text)}: {text} is no number.", hint="write 10, 0.5 or 1e-3")

    def _text_constant(self, value: str) -> Typed:
        from sqlglot import exp

        return Typed(exp.Literal.string(value).sql(dialect=self._dialect), "text", constant=value)

    def _boolean(self, node: exp.Expr) -> Typed:
        return Typed(str(bool(node.this)).upper(), "boolean")

    def _negative(self, node: exp.Expr) -> Typed:
        part = self.write(node.this)
        if isinstance(part.constant, int | Decimal) and part.kind in ("integer", "decimal"):
            return Typed(f"-{part.sql}", part.kind, constant=-part.constant)
        if part.kind == "integer":
            return self._apply("-", OPERATORS["-"], [Typed("0", "integer"), part])
        if part.kind in ("number", "float"):
            return Typed(f"(-{self._as_number(part)})", "number")
        raise self._wrong_kinds("-", [part])

    def _timestamp(self, value: datetime) -> Typed:
        shown = value.astimezone(UTC).isoformat(sep=" ", timespec="microseconds")
        word = "TIMESTAMPTZ"
        if self._dialect == "spark":
            word = "TIMESTAMP"
        return Typed(f"{word} '{shown}'", "timestamp", constant=value)

    def _date(self, value: date) -> Typed:
        return Typed(f"DATE '{value.isoformat()}'", "date", constant=value)

    # -- logic ----------------------------------------------------------------------------

    def _condition(self, node: exp.Expr) -> str:
        part = self.write(node)
        if part.kind != "boolean":
            raise InvalidSql(
                f"{short(self._text)}: {node.sql(dialect=DIALECT)!r} is {part.kind}, "
                "neither true nor false.",
                hint="compare it with something",
            )
        return part.sql

    def _junction(self, node: exp.Expr) -> Typed:
        word = type(node).__name__.upper()
        # Long chains of AND are a deep tree: they are written without recursion.
        parts = []
        while type(node).__name__.upper() == word:
            parts.append(self._condition(node.expression))
            node = node.this
        parts.append(self._condition(node))
        return Typed(f"({f' {word} '.join(reversed(parts))})", "boolean")

    def _not(self, node: exp.Expr) -> Typed:
        return Typed(f"(NOT {self._condition(node.this)})", "boolean")

    def _is(self, node: exp.Expr) -> Typed:
        from sqlglot import exp

        if isinstance(node.expression, exp.Null):
            return Typed(f"({self.write(node.this).sql} IS NULL)", "boolean")
        if isinstance(node.expression, exp.Boolean):
            word = self._boolean(node.expression).sql
            return Typed(f"({self._condition(node.this)} IS {word})", "boolean")
        raise self._refused(node)

    def _in(self, node: exp.Expr) -> Typed:
        others = node.expressions
        if not others:
            raise self._refused(node)
        for name, said in node.args.items():
            if said and name not in ("this", "expressions"):
                raise self._refused(node)
        value, *choices = self._comparable([self.write(node.this), *map(self.write, others)])
        return Typed(f"({value} IN ({', '.join(choices)}))", "boolean")

    def _between(self, node: exp.Expr) -> Typed:
        if node.args.get("symmetric"):
            raise self._refused(node)
        parts = map(self.write, (node.this, node.args["low"], node.args["high"]))
        value, low, high = self._comparable(list(parts))
        return Typed(f"({value} BETWEEN {low} AND {high})", "boolean")

    def _like(self, node: exp.Expr) -> Typed:
        value, pattern = self.write(node.this), self.write(node.expression)
        if value.kind != "text" or not isinstance(pattern.constant, str):
            raise self._wrong_kinds("like", [value, pattern])
        if "\\" in pattern.constant:
            raise InvalidSql(
                f"{short(self._text)}: a backslash in a pattern escapes on some engines only.",
                hint=INSTEAD["regexp_matches"],
            )
        word = "LIKE"
        if node.args.get("negate"):
            word = "NOT LIKE"
        return Typed(f"({value.sql} {word} {pattern.sql})", "boolean")

    def _case(self, node: exp.Expr) -> Typed:
        from sqlglot import exp

        if node.this is not None:
            raise self._refused(node)
        branches = node.args["ifs"]
        conditions = [self._condition(branch.this) for branch in branches]
        results = [self.write(branch.args["true"]) for branch in branches]
        default = node.args.get("default")
        if default is not None and not isinstance(default, exp.Null):
            results.append(self.write(default))
        return self._chosen(conditions, results)

    def _if(self, node: exp.Expr) -> Typed:
        results = [self.write(node.args["true"])]
        if node.args.get("false") is not None:
            results.append(self.write(node.args["false"]))
        return self._chosen([self._condition(node.this)], results)

    def _chosen(self, conditions: Sequence[str], results: Sequence[Typed]) -> Typed:
        kind, values = self._alike(results)
        text = "CASE"
        for condition, value in zip(conditions, values, strict=False):
            text += f" WHEN {condition} THEN {value}"
        if len(values) > len(conditions):
            text += f" ELSE {values[-1]}"
        return Typed(f"({text} END)", kind)

    # -- functions ------------------------------------------------------------------------

    def _operator(self, operator: str, node: exp.Expr) -> Typed:
        from sqlglot import exp

        if isinstance(node.expression, exp.Interval):
            return self._moved(operator, self.write(node.this), node.expression)
        if isinstance(node.this, exp.Interval) and operator == "+":
            return self._moved(operator, self.write(node.expression), node.this)
        parts = [self.write(node.this), self.write(node.expression)]
        return self._apply(operator, OPERATORS[operator], parts)

    def _call(self, node: exp.Expr) -> Typed:
        name = node.name.lower()
        name = ALIASES.get(name, name)
        arguments = node.expressions
        if name in CHOOSING and arguments:
            return self._choice(name, list(map(self.write, arguments)))
        if name == "date_part" and len(arguments) == 2:
            return self._part(arguments[0], arguments[1])
        known = FUNCTIONS.get(name) or OPERATORS.get(name)
        if known is None:
            raise self._unknown_function(node.name)
        return self._apply(name, known, list(map(self.write, arguments)))

    def _extract(self, node: exp.Expr) -> Typed:
        return self._part(node.this, node.expression)

    def _part(self, part: exp.Expr, time: exp.Expr) -> Typed:
        name = part.name.lower()
        name = ALIASES.get(name, name)
        found = FUNCTIONS.get(name)
        if found is None or found[0].arguments != ("timestamp",):
            raise self._unknown_function(name)
        return self._apply(name, found, [self.write(time)])

    def _choice(self, name: str, parts: list[Typed]) -> Typed:
        if name == "nullif" and len(parts) != 2:
            raise self._wrong_kinds(name, parts)
        kind, values = self._alike(parts)
        return Typed(f"{name}({', '.join(values)})", kind)

    def _apply(self, name: str, functions: Sequence[Function], parts: list[Typed]) -> Typed:
        """Return the call of the first function that takes the kinds of the arguments."""
        for function in functions:
            if len(function.arguments) != len(parts):
                continue
            taken = []
            for part, kind in zip(parts, function.arguments, strict=True):
                value = self._as_argument(part, kind)
                if value is not None:
                    taken.append(value)
            if len(taken) == len(parts):
                return Typed(function.template(self._dialect).format(*taken), function.result)
        raise self._wrong_kinds(name, parts, functions)

    def _as_argument(self, part: Typed, kind: Kind) -> str | None:
        """Return a part as an argument of a kind; None when it is of another."""
        if kind == "count":
            if isinstance(part.constant, int) and part.constant >= 1:
                return part.sql
            return None
        if kind == "unit":
            if str(part.constant).lower() in UNITS:
                return part.sql.lower()
            return None
        if part.kind == kind:
            return part.sql
        if kind == "number" and part.kind in _NUMERIC:
            return self._as_number(part)
        if kind == "timestamp" and part.kind == "text" and isinstance(part.constant, str):
            return self._constant_time(part.constant, "timestamp").sql
        return None

    def _as_number(self, part: Typed) -> str:
        if part.kind == "number":
            return part.sql
        if isinstance(part.constant, Decimal):
            return f"CAST('{part.constant}' AS DOUBLE)"
        return f"CAST({part.sql} AS DOUBLE)"

    # -- kinds ----------------------------------------------------------------------------

    def _alike(self, parts: Sequence[Typed]) -> tuple[Kind, list[str]]:
        """Return the kind that all parts have or become, and the parts as that kind."""
        kinds = {part.kind for part in parts}
        if kinds <= {"integer"}:
            return "integer", [f"CAST({part.sql} AS BIGINT)" for part in parts]
        if len(kinds) == 1 and parts[0].kind in _ORDERED:
            return parts[0].kind, [part.sql for part in parts]
        if kinds <= set(_NUMERIC):
            return "number", list(map(self._as_number, parts))
        raise self._wrong_kinds("these", parts)

    def _comparable(self, parts: list[Typed]) -> list[str]:
        """Return parts that are compared with each other, in kinds that compare."""
        kinds = {part.kind for part in parts}
        times = {"date", "timestamp"}
        if kinds & times and kinds <= {*times, "text"}:
            return self._comparable_times(parts, kinds)
        if kinds <= {*_NUMERIC, "unsigned"}:
            return self._comparable_numbers(parts, kinds)
        if len(kinds) == 1 and parts[0].kind in _ORDERED:
            return [part.sql for part in parts]
        raise self._wrong_kinds("a comparison", parts)

    def _comparable_numbers(self, parts: list[Typed], kinds: set[Kind]) -> list[str]:
        columns = {part.kind for part in parts if part.constant is None}
        if columns == {"float"} and "number" not in kinds:
            # As DuckDB does: 0.1 is the float32 that is nearest to it.
            written = []
            for part in parts:
                if part.constant is None:
                    written.append(part.sql)
                else:
                    written.append(f"CAST('{part.constant}' AS FLOAT)")
            return written
        if kinds <= {"integer", "unsigned", "decimal"}:
            return [part.sql for part in parts]
        return list(map(self._as_number, parts))

    def _comparable_times(self, parts: list[Typed], kinds: set[Kind]) -> list[str]:
        is_date = "timestamp" not in kinds
        written = []
        for part in parts:
            if part.kind == "text":
                if not isinstance(part.constant, str):
                    raise self._wrong_kinds("a comparison", parts)
                # A time of day beside dates: then all are compared as timestamps.
                is_date = is_date and re.fullmatch(r"\d{4}-\d\d-\d\d", part.constant) is not None
        for part in parts:
            if part.kind == "text":
                kind: Kind = "timestamp"
                if is_date:
                    kind = "date"
                written.append(self._constant_time(str(part.constant), kind).sql)
            elif part.kind == "date" and not is_date:
                written.append(self._apply_cast(part, "timestamp").sql)
            else:
                written.append(part.sql)
        return written

    def _constant_time(self, text: str, kind: Kind) -> Typed:
        try:
            if kind == "date":
                return self._date(date.fromisoformat(text))
            value = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidSql(
                f"{short(self._text)}: {text!r} is no {kind}.",
                hint="write '2024-01-31' or '2024-01-31 12:00:00+00:00'",
            ) from error
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        try:
            return self._timestamp(value)
        except OverflowError as error:
            raise InvalidSql(f"{short(self._text)}: {text!r} lies outside of time.") from error

    def _cast(self, node: exp.Expr) -> Typed:
        target = node.args["to"]
        kind = _TYPE_KINDS.get(str(target.this.name))
        part = self.write(node.this)
        if kind is None or target.expressions or node.args.get("format"):
            raise self._refused(node)
        if isinstance(part.constant, str) and kind in ("date", "timestamp"):
            return self._constant_time(part.constant, kind)
        if isinstance(part.constant, str) and kind == "binary":
            return self._binary(part.constant)
        return self._apply_cast(part, kind)

    def _apply_cast(self, part: Typed, kind: Kind) -> Typed:
        if part.kind == kind:
            return part
        found = CASTS.get((part.kind, kind))
        if part.kind == "null":
            found = CASTS_OF_NULL.get(kind)
        if found is None:
            listed = listing([f"{one}::{other}" for one, other in CASTS])
            raise InvalidSql(
                f"{short(self._text)} casts {part.kind} to {kind}, which engines do differently.",
                hint=f"the casts are {listed}",
            )
        return Typed(found.template(self._dialect).format(part.sql), kind)

    def _binary(self, text: str) -> Typed:
        r"""Return the bytes that DuckDB's notation means.

        ``\xFF`` for each byte that is no ASCII.
        """
        pieces = re.findall(r"\\x([0-9A-Fa-f]{2})|([^\\])", text)
        value = bytearray()
        for code, char in pieces:
            if code:
                value.append(int(code, 16))
            else:
                value.append(ord(char) % 256)
        if not re.fullmatch(r"(?:\\x[0-9A-Fa-f]{2}|[\x20-\x5b\x5d-\x7e])*", text):
            raise InvalidSql(f"{short(self._text)}: {text!r} are no bytes.", hint=r"'\xFF'::blob")
        if self._dialect == "spark":
            return Typed(f"X'{value.hex()}'", "binary", constant=bytes(value))
        return Typed(f"unhex('{value.hex()}')", "binary", constant=bytes(value))

    def _moved(self, operator: str, time: Typed, interval: exp.Expr) -> Typed:
        """Return a time plus or minus an interval; a constant time is moved here and now."""
        step = self._interval(interval)
        if operator == "-":
            step = -step
        if operator not in ("+", "-") or time.kind not in ("date", "timestamp"):
            raise self._wrong_kinds(operator, [time, Typed("", "interval")])
        if time.constant is not None:
            value = time.constant
            if not isinstance(value, datetime):
                midnight = datetime.min.time()
                value = datetime.combine(value, midnight, tzinfo=UTC)  # type: ignore[arg-type]
            try:
                return self._timestamp(value + step)
            except OverflowError as error:
                raise InvalidSql(f"{short(self._text)} leads outside of time.") from error
        moment = self._apply_cast(time, "timestamp")
        micros = step // timedelta(microseconds=1)
        if self._dialect == "spark":
            return Typed(f"timestamp_micros(unix_micros({moment.sql}) + {micros})", "timestamp")
        return Typed(f"make_timestamptz(epoch_us({moment.sql}) + {micros})", "timestamp")

    def _interval(self, node: exp.Expr) -> timedelta:
        unit = amount = ""
        if node.args.get("unit") is not None:
            unit = node.args["unit"].name.upper().rstrip("S")
        if node.this is not None:
            amount = node.this.name
        if unit not in _INTERVALS or not re.fullmatch(r"-?\d{1,9}", amount):
            raise InvalidSql(
                f"{short(self._text)}: {node.sql(dialect=DIALECT)} has no fixed length.",
                hint=f"interval 3 days; the units are {listing(map(str.lower, _INTERVALS))}",
            )
        return int(amount) * _INTERVALS[unit]

    # -- refusals -------------------------------------------------------------------------

    def _refused(self, node: exp.Expr) -> InvalidSql:
        written = node.sql(dialect=DIALECT)
        hint = INSTEAD.get(type(node).__name__.lower())
        if type(node).__name__ == "IntDiv":
            left, right = _operand(node.this), _operand(node.args["expression"])
            hint = f"({left} - {left} % {right}) / {right} is the whole quotient"
        return InvalidSql(
            f"{short(self._text)} holds {written!r}, which a condition on one row cannot say.",
            hint=hint or "for example \"zone = 'A' and speed > 10\"",
        )

    def _unknown_function(self, name: str) -> InvalidSql:
        known = f"the functions are {listing(sorted({*FUNCTIONS, *CHOOSING}), limit=60)}"
        if name.lower() in CLOCK:
            known = "fix_clock() comes first"
        return InvalidSql(
            f"{short(self._text)} uses {name.lower()}, which has no proven equal on every engine.",
            hint=INSTEAD.get(name.lower(), known),
        )

    def _wrong_kinds(
        self, name: str, parts: Sequence[Typed], functions: Sequence[Function] = ()
    ) -> InvalidSql:
        given = ", ".join([part.kind for part in parts])
        hint = "cast one of them, or compare values of one kind"
        if functions:
            taken = []
            for function in functions:
                taken.append(f"({', '.join(function.arguments)})")
            hint = f"{name} takes {' or '.join(taken)}"
        return InvalidSql(f"{short(self._text)}: {name} of {given} has no meaning.", hint=hint)


def _operand(node: exp.Expr) -> str:
    """Return the text of an operand, in parentheses where it has parts."""
    written: str = node.sql(dialect=DIALECT)
    is_whole = re.fullmatch(r"\w+|\(.*\)", written) is not None
    return written if is_whole else f"({written})"


def _kind_of(kind: pa.DataType) -> Kind:
    checks: list[tuple[Callable[[pa.DataType], bool], Kind]] = [
        (pat.is_boolean, "boolean"),
        (pat.is_uint64, "unsigned"),
        (pat.is_integer, "integer"),
        (pat.is_float64, "number"),
        (pat.is_floating, "float"),
        (pat.is_decimal, "decimal"),
        (pat.is_string, "text"),
        (pat.is_large_string, "text"),
        (pat.is_date, "date"),
        (pat.is_timestamp, "timestamp"),
        (pat.is_struct, "struct"),
        (pat.is_binary, "binary"),
        (pat.is_large_binary, "binary"),
        (pat.is_null, "null"),
    ]
    for holds, found in checks:
        if holds(kind):
            return found
    return "list"


def _field(kind: pa.DataType, name: str) -> pa.Field | None:
    if not pat.is_struct(kind):
        return None
    for index in range(kind.num_fields):
        if kind.field(index).name.lower() == name.lower():
            return kind.field(index)
    return None
