"""The state of table statistics: counted columns, counts, co-moments, a sample, and its binary format.

The sample has the distinct rows with the smallest hashes, and the number of copies of each row. It
depends only on the set of rows, not on their order, partitioning or engine. Merging two samples
gives the sample of both tables. A row in the final sample was added at its first occurrence, so its
copies are counted exactly. If the table has fewer distinct rows than the limit, the sample contains
the full table.

The binary format is used to store states next to tables and to send them between executors. It
consists of magic bytes, a SHA-256 digest, and three sections, each with an 8-byte little-endian
length: a JSON header (columns, counts), the co-moments as ``npz``, and the sample as an Arrow IPC
stream with hashes and copy counts.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.arrow.batches import take_values
from featurestore.arrow.schemas import schema_from_json, schema_to_json
from featurestore.errors import StorageError
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.json_object import MalformedJson, translate_parse_errors
from featurestore.model.roles import MODEL_ROLES, Role
from featurestore.model.statistics import Kind, Value
from featurestore.statistics.counts import ColumnCounts
from featurestore.statistics.moments import CoMoments, Moments

# A heatmap with more columns is not readable, and the result contains both matrices.
MAX_CORRELATED = 1000
# The number of pairs grows quadratically. In measurements, the products of 300 columns took as long
# as all other counts, and a state with a thousand columns had 60 MB.
_MAX_PAIRED = 64
_ALL_HASHES = np.uint64(2**64 - 1)
# The last character is the version of the format. States of other versions are not converted: the
# statistics are recomputed from the table.
_MAGIC = b"FSSTATE5"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
# An upper bound for the size of IPC framing around the schema and the rows.
_FRAMING_BYTES = 1_024
_HASH, _COPIES = "__fs_hash", "__fs_copies"


@dataclass(frozen=True)
class CountedColumn:
    """A column with its kind and role."""

    name: str
    type: pa.DataType
    value_kind: Kind
    role: Role = "feature"

    @property
    def measured(self) -> bool:
        """Whether the column contains numbers, booleans or times, which have a mean."""
        return self.value_kind in ("number", "boolean", "time")


def counted_columns(
    table: FeatureGroupSpec | pa.Schema, *, roles: Mapping[str, Role] | None = None
) -> tuple[CountedColumn, ...]:
    """Return the columns of a group or schema; ``roles`` has the column roles of a dataset.

    >>> columns = counted_columns(pa.schema([("a", pa.int8()), ("b", pa.string())]))
    >>> [column.value_kind for column in columns]
    ['number', 'text']
    """
    column_roles: dict[str, Role] = dict(roles or {})
    schema: pa.Schema = table
    if isinstance(table, FeatureGroupSpec):
        schema = table.schema
        column_roles = dict.fromkeys(table.primary_key, "key")
        for name in (table.event_time, table.created_time):
            if name is not None:
                column_roles[name] = "time"
    columns = []
    for column in schema:
        role = column_roles.get(column.name, "feature")
        columns.append(CountedColumn(column.name, column.type, column_kind(column.type), role))
    return tuple(columns)


def correlated_columns(columns: tuple[CountedColumn, ...]) -> tuple[CountedColumn, ...]:
    """Return the columns to correlate: the first numeric and boolean features and labels."""
    numeric = [
        column
        for column in columns
        if column.role in MODEL_ROLES and column.value_kind in ("number", "boolean")
    ]
    return tuple(numeric[:MAX_CORRELATED])


def paired_columns(columns: tuple[CountedColumn, ...]) -> tuple[CountedColumn, ...]:
    """Return the columns whose pairs are counted over all rows.

    If there are too many, no columns are returned, and correlations are computed from the sample.
    """
    correlated = correlated_columns(columns)
    if 2 <= len(correlated) <= _MAX_PAIRED:
        return correlated
    return ()


def column_kind(dtype: pa.DataType) -> Kind:
    """Return the kind of a feature type.

    >>> column_kind(pa.float32()), column_kind(pa.date32())
    ('number', 'time')
    """
    if pat.is_boolean(dtype):
        return "boolean"
    if pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_decimal(dtype):
        return "number"
    if pat.is_date(dtype) or pat.is_timestamp(dtype):
        return "time"
    if pat.is_string(dtype) or pat.is_large_string(dtype):
        return "text"
    if pat.is_binary(dtype) or pat.is_large_binary(dtype):
        return "binary"
    if pat.is_list(dtype) or pat.is_fixed_size_list(dtype) or pat.is_large_list(dtype):
        return "list"
    return "struct"


@dataclass
class TableSample:
    """The distinct rows with the smallest hashes.

    ``bound`` is the largest accepted hash; ``is_truncated`` is True if rows were dropped. The
    batches are unsorted until ``compact`` merges them into one batch of at most ``limit`` rows,
    ordered by hash.
    """

    schema: pa.Schema
    limit: int
    bound: np.uint64 = _ALL_HASHES
    is_truncated: bool = False
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)
    copies: list[NDArray[np.int64]] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    is_compact: bool = False

    @property
    def row_count(self) -> int:
        """The number of rows in all batches before duplicates are merged."""
        return sum(map(len, self.hashes))

    def add(self, hashes: NDArray[np.uint64], rows: pa.RecordBatch) -> None:
        """Add the rows of a batch, which must have the schema of the sample."""
        if self.is_truncated:
            # Once rows were dropped, rows above the bound cannot be in the final sample.
            is_candidate = hashes <= self.bound
            if not is_candidate.all():
                hashes, rows = hashes[is_candidate], rows.filter(pa.array(is_candidate))
        if len(hashes):
            self.append(hashes, np.ones(len(hashes), dtype=np.int64), rows)

    def append(
        self, hashes: NDArray[np.uint64], copies: NDArray[np.int64], rows: pa.RecordBatch
    ) -> None:
        """Add rows with their copy counts; compact the sample if it exceeds twice the limit."""
        self.hashes.append(hashes)
        self.copies.append(copies)
        self.batches.append(rows)
        self.is_compact = False
        # Compacting at twice the limit sorts each row only a constant number of times on average.
        if self.row_count > 2 * self.limit:
            self.compact()

    def merge(self, added: TableSample) -> None:
        """Merge another sample with the same schema into this sample."""
        # Each sample contains all of its rows up to its bound, so the merged sample is complete
        # only up to the smaller bound.
        self.bound = min(self.bound, added.bound)
        self.is_truncated = self.is_truncated or added.is_truncated
        for hashes, copies, rows in zip(added.hashes, added.copies, added.batches, strict=True):
            self.append(hashes, copies, rows)

    def compact(self) -> None:
        """Merge duplicate rows, and drop all but the ``limit`` rows with the smallest hashes."""
        if self.is_compact or not self.hashes:
            return
        hashes, copies = np.concatenate(self.hashes), np.concatenate(self.copies)
        order = np.argsort(hashes)
        # Copies above the bound may be incomplete after a merge, so these rows are dropped before
        # copies are counted.
        if self.is_truncated:
            order = order[: np.searchsorted(hashes, self.bound, side="right", sorter=order)]
        ordered = hashes[order]
        is_first = np.ones(len(ordered), dtype=np.bool_)
        is_first[1:] = ordered[1:] != ordered[:-1]
        first = np.flatnonzero(is_first)
        counts = copies[:0]
        if len(first):
            counts = np.add.reduceat(copies[order], first)
        if len(first) > self.limit:
            first, counts = first[: self.limit], counts[: self.limit]
            self.is_truncated = True
        retained_rows = order[first]
        if self.is_truncated and len(retained_rows) == self.limit:
            self.bound = hashes[retained_rows[-1]]
        self.hashes, self.copies = [hashes[retained_rows]], [counts]
        self.batches = [_take_rows(self.batches, retained_rows)]
        self.is_compact = True

    def rows(self) -> pa.RecordBatch:
        """Return the rows of a compacted sample."""
        if not self.batches:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        return self.batches[0]

    def weights(self) -> NDArray[np.int64]:
        """Return the copy count of each row of a compacted sample."""
        if not self.copies:
            return np.empty(0, dtype=np.int64)
        return self.copies[0]


def sample_schema(columns: tuple[CountedColumn, ...]) -> pa.Schema:
    """Return the schema of sampled rows, with lengths for binaries and lists, without structs."""
    fields = []
    for column in columns:
        if column.value_kind in ("binary", "list"):
            fields.append(pa.field(column.name, pa.int64()))
        elif column.value_kind != "struct":
            fields.append(pa.field(column.name, column.type))
    return pa.schema(fields)


def _take_rows(batches: list[pa.RecordBatch], row_numbers: NDArray[np.int64]) -> pa.RecordBatch:
    """Select rows by their row number over all batches."""
    schema = batches[0].schema
    indices = pa.array(row_numbers)
    # Arrays are concatenated first, because ``take`` is slow for chunked arrays.
    columns = []
    for index in range(len(schema)):
        chunks = [batch.column(index) for batch in batches]
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        columns.append(take_values(column, indices))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass
class StatisticsState:
    """The counts, co-moments and sample of all rows so far, pickled in the compact binary format."""

    columns: tuple[CountedColumn, ...]
    seed: int
    sample: TableSample
    rows: int = 0
    counts: dict[str, ColumnCounts] = field(default_factory=dict)
    co_moments: CoMoments = field(default_factory=lambda: CoMoments.empty(0))

    def __reduce__(self) -> tuple[Callable[[bytes], StatisticsState], tuple[bytes]]:
        return state_from_bytes, (state_to_bytes(self),)


def merge(first: StatisticsState, second: StatisticsState) -> StatisticsState:
    """Merge the second state into the first state in place, and return it.

    Both states must have the same columns and the same seed.
    """
    first.rows += second.rows
    with np.errstate(over="ignore", invalid="ignore"):
        for name, counts in second.counts.items():
            first.counts[name] = first.counts[name].merge(counts)
        first.co_moments = first.co_moments.merge(second.co_moments)
    first.sample.merge(second.sample)
    return first


def state_to_bytes(state: StatisticsState) -> bytes:
    """Encode a state in the binary format."""
    state.sample.compact()
    # The header keys are part of the format: a renamed key requires new magic bytes.
    schema = pa.schema([(column.name, column.type) for column in state.columns])
    counts = {}
    for name, column_counts in state.counts.items():
        values: list[list[Value]] | None = None
        if column_counts.values is not None:
            # Not a JSON object, because its keys would be strings even for numbers.
            ordered = sorted(column_counts.values)
            values = [ordered, [column_counts.values[value] for value in ordered]]
        moments = vars(column_counts.moments)
        counts[name] = {**vars(column_counts), "moments": moments, "values": values}
    header = {
        "schema": schema_to_json(schema),
        "roles": [column.role for column in state.columns],
        "seed": state.seed,
        "rows": state.rows,
        "limit": state.sample.limit,
        "bound": int(state.sample.bound),
        "cut": state.sample.is_truncated,
        "counts": counts,
    }
    sections = (
        json.dumps(header).encode(),
        _encode_co_moments(state.co_moments),
        _encode_sample(state.sample),
    )
    digest = hashlib.sha256()
    chunks = [_MAGIC, b""]
    for section in sections:
        chunks += [len(section).to_bytes(_LENGTH_BYTES, "little"), section]
    # The digest covers the sections and their lengths, so that a truncated state is detected.
    for chunk in chunks[2:]:
        digest.update(chunk)
    chunks[1] = digest.digest()
    return b"".join(chunks)


def state_from_bytes(data: bytes) -> StatisticsState:
    """Decode a state that was encoded by ``state_to_bytes``.

    Raises:
        StorageError: The bytes are not a statistics state, or are damaged.
    """
    try:
        with translate_parse_errors("a statistics state"):
            return _parse_state(*_split_sections(_verify_content(data)))
    except MalformedJson as error:
        raise _damaged_state_error(str(error)) from error


def _parse_state(header_bytes: bytes, moment_bytes: bytes, sample_bytes: bytes) -> StatisticsState:
    """Parse the three sections of a state."""
    metadata = json.loads(header_bytes)
    schema = schema_from_json(metadata["schema"])
    columns = [
        CountedColumn(field.name, field.type, column_kind(field.type), role)
        for field, role in zip(schema, metadata["roles"], strict=True)
    ]
    sample = TableSample(
        sample_schema(tuple(columns)),
        metadata["limit"],
        np.uint64(metadata["bound"]),
        metadata["cut"],
    )
    # The sample is stored as one batch, which is empty for an empty sample.
    with pa.ipc.open_stream(pa.py_buffer(sample_bytes)) as reader:
        for batch in reader:
            if batch.num_rows:
                rows = pa.RecordBatch.from_arrays(batch.columns[2:], schema=sample.schema)
                sample.append(batch.column(0).to_numpy(), batch.column(1).to_numpy(), rows)
    counts = {name: _parse_counts(record) for name, record in metadata["counts"].items()}
    return StatisticsState(
        tuple(columns),
        metadata["seed"],
        sample,
        metadata["rows"],
        counts,
        _parse_co_moments(moment_bytes),
    )


def _verify_content(data: bytes) -> bytes:
    """Verify magic bytes and checksum, and return the bytes after them."""
    start = len(_MAGIC) + _DIGEST_BYTES
    content = data[start:]
    # The magic bytes are checked first, so that the error for a state of another version does not
    # mention a checksum.
    if data[: len(_MAGIC)] != _MAGIC:
        raise _damaged_state_error("the bytes do not have its format")
    if hashlib.sha256(content).digest() != data[len(_MAGIC) : start]:
        raise _damaged_state_error("its checksum does not match")
    return content


def _damaged_state_error(reason: str) -> StorageError:
    return StorageError(
        f"A statistics state is damaged: {reason}.", hint="recompute the statistics"
    )


def _split_sections(data: bytes) -> list[bytes]:
    """Split the content of a state into its sections, which are preceded by their lengths."""
    sections = []
    position = 0
    for _ in range(3):
        start = position + _LENGTH_BYTES
        end = start + int.from_bytes(data[position:start], "little")
        if len(data) < end or len(data) < start:
            raise MalformedJson("it is truncated")
        sections.append(data[start:end])
        position = end
    return sections


def _parse_counts(data: dict[str, Any]) -> ColumnCounts:
    """Parse the counts of one column in the header."""
    moments = data.pop("moments")
    total = data.pop("total")
    values = data.pop("values")
    if values is not None:
        values = dict(zip(*values, strict=True))
    # JSON has no tuples, so twofolds are stored as lists.
    if isinstance(total, list):
        total = tuple(total)
    return ColumnCounts(
        **data,
        total=total,
        values=values,
        moments=Moments(moments["n"], tuple(moments["mean"]), tuple(moments["square"])),
    )


def _encode_co_moments(co_moments: CoMoments) -> bytes:
    """Encode co-moments as an uncompressed ``npz`` file."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        "n": co_moments.n,
        "mean": np.stack(co_moments.mean),
        "square": np.stack(co_moments.square),
        "product": np.stack(co_moments.product),
    }
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _parse_co_moments(data: bytes) -> CoMoments:
    # Unpickling a stored file could execute code.
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        mean, square, product = arrays["mean"], arrays["square"], arrays["product"]
        return CoMoments(
            arrays["n"], (mean[0], mean[1]), (square[0], square[1]), (product[0], product[1])
        )


def _encode_sample(sample: TableSample) -> pa.Buffer:
    """Encode the sampled rows, preceded by columns for their hashes and copy counts."""
    rows = sample.rows()
    hashes = np.empty(0, dtype=np.uint64)
    if sample.hashes:
        hashes = sample.hashes[0]
    table = pa.RecordBatch.from_arrays(
        [pa.array(hashes), pa.array(sample.weights()), *rows.columns],
        [_HASH, _COPIES, *rows.schema.names],
    )
    return batch_to_bytes(table)


def batch_to_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """Encode a batch as an Arrow IPC stream, with LZ4 compression unless it is mostly floats.

    LZ4 does not compress floating-point numbers effectively.
    """
    float_bytes = sum(column.nbytes for column in batch.columns if pat.is_floating(column.type))
    is_mostly_floats = float_bytes > batch.nbytes // 2
    if is_mostly_floats:
        # Allocate the full size in advance, because a growing buffer would be copied repeatedly.
        size = pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size
        buffer = pa.allocate_buffer(size + _FRAMING_BYTES)
        sink = pa.FixedSizeBufferWriter(buffer)
    else:
        sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=None if is_mostly_floats else "lz4")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return buffer.slice(0, sink.tell()) if is_mostly_floats else sink.getvalue()
