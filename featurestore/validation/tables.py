"""Expectations about a whole table.

By numbers that the engine computes, else by the columns, where these fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.errors import InvalidExpectation
from featurestore.model.validation import ExpectationResult, describe
from featurestore.plugins.validator import Measure, Validator
from featurestore.validation.measures import different_rows, measure
from featurestore.validation.subject import Subject

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

MOST_BYTES = 1 << 30


def check_table(
    relation: Relation,
    subject: Subject,
    *,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]],
    validator: Validator,
    most_bytes: int = MOST_BYTES,
) -> list[ExpectationResult]:
    """Return the results of expectations that are about all rows at once.

    The engine measures what decides them (a mean, a number of values). For those that need the
    values themselves only the columns that they name are loaded, every row once where copies do not
    matter.

    Raises:
        InvalidExpectation: The columns take more than ``most_bytes``.
    """
    results = _measured(relation, engine=engine, expectations=expectations, validator=validator)
    loaded_together: dict[tuple[tuple[str, ...], bool], list[int]] = {}
    for index, expectation in enumerate(expectations):
        if index not in results:
            columns = tuple(sorted(validator.columns(expectation)))
            needs = columns, validator.needs_copies(expectation)
            loaded_together.setdefault(needs, []).append(index)
    for (columns, copies), members in loaded_together.items():
        chosen = [expectations[index] for index in members]
        if columns:
            source = relation if copies else different_rows(relation, columns, engine=engine)
            table = _load(source, columns, engine=engine, most_bytes=most_bytes, wanted_by=chosen)
        else:
            table = _without_rows(subject.schema)
        for index, outcome in zip(members, validator.check(table, chosen), strict=True):
            results[index] = outcome.result
    return [results[index] for index in range(len(expectations))]


def _measured(
    relation: Relation,
    *,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]],
    validator: Validator,
) -> dict[int, ExpectationResult]:
    """Return the results, by index, of the expectations that measures decide."""
    decided: list[int] = []
    wanted: list[Measure] = []
    for index, expectation in enumerate(expectations):
        measures = validator.measures(expectation, relation.schema)
        if measures is not None:
            decided.append(index)
            wanted += measures
    if not decided:
        return {}
    found = measure(relation, wanted, engine=engine)
    results = {}
    for index in decided:
        results[index] = validator.evaluate(expectations[index], relation.schema, found=found)
    return results


def _load(
    relation: Relation,
    columns: tuple[str, ...],
    *,
    engine: Engine,
    most_bytes: int,
    wanted_by: Sequence[Mapping[str, Any]],
) -> pa.Table:
    selected = engine.select(relation, dict(zip(columns, columns, strict=True)))
    batches, size = [], 0
    for batch in engine.stream(selected):
        batches.append(batch)
        size += batch.nbytes
        if size > most_bytes:
            raise InvalidExpectation(
                f"{describe(wanted_by[0])} needs all values of {', '.join(columns)} at once, "
                f"and these take more than {most_bytes >> 20} MiB.",
                hint="expectations about single rows are checked in chunks, and mean, sum, "
                "deviation, median, minimum, "
                "maximum, uniqueness and numbers of values are left to the engine",
            )
    return pa.Table.from_batches(batches, schema=selected.schema)


def _without_rows(schema: pa.Schema) -> pa.Table:
    """Return a table with the names of the columns and no rows.

    All that the remaining expectations look at.
    """
    columns = {}
    for name in schema.names:
        columns[name] = pa.nulls(0)
    return pa.table(columns)
