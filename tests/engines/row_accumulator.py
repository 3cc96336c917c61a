"""An accumulator that returns the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featurestore.plugins.engine import Accumulator

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class AllRows(Accumulator[Rows, Rows]):
    """Return all rows as Python objects, and compare the schema of each batch if one is set."""

    schema: pa.Schema | None = None
    threads: int = 3

    def start(self) -> Rows:
        return []

    def update(self, state: Rows, batch: pa.RecordBatch) -> Rows:
        assert self.schema is None or batch.schema.equals(self.schema)
        return state + batch.to_pylist()

    def merge(self, first: Rows, second: Rows) -> Rows:
        return first + second

    def finish(self, state: Rows) -> Rows:
        return sorted(state, key=str)
