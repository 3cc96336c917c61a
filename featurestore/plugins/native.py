"""Optional capabilities of engines: row hashes, and records encoded without a pass through Python.

A format that implements ``DescribesRecords`` (a template with slots) lets an engine that implements
``WritesRecords`` encode its records natively. Without either, the format's own ``write_shard`` runs
and writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from featurestore.plugins.engine import Relation
from featurestore.plugins.format import ColumnProfile, Layout, WrittenShard


@runtime_checkable
class HashesRows(Protocol):
    """An engine that computes the hashes of ``featurestore.hashing`` where the rows are.

    Methods return None for types that the engine cannot hash; Arrow batches are hashed instead.
    Hashes are mapped to signed integers in the order of the unsigned hashes. Only ``count_hashes``
    and ``hashes_of_groups`` run a query.
    """

    def with_row_hash(
        self, relation: Relation, columns: Sequence[str], *, seed: int, name: str
    ) -> Relation | None:
        """Return the rows with an additional int64 column, the row hash of ``columns``."""
        ...

    def with_range_number(
        self,
        relation: Relation,
        column: str,
        *,
        starts: Sequence[int],
        numbers: Sequence[int],
        name: str,
    ) -> Relation:
        """Return the rows with an additional int32 column, the number of the value's range.

        ``starts`` are the strictly ascending starts of the second and later ranges; ``numbers`` has
        one more element than ``starts``.
        """
        ...

    def count_hashes(
        self, relation: Relation, *, hashes: str, group: str, columns: Sequence[str]
    ) -> HashCounts | None:
        """Return the counts of hashed rows by group, and profiles of columns over all groups."""
        ...

    def hashes_of_groups(
        self, relation: Relation, *, hashes: str, group: str, bits: int
    ) -> dict[int, tuple[Any, Any]]:
        """Return {group: (distinct hashes in order, rows of each)} as int64 arrays.

        Only the leading ``bits`` of the hashes are kept; the others are 0. For few distinct hashes,
        since they are collected in the calling process.
        """
        ...


@dataclass(frozen=True)
class HashCounts:
    """Statistics of hashed rows by group.

    Attributes:
        bits: Leading bits of the hash that select a bin.
        histograms: Rows per bin, int64 arrays of ``2**bits`` in the order of the hashes.
        hash_sums: Sum of the hashes modulo 2**64.
        profiles: Column profiles over all groups.
    """

    bits: int
    histograms: dict[int, Any]
    hash_sums: dict[int, int]
    profiles: tuple[ColumnProfile, ...]


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
    and binaries raw bytes. Values of constant length (no ``lengths``) fill the slot; shorter
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
