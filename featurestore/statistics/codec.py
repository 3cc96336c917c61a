"""Binary format of statistics states, as stored with tables and sent between executors.

Layout: magic, then three sections, each an 8-byte little-endian length and its bytes: a JSON header
(columns, counts), the co-moments as an ``npz``, the sample as an Arrow IPC stream with its hashes
and copies.
"""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.schemas import schema_from_json, schema_to_json
from featurestore.errors import StorageError
from featurestore.model.json_object import MalformedJson, parsing
from featurestore.statistics.accumulator import StatisticsState
from featurestore.statistics.counts import ColumnCounts
from featurestore.statistics.kinds import CountedColumn, column_kind
from featurestore.statistics.moments import CoMoments, Moments
from featurestore.statistics.sample import Sample, sample_schema
from featurestore.statistics.value_counts import counts_from_lists, counts_to_lists

_MAGIC = b"FSSTATE5"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
# Upper bound of the IPC framing around the schema and the rows.
_FRAMING_BYTES = 1_024
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
        with parsing("a state of statistics"):
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
    _decode_sample(sample, sample_bytes)
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


def _decode_sample(sample: Sample, data: bytes) -> None:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        for batch in reader:
            if batch.num_rows:
                rows = pa.RecordBatch.from_arrays(batch.columns[2:], schema=sample.schema)
                sample.append(batch.column(0).to_numpy(), batch.column(1).to_numpy(), rows)
