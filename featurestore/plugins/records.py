"""Declarative record layouts (a template with slots), so that engines can encode records natively.

A format that implements ``DescribesRecords`` lets an engine that implements ``WritesRecords``
encode its records without a pass through Python. Without either, the format's own ``write_shard``
runs and writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from featurestore.plugins.engine import Relation
from featurestore.plugins.format import Layout, WrittenShard


@dataclass(frozen=True)
class ValueLengths:
    """Length prefixes of a value: varints of ``width`` bytes.

    ``positions`` are pairs (offset of the varint, bytes that it counts beyond the value).
    """

    positions: tuple[tuple[int, int], ...]
    width: int


@dataclass(frozen=True)
class NullMark:
    """The byte at ``offset`` of the template that is replaced by ``value`` for nulls."""

    offset: int
    value: int


@dataclass(frozen=True)
class RecordSlot:
    """A column with a fixed offset in every record.

    Integers are varints of ``width`` bytes, floating-point numbers little-endian floats, strings
    and binaries raw bytes. Values of constant length (``lengths`` is None) fill the slot; shorter
    ones are padded with the byte ``filler`` and a varint of ``filler_width`` bytes that counts the
    remaining bytes of ``width``. A null is encoded as zero and sets ``null_mark``; ``null_mark`` is
    None if the column has no nulls.
    """

    column: str
    offset: int
    width: int
    null_mark: NullMark | None
    lengths: ValueLengths | None = None
    filler: int = 0
    filler_width: int = 0


@dataclass(frozen=True)
class RecordTail:
    """A string or binary after the slots of a record: ``head`` with its lengths, then the value."""

    column: str
    head: bytes
    null_mark: NullMark | None
    lengths: ValueLengths


@dataclass(frozen=True)
class RecordPlan:
    """The encoding of a layout's records from ``template``.

    If ``fixed``, the template is the complete framed record; its last four bytes are the masked
    checksum of the bytes between the twelve-byte header and the checksum. Otherwise the template is
    the start of the payload, ``tails`` follow, and each shard has a sidecar file, named by
    ``index_suffix``, with the offsets of records.
    """

    template: bytes
    fixed: bool
    slots: tuple[RecordSlot, ...]
    tails: tuple[RecordTail, ...] = ()
    index_suffix: str = ""


@dataclass(frozen=True)
class RecordTask:
    """A request to write shards: (path, rows) of each shard, below a directory.

    ``shard`` and ``hash`` are columns of the relation. Shards ascend with the hash, and rows with
    equal hashes are ordered by the canonical bytes of ``columns``. The values of ``labels`` are
    counted up to ``max_labels`` distinct values.
    """

    directory: str
    plan: RecordPlan
    shards: Sequence[tuple[str, int]]
    shard: str
    hash: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    max_labels: int


@dataclass(frozen=True)
class RecordShard:
    """A shard that an engine wrote.

    ``labels`` maps each label column to (value, row count) pairs, None if there are too many.
    """

    number: int
    written: WrittenShard
    nulls: Mapping[str, int]
    labels: Mapping[str, Sequence[tuple[Any, int]] | None]
    hash_sum: int
    first_hash: int
    last_hash: int


@runtime_checkable
class DescribesRecords(Protocol):
    """A format whose records can be described as a template with slots."""

    def record_plan(self, layout: Layout) -> RecordPlan | None:
        """Return the encoding of records, or None if the layout cannot be described this way."""
        ...


@runtime_checkable
class WritesRecords(Protocol):
    """An engine that writes records where the rows are, byte-identical to the format's writer."""

    def can_write_records(self, schema: pa.Schema, directory: str) -> bool:
        """Return True if the engine can write rows of a schema into a directory."""
        ...

    def write_records(self, relation: Relation, task: RecordTask) -> list[RecordShard]:
        """Write the shards that have rows and return their metadata."""
        ...
