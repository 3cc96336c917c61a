"""The accumulator of a table's statistics, and the binary format of its state.

A state has counts and co-moments of all rows, and the sample. Its format is stored with tables and
sent between executors: magic, then three sections, each an 8-byte little-endian length and its bytes:
a JSON header (columns, counts), the co-moments as an ``npz``, the sample as an Arrow IPC stream with
its hashes and copies.
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
    with_dictionaries,
)
from featurestore.statistics.moments import CoMoments, Moments, batch_moments, co_moments
from featurestore.statistics.sample import (
    Sample,
    hashable_rows,
    sample_limit,
    sample_schema,
    sampled_rows,
    upper_halves,
    with_lower_halves,
    within_bound,
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

# On average this multiple of the sample size has hashes below the bound, so that random variation
# rarely leaves the sample short.
_MARGIN = 1.1
_MAGIC = b"FSSTATE5"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
# Upper bound of the IPC framing around the schema and the rows.
_FRAMING_BYTES = 1_024


@dataclass
class StatisticsState:
    """The counts of all rows so far. Pickled in the compact format of ``codec``."""

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
    """Accumulator of the statistics of a table.

    ``limit`` is the maximum number of distinct rows in the sample. Only rows with hashes up to
    ``bound`` are sampled, so that the states of all partitions together hold about one sample.
    """

    columns: tuple[CountedColumn, ...]
    seed: int
    limit: int
    bound: int | None = None

    def start(self) -> StatisticsState:
        """Return the state of no rows."""
        return empty_state(self.columns, seed=self.seed, limit=self.limit, bound=self.bound)

    def update(self, state: StatisticsState, batch: pa.RecordBatch) -> StatisticsState:
        """Count the rows of a batch in place."""
        if not batch.num_rows:
            return state
        state.rows += batch.num_rows
        repeating_texts = [each.name for each in self.columns if self._has_few_texts(state, each)]
        batch = with_dictionaries(batch, repeating_texts)
        # Squares of values near the limits of float64 overflow; statistics computed from them are
        # reported as missing.
        with np.errstate(over="ignore", invalid="ignore"):
            measured = self._count(state, batch)
        _add_to_sample(batch, measured, state.sample, self.seed)
        return state

    def _has_few_texts(self, state: StatisticsState, column: CountedColumn) -> bool:
        return column.kind == "text" and state.counts[column.name].values is not None

    def _count(self, state: StatisticsState, batch: pa.RecordBatch) -> dict[str, Values]:
        """Count each column and return the values of numeric, boolean and time columns."""
        measured, batch_counts = {}, {}
        for column in self.columns:
            name, values = column.name, batch.column(column.name)
            few_values = state.counts[name].values is not None
            if column.measured:
                measured[name] = measured_values(values)
                batch_counts[name] = count_measured(measured[name], few_values=few_values)
            else:
                batch_counts[name] = count_values(column, values, few_values=few_values)
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
        """Add the moments of each column and of each pair of columns."""
        pairwise = [column.name for column in paired_columns(self.columns)]
        for name, values in measured.items():
            if name not in pairwise:
                batch_counts[name].moments = batch_moments(values)
        if pairwise:
            pair_moments = co_moments([measured[name] for name in pairwise])
            for index, name in enumerate(pairwise):
                batch_counts[name].moments = pair_moments.column_moments(index)
            state.co_moments = state.co_moments.merge(pair_moments)

    def merge(self, first: StatisticsState, second: StatisticsState) -> StatisticsState:
        """Add the second state to the first one in place."""
        return merge(first, second)

    def finish(self, state: StatisticsState) -> StatisticsState:
        """Return the state with its sample compacted."""
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
    """Return the accumulator that counts a table, for ``Engine.aggregate``.

    Args:
        table: The spec of a feature group, whose keys and times are excluded from the correlations,
            or a schema of feature types.
        seed: Seed of the row hashes that choose the sample.
        limit: Distinct rows in the sample; 25,000, fewer above 128 columns, when None.
        rows: The number of rows, if known: each partition then samples its share only. The sample
            is smaller than ``limit`` if many rows are copies (``count_statistics`` counts again
            without a bound then).
        roles: The roles of a training dataset's columns; only inputs and labels are correlated.

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
    if rows is not None and rows > limit * _MARGIN:
        bound = int(2**64 * limit * _MARGIN / rows)
    return StatisticsAccumulator(columns, seed, limit, bound)


def count_statistics(
    engine: Engine,
    relation: Relation,
    table: FeatureGroupSpec | pa.Schema,
    *,
    rows: int | None = None,
    seed: int = 0,
) -> StatisticsState:
    """Return the counted state of a relation.

    Args:
        engine: The engine that holds the relation.
        relation: The rows; a relation over a stream is read once, others twice if many rows are
            copies.
        table: As for ``statistics_accumulator``.
        rows: The number of rows, if known.
        seed: Seed of the row hashes that choose the sample.
    """
    if not relation.single_use:
        if rows is None:
            rows = engine.count(relation)
        accumulator = statistics_accumulator(table, seed=seed, rows=rows)
        state = engine.aggregate(relation, accumulator)
        if not is_sample_short(accumulator, state):
            return state
    return engine.aggregate(relation, statistics_accumulator(table, seed=seed))


