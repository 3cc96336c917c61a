"""Records as bytes to copy and places to fill, so that engines can write them where the rows are.

A format that describes its records so (``DescribesRecords``) leaves them to an engine that writes
such records without a pass through Python (``WritesRecords``). Either may say None: the format's
own ``write_shard`` is run then, and writes the same bytes.
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
    """Varints of ``width`` bytes before a value, each at an offset and counting so much beyond it."""

    places: tuple[tuple[int, int], ...]
    width: int


@dataclass(frozen=True)
class NullMark:
    """A byte that the template holds for rows with a value, and its value where there is none."""

    offset: int
    value: int


@dataclass(frozen=True)
class RecordPlace:
    """A column that has one place in every record.

    Whole numbers are varints of ``width`` bytes, numbers with a fraction little-endian floats, texts
    and bytes stand as they are. Those of one length (``lengths`` is None) fill the place; others are
    followed by the byte ``filler`` and a varint of ``filler_width`` bytes that counts what is left
    of ``width``. Where a value is null, zero stands for it and ``null_mark`` is set; None: the
    column has no nulls.
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
    """A text or bytes behind the places of a record: ``head`` with its lengths, then the value."""

    column: str
    head: bytes
    null_mark: NullMark | None
    lengths: ValueLengths


@dataclass(frozen=True)
class RecordPlan:
    """How the records of a layout are made of ``template``.

    ``fixed``: the template is the whole record in its frame, whose last four bytes are the masked
    checksum of what lies between it and the twelve bytes of the header. Else it is the beginning of
    the payload, ``tails`` follow, and beside each shard lies a file named by ``index_suffix`` with
    the offsets of records.
    """

    template: bytes
    fixed: bool
    places: tuple[RecordPlace, ...]
    tails: tuple[RecordTail, ...] = ()
    index_suffix: str = ""


@dataclass(frozen=True)
class RecordTask:
    """What is to be written: path and rows of each shard, below a directory.

    ``shard`` and ``hash`` are columns of the relation; shards ascend with the hash, and rows of one
    hash are in the order of the canonical bytes of ``columns``. ``labels`` are counted while they
    have at most ``most_labels`` values.
    """

    directory: str
    plan: RecordPlan
    shards: Sequence[tuple[str, int]]
    shard: str
    hash: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    most_labels: int


@dataclass(frozen=True)
class RecordShard:
    """A shard that an engine wrote.

    Labels have their values with the rows of each, None where there are too many.
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
    """A format whose records are made of bytes to copy and places to fill."""

    def record_plan(self, layout: Layout) -> RecordPlan | None:
        """Return how records are made; None for a layout whose records are made otherwise."""
        ...


@runtime_checkable
class WritesRecords(Protocol):
    """An engine that writes records where the rows are, bit for bit as the format does."""

    def can_write_records(self, schema: pa.Schema, directory: str) -> bool:
        """Tell whether rows of a schema can be written so into a directory."""
        ...

    def write_records(self, relation: Relation, task: RecordTask) -> list[RecordShard]:
        """Write the shards that have rows and tell of each what it holds."""
        ...
