"""The layout of published values: the columns of one group for one entity, as bytes.

A value starts with a header: the layout version (1 byte), the sequence (8 bytes, big-endian; the
Delta version of the rows), the fingerprint of the columns (4 bytes) and the number of entries
(2 bytes). It ends with a seal (``seals``), which is checked before a value is decoded.

An entry is a row that is current during a time range. It contains the event time and the
created time (8 bytes each, microseconds since 1970, or the minimum if the group does not declare
them), the length of its body (4 bytes) and the body: a bitmap of nulls, the values of fixed width,
and the other values, each after its length (4 bytes). A value without entries is the tombstone of a
deleted entity. Numbers are little-endian unless stated.

Entries are ordered by time. A row becomes current at the later of its times, and is current until
the next entry does.

A correct seal does not prove who wrote a value. A value whose bytes do not have the layout raises one
of ``DECODING_ERRORS``, and a decoded value always has the type of its column.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.json_text import to_json_text
from featurestore.arrow.schemas import schema_to_json
from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import PublishedValueMismatch
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.json_object import check_format
from featurestore.serving.columns import (
    FixedColumn,
    VariableColumn,
    compile_key,
    encode_keys,
    plan_columns,
)
from featurestore.serving.seals import SEAL_BYTES

# Version 2 has seals.
LAYOUT_VERSION = 2
# For fewer values, the structure of all values costs more than it saves.
_MIN_BATCH = 8
DECODING_ERRORS = (
    struct.error,
    ArithmeticError,
    LookupError,
    MemoryError,
    OSError,
    ValueError,
    pa.ArrowException,
)
NEVER = int(np.iinfo(np.int64).min)

_HEADER = struct.Struct("<B8sIH")
_ENTRY = struct.Struct("<qqI")
_ONE_ENTRY = (1).to_bytes(2, "little")


class ValueStatus(enum.Enum):
    """The reason why an entity has no values at an instant.

    ``STALE``: the event time of the current row is older than the group's ttl. ``MISSING``: there
    is no current row.
    """

    STALE = "stale"
    MISSING = "missing"


class Entry(NamedTuple):
    """A row of an entity: its times in microseconds, and its encoded values."""

    event: int
    created: int
    body: bytes

    @property
    def eligible_from(self) -> int:
        """The time from which the row may be read."""
        return max(self.event, self.created)


@dataclass(frozen=True)
class ValueLayout:
    """The layout of the published columns of a group, and of its keys.

    Instances are immutable and can be used by several threads and pickled. ``schema`` has the
    published columns; ``key_types`` are the types of the primary key.
    """

    schema: pa.Schema
    key_types: tuple[pa.DataType, ...]
    ttl: timedelta | None = None

    @classmethod
    def for_group(cls, spec: FeatureGroupSpec, columns: Iterable[str]) -> ValueLayout:
        """Return the layout of columns of a group, in the order of the group's schema."""
        names = set(columns)
        fields = [field for field in spec.schema if field.name in names]
        key_types = tuple(spec.schema.field(name).type for name in spec.primary_key)
        return cls(pa.schema(fields), key_types, spec.ttl)

    def __reduce__(self) -> tuple[Any, ...]:
        # Compiled structs cannot be pickled.
        return ValueLayout, (self.schema, self.key_types, self.ttl)

    @cached_property
    def fingerprint(self) -> int:
        """A 32-bit checksum of the names and types of the columns."""
        text = to_json_text([LAYOUT_VERSION, schema_to_json(self.schema)])
        return zlib.crc32(text.encode())

    # -- keys -----------------------------------------------------------------------------

    def encode_keys(self, columns: Sequence[pa.Array]) -> list[bytes | None]:
        """Return the key of each row of primary-key columns, or None for rows with a null."""
        return encode_keys(columns)

    @cached_property
    def encode_key(self) -> Callable[[Sequence[Any]], bytes | None]:
        """A function that encodes the key values of one entity; see ``columns.compile_key``."""
        return compile_key(self.key_types)

    # -- encoding -------------------------------------------------------------------------

    def encode(
        self,
        columns: Mapping[str, pa.Array],
        *,
        event_time: pa.Array | None,
        created_time: pa.Array | None,
        sequence: int,
    ) -> list[bytes]:
        """Return a value with one entry for each row, without its seal.

        Args:
            columns: The published columns by name.
            event_time: The event times; None if the group does not declare them.
            created_time: The created times; None if the group does not declare them.
            sequence: The Delta version of the rows.
        """
        arrays = [columns[name] for name in self.schema.names]
        row_count = len(arrays[0])
        variable = [
            column.encode(arrays[column.position]) for column in self.variable_columns if row_count
        ]
        fixed = np.zeros(row_count, dtype=self.record_dtype)
        fixed["layout"] = LAYOUT_VERSION
        fixed["sequence"] = sequence
        fixed["fingerprint"] = self.fingerprint
        fixed["entries"] = 1
        fixed["event"] = _to_micros(event_time)
        fixed["created"] = _to_micros(created_time)
        fixed["nulls"] = self._null_bitmap(arrays, row_count)
        for column in self.fixed_columns:
            fixed[column.field_name] = column.to_numpy(arrays[column.position])
        lengths = np.full(row_count, self._body_struct.size, dtype=np.int64)
        for payload in variable:
            lengths += 4 + payload.lengths
        fixed["length"] = lengths
        data = fixed.tobytes()
        width = self.record_dtype.itemsize
        if not variable:
            return [data[start : start + width] for start in range(0, len(data), width)]
        values = [data[start : start + width] for start in range(0, len(data), width)]
        columns_bytes = [payload.to_list() for payload in variable]
        return [b"".join(row) for row in zip(values, *columns_bytes, strict=True)]

    def _null_bitmap(self, arrays: Sequence[pa.Array], row_count: int) -> npt.NDArray[np.uint8]:
        """Return the bitmaps of the rows; bit i is set if column i is null."""
        bitmap = np.zeros((row_count, self._bitmap_bytes), dtype=np.uint8)
        for position, array in enumerate(arrays):
            if array.null_count:
                is_null = np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.uint8)
                bitmap[:, position >> 3] |= is_null << np.uint8(position & 7)
        return bitmap

    # -- decoding -------------------------------------------------------------------------

    def decode(self, value: bytes | None, now: int) -> tuple[Any, ...] | ValueStatus:
        """Return the values of an entity at an instant, in the order of the schema.

        The Python types are those of ``pyarrow.Scalar.as_py``.

        Args:
            value: The published value; None if the online store has none.
            now: The instant in microseconds since 1970.

        Raises:
            PublishedValueMismatch: The value was published with other columns.
            DECODING_ERRORS: The value does not have the layout.
        """
        if value is None:
            return ValueStatus.MISSING
        # The fast path: one entry with the expected columns.
        start, end = _HEADER.size, len(value) - SEAL_BYTES
        if value[9:start] != self.single_entry_header:
            start, end = self._find_entry(value, now)
            if start < 0:
                return ValueStatus.MISSING
        event, created, nulls, *values = self._entry_struct.unpack_from(value, start)
        if event > now or created > now:
            return ValueStatus.MISSING
        if self.ttl_micros is not None and event < now - self.ttl_micros:
            return ValueStatus.STALE
        size = self._entry_struct.size
        if self._is_plain and nulls == self._no_nulls and end - start == size:
            return tuple(values)
        return self._convert(value, start + size, end, nulls, values)

    def decode_all(
        self, values: Sequence[bytes | None], now: int
    ) -> list[tuple[Any, ...] | ValueStatus]:
        """Return the result of ``decode`` for each of several values, in less time."""
        decode = self.decode
        if not self._is_plain or len(values) < _MIN_BATCH:
            return [decode(value, now) for value in values]
        size, header, no_nulls = self._value_struct.size, self.single_entry_header, self._no_nulls
        earliest = NEVER if self.ttl_micros is None else now - self.ttl_micros
        single = [value for value in values if value is not None and len(value) == size]
        entries = self._value_struct.iter_unpack(b"".join(single))
        rows: list[tuple[Any, ...] | ValueStatus] = []
        for value in values:
            if value is not None and len(value) == size:
                entry = next(entries)
                is_current = earliest <= entry[1] <= now and entry[2] <= now
                if is_current and entry[0] == header and entry[3] == no_nulls:
                    rows.append(entry[4:])
                    continue
            rows.append(decode(value, now))
        return rows

    def single_entry(self, value: bytes, now: int) -> bytes | None:
        """Return the value with only its current entry, or None if no entry is eligible.

        Raises:
            PublishedValueMismatch: The value was published with other columns.
            DECODING_ERRORS: The value does not have the layout.
        """
        start, end = self._find_entry(value, now)
        if start < 0:
            return None
        return value[:9] + self.single_entry_header + value[start:end] + bytes(SEAL_BYTES)

    def _find_entry(self, value: bytes, now: int) -> tuple[int, int]:
        """Return the start and the end of the last entry that is eligible, or -1 twice."""
        layout, _, fingerprint, count = _HEADER.unpack_from(value)
        check_format(layout if count else None, LAYOUT_VERSION, subject="A published value")
        if count and (layout != LAYOUT_VERSION or fingerprint != self.fingerprint):
            raise PublishedValueMismatch(
                "The published value has other columns than this reader expects.",
                hint="open the server of the view again",
            )
        selected, start = (-1, -1), _HEADER.size
        for _ in range(count):
            event, created, length = _ENTRY.unpack_from(value, start)
            if event > now or created > now:
                break
            selected = (start, start + _ENTRY.size + length)
            start = selected[1]
        if start > len(value) - SEAL_BYTES:
            raise ValueError("an entry is longer than its value")
        return selected

    def _convert(
        self, value: bytes, start: int, end: int, nulls: bytes, values: list[Any]
    ) -> tuple[Any, ...]:
        """Convert the unpacked values of an entry, and add those between two offsets."""
        for index, convert in self._conversions:
            values[index] = convert(values[index])
        for column in self.variable_columns:
            stop = start + 4 + int.from_bytes(value[start : start + 4], "little")
            if stop > end:
                raise ValueError("a column is longer than its entry")
            values.append(column.to_python(value[start + 4 : stop]))
            start = stop
        if start != end:
            raise ValueError("an entry is longer than its columns")
        row = tuple(values)
        if self._order is not None:
            row = self._order(row)
        if nulls == self._no_nulls:
            return row
        bits = int.from_bytes(nulls, "little")
        return tuple([None if bits >> index & 1 else item for index, item in enumerate(row)])

    # -- compiled structures --------------------------------------------------------------

    @cached_property
    def _columns(self) -> tuple[tuple[FixedColumn, ...], tuple[VariableColumn, ...]]:
        return plan_columns(self.schema)

    @property
    def fixed_columns(self) -> tuple[FixedColumn, ...]:
        """The columns of fixed width."""
        return self._columns[0]

    @property
    def variable_columns(self) -> tuple[VariableColumn, ...]:
        """The columns of variable width, whose values follow those of fixed width."""
        return self._columns[1]

    @cached_property
    def _bitmap_bytes(self) -> int:
        return (len(self.schema) + 7) // 8

    @cached_property
    def _no_nulls(self) -> bytes:
        return bytes(self._bitmap_bytes)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether values without nulls need no conversion."""
        return not self.variable_columns and not self._conversions

    @cached_property
    def _conversions(self) -> list[tuple[int, Callable[[Any], Any]]]:
        """The functions that convert values of fixed width, with their indexes among these."""
        converters = enumerate([column.convert for column in self.fixed_columns])
        return [(index, convert) for index, convert in converters if convert is not None]

    @cached_property
    def _order(self) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
        """The function that orders values like the schema; None if they have that order."""
        positions = [column.position for column in self.fixed_columns]
        positions += [column.position for column in self.variable_columns]
        if positions == sorted(positions):
            return None
        # Two or more columns, so the function returns a tuple.
        return itemgetter(*np.argsort(positions).tolist())

    @cached_property
    def ttl_micros(self) -> int | None:
        """The ttl in microseconds, if the group has one."""
        return None if self.ttl is None else self.ttl // timedelta(microseconds=1)

    @cached_property
    def single_entry_header(self) -> bytes:
        """The bytes 9 to 15 of a value with the expected columns and one entry."""
        return self.fingerprint.to_bytes(4, "little") + _ONE_ENTRY

    @cached_property
    def _body_struct(self) -> struct.Struct:
        codes = "".join([column.code for column in self.fixed_columns])
        return struct.Struct(f"<{self._bitmap_bytes}s{codes}")

    @cached_property
    def _entry_struct(self) -> struct.Struct:
        # The length of the body is skipped.
        return struct.Struct(f"<qq4x{self._body_struct.format[1:]}")

    @cached_property
    def _value_struct(self) -> struct.Struct:
        """The struct of a published value with one entry and columns of fixed width only."""
        fingerprint_and_count = f"9x{len(self.single_entry_header)}s"
        return struct.Struct(
            f"<{fingerprint_and_count}{self._entry_struct.format[1:]}{SEAL_BYTES}x"
        )

    @cached_property
    def record_dtype(self) -> np.dtype[Any]:
        """The numpy type of a value with one entry, without the columns of variable width."""
        fields: list[Any] = [
            ("layout", "u1"),
            ("sequence", ">u8"),
            ("fingerprint", "<u4"),
            ("entries", "<u2"),
            ("event", "<i8"),
            ("created", "<i8"),
            ("length", "<u4"),
            ("nulls", "u1", (self._bitmap_bytes,)),
        ]
        return np.dtype(
            fields + [(column.field_name, column.dtype) for column in self.fixed_columns]
        )

    @cached_property
    def published_dtype(self) -> np.dtype[Any]:
        """The numpy type of a published value with one entry and columns of fixed width only."""
        return np.dtype([*self.record_dtype.descr, ("seal", "u1", (SEAL_BYTES,))])


def value_sequence(value: bytes) -> int:
    """Return the Delta version from which a value was published.

    >>> value_sequence(pack_entries([], sequence=7, fingerprint=0))
    7
    """
    return int.from_bytes(value[1:9], "big")


def unpack_entries(value: bytes) -> list[Entry]:
    """Return the entries of a value without its seal, in time order.

    Raises:
        DECODING_ERRORS: The value does not have the layout.
    """
    entries = []
    start = _HEADER.size
    for _ in range(_HEADER.unpack_from(value)[3]):
        event, created, length = _ENTRY.unpack_from(value, start)
        start += _ENTRY.size + length
        entries.append(Entry(event, created, value[start - length : start]))
    if start != len(value):
        raise ValueError("the entries do not end with their value")
    return entries


def pack_entries(entries: Sequence[Entry], *, sequence: int, fingerprint: int) -> bytes:
    """Return the value with entries in time order; without entries, it is a tombstone.

    >>> len(pack_entries([], sequence=7, fingerprint=0))
    15
    """
    header = (LAYOUT_VERSION, sequence.to_bytes(8, "big"), fingerprint, len(entries))
    chunks = [_HEADER.pack(*header)]
    for entry in entries:
        chunks.append(_ENTRY.pack(entry.event, entry.created, len(entry.body)))
        chunks.append(entry.body)
    return b"".join(chunks)


def current_entries(entries: Iterable[Entry], *, horizon: int) -> list[Entry]:
    """Return the entries that are current at or after an instant, in time order.

    Entries with equal times must not differ: the layout cannot order them.

    >>> rows = [Entry(1, 5, b"a"), Entry(3, 3, b"b"), Entry(9, 9, b"c")]
    >>> [entry.body for entry in current_entries(rows, horizon=6)]
    [b'b', b'c']
    """
    current: list[Entry] = []
    for entry in sorted(
        entries, key=lambda entry: (entry.eligible_from, entry.event, entry.created)
    ):
        # A late row is dominated by a row with later times that is eligible already.
        if current and (entry.event, entry.created) <= (current[-1].event, current[-1].created):
            continue
        # Before the horizon, only the last entry matters.
        if current and entry.eligible_from <= max(horizon, current[-1].eligible_from):
            current.pop()
        current.append(entry)
    return current


def to_timestamps(times: pa.Array) -> pa.Array:
    """Convert event or created times to timestamps; dates become midnight."""
    if not pa.types.is_date(times.type):
        return times
    return times.cast(pa.timestamp("us")).view(TIMESTAMP)


def _to_micros(times: pa.Array | None) -> Any:
    """Return microseconds since 1970; ``NEVER`` for groups without the time."""
    if times is None:
        return NEVER
    return to_timestamps(times).view(pa.int64()).to_numpy(zero_copy_only=False)
