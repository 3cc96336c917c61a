"""Quarantine: the split of rows into good rows, and failing rows with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featurestore.model.validation import describe
from featurestore.plugins.validator import Expectation, Validator
from featurestore.validation.checks import RowCheck, Subject

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

REASONS = "reasons"
_GOOD, _COPIES = "__fs_good", "__fs_copies"


@dataclass(frozen=True)
class QuarantineSplit:
    """Good rows, and failing rows with an additional column ``reasons``."""

    good: Relation
    quarantined: Relation


@dataclass(frozen=True)
class AddReasons:
    """Batch function that adds ``reasons`` and a boolean column that is true for good rows."""

    schema: pa.Schema
    checks: tuple[RowCheck, ...]
    expectations: tuple[Expectation, ...]
    validator: Validator | None
    duplicate_reason: str | None
    # Columns that expectations need and that are not stored.
    markers: tuple[str, ...] = ()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the added columns."""
        marks: list[tuple[str, NDArray[np.bool_]]] = [
            (describe(check.expectation), check.failing(batch)) for check in self.checks
        ]
        if self.duplicate_reason is not None:
            copies = batch.column(_COPIES).to_numpy(zero_copy_only=False)
            marks.append((self.duplicate_reason, copies > 1))
        columns = []
        for field in self.schema:
            column = batch.column(field.name)
            # The query that counts copies may return less specific types, such as wider integers.
            columns.append(column if column.type == field.type else column.cast(field.type))
        if self.expectations and self.validator is not None and batch.num_rows:
            table = pa.Table.from_arrays(columns, schema=self.schema)
            for name in self.markers:
                table = table.append_column(name, batch.column(name))
            outcomes = self.validator.check(table, self.expectations)
            for expectation, outcome in zip(self.expectations, outcomes, strict=True):
                if outcome.failing is not None:
                    marks.append((describe(expectation), outcome.failing))
        failing = np.zeros((batch.num_rows, len(marks)), dtype=np.bool_)
        for number, (_, mask) in enumerate(marks):
            failing[:, number] = mask
        texts = pa.array([reason for reason, _ in marks], pa.string())
        offsets = np.concatenate(([0], np.cumsum(failing.sum(axis=1)))).astype(np.int32)
        # nonzero returns row by row, so the reasons of each row are consecutive.
        row_reasons = texts.take(pa.array(np.nonzero(failing)[1]))
        reasons = pa.ListArray.from_arrays(pa.array(offsets), row_reasons)
        good = pa.array(~failing.any(axis=1))
        return pa.RecordBatch.from_arrays(
            [*columns, reasons, good], schema=marked_schema(self.schema)
        )


def marked_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of rows marked by ``AddReasons``."""
    return quarantine_schema(schema).append(pa.field(_GOOD, pa.bool_()))


def quarantine_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a quarantine table: the group's columns and ``reasons``."""
    return schema.append(pa.field(REASONS, pa.list_(pa.field("item", pa.string()))))


def split_rows(
    relation: Relation,
    subject: Subject,
    *,
    engine: Engine,
    schema: pa.Schema,
    checks: Sequence[RowCheck],
    expectations: Sequence[Expectation],
    validator: Validator | None,
    duplicates: Expectation | None,
    directory: str | None,
) -> QuarantineSplit:
    """Split rows into good and failing rows.

    Args:
        relation: The staged rows; must be readable more than once.
        subject: The audited table.
        engine: The engine of the relation.
        schema: The columns to store; the others are those of comparisons with other groups.
        checks: The built-in checks with failing rows.
        expectations: The failed row-level expectations.
        validator: The validator of the expectations.
        duplicates: The check for duplicate keys as an expectation, if the rows have duplicate keys.
        directory: A directory to stage marked rows; None marks rows again at each read.
    """
    source, duplicate_reason = relation, None
    markers = tuple(name for name in relation.schema.names if name not in schema.names)
    if duplicates is not None:
        source = _add_copy_count(relation, subject.key, engine)
        duplicate_reason = describe(duplicates)
    mark = AddReasons(
        schema, tuple(checks), tuple(expectations), validator, duplicate_reason, markers
    )
    marked = engine.map_batches(source, mark, schema=marked_schema(schema))
    if directory is not None:
        # Staged marks are computed once, although both results read them.
        marked = engine.stage(marked, directory)
    names = dict(zip(schema.names, schema.names, strict=True))
    return QuarantineSplit(
        good=engine.select(engine.filter(marked, _GOOD), names),
        quarantined=engine.select(
            engine.filter(marked, f"NOT {_GOOD}"), {**names, REASONS: REASONS}
        ),
    )


def _add_copy_count(relation: Relation, key: Sequence[str], engine: Engine) -> Relation:
    """Add a column with the number of rows with the same key; keys with nulls are unique."""
    from sqlglot import exp

    columns = []
    conditions = []
    for name in key:
        column = exp.column(name, quoted=True)
        columns.append(column)
        conditions.append(column.copy().is_(exp.null()).not_())
    copies = exp.Window(this=exp.Count(this=exp.Star()), partition_by=columns)
    has_key = exp.and_(*conditions)
    copy_count = exp.case().when(has_key, copies).else_(exp.Literal.number(1))
    query = exp.select(exp.Star(), exp.alias_(copy_count, _COPIES, quoted=True)).from_(
        exp.to_table("rows", quoted=True)
    )
    return engine.sql(query.sql(dialect=engine.dialect), tables={"rows": relation}, parameters={})
