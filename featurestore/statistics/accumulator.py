"""The accumulator of table statistics, and the binary format of its state.

A state contains the counts and co-moments of all rows, and the sample. The binary format is used to
store states next to tables and to send them between executors. It consists of magic bytes, a
SHA-256 digest, and three sections, each with an 8-byte little-endian length: a JSON header
(columns, counts), the co-moments as ``npz``, and the sample as an Arrow IPC stream with hashes and
copy counts.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.schemas import schema_from_json, schema_to_json
from featurestore.errors import StorageError
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.json_object import MalformedJson, translate_parse_errors
from featurestore.model.roles import Role
from featurestore.plugins.engine import Accumulator
from featurestore.statistics.counts import (
    ColumnCounts,
    count_measured,
    count_values,
    counts_from_lists,
    counts_to_lists,
    dictionary_encode,
)
from featurestore.statistics.moments import CoMoments, Moments, batch_moments, co_moments
from featurestore.statistics.sample import (
    Sample,
    add_lower_halves,
    is_within_bound,
    sample_limit,
    sample_schema,
    to_hashable_rows,
    to_sampled_rows,
    upper_halves,
)
from featurestore.statistics.values import (
    CountedColumn,
    Values,
    column_kind,
    counted_columns,
    measured_values,
    paired_columns,
)

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

# The expected number of rows with hashes below the bound, relative to the sample size. With this
# margin, random variation rarely makes the sample too small.
_SAMPLE_MARGIN = 1.1
# The last character is the version of the format. States of other versions are not converted: the
# statistics are recomputed from the table.
_MAGIC = b"FSSTATE5"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
# An upper bound for the size of IPC framing around the schema and the rows.
_FRAMING_BYTES = 1_024


@dataclass
class StatisticsState:
    """The counts, co-moments and sample of all rows so far, pickled in the compact binary format."""

    columns: tuple[CountedColumn, ...]
    seed: int
    sample: Sample
    rows: int = 0
    counts: dict[str, ColumnCounts] = field(default_factory=dict)
    co_moments: CoMoments = field(default_factory=lambda: CoMoments.empty(0))

    def __reduce__(self) -> tuple[Callable[[bytes], StatisticsState], tuple[bytes]]:
        return state_from_bytes, (state_to_bytes(self),)


@dataclass(frozen=True)
class StatisticsAccumulator(Accumulator[StatisticsState, StatisticsState]):
    """Accumulator of table statistics.

    ``limit`` is the maximum number of distinct rows in the sample. Only rows with hashes up to
    ``bound`` are sampled, so that the states of all partitions together contain only slightly more
    rows than one sample.
    """

    columns: tuple[CountedColumn, ...]
    seed: int
    limit: int
    bound: int | None = None

    def start(self) -> StatisticsState:
        """Return an empty state."""
        return empty_state(self.columns, seed=self.seed, limit=self.limit, bound=self.bound)

    def update(self, state: StatisticsState, batch: pa.RecordBatch) -> StatisticsState:
        """Add the rows of a batch to the state in place."""
        if not batch.num_rows:
            return state
        state.rows += batch.num_rows
        # Columns with too many distinct strings are not probed again in later batches.
        repeating_names = [each.name for each in self.columns if self._has_few_strings(state, each)]
        batch = dictionary_encode(batch, repeating_names)
        # Squares of values near the limits of float64 overflow; statistics computed from them are
        # reported as missing.
        with np.errstate(over="ignore", invalid="ignore"):
            measured = self._update_counts(state, batch)
        _add_to_sample(batch, measured, state.sample, self.seed)
        return state

    def _has_few_strings(self, state: StatisticsState, column: CountedColumn) -> bool:
        return column.kind == "text" and state.counts[column.name].values is not None

    def _update_counts(self, state: StatisticsState, batch: pa.RecordBatch) -> dict[str, Values]:
        """Update the counts of all columns, and return the values of the measured columns."""
        measured, batch_counts = {}, {}
        for column in self.columns:
            name, values = column.name, batch.column(column.name)
            few_values = state.counts[name].values is not None
            if column.measured:
                measured[name] = measured_values(values)
                batch_counts[name] = count_measured(measured[name], counts_distinct=few_values)
            else:
                batch_counts[name] = count_values(column, values, counts_distinct=few_values)
        # Moments are added after all columns are measured, because co-moments need the columns of a
        # batch together.
        self._add_moments(state, measured, batch_counts)
        for name, counts in batch_counts.items():
            state.counts[name] = state.counts[name].merge(counts)
        return measured

    def _add_moments(
        self,
        state: StatisticsState,
        measured: Mapping[str, Values],
        batch_counts: Mapping[str, ColumnCounts],
    ) -> None:
        """Add the moments of measured columns and the co-moments of column pairs."""
        pairwise = [column.name for column in paired_columns(self.columns)]
        for name, values in measured.items():
            if name not in pairwise:
                batch_counts[name].moments = batch_moments(values)
        if pairwise:
            # The diagonal of the co-moments has the moments of each column, so they are not
            # computed twice.
            pair_moments = co_moments([measured[name] for name in pairwise])
            for index, name in enumerate(pairwise):
                batch_counts[name].moments = pair_moments.column_moments(index)
            state.co_moments = state.co_moments.merge(pair_moments)

    def merge(self, first: StatisticsState, second: StatisticsState) -> StatisticsState:
        """Merge the second state into the first state in place."""
        return merge(first, second)

    def finish(self, state: StatisticsState) -> StatisticsState:
        """Compact the sample and return the state."""
        state.sample.compact()
        return state


def statistics_accumulator(
    table: FeatureGroupSpec | pa.Schema,
    *,
    seed: int = 0,
    limit: int | None = None,
    rows: int | None = None,
    roles: Mapping[str, Role] | None = None,
) -> StatisticsAccumulator:
    """Return an accumulator of table statistics, for ``Engine.aggregate``.

    Args:
        table: The spec of a feature group, or a schema of feature types. Keys and times of a group
            are excluded from the correlations.
        seed: The seed of the row hashes that select the sample.
        limit: The maximum number of distinct rows in the sample; None for 25,000, or fewer if the
            table has more than 128 columns.
        rows: The number of rows, if known, so that each partition samples only its share. If many
            rows are duplicates, the sample is smaller than ``limit``; ``count_statistics`` then
            repeats the aggregation without a bound.
        roles: The column roles of a training dataset; only inputs and labels are correlated.

    >>> accumulator = statistics_accumulator(pa.schema([("age", pa.int64())]))
    >>> batch = pa.RecordBatch.from_pydict({"age": [31, 45]})
    >>> state = accumulator.update(accumulator.start(), batch)
    >>> accumulator.finish(state).rows
    2
    """
    columns = counted_columns(table, roles=roles)
    if limit is None:
        limit = sample_limit(len(columns))
    bound = None
    if rows is not None and rows > limit * _SAMPLE_MARGIN:
        bound = int(2**64 * limit * _SAMPLE_MARGIN / rows)
    return StatisticsAccumulator(columns, seed, limit, bound)


def count_statistics(
    engine: Engine,
    relation: Relation,
    table: FeatureGroupSpec | pa.Schema,
    *,
    rows: int | None = None,
    seed: int = 0,
) -> StatisticsState:
    """Aggregate the statistics of a relation and return the state.

    Args:
        engine: The engine of the relation.
        relation: The rows. They are read a second time if many rows are duplicates, except for a
            single-use relation.
        table: The same argument as for ``statistics_accumulator``.
        rows: The number of rows, if known.
        seed: The seed of the row hashes that select the sample.
    """
    # A single-use relation can neither be counted first nor be read again if the sample is too
    # small, so its sample has no bound.
    if not relation.single_use:
        if rows is None:
            rows = engine.count(relation)
        accumulator = statistics_accumulator(table, seed=seed, rows=rows)
        state = engine.aggregate(relation, accumulator)
        if not is_sample_short(accumulator, state):
            return state
    return engine.aggregate(relation, statistics_accumulator(table, seed=seed))


def is_sample_short(accumulator: StatisticsAccumulator, state: StatisticsState) -> bool:
    """Return True if a bounded sample is too small because many rows are duplicates."""
    if accumulator.bound is None:
        return False
    state.sample.compact()
    return len(state.sample.weights()) < accumulator.limit


def empty_state(
    columns: tuple[CountedColumn, ...], *, seed: int, limit: int, bound: int | None = None
) -> StatisticsState:
    """Return a state without rows."""
    sample = Sample(sample_schema(columns), limit)
    # Rows above the bound are never added, so the sample counts as truncated from the start.
    if bound is not None:
        sample = Sample(sample_schema(columns), limit, np.uint64(bound), is_truncated=True)
    return StatisticsState(
        columns,
        seed,
        sample,
        counts={column.name: ColumnCounts() for column in columns},
        co_moments=CoMoments.empty(len(paired_columns(columns))),
    )


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


def _add_to_sample(
    batch: pa.RecordBatch, measured: Mapping[str, Values], sample: Sample, seed: int
) -> None:
    """Add those rows of a batch to the sample whose hashes are within the bound."""
    # A table that contains only structs has no sampled columns. All of its rows have the same hash
    # and count as copies of one empty row.
    if not sample.schema.names:
        sample.add(np.zeros(batch.num_rows, dtype=np.uint64), batch.select([]))
        return
    rows = to_hashable_rows(batch, sample.schema)
    hashes = upper_halves(rows, measured, seed=seed)
    # Rows are filtered before their strings are shortened and their lower halves are computed,
    # which is expensive.
    if sample.is_truncated:
        is_candidate = is_within_bound(hashes, sample.bound)
        hashes, rows = hashes[is_candidate], rows.filter(pa.array(is_candidate))
    rows = to_sampled_rows(rows)
    sample.add(add_lower_halves(hashes, rows, seed=seed), rows)


_HASH, _COPIES = "__fs_hash", "__fs_copies"


def state_to_bytes(state: StatisticsState) -> bytes:
    """Encode a state in the binary format."""
    state.sample.compact()
    # The header keys are part of the format: a renamed key requires new magic bytes.
    schema = pa.schema([(each.name, each.type) for each in state.columns])
    roles = [each.role for each in state.columns]
    counts = {}
    for name, each in state.counts.items():
        counts[name] = {**vars(each), "moments": vars(each.moments)}
        counts[name]["values"] = counts_to_lists(each.values)
    header = {
        "schema": schema_to_json(schema),
        "roles": roles,
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
    sample = Sample(
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
    counts = {name: _parse_counts(each) for name, each in metadata["counts"].items()}
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
    values = counts_from_lists(data.pop("values"))
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


def _encode_sample(sample: Sample) -> pa.Buffer:
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
    float_bytes = 0
    for column in batch.columns:
        if pa.types.is_floating(column.type):
            float_bytes += column.nbytes
    if float_bytes > batch.nbytes // 2:
        # Allocate the full size in advance, because a growing buffer would be copied repeatedly.
        size = pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size
        buffer = pa.allocate_buffer(size + _FRAMING_BYTES)
        sink = pa.FixedSizeBufferWriter(buffer)
        _write_stream(sink, batch, None)
        return buffer.slice(0, sink.tell())
    sink = pa.BufferOutputStream()
    _write_stream(sink, batch, "lz4")
    return sink.getvalue()


def _write_stream(sink: pa.NativeFile, batch: pa.RecordBatch, compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
