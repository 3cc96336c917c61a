"""The query of an SQL job, and the time bounds of its rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore import usersql
from featurestore.arrow.types import TIMESTAMP
from featurestore.jobs.inputs import TimeBounds
from featurestore.model.job import JobSpec
from featurestore.model.times import Window
from featurestore.plugins import observers
from featurestore.plugins.engine import Accumulator, Engine, Relation

_START, _END = "window_start", "window_end"


@dataclass(frozen=True)
class JobQuery:
    """A job query, transpiled for an engine."""

    spec: JobSpec
    engine: Engine

    def run(self, inputs: Mapping[str, Relation], window: Window) -> Relation:
        """Compute the rows of a window from filtered inputs."""
        query = _transpile(self.spec.code, tuple(inputs), self.engine.dialect)
        tables = {}
        for name, relation in inputs.items():
            # Only the columns that the query names are read.
            columns = usersql.find_columns(self.spec.code, relation.schema.names)
            columns_by_name = dict(zip(columns, columns, strict=True))
            tables[name] = self.engine.select(relation, columns_by_name)
        work = observers.current()
        if work is not None:
            work.input_columns = {
                name: tuple(relation.schema.names) for name, relation in tables.items()
            }
        parameter_names = set(re.findall(r"\$([A-Za-z_][A-Za-z0-9_]*)", self.spec.code))
        # DuckDB rejects values for parameters that the query does not contain.
        parameters = {}
        if _START in parameter_names:
            parameters[_START] = window.start
        if _END in parameter_names:
            parameters[_END] = window.end
        return self.engine.user_sql(query, tables=tables, parameters=parameters)


@lru_cache(maxsize=256)
def _transpile(code: str, tables: tuple[str, ...], dialect: str) -> str:
    return usersql.query(code, tables=tables, dialect=dialect)


@dataclass(frozen=True)
class BoundsAccumulator(Accumulator[TimeBounds, TimeBounds]):
    """Accumulates the bounds of a time column."""

    column: str

    def start(self) -> TimeBounds:
        """Return the bounds of zero rows."""
        return TimeBounds()

    def update(self, state: TimeBounds, batch: pa.RecordBatch) -> TimeBounds:
        """Extend the bounds by a batch."""
        values = batch.column(batch.schema.get_field_index(self.column))
        micros: npt.NDArray[np.int64] = pc.cast(
            pc.cast(values.drop_null(), TIMESTAMP), pa.int64()
        ).to_numpy()
        if len(micros):
            state = state.merge(TimeBounds(int(micros.min()), int(micros.max())))
        return state.merge(TimeBounds(nulls=values.null_count, rows=len(values)))

    def merge(self, left: TimeBounds, right: TimeBounds) -> TimeBounds:
        """Merge two bounds."""
        return left.merge(right)

    def finish(self, state: TimeBounds) -> TimeBounds:
        """Return the bounds."""
        return state
