"""What engines exchange with the export: the plans of shards and records, and counts of rows.

If a format describes its records by a ``RecordPlan`` (a template with slots), an engine may encode
them without Python. Otherwise the format's ``write_shard`` is used, which writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ValueLengths:
    """The length prefixes of a value: varints of ``width`` bytes.

    ``positions`` has a pair for each prefix: the offset of the varint, and the number of additional
    bytes that it counts.
    """

    positions: tuple[tuple[int, int], ...]
    width: int


@dataclass(frozen=True)
class NullMark:
    """A byte at ``offset`` of the template that is replaced by ``value`` for nulls."""

    offset: int
    value: int


@dataclass(frozen=True)
class RecordSlot:
    """A column at a fixed offset in every record.

    Integers are encoded as varints of ``width`` bytes, floating-point numbers as little-endian
    floats, and strings and binaries as raw bytes. Values of constant length (without ``lengths``)
    fill the slot. Shorter values are padded with the byte ``filler`` and a varint of
    ``filler_width`` bytes that counts the remaining bytes of ``width``. Nulls are encoded as zero
    and set ``null_mark``; columns without nulls have no ``null_mark``.
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
    """A string or binary after the slots of a record: ``head`` with the lengths, then the value."""

    column: str
    head: bytes
    null_mark: NullMark | None
    lengths: ValueLengths


@dataclass(frozen=True)
class RecordPlan:
    """The plan for encoding the records of a layout from ``template``.

    If ``fixed``, the template is the complete framed record; the last four bytes are the masked
    checksum of the bytes between the twelve-byte header and the checksum. Otherwise the template is
    the start of the payload, followed by ``tails``, and each shard has a sidecar file with the
    record offsets, whose name ends with ``index_suffix``.
    """

    template: bytes
    fixed: bool
    slots: tuple[RecordSlot, ...]
    tails: tuple[RecordTail, ...] = ()
    index_suffix: str = ""


@dataclass(frozen=True)
class ShardPlan:
    """A shard to write: its path in the dataset directory and its number of rows.

    The first ``skip`` rows with its first hash belong to the previous shard.
    """

    path: str
    rows: int
    skip: int = 0


@dataclass(frozen=True)
class RecordTask:
    """A request to write shards in a directory.

    ``shard`` and ``hash`` are columns of the relation. Shard numbers ascend with the hash. Rows
    with equal hashes are ordered by the canonical bytes of ``columns``. Values of the columns
    ``labels`` are counted if there are at most ``max_labels`` distinct values and null.
    """

    directory: str
    plan: RecordPlan
    shards: Sequence[ShardPlan]
    shard: str
    hash: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    max_labels: int


@dataclass(frozen=True)
class RowCounts:
    """Counts of the rows of a shard, and a fingerprint of their hashes.

    Attributes:
        nulls: The number of nulls of the columns that have any.
        labels: The row counts of each label column by value (``format_label_value``), without
            nulls; None if there are too many values.
        hash_sum: The sum of the row hashes modulo 2**64.
        first_hash: The first hash, None without rows.
        last_hash: The last hash, None without rows.
    """

    nulls: Mapping[str, int]
    labels: Mapping[str, Mapping[str, int] | None]
    hash_sum: int
    first_hash: int | None
    last_hash: int | None


def format_label_value(value: object) -> str:
    """Format a label value as a string, which is the key of its count.

    >>> format_label_value(True), format_label_value(3), format_label_value(-0.0)
    ('true', '3', '0.0')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if value == 0 and isinstance(value, float):
        return "0.0"  # -0.0 is the same class
    return str(value)
