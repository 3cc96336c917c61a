"""Measures of a whole table, computed by its engine in one query (and one more for each question of uniqueness)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.plugins.validator import Measure

if TYPE_CHECKING:
    from sqlglot import exp

    from featurestore.plugins.engine import Engine, Relation

# The square of more leaves float64 before long.
_HUGE = "1e150"


def measure(
    relation: Relation, measures: Iterable[Measure], *, engine: Engine
) -> dict[Measure, Any]:
    """Return the value of each measure; whole numbers as int, None where there is nothing to measure."""
    wanted = list(dict.fromkeys(measures))
    found: dict[Measure, Any] = {}
    together = [each for each in wanted if each.kind != "repeated"]
    if together:
        chosen = [
            expression for each in together for expression in _expressions(each, relation.schema)
        ]
        row = _row(relation, _select(chosen), engine=engine)
        found |= {each: _value(each, row) for each in together}
    for each in wanted:
        if each.kind == "repeated":
            found[each] = int(
                _row(relation, _repeated(each.columns, relation.schema), engine=engine)["n"]
            )
    return found


def different_rows(relation: Relation, columns: Sequence[str], *, engine: Engine) -> Relation:
    """Return every row of the columns once."""
    from sqlglot import exp

    query = (
        exp.select(*(exp.column(name, quoted=True) for name in columns)).distinct().from_(_rows())
    )
    return engine.sql(query.sql(dialect=engine.dialect), tables={"rows": relation}, parameters={})


def _row(relation: Relation, query: exp.Select, *, engine: Engine) -> Mapping[str, Any]:
    result = engine.sql(query.sql(dialect=engine.dialect), tables={"rows": relation}, parameters={})
    rows: list[dict[str, Any]] = engine.stream(result).read_all().to_pylist()
    return rows[0]


def _select(expressions: Sequence[exp.Expr]) -> exp.Select:
    from sqlglot import exp

    return exp.select(*expressions).from_(_rows())


def _rows() -> exp.Table:
    from sqlglot import exp

    return exp.to_table("rows", quoted=True)


def _expressions(measure: Measure, schema: pa.Schema) -> list[exp.Expr]:
    """Return what a measure needs of the rows, named by it."""
    from sqlglot import exp

    name = _name(measure)
    if measure.kind == "rows":
        return [exp.alias_(exp.Count(this=exp.Star()), name, quoted=True)]
    values = [_present(column, schema.field(column).type) for column in measure.columns]
    if measure.kind == "present":
        some = exp.or_(*(each.is_(exp.null()).not_() for each in values))
        one = exp.Case().when(some, exp.Literal.number(1))
        return [exp.alias_(exp.Count(this=one), name, quoted=True)]
    value, kind = values[0], schema.field(measure.columns[0]).type
    if measure.kind == "distinct":
        counted: exp.Expr = exp.Count(this=exp.Distinct(expressions=[value]))
    elif measure.kind in ("min", "max"):
        counted = exp.Min(this=value) if measure.kind == "min" else exp.Max(this=value)
    elif measure.kind == "sum":
        # Sums of 64-bit integers leave 64 bits.
        counted = exp.Sum(this=value if pat.is_floating(kind) else exp.cast(value, _widest(kind)))
    else:
        number = exp.cast(value, "double")
        if measure.kind == "std":
            return _deviation(number, name)
        counted = exp.Avg(this=number) if measure.kind == "mean" else exp.Median(this=number)
    return [exp.alias_(counted, name, quoted=True)]


def _deviation(number: exp.Expr, name: str) -> list[exp.Expr]:
    """Return the deviation, and how many values are too large to have one: engines refuse those, infinities too."""
    from sqlglot import exp

    huge = exp.GT(
        this=exp.Abs(this=number.copy()), expression=exp.cast(exp.Literal.string(_HUGE), "double")
    )
    usual = exp.Case().when(exp.not_(huge), number)
    counted = exp.Count(this=exp.Case().when(huge.copy(), exp.Literal.number(1)))
    return [
        exp.alias_(exp.StddevSamp(this=usual), name, quoted=True),
        exp.alias_(counted, f"{name} huge", quoted=True),
    ]


def _present(name: str, kind: pa.DataType) -> exp.Expr:
    """Return a column whose NaN are nulls."""
    from sqlglot import exp

    column = exp.column(name, quoted=True)
    return (
        exp.Case().when(exp.IsNan(this=column).not_(), column.copy())
        if pat.is_floating(kind)
        else column
    )


def _widest(kind: pa.DataType) -> str:
    return f"decimal(38, {kind.scale if pat.is_decimal(kind) else 0})"


def _repeated(columns: Sequence[str], schema: pa.Schema) -> exp.Select:
    """Return the query for the rows whose values occur in several rows, those with no value at all left out."""
    from sqlglot import exp

    values = [_present(name, schema.field(name).type) for name in columns]
    named = [exp.alias_(value, f"v{number}", quoted=True) for number, value in enumerate(values)]
    keys = [exp.column(f"v{number}", quoted=True) for number in range(len(values))]
    some = exp.or_(*(key.is_(exp.null()).not_() for key in keys))
    inner = exp.select(*named).from_(_rows()).subquery("present")
    many = exp.GT(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(1))
    counted = exp.select(exp.alias_(exp.Count(this=exp.Star()), "copies", quoted=True))
    grouped = counted.from_(inner).where(some).group_by(*(key.copy() for key in keys)).having(many)
    total = exp.Coalesce(
        this=exp.Sum(this=exp.column("copies", quoted=True)), expressions=[exp.Literal.number(0)]
    )
    return exp.select(exp.alias_(total, "n", quoted=True)).from_(grouped.subquery("grouped"))


def _value(measure: Measure, row: Mapping[str, Any]) -> Any:
    name = _name(measure)
    if row.get(f"{name} huge"):
        return None
    value = row[name]
    if (
        measure.kind in ("sum", "min", "max")
        and isinstance(value, Decimal)
        and value == value.to_integral_value()
    ):
        return int(value)
    return value


def _name(measure: Measure) -> str:
    return " ".join((measure.kind, *measure.columns))
