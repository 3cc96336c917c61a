"""Write checks that the audit does not cover: time types, values, duplicate keys, repeated batches.

Delta reads an empty string in a partition column back as null, and file systems limit the length of
file names. All value rules are checked in one pass. The size of a value is limited because record
batches must fit in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow import bounds
from featurestore.arrow.hints import can_be_epoch, misread_hint, time_hint
from featurestore.delta.datafile import DataFile
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    DataWarning,
    DuplicateKeys,
    FeatureStoreError,
    InvalidArgument,
    SchemaMismatch,
)
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.arguments import warn_caller
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.times import SuspiciousTimeWarning
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Accumulator, Engine, Relation
from featurestore.storage import files
from featurestore.validation.checks import EARLY_TIMES, FUTURE_TIMES
from featurestore.validation.duplicate_hints import DuplicateRows, duplicate_keys_hint

# The maximum length of a file name in bytes on common file systems.
_MAX_FOLDER_NAME_BYTES = 255
# The maximum number of characters of a key value in an error message.
_MAX_KEY_CHARACTERS = 60
_EXAMPLE_COUNT = 5
# Above this size, reading the files again would cost more than the write.
_MAX_COMPARED_BYTES = 256 * 1024 * 1024
_PEEK_ROWS = 1000


def check_time_types(rows: Relation, times: Sequence[str], *, engine: Engine) -> None:
    """Reject time columns that contain numbers or strings.

    The hint casts the values. The unit of numbers and the format of strings are inferred from the
    first values. ``rows`` may be a stream: it is read only if an error is raised.
    """
    for name in times:
        if name not in rows.schema.names:
            continue
        dtype = rows.schema.field(name).type
        if pat.is_timestamp(dtype) or pat.is_date(dtype):
            continue
        values: list[float | str | None] = []
        if can_be_epoch(dtype) or pat.is_string(dtype):
            values = _read_first_values(rows, name, engine=engine)
        raise InvalidArgument(
            f"Time column {name!r} has type {dtype}; times are timestamps or dates.",
            hint=time_hint(name, dtype, values),
        )


def check_time_numbers(rows: Relation, spec: FeatureGroupSpec, *, engine: Engine) -> None:
    """Reject numbers in time columns of an existing group; the hint shows how to convert them."""
    for name in (spec.event_time, spec.created_time):
        if name is None or name not in rows.schema.names:
            continue
        dtype = rows.schema.field(name).type
        if can_be_epoch(dtype):
            values = _read_first_values(rows, name, engine=engine)
            raise SchemaMismatch(
                f"Time column {name!r} of feature group {spec.name!r} has type {dtype} in these rows.",
                hint=time_hint(name, dtype, values),
            )


def _read_first_values(rows: Relation, name: str, *, engine: Engine) -> list[float | str | None]:
    column = engine.select(rows, {name: name})
    table = engine.stream(column, batch_rows=_PEEK_ROWS, limit=_PEEK_ROWS).read_all()
    values: list[float | str | None] = table.column(0).to_pylist()
    return values


@dataclass(frozen=True)
class ValueRules:
    """Rules for values: folder names, the range of times, and the maximum size.

    ``folders`` are the string partition columns, ``times`` the time columns. Values of the columns
    ``cells`` have at most ``max_bytes`` bytes. Error messages identify a row by its values in the
    ``key`` columns.
    """

    folders: tuple[str, ...]
    times: tuple[str, ...]
    key: tuple[str, ...]
    cells: tuple[str, ...] = ()
    max_bytes: int = bounds.DEFAULT_CELL_BYTES

    @classmethod
    def for_group(cls, spec: FeatureGroupSpec, *, has_checked_values: bool) -> ValueRules:
        """Return the rules of a group, without ranges and sizes if the values are already checked."""
        folders = [
            name for name in spec.partition_by if pat.is_string(spec.schema.field(name).type)
        ]
        # Times and sizes were checked during ingestion. Folder names depend on the group, so they
        # are always checked.
        if has_checked_values:
            return cls(tuple(folders), (), spec.primary_key)
        max_bytes = bounds.max_cell_bytes()
        cells = bounds.variable_size_columns(spec.schema, max_bytes=max_bytes)
        times = bounds.time_columns(spec.schema)
        return cls(tuple(folders), times, spec.primary_key, cells, max_bytes)

    def columns(self) -> list[str]:
        """Return the columns that the rules read; the list is empty without rules."""
        if not self.folders and not self.times and not self.cells:
            return []
        return list(dict.fromkeys([*self.folders, *self.times, *self.cells, *self.key]))

    def first_error(self, batch: pa.RecordBatch) -> FeatureStoreError | None:
        """Return the error for the first unsupported value, or None if all values are supported."""
        for name in self.cells:
            array = _get_column(batch, name)
            row = bounds.find_oversized(array, max_bytes=self.max_bytes)
            if row is not None:
                row_name = self._row_title(batch, row)
                return bounds.oversized_error(
                    array, row, column=name, row_name=row_name, max_bytes=self.max_bytes
                )
        for name in self.folders:
            error = _find_folder_name_error(name, _get_column(batch, name))
            if error is not None:
                return error
        for name in self.times:
            array = _get_column(batch, name)
            row = bounds.find_out_of_range(array)
            if row is not None:
                return bounds.out_of_range_error(
                    array, row, column=name, shown=self._row_title(batch, row)
                )
        return None

    def _row_title(self, batch: pa.RecordBatch, row: int) -> str:
        key_texts = [
            f"{name}={str(_get_column(batch, name)[row])[:_MAX_KEY_CHARACTERS]}"
            for name in self.key
        ]
        return f"The row with {', '.join(key_texts)}" if key_texts else "A row"


@dataclass(frozen=True)
class CheckValues:
    """Batch function that raises an error for the first unsupported value.

    The engine calls it in its workers.
    """

    rules: ValueRules

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        error = self.rules.first_error(batch)
        if error is not None:
            raise error
        return batch


@dataclass(frozen=True)
class FirstErrorAccumulator(Accumulator["FeatureStoreError | None", "FeatureStoreError | None"]):
    """Accumulator that returns the error for an unsupported value, or None without one."""

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


def check_while_writing(relation: Relation, rules: ValueRules, *, engine: Engine) -> Relation:
    """Return a relation that raises an error for unsupported values while it is written."""
    if not rules.columns():
        return relation
    return engine.map_batches(relation, CheckValues(rules), schema=relation.schema)


def check_staged_rows(relation: Relation, rules: ValueRules, *, engine: Engine) -> None:
    """Raise an error if staged rows contain an unsupported value."""
    columns = rules.columns()
    if not columns:
        return
    selected = engine.select(relation, dict(zip(columns, columns, strict=True)))
    # The error is a result of the aggregation. An exception may be quoted by an EngineError, and
    # would lose its class and hint.
    error = engine.aggregate(selected, FirstErrorAccumulator(rules))
    if error is not None:
        raise error


def _get_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(batch.schema.get_field_index(name))


def _find_folder_name_error(name: str, folder_values: pa.Array) -> FeatureStoreError | None:
    """Return the error for the first string that cannot be used as a folder name, or None."""
    for folder_value in pc.unique(folder_values).drop_null().to_pylist():
        if not folder_value:
            return InvalidArgument(
                f"Partition column {name!r} has empty strings, which Delta would read back as null.",
                hint=f"replace them, for example by 'none', or remove {name!r} from partition_by",
            )
        # Folders are named column=value; all special characters are percent-encoded.
        length = len(f"{name}={quote(folder_value, safe='')}")
        if length > _MAX_FOLDER_NAME_BYTES:
            return InvalidArgument(
                f"Partition column {name!r} has a string of {len(folder_value)} characters, "
                f"{folder_value[:20]!r}...: its folder name would have {length} bytes, and file "
                f"systems allow {_MAX_FOLDER_NAME_BYTES}.",
                hint=f"shorten the strings, or remove {name!r} from partition_by",
            )
    return None


def check_unique_keys(relation: Relation, spec: FeatureGroupSpec, *, engine: Engine) -> None:
    """Raise an error with examples if rows have duplicate keys."""
    count, examples = engine.duplicates(relation, spec.upsert_key, limit=_EXAMPLE_COUNT)
    if count:
        shown = "; ".join(map(_format_key_example, examples))
        raise DuplicateKeys(
            f"{count} keys ({', '.join(spec.upsert_key)}) occur more than once in the rows for "
            f"{spec.name!r}, for example {shown}.",
            hint=duplicate_keys_hint(
                DuplicateRows(
                    relation, relation.schema, spec.upsert_key, spec.event_time, spec.name
                ),
                engine=engine,
            ),
        )


def _format_key_example(values: Mapping[str, object]) -> str:
    """Format a duplicate key and its number of occurrences."""
    key = dict(values)
    count = key.pop("n", None)
    shown = ", ".join(f"{name}={value!r}" for name, value in key.items())
    if count is None:
        return f"({shown})"
    return f"({shown}) {count} times"


def uniqueness_metadata(
    engine: Engine, rows: Relation, group: OpenGroup, *, is_unique: bool | None, mode: str
) -> dict[str, Any]:
    """Return the commit metadata that states whether primary key and times are unique.

    Uniqueness is stated only if it is cheap to prove. ``featurestore.delta.commits`` describes this
    metadata, including the fields about the version that the writer read.
    """
    # The claim refers to the version that was read, because other writers may commit before this
    # write.
    metadata = dict(group.metadata_for_next_commit())
    if is_unique is False:
        metadata["unique"] = False
    elif is_unique and group.spec.primary_key:
        if mode == "upsert":
            metadata["unique"] = "kept"
        elif mode == "overwrite":
            metadata["unique"] = True
        elif mode == "append" and (
            group.state.rows == 0 or _is_later_than_table(engine, rows, group)
        ):
            metadata["unique"] = "kept_after"
    return metadata


def _is_later_than_table(engine: Engine, rows: Relation, group: OpenGroup) -> bool:
    """Return True if all event times of the rows are later than those of the table."""
    column = group.spec.event_time
    if column is None:
        return False
    bounds = group.state.bounds(column)
    last = None if bounds is None else bounds.maximum()
    if last is None:
        return False
    # Rows that are later than all stored rows cannot have the key and time of a stored row.
    first = engine.aggregate(engine.select(rows, {column: column}), MinimumTime(column))
    return first is not None and first > last


@dataclass(frozen=True)
class MinimumTime(Accumulator["float | None", "float | None"]):
    """Accumulator of the minimum of a time column, as an ordinal of ``featurestore.delta.datafile``.

    The result is None for columns with nulls, and infinite without rows.
    """

    column: str

    def start(self) -> float | None:
        return math.inf

    def update(self, state: float | None, batch: pa.RecordBatch) -> float | None:
        if batch.num_rows == 0:
            return state
        # A null has no order, so a batch with nulls is not known to be later.
        values = batch.column(batch.schema.get_field_index(self.column))
        if values.null_count:
            return None
        integer_type = pa.int32() if pat.is_date(values.type) else pa.int64()
        return self.merge(state, pc.min(values.cast(integer_type)).as_py())

    def merge(self, first: float | None, second: float | None) -> float | None:
        return None if first is None or second is None else min(first, second)

    def finish(self, state: float | None) -> float | None:
        return state


def warn_about_implausible_times(report: ValidationReport, spec: FeatureGroupSpec) -> None:
    """Warn about event times before 1980, which match every label, and in the future."""
    if spec.event_time is None:
        return
    for result in report.results:
        if result.expectation["type"] == FUTURE_TIMES and result.unexpected:
            latest = max([sample[spec.event_time] for sample in result.samples], default="")
            warn_caller(
                f"feature group {spec.name!r}: {result.message}, up to {latest}; labels match these "
                "rows only from then on (event_time_tolerance= at creation allows for clocks that "
                "run ahead)",
                DataWarning,
            )
        if result.expectation["type"] != EARLY_TIMES or not result.unexpected:
            continue
        sampled_times = [sample[spec.event_time] for sample in result.samples]
        times = [time for time in sampled_times if isinstance(time, datetime)]
        warn_caller(
            f"feature group {spec.name!r}: {result.message}, so they match every later label; "
            f"{misread_hint(str(spec.event_time), times)}",
            SuspiciousTimeWarning,
        )


def warn_about_repeated_batch(group: OpenGroup, delta_version: int) -> None:
    """Warn if every file of a commit is byte-identical to an earlier file of the group.

    A file is read only if its size, row count and statistics equal those of an earlier file. No
    errors are raised, because the rows are already committed.
    """
    # Size and row count select the candidates, so that files are usually compared without reading
    # them.
    earlier_files: dict[tuple[int, int], list[DataFile]] = {}
    for file in group.state.files:
        earlier_files.setdefault((file.bytes, file.rows), []).append(file)
    if not earlier_files:
        return
    try:
        earlier_paths = {file.path for file in group.state.files}
        added = [
            file
            for file in read_snapshot(group.path, delta_version).files
            if file.path not in earlier_paths
        ]
        if sum(file.bytes for file in added) > _MAX_COMPARED_BYTES:
            return
        is_repeat = bool(added) and all(_has_identical_file(file, earlier_files) for file in added)
    except (FeatureStoreError, OSError):
        return  # without the files the rows cannot be compared
    rows = sum(file.rows for file in added)
    if is_repeat and rows > 1:
        warn_caller(
            f"feature group {group.spec.name!r} already contained the same {rows:,} rows, which are "
            "now stored twice; transaction=('name', number) makes a repeated write a no-op, and a "
            "group with primary_key= supports mode='upsert'",
            DataWarning,
        )


def _has_identical_file(
    file: DataFile, earlier_files: dict[tuple[int, int], list[DataFile]]
) -> bool:
    """Return True if an earlier file has the same statistics, partition and bytes."""
    for candidate in earlier_files.get((file.bytes, file.rows), ()):
        is_similar = (candidate.statistics, candidate.partition) == (
            file.statistics,
            file.partition,
        )
        if is_similar and files.sha256(candidate.path) == files.sha256(file.path):
            return True
    return False
