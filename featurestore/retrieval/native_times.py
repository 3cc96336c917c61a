"""Times of an engine's own dataframes, which are labels or data without passing through Arrow."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from featurestore.arrow.instants import first_out_of_range, out_of_range_error, time_columns
from featurestore.arrow.types import is_nested
from featurestore.errors import OutOfRange
from featurestore.model.times import FIRST, LAST
from featurestore.plugins.engine import Accumulator, Engine, Relation
from featurestore.usersql import predicate

_OUTSIDE = f"({{0}} < '{FIRST.isoformat()}' or {{0}} > '{LAST.isoformat()}')"
_OUTSIDE_DAYS = f"({{0}} < '{FIRST.date().isoformat()}' or {{0}} > '{LAST.date().isoformat()}')"


@dataclass(frozen=True)
class FindOutside(Accumulator["OutOfRange | None", "OutOfRange | None"]):
    """The refusal of the first time outside of the years 1 to 9999, or None.

    ``columns`` are the names of the columns, which are called c0, c1 and so on in the rows.
    """

    columns: tuple[str, ...]

    def start(self) -> OutOfRange | None:
        return None

    def update(self, state: OutOfRange | None, batch: pa.RecordBatch) -> OutOfRange | None:
        if state is not None:
            return state
        for name, array in zip(self.columns, batch.columns, strict=True):
            row = first_out_of_range(array)
            if row is not None:
                return out_of_range_error(array, row, column=name, shown="A row")
        return None

    def merge(self, first: OutOfRange | None, second: OutOfRange | None) -> OutOfRange | None:
        return first or second

    def finish(self, state: OutOfRange | None) -> OutOfRange | None:
        return state


def refuse_times_outside(relation: Relation, *, engine: Engine) -> None:
    """Refuse rows, which can be read twice, with a time outside of the years 1 to 9999.

    The engine filters them, so that few become Arrow; times inside of lists and structs all do.

    Raises:
        OutOfRange: Names the column and the time.
    """
    columns = time_columns(relation.schema)
    if not columns:
        return
    plain = {f"c{number}": name for number, name in enumerate(columns)}  # nothing to quote
    rows = engine.select(relation, plain)
    if not any(map(is_nested, rows.schema.types)):
        conditions = []
        for field in rows.schema:
            template = _OUTSIDE_DAYS if pa.types.is_date(field.type) else _OUTSIDE
            conditions.append(template.format(field.name))
        text = " or ".join(conditions)
        rows = engine.filter(rows, predicate(text, schema=rows.schema, dialect=engine.dialect))
    error = engine.aggregate(rows, FindOutside(columns))
    if error is not None:
        raise error
