"""Refused values: times out of range, strings that cannot name a folder, long cells.

Delta reads an empty string of a partition column back as null, and file systems limit the length of
names. One pass checks all rules; cells have a bound because a batch of rows is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.bounds import (
    DEFAULT_CELL_BYTES,
    first_out_of_range,
    first_oversized,
    max_cell_bytes,
    out_of_range_error,
    oversized_error,
    time_columns,
    variable_size_columns,
)
from featurestore.errors import FeatureStoreError, InvalidArgument
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Accumulator, Engine, Relation

# Bytes of a file's name, on every usual file system.
_LONGEST_NAME = 255
# Characters of a key's value in a message.
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class ValueRules:
    """The checked columns: ``folders`` are partition columns of strings, ``times`` contain times.

    Cells of the columns ``cells`` have at most ``most_bytes``. Values of ``key`` name a row in
    messages.
    """

    folders: tuple[str, ...]
    times: tuple[str, ...]
    key: tuple[str, ...]
    cells: tuple[str, ...] = ()
    most_bytes: int = DEFAULT_CELL_BYTES

    @classmethod
    def for_group(cls, spec: FeatureGroupSpec, *, has_checked_values: bool) -> ValueRules:
        """Return the rules of a group, without times and cells if these were checked before."""
        folders = [
            name for name in spec.partition_by if pat.is_string(spec.schema.field(name).type)
        ]
        if has_checked_values:
            return cls(tuple(folders), (), spec.primary_key)
        most = max_cell_bytes()
        cells = variable_size_columns(spec.schema, max_bytes=most)
        times = time_columns(spec.schema)
        return cls(tuple(folders), times, spec.primary_key, cells, most)

    def columns(self) -> list[str]:
        """Return the columns that the rules read; empty without rules."""
        if not self.folders and not self.times and not self.cells:
            return []
        return list(dict.fromkeys([*self.folders, *self.times, *self.cells, *self.key]))

    def first_error(self, batch: pa.RecordBatch) -> FeatureStoreError | None:
        """Return the error of the first unsupported value; None if all are supported."""
        for name in self.cells:
            array = _column(batch, name)
            row = first_oversized(array, max_bytes=self.most_bytes)
            if row is not None:
                shown = self._row_title(batch, row)
                return oversized_error(
                    array, row, column=name, row_name=shown, max_bytes=self.most_bytes
                )
        for name in self.folders:
            error = _error_of_folders(name, _column(batch, name))
            if error is not None:
                return error
        for name in self.times:
            array = _column(batch, name)
            row = first_out_of_range(array)
            if row is not None:
                return out_of_range_error(
                    array, row, column=name, shown=self._row_title(batch, row)
                )
        return None

    def _row_title(self, batch: pa.RecordBatch, row: int) -> str:
        key_texts = [
            f"{name}={str(_column(batch, name)[row])[:_LONGEST_SHOWN]}" for name in self.key
        ]
        return f"The row of {', '.join(key_texts)}" if key_texts else "A row"


@dataclass(frozen=True)
class RefuseValues:
    """The step that raises at the first unsupported value; runs on the engine's workers."""

    rules: ValueRules

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        error = self.rules.first_error(batch)
        if error is not None:
            raise error
        return batch


@dataclass(frozen=True)
class FindRefusal(Accumulator["FeatureStoreError | None", "FeatureStoreError | None"]):
    """The error of the first unsupported value, or None, for rows that can be read twice."""

    rules: ValueRules

    def start(self) -> FeatureStoreError | None:
        return None

    def update(
        self, state: FeatureStoreError | None, batch: pa.RecordBatch
    ) -> FeatureStoreError | None:
        return state or self.rules.first_error(batch)

    def merge(
        self, first: FeatureStoreError | None, second: FeatureStoreError | None
    ) -> FeatureStoreError | None:
        return first or second

    def finish(self, state: FeatureStoreError | None) -> FeatureStoreError | None:
        return state


def refuse_while_written(relation: Relation, rules: ValueRules, *, engine: Engine) -> Relation:
    """Return the rows with a step that raises at an unsupported value during the write."""
    if not rules.columns():
        return relation
    return engine.map_batches(relation, RefuseValues(rules), schema=relation.schema)


def check_staged(relation: Relation, rules: ValueRules, *, engine: Engine) -> None:
    """Refuse staged rows with an unsupported value."""
    columns = rules.columns()
    if not columns:
        return
    selected = engine.select(relation, dict(zip(columns, columns, strict=True)))
    error = engine.aggregate(selected, FindRefusal(rules))
    if error is not None:
        raise error


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(batch.schema.get_field_index(name))


def _error_of_folders(name: str, texts: pa.Array) -> FeatureStoreError | None:
    """Return the error of the first string that cannot name a folder."""
    for text in pc.unique(texts).drop_null().to_pylist():
        if not text:
            return InvalidArgument(
                f"The partition column {name!r} has empty texts, which Delta would read back as "
                "null.",
                hint=f"give them a name, for example 'none', or leave {name!r} out of partition_by",
            )
        # Folders are named name=value, with percent signs for all bytes but plain ones.
        length = len(f"{name}={quote(text, safe='')}")
        if length > _LONGEST_NAME:
            return InvalidArgument(
                f"The partition column {name!r} has a text of {len(text)} letters, "
                f"{text[:20]!r}...: the name of its folder would have {length} bytes, and file "
                f"systems take {_LONGEST_NAME}.",
                hint=f"shorten the texts, or leave {name!r} out of partition_by",
            )
    return None
