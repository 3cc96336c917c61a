"""Table-level expectations, evaluated from measures of the engine or from loaded columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import decimal_places
from featurestore.errors import EngineError, InvalidExpectation
from featurestore.model.validation import ExpectationResult
from featurestore.plugins.validator import Expectation, Measure, Validator
from featurestore.validation.checks import Subject, check_separately, error_result

if TYPE_CHECKING:
    from sqlglot import exp

    from featurestore.plugins.engine import Engine, Relation

# Squares of larger values, and their sums, may overflow float64.
_MAX_SQUARABLE = "1e150"


def compute_measures(
    relation: Relation, measures: Iterable[Measure], *, engine: Engine
) -> dict[Measure, Any]:
    """Compute measures with the engine, and return their values.

    Integral results are of type int. Columns without values have None.
    """
    from sqlglot import exp

    # Several expectations may require the same measure.
    distinct_measures = dict.fromkeys(measures)
    aggregated: list[Measure] = []
    expressions: list[exp.Expr] = []
    values: dict[Measure, Any] = {}
    for distinct_measure in distinct_measures:
        if distinct_measure.kind in ("repeated", "repeated_rows"):
            # These measures group the rows by different columns, so each requires a separate query.
            query = _repeated_rows_query(
                distinct_measure.columns,
                relation.schema,
                with_missing=distinct_measure.kind == "repeated_rows",
            )
            values[distinct_measure] = int(_query_row(relation, query, engine=engine)["n"])
        else:
            aggregated.append(distinct_measure)
            expressions += _measure_expressions(distinct_measure, relation.schema)
    if aggregated:
        query = exp.select(*expressions).from_(_rows_table())
        row = _query_row(relation, query, engine=engine)
        for distinct_measure in aggregated:
            values[distinct_measure] = _read_measured_value(distinct_measure, row)
    return values


def select_distinct(relation: Relation, columns: Sequence[str], *, engine: Engine) -> Relation:
    """Return the distinct combinations of values in some columns."""
    from sqlglot import exp

    names = [exp.column(name, quoted=True) for name in columns]
    query = exp.select(*names).distinct().from_(_rows_table())
    return engine.sql(query.sql(dialect=engine.dialect), tables={"rows": relation}, parameters={})


def _query_row(relation: Relation, query: exp.Select, *, engine: Engine) -> Mapping[str, Any]:
    result = engine.sql(query.sql(dialect=engine.dialect), tables={"rows": relation}, parameters={})
    rows: list[dict[str, Any]] = engine.stream(result).read_all().to_pylist()
    return rows[0]


def _rows_table() -> exp.Table:
    from sqlglot import exp

    return exp.to_table("rows", quoted=True)


def _measure_expressions(measure: Measure, schema: pa.Schema) -> list[exp.Expr]:
    """Return the SQL expressions of a measure, with the measure name as alias."""
    from sqlglot import exp

    name = _measure_name(measure)
    if measure.kind == "rows":
        return [exp.alias_(exp.Count(this=exp.Star()), name, quoted=True)]
    if measure.kind == "present":
        conditions = []
        for column in measure.columns:
            value = _nan_as_null(column, schema.field(column).type)
            conditions.append(value.is_(exp.null()).not_())
        present_rows = exp.Case().when(exp.or_(*conditions), exp.Literal.number(1))
        return [exp.alias_(exp.Count(this=present_rows), name, quoted=True)]
    column = measure.columns[0]
    dtype = schema.field(column).type
    value = _nan_as_null(column, dtype)
    if measure.kind == "std":
        return _deviation_expressions(exp.cast(value, "double"), name)
    return [exp.alias_(_aggregate_expression(measure.kind, value, dtype), name, quoted=True)]


def _aggregate_expression(measure: str, value: exp.Expr, dtype: pa.DataType) -> exp.Expr:
    """Return the SQL aggregate of one column."""
    from sqlglot import exp

    if measure == "distinct":
        return exp.Count(this=exp.Distinct(expressions=[value]))
    if measure == "min":
        return exp.Min(this=value)
    if measure == "max":
        return exp.Max(this=value)
    if measure == "mean":
        return exp.Avg(this=exp.cast(value, "double"))
    if measure == "median":
        return exp.Median(this=exp.cast(value, "double"))
    if pat.is_floating(dtype):
        return exp.Sum(this=value)
    # Sums of 64-bit integers may overflow 64 bits.
    scale = decimal_places(dtype)
    return exp.Sum(this=exp.cast(value, f"decimal(38, {scale})"))


def _deviation_expressions(number: exp.Expr, name: str) -> list[exp.Expr]:
    """Return SQL for the standard deviation, and for the number of values that are too large.

    Such values, and infinities, are excluded, because engines raise errors if squares overflow.
    """
    from sqlglot import exp

    limit = exp.cast(exp.Literal.string(_MAX_SQUARABLE), "double")
    huge = exp.GT(this=exp.Abs(this=number.copy()), expression=limit)
    regular = exp.Case().when(exp.not_(huge), number)
    huge_values = exp.Case().when(huge.copy(), exp.Literal.number(1))
    return [
        exp.alias_(exp.StddevSamp(this=regular), name, quoted=True),
        exp.alias_(exp.Count(this=huge_values), f"{name} huge", quoted=True),
    ]


def _nan_as_null(name: str, dtype: pa.DataType) -> exp.Expr:
    """Return the SQL expression of a column with NaN replaced by null."""
    from sqlglot import exp

    column = exp.column(name, quoted=True)
    if pat.is_floating(dtype):
        # Measures treat NaN as missing, but engines order NaN above all numbers and propagate it in
        # sums.
        return exp.Case().when(exp.IsNan(this=column).not_(), column.copy())
    return column


def _repeated_rows_query(
    columns: Sequence[str], schema: pa.Schema, *, with_missing: bool
) -> exp.Select:
    """Return the query that counts rows with repeated values, with or without all-null rows."""
    from sqlglot import exp

    values, keys, conditions = [], [], []
    for number, name in enumerate(columns):
        value, key = _nan_as_null(name, schema.field(name).type), f"v{number}"
        values.append(exp.alias_(value, key, quoted=True))
        keys.append(exp.column(key, quoted=True))
        conditions.append(exp.column(key, quoted=True).is_(exp.null()).not_())
    inner = exp.select(*values).from_(_rows_table()).subquery("present")
    is_repeated = exp.GT(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(1))
    copies = exp.select(exp.alias_(exp.Count(this=exp.Star()), "copies", quoted=True))
    selected = (
        copies.from_(inner) if with_missing else copies.from_(inner).where(exp.or_(*conditions))
    )
    grouped = selected.group_by(*keys).having(is_repeated)
    total = exp.Coalesce(
        this=exp.Sum(this=exp.column("copies", quoted=True)), expressions=[exp.Literal.number(0)]
    )
    return exp.select(exp.alias_(total, "n", quoted=True)).from_(grouped.subquery("grouped"))


def _read_measured_value(measure: Measure, row: Mapping[str, Any]) -> Any:
    """Return a measure from the query result; None if values are too large."""
    name = _measure_name(measure)
    if row.get(f"{name} huge"):
        return None
    value = row[name]
    if measure.kind in ("sum", "min", "max") and isinstance(value, Decimal):
        # Integers are summed as decimals, because their sum may exceed 64 bits.
        return int(value) if value == value.to_integral_value() else value
    return value


def _measure_name(measure: Measure) -> str:
    return " ".join((measure.kind, *measure.columns))


# The maximum size of the columns that are loaded into the calling process.
MAX_BYTES = 1 << 30


def check_table(
    relation: Relation,
    subject: Subject,
    *,
    engine: Engine,
    expectations: Sequence[Expectation],
    validator: Validator,
    max_bytes: int = MAX_BYTES,
) -> list[ExpectationResult]:
    """Evaluate table-level expectations and return their results.

    The engine computes measures, for example a mean, if they are sufficient. For other expectations
    the columns are loaded, only as distinct rows if duplicates are irrelevant. An expectation that
    cannot be evaluated, or whose columns exceed ``max_bytes``, has a result with the reason.
    """
    results = _evaluate_measures(
        relation, engine=engine, expectations=expectations, validator=validator
    )
    # Expectations on the same columns are evaluated on the same rows, which are loaded once.
    groups: dict[tuple[tuple[str, ...], bool], list[int]] = {}
    for index, expectation in enumerate(expectations):
        if index not in results:
            columns = tuple(sorted(validator.columns(expectation)))
            needs = columns, validator.needs_copies(expectation)
            groups.setdefault(needs, []).append(index)
    for (columns, needs_copies), members in groups.items():
        selected = [expectations[index] for index in members]
        # Expectations about column names require only an empty table.
        table = pa.table({name: pa.nulls(0) for name in subject.schema.names})
        if columns:
            source = relation if needs_copies else select_distinct(relation, columns, engine=engine)
            try:
                table = _load_columns(source, columns, engine=engine, max_bytes=max_bytes)
            except InvalidExpectation as error:
                for index in members:
                    results[index] = error_result(expectations[index], error, rows=0)
                continue
        outcomes = check_separately(validator, table, selected)
        for index, outcome in zip(members, outcomes, strict=True):
            results[index] = outcome.result
    return [results[index] for index in range(len(expectations))]


def _evaluate_measures(
    relation: Relation,
    *,
    engine: Engine,
    expectations: Sequence[Expectation],
    validator: Validator,
) -> dict[int, ExpectationResult]:
    """Evaluate expectations that require only measures, and return the results by index."""
    needed: dict[int, tuple[Measure, ...]] = {}
    for index, expectation in enumerate(expectations):
        measures = validator.measures(expectation, relation.schema)
        if measures is not None:
            needed[index] = measures
    results = {}
    values: dict[Measure, Any] | None = None
    # One measure, such as a sum of many digits, must not prevent the others.
    with suppress(EngineError):
        values = compute_measures(relation, chain(*needed.values()), engine=engine)
    for index, measures in needed.items():
        expectation = expectations[index]
        try:
            measured = values or compute_measures(relation, measures, engine=engine)
            result = validator.evaluate(expectation, relation.schema, measured=measured)
        except (EngineError, InvalidExpectation) as error:
            result = error_result(expectation, error, rows=0)
        results[index] = result
    return results


def _load_columns(
    relation: Relation,
    columns: tuple[str, ...],
    *,
    engine: Engine,
    max_bytes: int,
) -> pa.Table:
    """Load columns into the calling process, or raise InvalidExpectation if they are too large."""
    selected = engine.select(relation, dict(zip(columns, columns, strict=True)))
    batches, size = [], 0
    for batch in engine.stream(selected):
        batches.append(batch)
        size += batch.nbytes
        if size > max_bytes:
            raise InvalidExpectation(
                f"needs all values of {', '.join(columns)} in memory, and they need more than "
                f"{max_bytes >> 20} MiB. The engine computes mean, sum, standard deviation, "
                "median, minimum, maximum, uniqueness and numbers of values, and row-level "
                "expectations are checked in chunks"
            )
    return pa.Table.from_batches(batches, schema=selected.schema)