def is_sample_short(accumulator: StatisticsAccumulator, state: StatisticsState) -> bool:
    """Return True if a bounded accumulator sampled too few rows because many are copies."""
    if accumulator.bound is None:
        return False
    state.sample.compact()
    return len(state.sample.weights()) < accumulator.limit


def empty_state(
    columns: tuple[CountedColumn, ...], *, seed: int, limit: int, bound: int | None = None
) -> StatisticsState:
    """Return the state of no rows."""
    sample = Sample(sample_schema(columns), limit)
    if bound is not None:
        sample = Sample(sample_schema(columns), limit, np.uint64(bound), is_truncated=True)
    return StatisticsState(
        columns,
        seed,
        sample,
        counts={each.name: ColumnCounts() for each in columns},
        co_moments=CoMoments.empty(len(paired_columns(columns))),
    )


def merge(first: StatisticsState, second: StatisticsState) -> StatisticsState:
    """Add the second state to the first one, in place, and return it.

    Both count the same columns with the same seed.
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
    """Add the rows of a batch whose hashes are within the bound to the sample."""
    if not sample.schema.names:
        sample.add(np.zeros(batch.num_rows, dtype=np.uint64), batch.select([]))
        return
    rows = hashable_rows(batch, sample.schema)
    hashes = upper_halves(rows, measured, seed=seed)
    if sample.is_truncated:
        is_candidate = within_bound(hashes, sample.bound)
        hashes, rows = hashes[is_candidate], rows.filter(pa.array(is_candidate))
    rows = sampled_rows(rows)
    sample.add(with_lower_halves(hashes, rows, seed=seed), rows)


_HASH, _COPIES = "__fs_hash", "__fs_copies"


def state_to_bytes(state: StatisticsState) -> bytes:
    """Encode a state for ``state_from_bytes``."""
    state.sample.compact()
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
    for chunk in chunks[2:]:
        digest.update(chunk)
    chunks[1] = digest.digest()
    return b"".join(chunks)


def state_from_bytes(data: bytes) -> StatisticsState:
    """Decode the state that ``state_to_bytes`` encoded.

    Raises:
        StorageError: The bytes are not a state of statistics, or are damaged.
    """
    try:
        with translate_parse_errors("a state of statistics"):
            return _parse_state(*_split_sections(_verified_content(data)))
    except MalformedJson as error:
        raise _damaged(str(error)) from error


def _parse_state(header_bytes: bytes, moment_bytes: bytes, sample_bytes: bytes) -> StatisticsState:
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


def _verified_content(data: bytes) -> bytes:
    """Verify magic bytes and checksum, and return the bytes after them."""
    start = len(_MAGIC) + _DIGEST_BYTES
    content = data[start:]
    if data[: len(_MAGIC)] != _MAGIC:
        raise _damaged("these bytes are something else")
    if hashlib.sha256(content).digest() != data[len(_MAGIC) : start]:
        raise _damaged("its checksum does not fit")
    return content


def _damaged(reason: str) -> StorageError:
    return StorageError(
        f"A state of statistics is damaged: {reason}.", hint="compute the statistics again"
    )


def _split_sections(data: bytes) -> list[bytes]:
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
    moments = data.pop("moments")
    total = data.pop("total")
    values = counts_from_lists(data.pop("values"))
    if isinstance(total, list):
        total = tuple(total)
    return ColumnCounts(
        **data,
        total=total,
        values=values,
        moments=Moments(moments["n"], tuple(moments["mean"]), tuple(moments["square"])),
    )


def _encode_co_moments(co_moments: CoMoments) -> bytes:
    buffer = io.BytesIO()
    arrays = {
        "n": co_moments.n,
        "mean": np.stack(co_moments.mean),
        "square": np.stack(co_moments.square),
        "product": np.stack(co_moments.product),
    }
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _parse_co_moments(data: bytes) -> CoMoments:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        mean, square, product = arrays["mean"], arrays["square"], arrays["product"]
        return CoMoments(
            arrays["n"], (mean[0], mean[1]), (square[0], square[1]), (product[0], product[1])
        )


def _encode_sample(sample: Sample) -> pa.Buffer:
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
    """Return a batch as an Arrow IPC stream, compressed with LZ4 unless it is mostly floats.

    LZ4 does not shrink floating-point numbers.
    """
    float_bytes = 0
    for column in batch.columns:
        if pa.types.is_floating(column.type):
            float_bytes += column.nbytes
    if float_bytes > batch.nbytes // 2:
        # Allocate the full size up front: a growing stream is copied at each growth.
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
