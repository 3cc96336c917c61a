"""Reads of published values: the keys of entities, and the columns of one group or of all.

``DirectReads`` is the fast path of vectors that need one round trip and no computations.
``ColumnDecoder`` decodes many values through one numpy array of records, which takes a tenth of the
time of decoding value by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.exact_casts import cast_exactly
from featurestore.arrow.values import Convert, to_value
from featurestore.retrieval.resolve import equal_key
from featurestore.serving.columns import FixedColumn, VariableColumn, check_times
from featurestore.serving.layout import DECODING_ERRORS, NEVER, ValueLayout, ValueStatus
from featurestore.serving.seals import SEAL_BYTES
from featurestore.serving.state import PublishedView
from featurestore.serving.vector_plan import GroupRead
from featurestore.serving.vectors import FeatureVector, Status, Statuses

_FAR_FUTURE = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class ServedBatch:
    """Vectors as a record batch, with the statuses of their groups, and the Delta versions.

    ``row_statuses`` has the statuses of ``groups`` for each vector. ``now`` is the time of the
    online store, in microseconds, for which the values are current.
    """

    batch: pa.RecordBatch
    row_statuses: Sequence[Statuses]
    groups: tuple[tuple[str, int], ...]
    delta_versions: Mapping[str, int]
    now: int

    @cached_property
    def statuses(self) -> Sequence[Status]:
        """The status of each vector."""
        return [FeatureVector((), statuses, self.groups).status for statuses in self.row_statuses]


class ValueReader:
    """Reads the value of one group: its key from a row, and its columns into the row."""

    def __init__(
        self, read: GroupRead, layout: ValueLayout, prefix: bytes, view: PublishedView
    ) -> None:
        self.number, self._view = read.number, view
        self.key_columns = read.key_columns
        self.prefix = prefix
        self.encode_key, self._key_types = layout.encode_key, layout.key_types
        self._decode, self._decode_all = layout.decode, layout.decode_all
        schema = read.spec.schema
        # A write may have widened the types of columns after the publication.
        self._kinds = [schema.field(output.column).type for output in read.outputs]
        self._columns = ColumnDecoder(layout)
        positions = [layout.schema.get_field_index(output.column) for output in read.outputs]
        self._positions = positions
        self.names = tuple([output.name for output in read.outputs])
        # Most often the layout has the columns in the order of the view.
        self._select: Callable[[tuple[Any, ...]], Iterable[Any]] | None = None
        if positions != list(range(len(layout.schema))):
            self._select = itemgetter(*positions)
            if len(positions) == 1:
                self._select = lambda values: (values[positions[0]],)
        published = [layout.schema.types[position] for position in positions]
        if published != self._kinds:
            select = self._select or tuple
            converters: list[Convert | None] = [
                None if old == new else partial(to_value, dtype=new)
                for old, new in zip(published, self._kinds, strict=True)
            ]
            self._select = lambda values: tuple(
                [
                    value if convert is None else convert(value)
                    for convert, value in zip(converters, select(values), strict=True)
                ]
            )
        self.nulls = dict.fromkeys(self.names)

    def key(self, row: Mapping[str, Any]) -> bytes | None:
        """Return the key of the value of an entity, or None if a part of it equals no key."""
        values = [row[column] for column in self.key_columns]
        try:
            key = self.encode_key(values)
        # The column is of a comparable type, or has a number that the key cannot have.
        except (TypeError, ValueError, AttributeError):
            key = self.encode_key(list(map(equal_key, values, self._key_types)))
        return None if key is None else self.prefix + key

    def set_values(self, row: dict[str, Any], value: bytes | None, now: int) -> ValueStatus | None:
        """Set the columns of a row from a published value, unless it is stale or missing.

        Returns:
            The status of the value, None if it is current.
        """
        try:
            values = self._decode(value, now)
        except DECODING_ERRORS as error:
            raise self._view.damaged_value_error() from error
        if not isinstance(values, tuple):
            return values
        if self._select is not None:
            values = self._select(values)  # type: ignore[assignment]
        row.update(zip(self.names, values, strict=True))
        return None

    def rows(self, values: Sequence[bytes | None], now: int) -> list[Iterable[Any] | ValueStatus]:
        """Return the columns of each published value, or its status unless it is current."""
        try:
            decoded = self._decode_all(values, now)
        except DECODING_ERRORS as error:
            raise self._view.damaged_value_error() from error
        select = self._select
        if select is None:
            return decoded  # type: ignore[return-value]
        return [select(row) if isinstance(row, tuple) else row for row in decoded]

    def arrays(
        self, values: Sequence[bytes | None], now: int
    ) -> tuple[list[pa.Array], list[ValueStatus | None]]:
        """Return the columns of published values as arrays, and the status of each value."""
        try:
            arrays, statuses = self._columns.decode(values, now)
        except DECODING_ERRORS as error:
            raise self._view.damaged_value_error() from error
        columns = [
            cast_exactly(arrays[position], dtype)
            for position, dtype in zip(self._positions, self._kinds, strict=True)
        ]
        return columns, statuses


class DirectReads:
    """The fast path of raw vectors whose values are read in one round trip without computations.

    It needs half the time of the general path, which handles all other requests. Values are decoded
    group by group, and arrays are created from the bytes of columns without Python values.
    """

    def __init__(
        self, state_key: bytes, readers: Sequence[ValueReader], columns: Sequence[str]
    ) -> None:
        self._state_key = state_key
        # Groups with the same key columns share the encoded key.
        by_key: dict[tuple[Any, ...], list[ValueReader]] = {}
        for reader in readers:
            by_key.setdefault((reader.key_columns, reader.encode_key), []).append(reader)
        self._keys = [
            (columns, encode, [reader.prefix for reader in same_key])
            for (columns, encode), same_key in by_key.items()
        ]
        self._readers = [reader for same_key in by_key.values() for reader in same_key]
        self._columns = tuple(columns)
        # The columns of the readers, one after the other, most often have the order of the view.
        names = [name for reader in self._readers for name in reader.names]
        self._positions = [names.index(column) for column in columns]
        self._in_order: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
        if self._positions != list(range(len(names))):
            self._in_order = itemgetter(*self._positions, self._positions[0])

    def keys(self, entities: Sequence[Mapping[str, Any]]) -> list[bytes] | None:
        """Return the keys to read; None if an entity has a null key or is malformed."""
        keys = [self._state_key]
        try:
            for entity in entities:
                for columns, encode, prefixes in self._keys:
                    key = encode([entity[column] for column in columns])
                    if key is None:
                        return None
                    for prefix in prefixes:
                        keys.append(prefix + key)
        # The general path explains what is malformed.
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            return None
        return keys

    def vectors(
        self, values: Sequence[bytes | None], groups: Sequence[tuple[str, int]], now: int
    ) -> list[FeatureVector]:
        """Return the vectors of published values, which follow the state record."""
        names, in_order, step = self._columns, self._in_order, len(self._readers)
        decoded = [
            reader.rows(values[1 + index :: step], now)
            for index, reader in enumerate(self._readers)
        ]
        # The groups in the order of their reads, which differs from that of the keys.
        order = sorted(range(step), key=lambda index: self._readers[index].number)
        current: Statuses = [None] * step
        vectors = []
        for group_values in zip(*decoded, strict=True):
            statuses = current
            if any(value.__class__ is ValueStatus for value in group_values):
                by_reader = [
                    value if isinstance(value, ValueStatus) else None for value in group_values
                ]
                statuses = [by_reader[index] for index in order]
                group_values = tuple(
                    [
                        reader.nulls.values() if isinstance(value, ValueStatus) else value
                        for reader, value in zip(self._readers, group_values, strict=True)
                    ]
                )
            row: Any = chain.from_iterable(group_values)
            if in_order is not None:
                row = in_order(tuple(row))
            vectors.append(FeatureVector(zip(names, row, strict=False), statuses, groups))
        return vectors

    def batch(
        self, values: Sequence[bytes | None], schema: pa.Schema, now: int
    ) -> tuple[pa.RecordBatch, list[Statuses]]:
        """Return the columns of published values, which follow the state record, and statuses."""
        step = len(self._readers)
        arrays: list[pa.Array] = []
        statuses: list[list[ValueStatus | None]] = [[] for _ in self._readers]
        for index, reader in enumerate(self._readers):
            group_arrays, statuses[reader.number] = reader.arrays(values[1 + index :: step], now)
            arrays.extend(group_arrays)
        columns = [arrays[position] for position in self._positions]
        return pa.RecordBatch.from_arrays(columns, schema=schema), list(zip(*statuses, strict=True))


class ColumnDecoder:
    """Decodes values of one layout; the results equal those of ``ValueLayout.decode``."""

    def __init__(self, layout: ValueLayout) -> None:
        self._layout = layout
        self._dtype = layout.record_dtype if layout.variable_columns else layout.published_dtype
        # The record of an entity without a current row: it becomes current never.
        missing = np.zeros(1, dtype=self._dtype)
        missing["event"] = _FAR_FUTURE
        self._missing = missing.tobytes()

    def decode(
        self, values: Sequence[bytes | None], now: int
    ) -> tuple[list[pa.Array], list[ValueStatus | None]]:
        """Return the columns of the schema with one row for each value, and the statuses.

        Rows that are stale or missing at the instant ``now`` are null.
        """
        layout = self._layout
        single = [self._missing if value is None else value for value in values]
        header = layout.single_entry_header
        for row, value in enumerate(single):
            if value[9:15] != header and value is not self._missing:
                single[row] = layout.single_entry(value, now) or self._missing
        records = self._read_records(single)
        is_missing = (records["event"] > now) | (records["created"] > now)
        is_null_row = is_missing
        statuses: list[ValueStatus | None] = [None] * len(single)
        if layout.ttl_micros is not None:
            is_stale = ~is_missing & (records["event"] < max(now - layout.ttl_micros, NEVER))
            is_null_row = is_missing | is_stale
            for row in np.flatnonzero(is_stale).tolist():
                statuses[row] = ValueStatus.STALE
        for row in np.flatnonzero(is_missing).tolist():
            statuses[row] = ValueStatus.MISSING
        # Bit i of a bitmap is set if column i is null.
        bitmap = records["nulls"] | np.where(is_null_row, 255, 0).astype(np.uint8)[:, None]
        has_nulls = bool(bitmap.any())

        def null_mask(position: int) -> npt.NDArray[np.bool_] | None:
            if not has_nulls:
                return None
            return (bitmap[:, position >> 3] & (1 << (position & 7))).astype(bool)

        arrays: list[pa.Array] = [None] * len(layout.schema)
        for column in layout.fixed_columns:
            position = column.position
            arrays[position] = _fixed_array(column, records[column.field_name], null_mask(position))
        for variable, payloads in self._read_payloads(single):
            position = variable.position
            arrays[position] = _variable_array(variable, payloads, null_mask(position))
        return arrays, statuses

    def _read_records(self, values: Sequence[bytes]) -> npt.NDArray[Any]:
        """Return the columns of fixed width of values with one entry."""
        width = self._dtype.itemsize
        heads = values
        if self._layout.variable_columns:
            heads = [value[:width] for value in values]
        if set(map(len, heads)) - {width}:
            raise ValueError("a value is shorter or longer than its columns")
        return np.frombuffer(b"".join(heads), dtype=self._dtype)

    def _read_payloads(
        self, values: Sequence[bytes]
    ) -> Iterator[tuple[VariableColumn, list[bytes]]]:
        """Yield the columns of variable width with the bytes of each value."""
        if not self._layout.variable_columns:
            return
        starts = [self._dtype.itemsize] * len(values)
        for column in self._layout.variable_columns:
            yield column, _take_payloads(values, starts)
        for value, start in zip(values, starts, strict=True):
            if value is not self._missing and start != len(value) - SEAL_BYTES:
                raise ValueError("a value is shorter or longer than its columns")


def _fixed_array(
    column: FixedColumn, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Convert the records' values of a column to an array of its type."""
    if pat.is_decimal(column.data_type):
        data = pa.py_buffer(values.tobytes())
        numbers = pa.Array.from_buffers(column.data_type, len(values), [None, data])
        if mask is not None:
            numbers = pc.if_else(pa.array(mask), pa.scalar(None, column.data_type), numbers)
        # A decimal may have too many digits.
        numbers.validate(full=True)
        return numbers
    if pat.is_boolean(column.data_type):
        # A byte of a boolean may be neither 0 nor 1.
        values = values.view(np.uint8) != 0
    array = pa.array(np.ascontiguousarray(values), mask=mask, from_pandas=False)
    if array.type != column.data_type:
        array = array.view(column.data_type)
        check_times(array)
    return array


def _take_payloads(values: Sequence[bytes], starts: list[int]) -> list[bytes]:
    """Return the bytes that start at an offset of each value, and advance the offsets."""
    payloads = []
    for row, value in enumerate(values):
        start = starts[row] + 4
        # A missing record ends before its payloads.
        starts[row] = start + int.from_bytes(value[start - 4 : start], "little")
        payloads.append(value[start : starts[row]])
    return payloads


def _variable_array(
    column: VariableColumn, payloads: Sequence[bytes], mask: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Convert payloads to an array of the column's type."""
    nulls = [False] * len(payloads) if mask is None else mask.tolist()
    rows = zip(payloads, nulls, strict=True)
    if pat.is_string(column.data_type) or pat.is_binary(column.data_type):
        # Unlike a view, a cast to strings checks the bytes.
        return pa.array(
            [None if is_null else payload for payload, is_null in rows], pa.binary()
        ).cast(column.data_type)
    # Lossless: values of the type are decoded.
    return pa.array(
        [None if is_null else column.to_python(payload) for payload, is_null in rows],
        column.data_type,
    )
