"""Table-level expectations, from measures of the engine or else from the loaded columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.errors import InvalidExpectation
from featurestore.model.validation import ExpectationResult, describe
from featurestore.plugins.validator import Measure, Validator
from featurestore.validation.measures import distinct_rows, measure
from featurestore.validation.subject import Subject

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

MAX_BYTES = 1 << 30


def check_table(
    relation: Relation,
    subject: Subject,
    *,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]],
    validator: Validator,
    most_bytes: int = MAX_BYTES,
) -> list[ExpectationResult]:
    """Return the results of expectations on all rows of a table.

    The engine computes measures (a mean, a number of values) if these are sufficient. For other
    expectations their columns are loaded, as distinct rows if copies do not matter.

    Raises:
        InvalidExpectation: The columns take more than ``most_bytes``.
    """
    results = _evaluate_measures(
        relation, engine=engine, expectations=expectations, validator=validator
    )
    groups: dict[tuple[tuple[str, ...], bool], list[int]] = {}
    for index, expectation in enumerate(expectations):
        if index not in results:
            columns = tuple(sorted(validator.columns(expectation)))
            needs = columns, validator.needs_copies(expectation)
            groups.setdefault(needs, []).append(index)
    for (columns, copies), members in groups.items():
        selected = [expectations[index] for index in members]
        if columns:
            source = relation if copies else distinct_rows(relation, columns, engine=engine)
            table = _load(
                source, columns, engine=engine, most_bytes=most_bytes, expectations=selected
            )
        else:
            table = _empty_table(subject.schema)
        for index, outcome in zip(members, validator.check(table, selected), strict=True):
            results[index] = outcome.result
    return [results[index] for index in range(len(expectations))]


def _evaluate_measures(
    relation: Relation,
    *,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]],
    validator: Validator,
) -> dict[int, ExpectationResult]:
    """Return the results, by index, of the expectations that measures determine."""
    measurable: list[int] = []
    measured: list[Measure] = []
    for index, expectation in enumerate(expectations):
        measures = validator.measures(expectation, relation.schema)
        if measures is not None:
            measurable.append(index)
            measured += measures
    if not measurable:
        return {}
    values = measure(relation, measured, engine=engine)
    results = {}
    for index in measurable:
        results[index] = validator.evaluate(expectations[index], relation.schema, found=values)
    return results


def _load(
    relation: Relation,
    columns: tuple[str, ...],
    *,
    engine: Engine,
    most_bytes: int,
    expectations: Sequence[Mapping[str, Any]],
) -> pa.Table:
    selected = engine.select(relation, dict(zip(columns, columns, strict=True)))
    batches, size = [], 0
    for batch in engine.stream(selected):
        batches.append(batch)
        size += batch.nbytes
        if size > most_bytes:
            raise InvalidExpectation(
                f"{describe(expectations[0])} needs all values of {', '.join(columns)} at once, "
                f"and these take more than {most_bytes >> 20} MiB.",
                hint="expectations about single rows are checked in chunks, and mean, sum, "
                "deviation, median, minimum, "
                "maximum, uniqueness and numbers of values are left to the engine",
            )
    return pa.Table.from_batches(batches, schema=selected.schema)


def _empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows, for expectations about column names."""
    columns = {}
    for name in schema.names:
        columns[name] = pa.nulls(0)
    return pa.table(columns)
